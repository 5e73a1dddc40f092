"""Loss functions against golden vectors, hand values and the faults of earlier systems."""

import inspect
import math
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, tensor

from kdcore import losses
from kdcore.losses import (
    kd_loss,
    label_loss,
    layer_attention,
    layer_mixture,
    mean_cosine,
    outer_distance,
    squared_distance,
    unit,
)

VALUE = {"rtol": 0, "atol": 1e-9}
GRADIENT = {"rtol": 0, "atol": 1e-7}


def vectors(golden: Path, name: str) -> dict[str, Tensor]:
    with numpy.load(golden / f"{name}.npz") as file:
        return {key: torch.from_numpy(numpy.array(file[key])) for key in file.files}


# Golden vectors


@pytest.mark.parametrize(("prefix", "name", "regression"), [("", "ce", False), ("reg_", "mse", True)])
def test_label_loss_golden(golden: Path, prefix: str, name: str, regression: bool) -> None:
    data = vectors(golden, "01_task")
    logits = data[f"in.{prefix}logits"].requires_grad_()
    loss = label_loss(logits, data[f"in.{prefix}labels"], regression).mean()
    torch.testing.assert_close(loss, data[f"out.{name}"], **VALUE)
    loss.backward()
    torch.testing.assert_close(logits.grad, data[f"grad.{name}__{prefix}logits"], **GRADIENT)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 10.0])
def test_kd_loss_golden(golden: Path, temperature: float) -> None:
    data = vectors(golden, "02_vanilla_kd")
    student, teacher = data["in.student_logits"].requires_grad_(), data["in.teacher_logits"]
    loss = kd_loss(student, teacher, temperature, regression=False).mean()
    torch.testing.assert_close(loss, data[f"out.kl_T{temperature:.0f}"], **VALUE)
    torch.testing.assert_close(loss / 3, data[f"out.kl_elementmean_T{temperature:.0f}"], **VALUE)  # PKD's code
    entropy = torch.distributions.Categorical(logits=teacher / temperature).entropy().mean()
    torch.testing.assert_close(loss + temperature**2 * entropy, data[f"out.ce_T{temperature:.0f}"], **VALUE)
    if temperature == 2:
        loss.backward()
        torch.testing.assert_close(student.grad, data["grad.kl_T2__student_logits"], **GRADIENT)


def test_kd_loss_of_regression_golden(golden: Path) -> None:
    data = vectors(golden, "02_vanilla_kd")
    loss = kd_loss(data["in.student_reg"], data["in.teacher_reg"], temperature=7.0, regression=True)
    torch.testing.assert_close(loss.mean(), data["out.regression_kd"], **VALUE)


# Hand values


def test_kl_sums_over_classes_and_leaves_the_mean_over_examples_to_the_caller() -> None:
    teacher = tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1], [1 / 3] * 3, [0.1, 0.2, 0.7]])
    student = tensor([[0.25, 0.5, 0.25], [0.8, 0.1, 0.1], [0.5, 0.25, 0.25], [0.7, 0.2, 0.1]])
    hand = [sum(p * math.log(p / q) for p, q in zip(t, s, strict=True))
            for t, s in zip(teacher.tolist(), student.tolist(), strict=True)]
    torch.testing.assert_close(kd_loss(student.log(), teacher.log(), 1.0, False), tensor(hand))
    # The reverse divergence is another number: teacher first.
    assert not torch.allclose(kd_loss(teacher.log(), student.log(), 1.0, False), tensor(hand), atol=1e-3)


def test_kl_does_not_know_how_many_impossible_classes_there_are() -> None:
    student, teacher = torch.randn(4, 2), torch.randn(4, 2)
    impossible = torch.full((4, 1), -1e4)
    padded = kd_loss(torch.cat([student, impossible], 1), torch.cat([teacher, impossible], 1), 1.0, False)
    torch.testing.assert_close(padded, kd_loss(student, teacher, 1.0, False))


def test_gradient_of_kd_and_its_size_over_temperatures() -> None:
    student, teacher = 0.01 * torch.randn(4, 3, dtype=torch.float64), 0.01 * torch.randn(4, 3, dtype=torch.float64)
    sizes = []
    for temperature in (1.0, 8.0):
        logits = student.clone().requires_grad_()
        kd_loss(logits, teacher, temperature, False).mean().backward()
        hand = temperature / 4 * ((logits / temperature).softmax(1) - (teacher / temperature).softmax(1))
        torch.testing.assert_close(logits.grad, hand.detach())
        sizes.append(logits.grad.norm())
    assert 0.5 < sizes[0] / sizes[1] < 2


def test_kd_in_the_limit_of_high_temperature_is_half_the_centred_gap() -> None:
    student, teacher = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    gap = (student - student.mean(1, keepdim=True)) - (teacher - teacher.mean(1, keepdim=True))
    torch.testing.assert_close(kd_loss(student, teacher, 1e4, False), gap.square().mean(1) / 2, rtol=1e-3, atol=1e-6)


def test_kd_is_zero_for_equal_outputs_never_negative_and_alive_for_unlikely_classes() -> None:
    logits = torch.randn(50, 4)
    assert kd_loss(logits, logits, 3.0, False).abs().max() < 1e-6
    assert (kd_loss(logits, logits.flip(0), 1.0, False) >= 0).all()
    unlikely = tensor([[0.0, -21.0]], requires_grad=True)  # probability below 1e-9
    kd_loss(unlikely, tensor([[0.0, 0.0]]), 1.0, False).sum().backward()
    torch.testing.assert_close(unlikely.grad, tensor([[0.5, -0.5]]))


def test_example_alone_gives_its_value_and_order_does_not_matter() -> None:
    student, teacher = torch.randn(4, 3), torch.randn(4, 3)
    together = kd_loss(student, teacher, 2.0, False)
    alone = torch.cat([kd_loss(student[i:i + 1], teacher[i:i + 1], 2.0, False) for i in range(4)])
    assert (alone > 0).all()
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(kd_loss(student.flip(0), teacher.flip(0), 2.0, False), together.flip(0))


def test_regression_by_hand_and_never_a_square_of_examples() -> None:
    outputs, labels = tensor([[1.0], [2.0], [3.0], [4.0]]), tensor([1.5, 2.0, 5.0, 0.0])
    torch.testing.assert_close(label_loss(outputs, labels, True), tensor([0.25, 0.0, 4.0, 16.0]))
    torch.testing.assert_close(kd_loss(outputs, labels[:, None], 3.0, True), tensor([0.25, 0.0, 4.0, 16.0]))
    assert label_loss(outputs[:1], labels[:1], True).shape == (1,)
    assert kd_loss(outputs[:1], outputs[1:2], 1.0, True).shape == (1,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("regression", [False, True], ids=["classes", "scores"])
def test_no_label_no_loss_and_no_gradient(regression: bool, dtype: torch.dtype) -> None:
    """Whatever the model says there, even where the square of it overflows; the others are as without their company."""
    outputs = torch.tensor([[1.0, 2.0], [3e4, -3e4], [0.5, 0.25], [-7.0, 3e4]], dtype=dtype)
    outputs = (outputs[:, :1] if regression else outputs).clone().requires_grad_()
    labels = torch.tensor([1.5, torch.nan, 0.0, torch.nan]) if regression else torch.tensor([1, -1, 0, -1])
    loss = label_loss(outputs, labels, regression)
    assert loss[1::2].tolist() == [0, 0]
    assert torch.equal(loss[::2], label_loss(outputs[::2], labels[::2], regression))
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    assert gradient.isfinite().all()
    assert not gradient[1::2].any()
    assert gradient[::2].any(dim=1).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: label_loss(torch.zeros(4, 1), torch.zeros(4, 1), True),
        lambda: label_loss(torch.zeros(4, 1), torch.zeros(1), True),
        lambda: label_loss(torch.zeros(4, 2), torch.zeros(4), True),
        lambda: label_loss(torch.zeros(4, 3), torch.zeros(1, dtype=torch.int64), False),
    ],
)
def test_shapes_that_would_broadcast_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"shape|one output"):
        call()


# Vectors


def test_unit_vectors_and_distances() -> None:
    torch.testing.assert_close(unit(tensor([[3.0, 4.0], [0.0, 0.0]])), tensor([[0.6, 0.8], [0.0, 0.0]]))
    torch.testing.assert_close(squared_distance(tensor([[1.0, 2.0]]), tensor([[3.0, -1.0]])), tensor([13.0]))
    opposite = tensor([[2.0, -1.0, 5.0]])
    torch.testing.assert_close(squared_distance(unit(opposite), unit(-opposite)), tensor([4.0]))


def test_unit_of_nothing_has_a_finite_gradient() -> None:
    zero = torch.zeros(2, 3, requires_grad=True)
    unit(zero).sum().backward()
    assert zero.grad.isfinite().all()


def test_mean_cosine_equals_the_loop_over_pairs() -> None:
    values = torch.randn(6, 3, 5, dtype=torch.float64)
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    hand = torch.stack([torch.cosine_similarity(values[i], values[j], dim=-1) for i, j in pairs]).mean(0)
    torch.testing.assert_close(mean_cosine(values), hand)
    torch.testing.assert_close(mean_cosine(torch.ones(4, 3)), tensor(1.0))
    torch.testing.assert_close(mean_cosine(torch.eye(4)), tensor(0.0))


# Relations and attention over layers


def test_outer_distance_is_that_of_the_matrices() -> None:
    a, b, c, e = torch.randn(4, 3, 2, 6, dtype=torch.float64)
    student, teacher = (torch.einsum("xyi,xyj->xyij", *pair) for pair in ((a, b), (c, e)))
    torch.testing.assert_close(outer_distance(a, b, c, e), (student - teacher).square().sum(dim=(-1, -2)))
    assert outer_distance(a, b, a, b).count_nonzero() == 0


def test_outer_distance_of_almost_equal_relations_does_not_cancel() -> None:
    """At the size of CLS states; |a|^2 |b|^2 + |c|^2 |e|^2 - 2 <a, c> <b, e> would be off by more than its value."""
    a, b = 20 * unit(torch.randn(2, 5, 768, dtype=torch.float64))
    c, e = a + 1e-4 * torch.randn_like(a), b + 1e-4 * torch.randn_like(b)
    exact = outer_distance(a, b, c, e)
    single = outer_distance(a.float(), b.float(), c.float(), e.float())
    torch.testing.assert_close(single.double(), exact, rtol=0.01, atol=0)
    assert (single >= 0).all()


def test_layer_attention_by_hand() -> None:
    student, teacher = tensor([[[1.0, 0.0], [0.0, 1.0]]]), tensor([[[math.log(3.0), 0.0], [0.0, 0.0], [5.0, 0.0]]])
    allowed = tensor([[True, True, False], [True, True, True]])
    weights = layer_attention(student, teacher, allowed=allowed)
    torch.testing.assert_close(weights, tensor([[[0.75, 0.25, 0.0], [1 / 3, 1 / 3, 1 / 3]]]))
    torch.testing.assert_close(layer_mixture(weights, teacher)[0, 0], 0.75 * teacher[0, 0])
    half = layer_attention(student, teacher, scale=0.5)[0, 0]
    torch.testing.assert_close(half, tensor([3**0.5, 1.0, math.exp(2.5)]) / (3**0.5 + 1 + math.exp(2.5)))


def test_autocast_does_not_round_layer_attention() -> None:
    student, teacher = torch.randn(4, 2, 16), torch.randn(4, 5, 16)
    weights = layer_attention(student, teacher)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer_attention(student, teacher), weights)
        assert layer_mixture(weights, teacher.bfloat16()).dtype == torch.float32


# Precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_before_any_arithmetic(dtype: torch.dtype) -> None:
    student, teacher = torch.randn(4, 3).to(dtype), torch.randn(4, 3).to(dtype)
    units = unit(student.float()), unit(teacher.float())
    for half, full in (
        (label_loss(student, tensor([0, 1, 2, 0]), False), label_loss(student.float(), tensor([0, 1, 2, 0]), False)),
        (kd_loss(student, teacher, 2.0, False), kd_loss(student.float(), teacher.float(), 2.0, False)),
        (squared_distance(unit(student), unit(teacher)), squared_distance(*units)),
        (outer_distance(student, teacher, teacher, student),
         outer_distance(student.float(), teacher.float(), teacher.float(), student.float())),
        (layer_attention(student[None], teacher[None]), layer_attention(student.float()[None], teacher.float()[None])),
        (unit(torch.full((1, 3), 6e4).to(dtype)), torch.full((1, 3), 3**-0.5)),  # its square overflows float16
    ):
        assert half.dtype == torch.float32
        torch.testing.assert_close(half, full)


def test_no_loss_swallows_a_misspelt_argument() -> None:
    for name, function in inspect.getmembers(losses, inspect.isfunction):
        kinds = {p.kind for p in inspect.signature(function).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}, name
