"""DKD: values by hand, what KD is made of, two classes, the warm-up."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, tensor

from kdcore import methods
from kdcore.errors import UserError
from kdcore.features import LOGITS, Features
from kdcore.losses import kd_loss, label_loss
from kdcore.methods import dkd, vanilla_kd
from kdcore.methods.dkd import Config, decoupled_kd
from kdcore.objective import Batch, Loss, Progress
from tests.methods.toys import CLASSIFICATION, REGRESSION

EXACT = {"rtol": 1e-12, "atol": 1e-14}
LAST = Progress(epoch=2, step=11, total_steps=12)


def logits_of(*probabilities: list[float]) -> Tensor:
    return tensor(probabilities, dtype=torch.float64).log()


def drawn(classes: int, seed: int) -> Tensor:
    return 3 * torch.randn(16, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels_of(classes: int) -> Tensor:
    return torch.arange(16) % classes


def loss_with(config: Config, classes: int = 3, progress: Progress = LAST) -> Loss:
    setting = REGRESSION if classes == 1 else replace(CLASSIFICATION, classes=classes, labels=labels_of(classes))
    (phase,) = dkd.phases(config, setting)
    return phase.objective(Features({LOGITS: drawn(classes, 1)}), Features({LOGITS: drawn(classes, 2)}),
                           Batch(torch.arange(16), setting.labels), progress)


# The formula


def test_by_hand() -> None:
    """Teacher 1/2, 3/8, 1/8 and student 1/4, 1/4, 1/2.

    Label 0: pairs (1/2, 1/2) and (1/4, 3/4); among the others (3/4, 1/4) and (1/3, 2/3).
    Label 2: pairs (1/8, 7/8) and (1/2, 1/2); among the others (4/7, 3/7) and (1/2, 1/2).
    """
    teacher, student = (logits_of(row, row) for row in ([1 / 2, 3 / 8, 1 / 8], [1 / 4, 1 / 4, 1 / 2]))
    target, others = decoupled_kd(student, teacher, tensor([0, 2]), 1)
    torch.testing.assert_close(target, tensor([
        math.log(2) / 2 + math.log(2 / 3) / 2,
        math.log(1 / 4) / 8 + 7 / 8 * math.log(7 / 4),
    ], dtype=torch.float64), **EXACT)
    torch.testing.assert_close(others, tensor([
        3 / 4 * math.log(9 / 4) + math.log(3 / 8) / 4,
        4 / 7 * math.log(8 / 7) + 3 / 7 * math.log(6 / 7),
    ], dtype=torch.float64), **EXACT)


def test_by_hand_at_a_temperature() -> None:
    """At T = 2 the square roots of 16, 9, 1 weigh 4, 3, 1 and those of 1, 1, 4 weigh 1, 1, 2: the numbers above."""
    teacher, student = logits_of([16, 9, 1]), logits_of([1, 1, 4])
    target, others = decoupled_kd(student, teacher, tensor([0]), 2)
    assert target.item() == pytest.approx(4 * (math.log(2) / 2 + math.log(2 / 3) / 2), rel=1e-12)
    assert others.item() == pytest.approx(4 * (3 / 4 * math.log(9 / 4) + math.log(3 / 8) / 4), rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_kd_is_tckd_and_nckd_times_what_the_teacher_leaves_to_other_classes(classes: int, temperature: float) -> None:
    student, teacher, labels = drawn(classes, 1).requires_grad_(), drawn(classes, 2), labels_of(classes)
    target, others = decoupled_kd(student, teacher, labels, temperature)
    sure = (teacher / temperature).softmax(dim=1).gather(1, labels[:, None])[:, 0]
    kd = kd_loss(student, teacher, temperature, regression=False)
    torch.testing.assert_close(target + (1 - sure) * others, kd, **EXACT)
    gradients = [torch.autograd.grad(loss.sum(), student)[0] for loss in (target + (1 - sure) * others, kd)]
    torch.testing.assert_close(*gradients, **EXACT)


@pytest.mark.parametrize("classes", [3, 7])
def test_each_part_sees_its_own_side_of_the_label(classes: int) -> None:
    """NCKD does not know the label's logit; TCKD does not know how the others share what is left to them."""
    student, teacher, labels = drawn(classes, 1), drawn(classes, 2), labels_of(classes)
    target, others = decoupled_kd(student, teacher, labels, 1)
    louder = student + 2 * torch.nn.functional.one_hot(labels, classes)
    other_target, same_others = decoupled_kd(louder, teacher, labels, 1)
    torch.testing.assert_close(same_others, others, **EXACT)
    assert not torch.isclose(other_target, target).any()
    for row, label in zip(student, labels, strict=True):
        keep = torch.arange(classes) != label
        row[keep] = row[keep].roll(1)
    same_target, other_others = decoupled_kd(student, teacher, labels, 1)
    torch.testing.assert_close(same_target, target, **EXACT)
    assert not torch.isclose(other_others, others).any()


def test_total() -> None:
    config = Config(label_weight=2, alpha=3, beta=5, temperature=1.5, warmup_share=0)
    target, others = decoupled_kd(drawn(3, 1), drawn(3, 2), labels_of(3), 1.5)
    expected = 2 * label_loss(drawn(3, 1), labels_of(3), False) + 3 * target + 5 * others
    torch.testing.assert_close(loss_with(config).total, expected, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_sure_teacher_still_teaches_exactly(dtype: torch.dtype) -> None:
    """Where 1 - p has no digits left the others among themselves are as clear as ever."""
    teacher = tensor([[90.0, 1.0, 0.0]], dtype=dtype)
    student = tensor([[90.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    target, others = decoupled_kd(student, teacher, tensor([0]), 1)
    first = math.e / (1 + math.e)
    expected = math.log(2) + first * math.log(first) + (1 - first) * math.log(1 - first)
    assert (target.item(), others.item()) == (pytest.approx(0, abs=1e-6), pytest.approx(expected, rel=1e-5))
    (target + others).sum().backward()
    torch.testing.assert_close(student.grad.float(), tensor([[0, 0.5 - first, first - 0.5]]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("student", "teacher", "labels"),
    [((4, 3), (4, 2), (4,)), ((4, 3), (1, 3), (4,)), ((4, 3), (4, 3), (3,)), ((4, 3), (4, 3), (1,))], ids=str,
)
def test_shapes_that_do_not_fit(student: tuple[int, ...], teacher: tuple[int, ...], labels: tuple[int, ...]) -> None:
    """With the type checker out of the way, as in a training."""
    bare = getattr(decoupled_kd, "__wrapped__", decoupled_kd)
    with pytest.raises(ValueError, match=r"differ in shape|labels have shape"):
        bare(torch.zeros(student), torch.zeros(teacher), torch.zeros(labels, dtype=torch.int64), 1)


# Two classes, scores


def test_two_classes_have_no_nckd() -> None:
    student = drawn(2, 1).requires_grad_()
    _, others = decoupled_kd(student, drawn(2, 2), labels_of(2), 4)
    assert torch.equal(others, torch.zeros(16, dtype=torch.float64))
    assert not torch.autograd.grad(others.sum(), student)[0].any()


@pytest.mark.parametrize("beta", [0, 8, 1e6])
def test_two_classes_are_vanilla_kd(beta: float) -> None:
    loss = loss_with(Config(label_weight=2, alpha=3, beta=beta, temperature=5), classes=2)
    (phase,) = vanilla_kd.phases(vanilla_kd.Config(alpha=3 / 5, temperature=5), CLASSIFICATION)
    vanilla = phase.objective(Features({LOGITS: drawn(2, 1)}), Features({LOGITS: drawn(2, 2)}),
                              Batch(torch.arange(16), labels_of(2)), LAST)
    torch.testing.assert_close(loss.total, 5 * vanilla.total, **EXACT)


def test_without_a_label_the_teachers_most_probable_class_is_the_target() -> None:
    student, teacher, labels = Features({LOGITS: drawn(3, 1)}), Features({LOGITS: drawn(3, 2)}), labels_of(3)
    objective = dkd.Dkd(Config(), regression=False)
    missing = torch.arange(16) % 3 == 1
    loss = objective(student, teacher, Batch(torch.arange(16), torch.where(missing, -1, labels)), LAST)
    guessed = torch.where(missing, teacher.logits.argmax(dim=1), labels)
    expected = objective(student, teacher, Batch(torch.arange(16), guessed), LAST)
    assert not torch.equal(guessed, labels)
    for part in ("tckd", "nckd"):
        torch.testing.assert_close(loss.parts[part], expected.parts[part], **EXACT)
    assert not loss.parts["label"][missing].any()


def test_regression_is_the_squared_difference_with_alpha() -> None:
    loss = loss_with(Config(alpha=3, beta=7, temperature=9), classes=1)
    assert loss.parts.keys() == {"label", "kd"}
    student, teacher = drawn(1, 1)[:, 0], drawn(1, 2)[:, 0]
    expected = (student - REGRESSION.labels) ** 2 + 3 * (student - teacher) ** 2
    torch.testing.assert_close(loss.total, expected, **EXACT)


# The warm-up


@pytest.mark.parametrize(
    ("share", "grown"),
    [(0, [1, 1, 1, 1]), (0.5, [1 / 6, 3 / 6, 1, 1]), (1, [1 / 12, 3 / 12, 6 / 12, 1]), (0.01, [1, 1, 1, 1])], ids=str,
)
@pytest.mark.parametrize("classes", [1, 3])
def test_the_weights_of_what_the_teacher_says_grow(share: float, grown: list[float], classes: int) -> None:
    config = Config(label_weight=0.25, alpha=2, beta=4, warmup_share=share)
    full = {"kd": 2} if classes == 1 else {"tckd": 2, "nckd": 4}
    for step, factor in zip((0, 2, 5, 11), grown, strict=True):
        weights = loss_with(config, classes, Progress(epoch=0, step=step, total_steps=12)).weights
        assert weights == pytest.approx({"label": 0.25} | {name: factor * weight for name, weight in full.items()})


# Mistakes


@pytest.mark.parametrize(
    "settings",
    [{"alpha": -0.1}, {"beta": -1}, {"label_weight": -1}, {"temperature": 0}, {"temperature": float("inf")},
     {"warmup_share": 1.1}, {"beta": float("nan")}],
    ids=str,
)
def test_values_out_of_range(settings: dict[str, object]) -> None:
    (key,) = settings
    with pytest.raises(UserError, match=f"methods.dkd: {key} = "):
        methods.configure("dkd", settings)
