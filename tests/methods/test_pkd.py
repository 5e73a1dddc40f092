"""PKD: golden values, the two reductions, the maps, what scaling and collapse do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features, layer_keys
from kdcore.losses import kd_loss, label_loss
from kdcore.mapping import fixed
from kdcore.objective import Batch, Dims
from tests.methods.golden import DTYPES, EQUAL, UNEQUAL, features, loss_of, objective_of, parameters_of
from tests.methods.toys import progress
from tests.test_losses import GRADIENT, vectors

Stacks = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def stacks() -> Stacks:
    """Hidden states of student (4 layers) and teacher (8), both of width 8."""
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(layers + 1, 4, 7, 8, generator=generator, dtype=torch.float64) for layers in (4, 8))


# Golden vectors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("mapping", ["skip", "last", "even"])
def test_golden_value(golden: Path, mapping: str, reduction: str, dtype: torch.dtype) -> None:
    data = vectors(golden, "03_pkd")
    objective = objective_of("pkd", EQUAL, dtype, mapping=mapping, reduction=reduction)
    assert [key.layer for key in objective.teacher_keys] == data[f"out.{mapping}_layers"].tolist()
    loss = loss_of(objective, data["in.student_hidden"].to(dtype), data["in.teacher_hidden"].to(dtype))
    expected = data[f"out.{mapping}_{reduction}"].to(dtype)
    torch.testing.assert_close(loss.parts["pkd"].mean(), expected, **DTYPES[dtype])


def test_golden_gradient(golden: Path) -> None:
    data = vectors(golden, "03_pkd")
    student = data["in.student_hidden"].requires_grad_()
    objective = objective_of("pkd", EQUAL, reduction="sum")
    loss_of(objective, student, data["in.teacher_hidden"]).parts["pkd"].mean().backward()
    torch.testing.assert_close(student.grad[1:4, :, 0], data["grad.skip_sum__student_cls"], **GRADIENT)
    student.grad[1:4, :, 0] = 0
    assert student.grad.count_nonzero() == 0


def test_golden_maps(golden: Path) -> None:
    data = vectors(golden, "03_pkd")
    names = [name for name in data if name.startswith("out.map_")]
    assert len(names) == 18
    for name in names:
        rule, n, m = name.removeprefix("out.map_").split("_")
        assert [teacher for _, teacher in fixed(rule, int(n), int(m))] == data[name].tolist(), name


# The formula


def test_by_hand() -> None:
    """Two layers: unit vectors at right angles (squared distance 2) and opposite ones (4)."""
    setting = replace(EQUAL, student=Dims(3, 2, 1, 11), teacher=Dims(3, 2, 1, 11))
    ours = {1: [[3.0, 0.0]], 2: [[0.5, 0.0]]}
    theirs = {1: [[0.0, 7.0]], 2: [[-9.0, 0.0]]}
    sides = [Features({FeatureKey("cls", layer): torch.tensor(state) for layer, state in states.items()}
                      | {LOGITS: torch.zeros(1, 3)}) for states in (ours, theirs)]
    for settings, expected in (({"reduction": "sum"}, 2 + 4.0), ({"reduction": "mean"}, 6 / (2 * 2)),
                               ({"reduction": "sum", "normalise": False}, 9 + 49 + 9.5**2)):
        objective = objective_of("pkd", setting, torch.float32, **settings)
        loss = objective(*sides, Batch(torch.arange(1), torch.tensor([1])), progress(0))
        torch.testing.assert_close(loss.parts["pkd"], torch.tensor([expected]))


def test_total_is_the_papers(stacks: Stacks) -> None:
    loss = loss_of(objective_of("pkd", EQUAL, alpha=0.2, beta=100, temperature=5), *stacks)
    student, teacher = (features(stack).logits for stack in stacks)
    expected = 0.8 * label_loss(student, UNEQUAL.labels, False) + 0.2 * kd_loss(student, teacher, 5, False)
    torch.testing.assert_close(loss.total, expected + 100 * loss.parts["pkd"])


@pytest.mark.parametrize(("setting", "width"), [(EQUAL, 8), (UNEQUAL, 5)], ids=["equal", "mapped"])
def test_beta_of_one_reduction_from_that_of_the_other(setting: Any, width: int, stacks: Stacks) -> None:
    """beta_sum = beta_mean / ((m-1) d), with d the width of the common space where there is one."""
    student, teacher = stacks
    teacher = teacher.repeat(1, 1, 1, 2)[..., :setting.teacher.width]
    mean = loss_of(objective_of("pkd", setting, width=5, beta=500), student, teacher)
    summed = loss_of(objective_of("pkd", setting, width=5, beta=500 / (3 * width), reduction="sum"), student, teacher)
    torch.testing.assert_close(mean.total, summed.total)


def test_each_matched_pair_counts(stacks: Stacks) -> None:
    objective = objective_of("pkd", EQUAL, mapping=[[1, 3], [4, 8]])
    assert (objective.student_keys, objective.teacher_keys) == (layer_keys("cls", (1, 4)), layer_keys("cls", (3, 8)))
    value = loss_of(objective, *stacks).parts["pkd"]
    for layer in (3, 8):
        changed = stacks[1].clone()
        changed[layer, :, 0] = 1.0
        assert (loss_of(objective, stacks[0], changed).parts["pkd"] != value).all()


@pytest.mark.parametrize(("depths", "layers"), [((12, 6), (2, 4, 6, 8, 10)), ((24, 6), (4, 8, 12, 16, 20)),
                                                ((12, 3), (4, 8)), ((6, 3), (2, 4)), ((4, 4), (1, 2, 3))])
def test_layers_of_published_pairs(depths: tuple[int, int], layers: tuple[int, ...]) -> None:
    """Never embeddings, never the last layer, of either model."""
    setting = replace(UNEQUAL, teacher=Dims(depths[0], 24, 4, 31), student=Dims(depths[1], 16, 4, 31))
    needs = objective_of("pkd", setting).needs
    assert needs.student == {LOGITS, *layer_keys("cls", range(1, depths[1]))}
    assert needs.teacher == {LOGITS, *layer_keys("cls", layers)}


def test_pooling_over_tokens() -> None:
    assert objective_of("pkd", pooling="mean").needs.teacher == {LOGITS, *layer_keys("mean", (2, 4, 6))}


# Invariances


def test_zero_for_a_twin(stacks: Stacks) -> None:
    """A student whose layers are those of the teacher that teach it."""
    student = stacks[1][[0, 2, 4, 6, 8]]
    assert loss_of(objective_of("pkd", EQUAL), student, stacks[1]).parts["pkd"].abs().max() < 1e-20


@pytest.mark.parametrize(("setting", "normalise", "same"), [(EQUAL, True, True), (UNEQUAL, True, True),
                                                            (EQUAL, False, False)], ids=["equal", "mapped", "raw"])
def test_scale_of_a_layer(setting: Any, normalise: bool, same: bool, stacks: Stacks) -> None:
    student, teacher = stacks
    teacher = teacher.repeat(1, 1, 1, 2)[..., :setting.teacher.width]
    objective = objective_of("pkd", setting, normalise=normalise, bias=False)
    plain = loss_of(objective, student, teacher).parts["pkd"]
    longer = student.clone()
    longer[2] *= 3
    assert torch.allclose(loss_of(objective, longer, teacher).parts["pkd"], plain) is same


# Widths


def test_number_of_parameters() -> None:
    assert parameters_of(objective_of("pkd", EQUAL)) == 0
    assert parameters_of(objective_of("pkd")) == 128 * (8 + 1) + 128 * (12 + 1)
    assert parameters_of(objective_of("pkd", width=5, bias=False)) == 5 * 8 + 5 * 12
    assert parameters_of(objective_of("pkd", freeze_teacher_projection=True)) == 128 * (8 + 1)
    assert parameters_of(objective_of("pkd", width=None)) == 12 * (8 + 1)


def test_only_two_trained_sides_can_collapse_and_are_watched(stacks: Stacks) -> None:
    wide = stacks[1].repeat(1, 1, 1, 2)[..., :12]
    assert loss_of(objective_of("pkd", EQUAL), *stacks).diagnostics == {}
    assert loss_of(objective_of("pkd", width=None), stacks[0], wide).diagnostics == {}
    objective = objective_of("pkd")
    rings = {alarm.diagnostic: alarm for alarm in objective.alarms}
    before = loss_of(objective, stacks[0], wide).diagnostics
    assert not any(rings[name].rings(float(value)) for name, value in before.items())
    torch.nn.init.zeros_(objective.bridge.teacher.maps[0].weight)
    after = loss_of(objective, stacks[0], wide).diagnostics
    assert after.keys() == {"collapse", "spread"}
    assert all(rings[name].rings(float(value)) for name, value in after.items())


# Mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"alpha": 1.5}, "alpha = 1.5"), ({"beta": -1}, "beta = -1"), ({"beta": float("inf")}, "beta = inf"),
     ({"width": 0}, "width = 0"), ({"reduction": "max"}, "reduction = 'max'"),
     ({"mapping": "skp"}, "pkd: mapping = 'skp': Input should be 'skip', 'last' or 'even'"),
     ({"mapping": [[1, "two"]]}, r"pkd: mapping\.0\.1 = 'two': Input should be a valid integer"),
     ({"mapping": []}, "mapping is empty"), ({"mapping": [[1, 9]]}, r"teacher layer 9, expected 1\.\.8"),
     ({"mapping": [[0, 1]]}, r"student layer 0, expected 1\.\.4"), ({"mapping": [[1, 2], [1, 3]]}, "layer 1 twice"),
     ({"betta": 5}, "unknown key `betta`; did you mean 'beta'")],
    ids=str,
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        objective_of("pkd", **settings)


@pytest.mark.parametrize(("depths", "message"), [((3, 4), "teacher of 3 to a student of 4"),
                                                 ((4, 1), "1 layer has no intermediate layer")])
def test_depths_that_do_not_fit(depths: tuple[int, int], message: str) -> None:
    setting = replace(UNEQUAL, teacher=Dims(depths[0], 12, 2, 11), student=Dims(depths[1], 8, 2, 11))
    with pytest.raises(UserError, match=message):
        objective_of("pkd", setting)
