"""CKD: golden values, hand values, groups of any depth, both directions, invariances, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore import methods
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features, masked_mean
from kdcore.objective import Batch, Dims, Loss, Objective, Setting
from tests.methods.toys import CLASSIFICATION, Toy, batch, progress, toys
from tests.test_losses import GRADIENT, VALUE, vectors

GOLDEN = Setting(Dims(8, 12, 2, 11), Dims(4, 8, 2, 11), classes=3, regression=False,
                 labels=torch.zeros(4, dtype=torch.int64), batch_size=4, seed=0)
directions = pytest.mark.parametrize("direction", ["teacher_down", "student_up"])


def objective_of(setting: Setting = CLASSIFICATION, **settings: Any) -> Objective:
    (phase,) = methods.load("ckd").phases(methods.configure("ckd", settings), setting)
    return phase.objective.double()


def loss_of(objective: Objective, models: tuple[Toy, Toy], padding: int = 0) -> Loss:
    needs, ids = objective.needs, torch.arange(8)
    return objective(models[0].features(ids, needs.student, padding), models[1].features(ids, needs.teacher, padding),
                     batch(CLASSIFICATION, ids), progress(0))


def depths(teacher: int, student: int) -> Setting:
    return replace(CLASSIFICATION, teacher=Dims(teacher, 24, 4, 31), student=Dims(student, 16, 4, 31))


# Golden vectors


def golden_objective(data: dict[str, Tensor], **settings: Any) -> Objective:
    """With the golden maps."""
    objective = objective_of(GOLDEN, **settings)
    way = "up" if objective.up else "down"
    for group, projection in enumerate(objective.maps):
        projection.maps[0].weight.data = data[f"in.w_{way}"][group].T.contiguous()
        projection.maps[0].bias.data = data[f"in.b_{way}"][group]
    return objective


def golden_part(data: dict[str, Tensor], objective: Objective) -> Tensor:
    """The groups' loss of each example; logits and labels are not looked at."""
    mask = data["in.mask"].long()
    sides = []
    for side in ("student", "teacher"):
        values = {LOGITS: torch.zeros(4, 3, dtype=torch.float64)}
        for layer, states in enumerate(data[f"in.{side}_hidden"].unbind()):
            values |= {FeatureKey("hidden", layer): states, FeatureKey("cls", layer): states[:, 0],
                       FeatureKey("mean", layer): masked_mean(states, mask)}
        sides.append(Features(values, mask))
    return objective(*sides, Batch(torch.arange(4), torch.zeros(4, dtype=torch.int64)), progress(0)).parts["ckd"]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_golden_teacher_down(golden: Path, pooling: str) -> None:
    data = vectors(golden, "04_ckd")
    part = golden_part(data, golden_objective(data, pooling=pooling))
    torch.testing.assert_close(part.mean(), data[f"out.down_{pooling}"], **VALUE)


def test_golden_student_up(golden: Path) -> None:
    """The golden value is the sum over all tokens, as in the released code."""
    data = vectors(golden, "04_ckd")
    part = golden_part(data, golden_objective(data, direction="student_up"))
    torch.testing.assert_close((part * data["in.mask"].sum(dim=1)).sum(), data["out.up_tokens"], **VALUE)


def test_golden_gradients(golden: Path) -> None:
    data = vectors(golden, "04_ckd")
    data["in.student_hidden"].requires_grad_()
    objective = golden_objective(data)
    golden_part(data, objective).mean().backward()
    maps = torch.stack([projection.maps[0].weight.grad.T for projection in objective.maps])
    torch.testing.assert_close(maps, data["grad.down_cls__w_down"], **GRADIENT)
    torch.testing.assert_close(data["in.student_hidden"].grad[1:, :, 0], data["grad.down_cls__student_cls"], **GRADIENT)


# Hand values


def test_teacher_down_by_hand() -> None:
    """Two teacher layers of width 1 teach one student layer of width 2."""
    setting = replace(CLASSIFICATION, teacher=Dims(2, 1, 1, 31), student=Dims(1, 2, 1, 31), classes=2)
    objective = objective_of(setting)
    (linear,) = objective.maps[0].maps
    linear.weight.data = torch.tensor([[1.0, 10.0], [0.0, 2.0]]).double()
    linear.bias.data = torch.tensor([0.5, 0.0]).double()
    zero = torch.zeros(1, 2).double()
    student = Features({LOGITS: zero, FeatureKey("cls", 1): torch.tensor([[30.0, 7.0]]).double()})
    teacher = Features({LOGITS: zero, FeatureKey("cls", 1): torch.tensor([[3.0]]).double(),
                        FeatureKey("cls", 2): torch.tensor([[2.0]]).double()})
    loss = objective(student, teacher, batch(setting, torch.tensor([0])), progress(0))
    # The target is (3 + 20 + 0.5, 4); the mean of the squares of 6.5 and 3.
    torch.testing.assert_close(loss.parts["ckd"], torch.tensor([(6.5**2 + 3**2) / 2]).double())


def test_student_up_is_a_mean_over_real_tokens_in_0_to_4() -> None:
    """One layer: opposite directions at one of three real tokens give 4/3; the two padded ones do not count."""
    setting = replace(CLASSIFICATION, teacher=Dims(1, 2, 1, 31), student=Dims(1, 2, 1, 31), classes=2)
    objective = objective_of(setting, direction="student_up")
    (linear,) = objective.maps[0].maps
    linear.weight.data, linear.bias.data = torch.eye(2).double(), torch.zeros(2).double()
    states = torch.randn(1, 5, 2).double()
    turned = states.clone()
    turned[0, 1] *= -3
    turned[0, 3:] = 99.0
    zero, mask = torch.zeros(1, 2).double(), torch.tensor([[1, 1, 1, 0, 0]])
    sides = [Features({LOGITS: zero, FeatureKey("hidden", 1): values}, mask) for values in (states, turned)]
    loss = objective(*sides, batch(setting, torch.tensor([0])), progress(0))
    torch.testing.assert_close(loss.parts["ckd"], torch.tensor([4 / 3]).double())


def test_weights_and_temperature() -> None:
    models = toys(CLASSIFICATION)
    loss = loss_of(objective_of(alpha=0.3, beta=0.7), models)
    assert loss.weights == {"label": pytest.approx(0.0), "kd": 0.3, "ckd": 0.7}
    assert loss.weights["label"] >= 0
    assert loss_of(objective_of(), models).weights == {"label": pytest.approx(0.1), "kd": 0.2, "ckd": 0.7}
    warmer = loss_of(objective_of(temperature=5), models)
    assert not torch.allclose(warmer.parts["kd"], loss.parts["kd"])
    torch.testing.assert_close(warmer.parts["ckd"], loss.parts["ckd"])


# Layers


@directions
@pytest.mark.parametrize(
    ("grouping", "settings", "layers"),
    [
        ("regular", {}, [[1, 2, 3], [4, 5, 6]]),
        ("overlap", {}, [[1, 2, 3, 4], [3, 4, 5, 6]]),
        ("cross", {}, [[1, 3], [4, 6]]),
        ("interleave", {}, [[1, 3, 5], [2, 4, 6]]),
        ("skip_middle", {}, [[1, 2], [5, 6]]),
        ("regular", {"intermediate_only": True}, [[1, 2, 3, 4, 5]]),
        ("cross", {"intermediate_only": True}, [[1, 5]]),
    ],
)
def test_a_teacher_of_constants_shows_what_each_layer_learns_from(
    direction: str, grouping: str, settings: dict[str, Any], layers: list[list[int]]
) -> None:
    setting = replace(CLASSIFICATION, teacher=Dims(6, 1, 1, 31), student=Dims(2, 1, 1, 31))
    objective = objective_of(setting, grouping=grouping, direction=direction, **settings)
    kind = "hidden" if direction == "student_up" else "cls"
    assert objective.needs.student == {LOGITS, *(FeatureKey(kind, j) for j in range(1, len(layers) + 1))}
    assert objective.needs.teacher == {LOGITS, *(FeatureKey(kind, k) for group in layers for k in group)}
    for projection, group in zip(objective.maps, layers, strict=True):
        (linear,) = projection.maps
        ends = (1, len(group)) if direction == "student_up" else (len(group), 1)
        assert (linear.in_features, linear.out_features) == ends
    # One student layer after the other: what the teacher's side is made of, seen in the gradient.
    shape = (1, 4, 1) if direction == "student_up" else (1, 1)
    zero = torch.zeros(1, 3).double()
    for j, group in enumerate(layers, 1):
        features = {FeatureKey(kind, k): torch.randn(shape).double().requires_grad_() for k in range(1, 7)}
        mask = torch.ones(1, 4, dtype=torch.int64) if direction == "student_up" else None
        student = {FeatureKey(kind, i): torch.randn(shape).double() for i in (1, 2)}
        terms = [objective(Features({LOGITS: zero, **student, FeatureKey(kind, j): states}, mask),
                           Features({LOGITS: zero, **features}, mask), batch(setting, torch.tensor([0])), progress(0))
                 for states in (torch.full(shape, 0.5).double(), torch.full(shape, -2.5).double())]
        gap = terms[0].parts["ckd"].sum() - terms[1].parts["ckd"].sum()
        gradients = torch.autograd.grad(gap, features.values(), allow_unused=True)
        assert [k for k, slope in enumerate(gradients, 1) if slope is not None and slope.abs().sum() > 1e-12] == group


@directions
@pytest.mark.parametrize("pair", [(12, 6), (24, 6), (12, 3), (6, 3), (6, 2), (7, 3), (11, 4), (4, 4), (3, 1)], ids=str)
def test_depths_that_fit(direction: str, pair: tuple[int, int]) -> None:
    setting = depths(*pair)
    for grouping in ("regular", "overlap", "cross", "interleave"):
        loss = loss_of(objective_of(setting, grouping=grouping, direction=direction), toys(setting))
        assert (loss.parts["ckd"] > 0).all()


@pytest.mark.parametrize(
    ("pair", "settings", "message"),
    [
        ((3, 6), {}, r"6 student layers .* only 3 teacher layer\(s\)"),
        ((12, 6), {"grouping": "skip_middle"}, "defined for 6 teacher layers in 2 groups, not for 12 in 6"),
        ((12, 1), {"intermediate_only": True}, "a student of 1 layer has no intermediate layer"),
        ((6, 6), {"alpha": 0.5, "beta": 0.6}, r"methods\.ckd: .*alpha \+ beta = 1\.1, expected at most 1"),
        ((6, 6), {"grouping": "even"}, "grouping = 'even'"),
        ((6, 6), {"pooling": "max"}, "pooling = 'max'"),
        ((6, 6), {"beta": float("inf")}, "beta = inf"),
    ],
    ids=str,
)
def test_what_does_not_fit(pair: tuple[int, int], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        objective_of(depths(*pair), **settings)
    assert "\n" not in str(caught.value)


def test_skip_middle_where_it_is_defined() -> None:
    setting = depths(7, 3)
    objective = objective_of(setting, grouping="skip_middle", intermediate_only=True)
    assert [[key.layer for key in keys] for keys in objective.teacher_keys] == [[1, 2], [5, 6]]


# Invariances


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@directions
def test_padding_and_company_change_nothing(direction: str, pooling: str) -> None:
    objective, models = objective_of(direction=direction, pooling=pooling), toys(CLASSIFICATION)
    torch.testing.assert_close(loss_of(objective, models).total, loss_of(objective, models, padding=6).total)


def test_infinite_padding_leaves_finite_gradients() -> None:
    """The gradient of a map is a sum over all tokens, in which 0 times infinity would be no number."""
    objective, (student, teacher) = objective_of(direction="student_up"), toys(CLASSIFICATION)
    ids = torch.arange(8)

    def gradients(padding: int) -> list[Tensor]:
        sides = [toy.features(ids, needs, padding) for toy, needs in (
            (student, objective.needs.student), (teacher, objective.needs.teacher))]
        if padding:
            sides = [Features({key: states.masked_fill(side.mask[..., None] == 0, torch.inf) if states.dim() == 3
                               else states for key, states in side.items()}, side.mask) for side in sides]
        part = objective(*sides, batch(CLASSIFICATION, ids), progress(0)).parts["ckd"].sum()
        return list(torch.autograd.grad(part, [student.states, *objective.parameters()]))

    for padded, plain in zip(gradients(3), gradients(0), strict=True):
        torch.testing.assert_close(padded, plain)


def test_length_of_states_matters_downwards_only() -> None:
    """Upwards unit vectors are compared (section 21: only a scale common to a whole group is free)."""
    setting = replace(CLASSIFICATION, teacher=Dims(6, 24, 4, 31))
    models = toys(setting)
    for direction, same in (("teacher_down", False), ("student_up", True)):
        objective = objective_of(setting, direction=direction)
        plain = loss_of(objective, models).parts["ckd"]
        models[1].inputs *= 3.0
        assert torch.allclose(plain, loss_of(objective, models).parts["ckd"]) is same
        models[1].inputs /= 3.0


def test_zero_where_the_map_hits_the_student() -> None:
    """Equal depth and width, identity maps and one model for both sides."""
    setting = replace(CLASSIFICATION, teacher=CLASSIFICATION.student)
    for direction in ("teacher_down", "student_up"):
        objective = objective_of(setting, direction=direction)
        for projection in objective.maps:
            torch.nn.init.eye_(projection.maps[0].weight)
            torch.nn.init.zeros_(projection.maps[0].bias)
        student, _ = toys(setting)
        assert loss_of(objective, (student, student)).parts["ckd"].abs().max() < 1e-20
