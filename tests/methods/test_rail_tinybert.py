"""RAIL's draw with TinyBERT's knowledge: by hand, as a cell of layer_kd, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from kdcore.errors import UserError
from kdcore.features import LOGITS, layer_keys
from kdcore.token_losses import hidden_distance, score_distance
from tests.methods.golden import objective_of, parameters_of
from tests.methods.test_layer_kd import loss_of
from tests.methods.toys import CLASSIFICATION, progress, toys

IDS = torch.arange(8)


def test_by_hand() -> None:
    objective = objective_of("rail_tinybert", CLASSIFICATION)
    models = toys(CLASSIFICATION)
    loss = loss_of(objective, models, step=4)
    drawn = [int(loss.diagnostics[f"layer/{slot}"]) for slot in (1, 2)]
    read = {*layer_keys("hidden", drawn), *layer_keys("scores", drawn)}
    assert objective.needs_at(progress(4)).teacher == {LOGITS} | read
    keys = frozenset((*layer_keys("hidden", range(7)), *layer_keys("scores", range(7))))
    student = models[0].features(IDS, frozenset(key for key in keys if key.layer <= 3))
    teacher = models[1].features(IDS, keys)
    (linear,) = objective.knowledge["hidden"].bridge.student.maps
    hidden = sum(hidden_distance(linear(student[ours]), teacher[theirs], student.mask)
                 for ours, theirs in zip(layer_keys("hidden", (1, 2)), layer_keys("hidden", drawn), strict=True))
    scores = sum(score_distance(student[ours], teacher[theirs], student.mask)
                 for ours, theirs in zip(layer_keys("scores", (1, 2)), layer_keys("scores", drawn), strict=True))
    torch.testing.assert_close(loss.parts["hidden"], hidden)
    torch.testing.assert_close(loss.parts["attention_scores"], scores)
    expected = (loss.parts["label"] + loss.parts["kd"] + hidden + scores) / 3
    torch.testing.assert_close(loss.total, expected)


def test_it_is_a_cell_of_layer_kd_with_the_draws_of_rail() -> None:
    models, rail = toys(CLASSIFICATION), objective_of("rail_kd_l", CLASSIFICATION, resample="step")
    named = objective_of("rail_tinybert", CLASSIFICATION, resample="step")
    knowledge = {"hidden": 1.0, "attention_scores": 1.0}
    cell = objective_of("layer_kd", CLASSIFICATION, resample="step", knowledge=knowledge)
    for step in range(5):
        torch.testing.assert_close(loss_of(named, models, step).total, loss_of(cell, models, step).total)
        assert {k.layer for k in named.needs_at(progress(step)).teacher} == {
            k.layer for k in rail.needs_at(progress(step)).teacher}


def test_one_map_for_all_layers_also_where_widths_agree() -> None:
    assert parameters_of(objective_of("rail_tinybert", CLASSIFICATION)) == 24 * (16 + 1)
    twins = replace(CLASSIFICATION, teacher=replace(CLASSIFICATION.teacher, width=16))
    assert parameters_of(objective_of("rail_tinybert", twins)) == 16 * (16 + 1)


def test_unequal_heads_are_refused() -> None:
    setting = replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, heads=2))
    with pytest.raises(UserError, match=r"^attention_scores is compared head by head, .* 4 heads .* or layer_kd with "):
        objective_of("rail_tinybert", setting)
