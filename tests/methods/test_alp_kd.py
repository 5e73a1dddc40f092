"""ALP-KD: golden values, the attention and what restricts it, totals, widths."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features, layer_keys
from kdcore.losses import kd_loss, label_loss
from kdcore.objective import Batch, Dims, Objective
from tests.methods.golden import DTYPES, EQUAL, UNEQUAL, features, loss_of, objective_of, parameters_of
from tests.methods.toys import progress
from tests.test_losses import GRADIENT, vectors

Stacks = tuple[Tensor, Tensor]


@pytest.fixture
def stacks() -> Stacks:
    """Hidden states of student (4 layers) and teacher (8), both of width 8."""
    generator = torch.Generator().manual_seed(4)
    return tuple(torch.randn(layers + 1, 4, 7, 8, generator=generator, dtype=torch.float64) for layers in (4, 8))


# Golden vectors


def projected(data: dict[str, Tensor], dtype: torch.dtype) -> Objective:
    """For unequal widths, with the golden maps."""
    objective = objective_of("alp_kd", UNEQUAL, dtype, width=5)
    for side in ("student", "teacher"):
        (linear,) = getattr(objective.bridge, side).maps
        linear.weight.data = data[f"in.w_{side}"].T.contiguous().to(dtype)
        linear.bias.data = data[f"in.b_{side}"].to(dtype)
    return objective


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("expected", "settings"),
    [("equal_loss", {}), ("equal_loss_layermean", {"reduction": "mean"}), ("equal_scaled_loss", {"scaled": True}),
     ("projected_loss", None)],
    ids=str,
)
def test_golden_value(golden: Path, expected: str, settings: dict[str, Any] | None, dtype: torch.dtype) -> None:
    data = vectors(golden, "05_alp")
    objective = projected(data, dtype) if settings is None else objective_of("alp_kd", EQUAL, dtype, **settings)
    teacher = data[f"in.teacher_hidden_{'wide' if settings is None else 'equal'}"]
    loss = loss_of(objective, data["in.student_hidden"].to(dtype), teacher.to(dtype))
    torch.testing.assert_close(loss.parts["alp"].mean(), data[f"out.{expected}"].to(dtype), **DTYPES[dtype])


def test_golden_weights(golden: Path) -> None:
    """[b, student layer, teacher layer], as an analysis asks for them."""
    data = vectors(golden, "05_alp")
    for name, objective, teacher in (("equal", objective_of("alp_kd", EQUAL), "equal"),
                                     ("equal_scaled", objective_of("alp_kd", EQUAL, scaled=True), "equal"),
                                     ("projected", projected(data, torch.float64), "wide")):
        sides = features(data["in.student_hidden"]), features(data[f"in.teacher_hidden_{teacher}"])
        weights = objective.attention(*sides)
        torch.testing.assert_close(weights, data[f"out.{name}_weights"], **DTYPES[torch.float64])
        assert weights.shape[1:] == (len(objective.student_layers), len(objective.teacher_layers)) == (3, 7)
        torch.testing.assert_close(weights.sum(dim=2), torch.ones(4, 3, dtype=torch.float64))


def test_golden_gradients(golden: Path) -> None:
    """Through the weights as well: without their share the first comparison fails."""
    data = vectors(golden, "05_alp")
    student = data["in.student_hidden"].requires_grad_()
    loss_of(objective_of("alp_kd", EQUAL), student, data["in.teacher_hidden_equal"]).parts["alp"].mean().backward()
    torch.testing.assert_close(student.grad[1:4, :, 0], data["grad.equal_loss__student_cls"], **GRADIENT)
    objective = projected(data, torch.float64)
    loss_of(objective, student, data["in.teacher_hidden_wide"]).parts["alp"].mean().backward()
    for side in ("student", "teacher"):
        weight = getattr(objective.bridge, side).maps[0].weight
        torch.testing.assert_close(weight.grad.T, data[f"grad.projected_loss__w_{side}"], **GRADIENT)


# The formula


def test_by_hand() -> None:
    """One student layer between two teacher layers: scores 2 and 0, hence weights 1/(1+e^-2) and its rest."""
    setting = replace(EQUAL, student=Dims(2, 2, 1, 11), teacher=Dims(3, 2, 1, 11))
    objective = objective_of("alp_kd", setting, torch.float32)
    student, teacher = (
        Features({FeatureKey("cls", layer): torch.tensor([state]) for layer, state in states.items()}
                 | {LOGITS: torch.zeros(1, 3)}) for states in ({1: [1.0, 0.0]}, {1: [2.0, 0.0], 2: [0.0, 4.0]}))
    first = 1 / (1 + torch.tensor(-2.0).exp())
    torch.testing.assert_close(objective.attention(student, teacher), torch.stack([first, 1 - first]).view(1, 1, 2))
    loss = objective(student, teacher, Batch(torch.arange(1), torch.tensor([1])), progress(0))
    torch.testing.assert_close(loss.parts["alp"], ((1 - 2 * first) ** 2 + (4 * (1 - first)) ** 2).view(1) / 2)


@pytest.mark.parametrize(("settings", "label"), [({}, 0.1), ({"kd_weight": 0.5, "alp_weight": 0.5}, 0.0),
                                                 ({"kd_weight": 0, "alp_weight": 0.2}, 0.8)], ids=str)
def test_total_is_the_papers(settings: dict[str, float], label: float, stacks: Stacks) -> None:
    """beta + eta + lambda = 1."""
    loss = loss_of(objective_of("alp_kd", EQUAL, temperature=5, **settings), *stacks)
    assert sum(loss.weights.values()) == pytest.approx(1)
    student, teacher = (features(stack).logits for stack in stacks)
    expected = (label * label_loss(student, UNEQUAL.labels, False)
                + settings.get("kd_weight", 0.7) * kd_loss(student, teacher, 5, False)
                + settings.get("alp_weight", 0.2) * loss.parts["alp"])
    torch.testing.assert_close(loss.total, expected)


def test_equal_teacher_layers_get_equal_weights_and_a_student_like_them_no_loss(stacks: Stacks) -> None:
    teacher = stacks[1][:1].expand(9, -1, -1, -1)
    objective = objective_of("alp_kd", EQUAL)
    weights = objective.attention(features(stacks[0]), features(teacher))
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 7))
    assert loss_of(objective, teacher[:5], teacher).parts["alp"].abs().max() < 1e-20


def test_scale_of_states_counts(stacks: Stacks) -> None:
    objective = objective_of("alp_kd", EQUAL)
    plain = loss_of(objective, *stacks).parts["alp"]
    longer = stacks[0].clone()
    longer[2] *= 3
    assert not torch.allclose(loss_of(objective, longer, stacks[1]).parts["alp"], plain)


# Layers


@pytest.mark.parametrize(("depths", "last"), [((12, 6), 0), ((24, 6), 0), ((12, 3), 0), ((6, 3), 1), ((2, 2), 0),
                                              ((3, 6), 0)])
def test_layers(depths: tuple[int, int], last: int) -> None:
    """All intermediate ones, of a teacher of any depth; with `last_layers` the last as well, never embeddings."""
    setting = replace(UNEQUAL, teacher=Dims(depths[0], 24, 4, 31), student=Dims(depths[1], 16, 4, 31))
    objective = objective_of("alp_kd", setting, last_layers=bool(last), pooling="mean")
    assert objective.needs.teacher == {LOGITS, *layer_keys("mean", range(1, depths[0] + last))}
    assert objective.needs.student == {LOGITS, *layer_keys("mean", range(1, depths[1] + last))}


@pytest.mark.parametrize(
    ("settings", "seen"),
    [({"attends": "block"}, [(1, 2, 3), (4, 5), (6, 7)]),
     ({"attends": "overlap"}, [(1, 2, 3, 4), (3, 4, 5, 6), (5, 6, 7)]),
     ({"attends": "block", "last_layers": True}, [(1, 2), (3, 4), (5, 6), (7, 8)])],
    ids=str,
)
def test_attention_within_blocks(settings: dict[str, Any], seen: list[tuple[int, ...]], stacks: Stacks) -> None:
    objective = objective_of("alp_kd", EQUAL, **settings)
    weights = objective.attention(*(features(stack) for stack in stacks))
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(4, len(seen), dtype=torch.float64))
    for row, block in enumerate(seen):
        layers = {objective.teacher_layers[place] for place in weights[:, row].sum(dim=0).nonzero().flatten().tolist()}
        assert layers == set(block)
    free = objective_of("alp_kd", EQUAL, **settings | {"attends": "all"})
    ratio = weights / free.attention(*(features(stack) for stack in stacks))  # renormalised, not recomputed
    torch.testing.assert_close(ratio[:, 0, 0], ratio[:, 0, 1])
    assert not torch.equal(loss_of(free, *stacks).parts["alp"], loss_of(objective, *stacks).parts["alp"])
    loss_of(objective, stacks[0].requires_grad_(), stacks[1]).total.mean().backward()
    assert stacks[0].grad.isfinite().all()


# Widths


def test_number_of_parameters() -> None:
    assert parameters_of(objective_of("alp_kd", EQUAL)) == 0
    assert parameters_of(objective_of("alp_kd")) == 128 * (8 + 1) + 128 * (12 + 1)
    assert parameters_of(objective_of("alp_kd", freeze_teacher_projection=True, bias=False)) == 128 * 8
    assert parameters_of(objective_of("alp_kd", width=None)) == 12 * (8 + 1)


def test_vectors_that_shrink_are_noticed(stacks: Stacks) -> None:
    """Nothing keeps their length: with both sides trained the loss can fall to nothing."""
    wide = stacks[1].repeat(1, 1, 1, 2)[..., :12]
    objective = objective_of("alp_kd", bias=False)
    (spread,) = [alarm for alarm in objective.alarms if alarm.diagnostic == "spread"]
    assert not spread.rings(float(loss_of(objective, stacks[0], wide).diagnostics["spread"]))
    for side in (objective.bridge.student, objective.bridge.teacher):
        side.maps[0].weight.data *= 1e-4
    shrunk = loss_of(objective, stacks[0], wide)
    assert shrunk.parts["alp"].max() < 1e-6
    assert spread.rings(float(shrunk.diagnostics["spread"]))
    assert loss_of(objective_of("alp_kd", EQUAL), *stacks).diagnostics == {}


# Mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"kd_weight": 0.7, "alp_weight": 0.5}, r"methods.alp_kd: kd_weight 0.7 and alp_weight 0.5 sum to more than 1"),
     ({"alp_weight": -0.1}, "alp_weight = -0.1"), ({"attends": "blocks"}, "attends = 'blocks'"),
     ({"temperature": 0}, "temperature = 0"), ({"eta": 0.5}, "unknown key `eta`")],
    ids=str,
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        objective_of("alp_kd", **settings)


@pytest.mark.parametrize(
    ("depths", "settings", "message"),
    [((8, 1), {}, r"a student of 1 layer\(s\) .* `last_layers: true`"), ((1, 4), {}, "a teacher of 1 "),
     ((3, 6), {"attends": "block"}, r"5 student layers .* only 2 teacher layer\(s\)")],
)
def test_depths_that_do_not_fit(depths: tuple[int, int], settings: dict[str, Any], message: str) -> None:
    setting = replace(UNEQUAL, teacher=Dims(depths[0], 12, 2, 11), student=Dims(depths[1], 8, 2, 11))
    with pytest.raises(UserError, match=message):
        objective_of("alp_kd", setting, **settings)
    objective_of("alp_kd", setting, last_layers=True)
