"""Losses over the vocabulary of a masked-language-model head: pure functions that give one value per example.

Axes: b batch, t tokens, p masked positions, v vocabulary. The mean of the values over the examples of an optimiser step
is the mean over all tokens of the step that count, however the step is cut: the masked ones, or all real ones. An
example without any has the value 0. Half precision is widened to float32 inside, float64 stays.
"""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kdcore.errors import UserError
from kdcore.losses import kd_loss, same_shape, widened
from kdcore.objective import Batch, Masked, Setting, Step
from kdcore.token_losses import per_token


def masked_tokens(batch: Batch) -> Masked:
    """Which tokens of the batch are masked; raises ValueError where none are by declaration."""
    if batch.masked is None:
        raise ValueError("this loss reads masked tokens, but the batch names none: its objective must set masks_tokens")
    return batch.masked


def mlm_loss(logits: Float[Tensor, "b p v"], masked: Masked, step: Step | None) -> Float[Tensor, " b"]:
    """Cross-entropy with the tokens that were masked, averaged over the masked tokens of the step."""
    values = F.cross_entropy(widened(logits).flatten(0, 1), masked.targets.flatten(), reduction="none",
                             ignore_index=FILL)
    return values.view(masked.targets.shape).sum(dim=1) / _masked_per_example(step)


def mlm_kd_loss(student: Float[Tensor, "b p v"], teacher: Float[Tensor, "b p v"], temperature: float, masked: Masked,
                step: Step | None) -> Float[Tensor, " b"]:
    """T^2 KL(softmax(teacher/T) || softmax(student/T)), averaged over the masked tokens of the step.

    Raises ValueError when shapes differ.
    """
    values = _divergence(student, teacher, temperature).masked_fill(masked.targets == FILL, 0)
    return values.sum(dim=1) / _masked_per_example(step)


def token_kd_loss(student: Float[Tensor, "b t v"], teacher: Float[Tensor, "b t v"], temperature: float,
                  mask: Int[Tensor, "b t"], step: Step | None) -> Float[Tensor, " b"]:
    """`mlm_kd_loss` averaged over all real tokens of the step."""
    values = _divergence(student, teacher, temperature).masked_fill(mask == 0, 0)
    return per_token(values.sum(dim=1) / mask.sum(dim=1).clamp_min(1), mask, step)


def refuse_other_vocabulary(setting: Setting) -> None:
    """Raises UserError where student and teacher have vocabularies of different sizes."""
    student, teacher = setting.student.vocabulary, setting.teacher.vocabulary
    if student != teacher:
        raise UserError(f"distributions over the vocabulary are compared token by token, but the teacher has {teacher} "
                        f"tokens and the student {student}; use a student with the teacher's tokenizer and as many "
                        "embeddings")


FILL = -100
"""Target of what fills up `Masked`."""


def _divergence(student: Float[Tensor, "b n v"], teacher: Float[Tensor, "b n v"],
                temperature: float) -> Float[Tensor, "b n"]:
    same_shape(student, teacher)
    values = kd_loss(student.flatten(0, 1), teacher.flatten(0, 1), temperature, regression=False)
    return values.view(student.shape[:2])


def _masked_per_example(step: Step | None) -> float:
    if step is None:
        raise ValueError("this loss is an average over the masked tokens of a step, but the batch names no step")
    return max(int(step.masked.sum()), 1) / len(step.masked)
