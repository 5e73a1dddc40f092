"""Losses over the vocabulary: hand values, what fills up, and averages over the tokens of a whole step."""

import math

import pytest
import torch
from torch import Tensor, tensor

from kdcore.errors import UserError
from kdcore.mlm_losses import masked_tokens, mlm_kd_loss, mlm_loss, refuse_other_vocabulary, token_kd_loss
from kdcore.objective import Batch, Dims, Masked, Setting, Step

MASKED = Masked(tensor([[1, 4], [2, 0], [0, 0]]), tensor([[3, 0], [1, -100], [-100, -100]]))
"""Two masked tokens, one, and none."""
LENGTHS = tensor([6, 4, 2])
STEP = Step(LENGTHS, tensor([2, 1, 0]))
MASK = (torch.arange(6) < LENGTHS[:, None]).long()


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def part(masked: Masked, rows: slice) -> Masked:
    return Masked(masked.positions[rows], masked.targets[rows])


def test_mlm_loss_by_hand() -> None:
    """-log softmax of the word at three tokens of two rows: 1 token a row on average."""
    logits = torch.zeros(3, 2, 4)
    logits[0, 0, 3] = math.log(5)  # 5 of 8
    values = mlm_loss(logits, MASKED, STEP)
    torch.testing.assert_close(values, tensor([math.log(8 / 5) + math.log(4), math.log(4), 0.0]))
    torch.testing.assert_close(values.mean(), tensor((math.log(8 / 5) + 2 * math.log(4)) / 3))


def test_kd_by_hand_sums_over_the_vocabulary_and_has_the_teacher_first() -> None:
    """Lessons A29 to A33: 2^2 KL((2/3, 1/3) || (1/2, 1/2)) at T = 2, divided by neither vocabulary nor fill-ups."""
    student, teacher = torch.zeros(3, 2, 2), torch.zeros(3, 2, 2)
    teacher[0, 1, 0] = 2 * math.log(2)
    kl = 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)
    torch.testing.assert_close(mlm_kd_loss(student, teacher, 2.0, MASKED, STEP), tensor([4 * kl, 0.0, 0.0]))


@pytest.mark.parametrize("loss", ["mlm", "kd", "tokens"])
def test_means_are_over_the_tokens_of_the_step_however_it_is_cut(loss: str) -> None:
    ours, theirs = numbers(1, 3, 6, 5), numbers(2, 3, 6, 5)
    logits = ours[:, :2], theirs[:, :2]

    def values(rows: slice) -> Tensor:
        if loss == "mlm":
            return mlm_loss(logits[0][rows], part(MASKED, rows), STEP)
        if loss == "kd":
            return mlm_kd_loss(logits[0][rows], logits[1][rows], 2.0, part(MASKED, rows), STEP)
        return token_kd_loss(ours[rows], theirs[rows], 2.0, MASK[rows], STEP)

    counted = MASK.bool() if loss == "tokens" else MASKED.targets >= 0
    student, teacher = (ours, theirs) if loss == "tokens" else logits
    if loss == "mlm":
        log_p = student.log_softmax(dim=-1)[counted]
        expected = -log_p[torch.arange(3), MASKED.targets[counted]].mean()
    else:
        log_s, log_t = ((x[counted] / 2).log_softmax(dim=-1) for x in (student, teacher))
        expected = 4 * (log_t.exp() * (log_t - log_s)).sum(dim=-1).mean()
    torch.testing.assert_close(values(slice(0, 3)).mean(), expected)
    torch.testing.assert_close((values(slice(0, 1)).sum() + values(slice(1, 3)).sum()) / 3, expected)


def test_gradient_is_t_times_the_difference_of_probabilities_and_none_where_filled_up() -> None:
    """Lesson A46: -100 reaches no soft loss either."""
    student, teacher = numbers(1, 3, 2, 5).requires_grad_(), numbers(2, 3, 2, 5)
    mlm_kd_loss(student, teacher, 3.0, MASKED, STEP).mean().backward()
    expected = 3.0 * ((student / 3).softmax(dim=-1) - (teacher / 3).softmax(dim=-1)) / 3
    expected[MASKED.targets < 0] = 0
    torch.testing.assert_close(student.grad, expected.detach())
    student.grad = None
    mlm_loss(student, MASKED, STEP).mean().backward()
    assert not student.grad[MASKED.targets < 0].any()


def test_a_step_without_masked_tokens_is_zero_and_finite() -> None:
    none = Masked(MASKED.positions, torch.full_like(MASKED.targets, -100))
    step = Step(LENGTHS, torch.zeros_like(LENGTHS))
    logits = numbers(1, 3, 2, 5).requires_grad_()
    total = mlm_loss(logits, none, step) + mlm_kd_loss(logits, numbers(2, 3, 2, 5), 1.0, none, step)
    assert total.tolist() == [0, 0, 0]
    total.sum().backward()
    assert not logits.grad.any()
    nowhere = Masked(MASKED.positions[:, :0], MASKED.targets[:, :0])
    assert mlm_loss(logits[:, :0], nowhere, step).tolist() == [0, 0, 0]


def test_half_precision_is_widened() -> None:
    ours, theirs = numbers(1, 3, 2, 50), numbers(2, 3, 2, 50)
    exact = mlm_kd_loss(ours, theirs, 1.0, MASKED, STEP), mlm_loss(ours, MASKED, STEP)
    half = ours.bfloat16(), theirs.bfloat16()
    rough = mlm_kd_loss(*half, 1.0, MASKED, STEP), mlm_loss(half[0], MASKED, STEP)
    for values, expected in zip(rough, exact, strict=True):
        assert values.dtype == torch.float32
        torch.testing.assert_close(values.double(), expected, rtol=0.02, atol=0)


def test_what_is_missing_is_said() -> None:
    logits = numbers(1, 3, 2, 5)
    with pytest.raises(ValueError, match="names no step"):
        mlm_loss(logits, MASKED, None)
    with pytest.raises(ValueError, match="must set masks_tokens"):
        masked_tokens(Batch(torch.arange(3), torch.full((3,), -1), STEP))
    assert masked_tokens(Batch(torch.arange(3), torch.full((3,), -1), STEP, MASKED)) is MASKED
    with pytest.raises(Exception, match=r"differ in shape|Type-check"):
        mlm_kd_loss(logits, logits[:, :, :4], 1.0, MASKED, STEP)


def test_vocabularies_of_different_sizes_are_refused_with_both() -> None:
    """Lesson A72."""
    setting = Setting(Dims(2, 8, 2, 30522), Dims(2, 8, 2, 50265), 0, False, torch.full((3,), -1), 3, 0)
    with pytest.raises(UserError) as caught:
        refuse_other_vocabulary(setting)
    assert "teacher has 30522 tokens and the student 50265" in str(caught.value)
