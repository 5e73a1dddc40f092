"""RAIL's draw with MiniLM's knowledge: by hand, as a cell of layer_kd, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from kdcore.errors import UserError
from kdcore.features import LOGITS, layer_keys
from kdcore.token_losses import attention_divergence, probabilities, relation_scores
from tests.methods.golden import objective_of
from tests.methods.test_layer_kd import loss_of
from tests.methods.toys import CLASSIFICATION, progress, toys

IDS = torch.arange(8)


def test_by_hand() -> None:
    objective = objective_of("rail_minilm", CLASSIFICATION)
    models = toys(CLASSIFICATION)
    loss = loss_of(objective, models, step=4)
    drawn = [int(loss.diagnostics[f"layer/{slot}"]) for slot in (1, 2)]
    read = {*layer_keys("scores", drawn), *layer_keys("value", drawn)}
    assert objective.needs_at(progress(4)).teacher == {LOGITS} | read
    keys = frozenset((*layer_keys("value", range(7)), *layer_keys("scores", range(7))))
    student = models[0].features(IDS, frozenset(key for key in keys if key.layer <= 3))
    teacher, mask = models[1].features(IDS, keys), student.mask
    attention = sum(attention_divergence(student[ours], probabilities(teacher[theirs], mask), mask)
                    for ours, theirs in zip(layer_keys("scores", (1, 2)), layer_keys("scores", drawn), strict=True))
    values = sum(
        attention_divergence(relation_scores(student[ours], mask), probabilities(relation_scores(teacher[theirs], mask),
                                                                                  mask), mask)
        for ours, theirs in zip(layer_keys("value", (1, 2)), layer_keys("value", drawn), strict=True))
    torch.testing.assert_close(loss.parts["attention"], attention)
    torch.testing.assert_close(loss.parts["value_relations"], values)
    expected = (loss.parts["label"] + loss.parts["kd"] + attention + values) / 3
    torch.testing.assert_close(loss.total, expected)


def test_it_is_a_cell_of_layer_kd_with_the_draws_of_rail() -> None:
    models, rail = toys(CLASSIFICATION), objective_of("rail_kd_l", CLASSIFICATION, resample="step")
    named = objective_of("rail_minilm", CLASSIFICATION, resample="step")
    knowledge = {"attention": 1.0, "value_relations": 1.0}
    cell = objective_of("layer_kd", CLASSIFICATION, resample="step", knowledge=knowledge)
    for step in range(5):
        torch.testing.assert_close(loss_of(named, models, step).total, loss_of(cell, models, step).total)
        assert {k.layer for k in named.needs_at(progress(step)).teacher} == {
            k.layer for k in rail.needs_at(progress(step)).teacher}


def test_nothing_is_learned_beside_the_student() -> None:
    assert not list(objective_of("rail_minilm", CLASSIFICATION).parameters())


def test_unequal_heads_are_refused() -> None:
    setting = replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, heads=2))
    with pytest.raises(UserError, match=r"^attention is compared head by head, .* 4 heads .* or layer_kd with "):
        objective_of("rail_minilm", setting)
