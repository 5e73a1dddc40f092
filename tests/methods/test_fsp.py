"""FSP: golden values, pairs of layers, widths, and the memory that outer products do not take."""

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
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(layers + 1, 4, 7, 8, generator=generator, dtype=torch.float64) for layers in (4, 8))


# Golden vectors


def projected(data: dict[str, Tensor], dtype: torch.dtype) -> Objective:
    """For unequal widths, with the golden map."""
    objective = objective_of("fsp", UNEQUAL, dtype)
    objective.bridge.student.maps[0].weight.data = data["in.proj"].T.contiguous().to(dtype)
    return objective


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("expected", "settings"),
    [("consecutive", {}), ("all_pairs", {"pairs": "all"}), ("ends", {"pairs": "first_last"}),
     ("consecutive_normalised", {"normalise": True}), ("wide_projected", None)],
    ids=str,
)
def test_golden_value(golden: Path, expected: str, settings: dict[str, Any] | None, dtype: torch.dtype) -> None:
    data = vectors(golden, "14_fsp")
    objective = projected(data, dtype) if settings is None else objective_of("fsp", EQUAL, dtype, **settings)
    teacher = data[f"in.teacher_hidden_{'wide' if settings is None else 'equal'}"]
    loss = loss_of(objective, data["in.student_hidden"].to(dtype), teacher.to(dtype))
    torch.testing.assert_close(loss.parts["fsp"].mean(), data[f"out.{expected}"].to(dtype), **DTYPES[dtype])


def test_golden_layers_and_gradients(golden: Path) -> None:
    data = vectors(golden, "14_fsp")
    assert layer_keys("cls", data["out.teacher_layers"].tolist()) == objective_of("fsp").teacher_keys
    student = data["in.student_hidden"].requires_grad_()
    loss_of(objective_of("fsp", EQUAL), student, data["in.teacher_hidden_equal"]).parts["fsp"].mean().backward()
    torch.testing.assert_close(student.grad[1:4, :, 0], data["grad.consecutive__student_cls"], **GRADIENT)
    objective = projected(data, torch.float64)
    loss_of(objective, student, data["in.teacher_hidden_wide"]).parts["fsp"].mean().backward()
    torch.testing.assert_close(objective.bridge.student.maps[0].weight.grad.T, data["grad.wide_projected__proj"],
                               **GRADIENT)


# The formula


def test_by_hand() -> None:
    """G_S = [[1 * 3, 1 * 4], [2 * 3, 2 * 4]], G_T = [[5, 0], [0, 0]]: 4 + 16 + 36 + 64 over four entries."""
    setting = replace(EQUAL, student=Dims(3, 2, 1, 11), teacher=Dims(3, 2, 1, 11))
    states = ({1: [1.0, 2.0], 2: [3.0, 4.0]}, {1: [5.0, 0.0], 2: [1.0, 0.0]})
    sides = [Features({FeatureKey("cls", layer): torch.tensor([state]) for layer, state in side.items()}
                      | {LOGITS: torch.zeros(1, 3)}) for side in states]
    loss = objective_of("fsp", setting, torch.float32)(*sides, Batch(torch.arange(1), torch.tensor([1])), progress(0))
    torch.testing.assert_close(loss.parts["fsp"], torch.tensor([(4 + 16 + 36 + 64) / 4]))


def test_total(stacks: Stacks) -> None:
    loss = loss_of(objective_of("fsp", EQUAL, label_weight=2, kd_weight=3, fsp_weight=4, temperature=5), *stacks)
    student, teacher = (features(stack).logits for stack in stacks)
    expected = 2 * label_loss(student, UNEQUAL.labels, False) + 3 * kd_loss(student, teacher, 5, False)
    torch.testing.assert_close(loss.total, expected + 4 * loss.parts["fsp"])


@pytest.mark.parametrize("pairs", ["consecutive", "all", "first_last"])
def test_zero_for_a_twin_alone(pairs: str, stacks: Stacks) -> None:
    twin = stacks[1][[0, 2, 4, 6, 8]]
    objective = objective_of("fsp", EQUAL, pairs=pairs)
    assert loss_of(objective, twin, stacks[1]).parts["fsp"].abs().max() < 1e-20
    longer = twin.clone()
    longer[1] *= 3
    assert (loss_of(objective, longer, stacks[1]).parts["fsp"] > 0.01).all()


def test_unit_vectors_do_not_know_their_length(stacks: Stacks) -> None:
    objective = objective_of("fsp", EQUAL, normalise=True)
    longer = stacks[0].clone()
    longer[1] *= 3
    plain = loss_of(objective, *stacks).parts["fsp"]
    torch.testing.assert_close(loss_of(objective, longer, stacks[1]).parts["fsp"], plain)
    assert (plain <= 2 * 4 / 8**2).all()


# Layers and widths


@pytest.mark.parametrize(
    ("depths", "settings", "student", "teacher"),
    [((12, 6), {}, (1, 2, 3, 4, 5), (2, 4, 6, 8, 10)), ((12, 6), {"pairs": "first_last"}, (1, 5), (2, 10)),
     ((12, 6), {"mapping": "last", "pairs": "all"}, (1, 2, 3, 4, 5), (7, 8, 9, 10, 11)), ((6, 3), {}, (1, 2), (2, 4)),
     ((6, 2), {"mapping": [[2, 6], [1, 3]]}, (1, 2), (3, 6))],
    ids=str,
)
def test_layers(depths: tuple[int, int], settings: dict[str, Any], student: tuple[int, ...],
                teacher: tuple[int, ...]) -> None:
    setting = replace(UNEQUAL, teacher=Dims(depths[0], 24, 4, 31), student=Dims(depths[1], 16, 4, 31))
    needs = objective_of("fsp", setting, **settings).needs
    assert needs.student == {LOGITS, *layer_keys("cls", student)}
    assert needs.teacher == {LOGITS, *layer_keys("cls", teacher)}


def test_number_of_pairs() -> None:
    setting = replace(EQUAL, teacher=Dims(12, 8, 2, 11), student=Dims(6, 8, 2, 11))
    counts = {pairs: objective_of("fsp", setting, pairs=pairs).related.shape[1]
              for pairs in ("consecutive", "all", "first_last")}
    assert counts == {"consecutive": 4, "all": 10, "first_last": 1}


def test_number_of_parameters() -> None:
    assert parameters_of(objective_of("fsp", EQUAL)) == 0
    assert parameters_of(objective_of("fsp")) == 8 * 12


def test_pooling_over_tokens() -> None:
    assert objective_of("fsp", pooling="mean").needs.teacher == {LOGITS, *layer_keys("mean", (2, 4, 6))}


# Mistakes


@pytest.mark.parametrize(
    ("depths", "settings", "message"),
    [((12, 2), {}, r"methods.fsp relates two layers .* matches one; .* `mapping: \[\[1, 1\], \[2, 12\]\]`"),
     ((12, 6), {"mapping": [[1, 1]]}, "matches one"),
     ((12, 1), {}, "two layers to each other, but the student has one; use a deeper student$"),
     ((12, 1), {"mapping": [[1, 1]]}, "but the student has one; use a deeper student$"),
     ((12, 6), {"pairs": "both"}, "pairs = 'both'"), ((12, 6), {"fsp_weight": -1}, "fsp_weight = -1")],
)
def test_what_does_not_fit(depths: tuple[int, int], settings: dict[str, Any], message: str) -> None:
    setting = replace(UNEQUAL, teacher=Dims(depths[0], 12, 2, 11), student=Dims(depths[1], 8, 2, 11))
    with pytest.raises(UserError, match=message):
        objective_of("fsp", setting, **settings)
