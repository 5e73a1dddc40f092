"""MiniLM: golden values and gradients, and its ablations as settings."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import FeatureKey, Features, Kind
from kdcore.objective import Loss
from kdcore.token_losses import attention_divergence, hidden_distance, probabilities, relation_divergence
from tests.general.golden import CUTS, EQUAL, UNEQUAL, loss_of, objective_of
from tests.general.toys import SMALLER, batch_of, features_of, phases_of, toys
from tests.methods.golden import DTYPES
from tests.methods.toys import progress
from tests.test_losses import GRADIENT, vectors
from tests.test_token_losses import heads

ROWS = torch.tensor([3, 0, 9, 14])


@pytest.fixture
def data(golden: Path) -> dict[str, Tensor]:
    return vectors(golden, "11_minilm")


def features(data: dict[str, Tensor], side: str, layer: int, dtype: torch.dtype = torch.float64) -> Features:
    """Queries, keys, values and scores of one layer."""
    query, key, value = (heads(data[f"in.{name}_{side}"].to(dtype), 2) for name in "qkv")
    values: dict[Kind, Tensor] = {"query": query, "key": key, "value": value,
                                  "scores": query @ key.mT / query.shape[-1] ** 0.5}
    return Features({FeatureKey(kind, layer): tensor for kind, tensor in values.items()}, data["in.mask"].long())


def toy_loss(**settings: object) -> tuple[Loss, Features, Features]:
    """Of three student layers and six of the teacher's, and what was read."""
    objective = objective_of("minilm", SMALLER, **settings)
    student, teacher = features_of(toys(SMALLER), objective.needs, ROWS)
    return objective(student, teacher, batch_of(SMALLER, ROWS, ROWS), progress(0)), student, teacher


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_golden_values(data: dict[str, Tensor], cut: tuple[int, ...], dtype: torch.dtype) -> None:
    loss = loss_of(objective_of("minilm", UNEQUAL, dtype), features(data, "student", 4, dtype),
                   features(data, "teacher", 8, dtype), cut)
    for values, expected in ((loss.parts["attention"], "l_at"), (loss.parts["value_relation"], "l_vr"),
                             (loss.total, "l_total")):
        torch.testing.assert_close(values.mean(), data[f"out.{expected}"].to(dtype), **DTYPES[dtype])


def test_golden_gradients(data: dict[str, Tensor]) -> None:
    for name in ("q_student", "v_student"):
        data[f"in.{name}"] = (data[f"in.{name}"] * data["in.mask"][:, :, None]).requires_grad_()
    loss_of(objective_of("minilm", UNEQUAL), features(data, "student", 4), features(data, "teacher", 8),
            (1, 3)).total.mean().backward()
    for name in ("q_student", "v_student"):
        torch.testing.assert_close(data[f"in.{name}"].grad, data[f"grad.l_total__{name}"], **GRADIENT)


def test_a_twin_has_learned_all() -> None:
    objective = objective_of("minilm", replace(SMALLER, teacher=SMALLER.student))
    student, _ = toys(SMALLER)
    twins = student.features(ROWS, objective.needs.student), student.features(ROWS, objective.needs.teacher)
    assert objective(*twins, batch_of(SMALLER, ROWS), progress(0)).total.abs().max() < 1e-12


def test_no_word_is_masked_and_nothing_is_learned_beside_the_student() -> None:
    objective = objective_of("minilm", SMALLER)
    assert not objective.masks_tokens
    assert not list(objective.parameters())
    assert objective.needs.student == {FeatureKey("scores", 3), FeatureKey("value", 3)}
    assert objective.needs.teacher == {FeatureKey("scores", 6), FeatureKey("value", 6)}


# Ablations and options


def test_without_value_relation_values_are_not_read() -> None:
    objective = objective_of("minilm", SMALLER, values="none")
    assert objective.needs.student == {FeatureKey("scores", 3)}
    loss, *_ = toy_loss(values="none")
    torch.testing.assert_close(loss.total, toy_loss()[0].parts["attention"])


def test_value_mse_is_the_mean_over_tokens_of_the_step_and_the_teachers_width() -> None:
    objective = objective_of("minilm", SMALLER, values="mse")
    assert sum(p.numel() for p in objective.parameters()) == 48 * 96 + 96
    student, teacher = features_of(toys(SMALLER), objective.needs, ROWS)
    loss = objective(student, teacher, batch_of(SMALLER, ROWS, ROWS), progress(0))
    ours, theirs = (side[FeatureKey("value", layer)].transpose(1, 2).flatten(2)
                    for side, layer in ((student, 3), (teacher, 6)))
    real = student.token_mask.bool()
    gaps = objective.bridge.student.maps[0](ours[real]) - theirs[real]
    torch.testing.assert_close(loss.parts["value_mse"].mean(), (gaps**2).mean())
    assert set(loss.parts) == {"attention", "value_mse"}


def test_values_of_equal_width_are_compared_as_they_are() -> None:
    objective = objective_of("minilm", EQUAL, values="mse")
    assert not list(objective.parameters())
    generator = torch.Generator().manual_seed(1)
    ours, theirs = (torch.randn(4, 2, 7, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(4, 7, dtype=torch.int64)
    scores = torch.zeros(4, 2, 7, 7, dtype=torch.float64)
    loss = loss_of(objective, Features({FeatureKey("value", 4): ours, FeatureKey("scores", 4): scores}, mask),
                   Features({FeatureKey("value", 8): theirs, FeatureKey("scores", 8): scores}, mask))
    torch.testing.assert_close(loss.total, ((ours - theirs) ** 2).mean(dim=(1, 2, 3)))
    joined = (side.transpose(1, 2).flatten(2) for side in (ours, theirs))
    torch.testing.assert_close(loss.total, hidden_distance(*joined, mask))


def test_layer_to_layer_sums_over_the_uniform_map_and_logs_each_layer() -> None:
    """Lesson A45: 1 learns from 2, 2 from 4, 3 from 6."""
    loss, student, teacher = toy_loss(layers="layer_to_layer")
    mask = student.token_mask
    attention = [attention_divergence(student[FeatureKey("scores", j)],
                                      probabilities(teacher[FeatureKey("scores", 2 * j)], mask), mask)
                 for j in (1, 2, 3)]
    values = [relation_divergence(student[FeatureKey("value", j)], teacher[FeatureKey("value", 2 * j)], mask)
              for j in (1, 2, 3)]
    torch.testing.assert_close(loss.total, sum(attention) + sum(values))
    for name, summands in (("attention", attention), ("value_relation", values)):
        for layer, expected in enumerate(summands, 1):
            torch.testing.assert_close(loss.diagnostics[f"{name}/{layer}"], expected.mean())
    assert len(loss.diagnostics) == 6
    assert not toy_loss()[0].diagnostics, "of one layer the parts say it all"


def test_weights_and_teacher_layer() -> None:
    plain, *_ = toy_loss()
    weighed, *_ = toy_loss(attention_weight=2, value_weight=0.5)
    torch.testing.assert_close(weighed.total, 2 * plain.parts["attention"] + 0.5 * plain.parts["value_relation"])
    assert objective_of("minilm", SMALLER, teacher_layer=4).needs.teacher == {FeatureKey("scores", 4),
                                                                             FeatureKey("value", 4)}


# What does not fit


def test_unequal_head_counts_are_refused_in_favour_of_relation_heads() -> None:
    """Lesson A17."""
    other = replace(SMALLER, student=replace(SMALLER.student, heads=6))
    with pytest.raises(UserError, match=r"methods\.minilm: .* teacher has 4 heads and the student 6; .* minilmv2"):
        phases_of("minilm", other)
    assert phases_of("minilmv2", other)


@pytest.mark.parametrize(("settings", "says"), [
    ({"teacher_layer": 7}, "teacher_layer is 7, expected 1..6"),
    ({"teacher_layer": 0}, "teacher_layer is 0, expected 1..6"),
    ({"layers": "layer_to_layer", "teacher_layer": 3}, "teacher_layer goes with layers: last"),
    ({"values": "none", "value_weight": 0.5}, "value_weight does nothing with values: none"),
    ({"values": "relations"}, "'relation', 'mse' or 'none'"),
])
def test_what_does_not_fit_is_refused_by_name(settings: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as caught:
        phases_of("minilm", SMALLER, **settings)
    assert str(caught.value).startswith("methods.minilm: ")
    assert says in str(caught.value)


def test_layer_to_layer_needs_depths_that_divide() -> None:
    other = replace(SMALLER, student=replace(SMALLER.student, layers=4))
    assert phases_of("minilm", other)
    with pytest.raises(UserError, match=r"methods\.minilm: .*teacher of 6 layers .* student of 4"):
        phases_of("minilm", other, layers="layer_to_layer")
