"""Loss functions: pure functions of tensors that give one value per example.

Axes: b batch, t tokens, d width, c classes. Half precision is widened to float32 inside, float64 stays.
Shapes are compared before anything is subtracted, so that broadcasting cannot turn [b] into [b, b].
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

NO_LABEL = -1
"""Class of an example without a label; NaN is such a score."""
EPSILON = 1e-12
"""Smallest norm that `unit` divides by."""


def widened(values: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Half precision as float32; float32 and float64 as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def same_shape(student: Tensor, teacher: Tensor) -> None:
    """Raises ValueError when shapes differ, before broadcasting hides it."""
    if student.shape != teacher.shape:
        raise ValueError(f"student {list(student.shape)} and teacher {list(teacher.shape)} differ in shape")


def label_loss(logits: Float[Tensor, "b c"], labels: Tensor, regression: bool) -> Float[Tensor, " b"]:
    """Cross-entropy with labels [b] of class ids, or the squared error to scores [b] with `regression`.

    0 without any gradient where an example has no label (-1, NaN). Scores are compared on their own scale, without
    squashing. Raises ValueError when shapes do not fit.
    """
    if labels.shape != logits.shape[:1]:
        raise ValueError(f"labels have shape {list(labels.shape)}, expected {list(logits.shape[:1])}")
    if regression:
        output = _one_output(logits)
        return _square(torch.where(labels.isnan(), 0, output - labels.to(output.dtype)))
    return F.cross_entropy(widened(logits), labels, reduction="none", ignore_index=NO_LABEL)


def kd_loss(
    student: Float[Tensor, "b c"], teacher: Float[Tensor, "b c"], temperature: float, regression: bool
) -> Float[Tensor, " b"]:
    """T^2 KL(softmax(teacher/T) || softmax(student/T)), summed over classes (Hinton et al. 2015).

    With `regression` the squared difference of the two outputs; the temperature is ignored.
    Raises ValueError when shapes differ.
    """
    same_shape(student, teacher)
    if regression:
        return _square(_one_output(student) - _one_output(teacher))
    log_student = F.log_softmax(widened(student) / temperature, dim=-1)
    log_teacher = F.log_softmax(widened(teacher) / temperature, dim=-1)
    return temperature**2 * F.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(dim=-1)


def unit(vectors: Float[Tensor, "*axes d"]) -> Float[Tensor, "*axes d"]:
    """Vectors of length one: x / max(norm of x, 1e-12)."""
    return F.normalize(widened(vectors), dim=-1, eps=EPSILON)


def squared_distance(student: Float[Tensor, "*axes d"], teacher: Float[Tensor, "*axes d"]) -> Float[Tensor, "*axes"]:
    """Squared Euclidean distance, summed over the width; 0..4 between unit vectors.

    Raises ValueError when shapes differ.
    """
    same_shape(student, teacher)
    return _square(widened(student) - widened(teacher)).sum(dim=-1)


def outer_distance(
    student_left: Float[Tensor, "*axes d"], student_right: Float[Tensor, "*axes d"],
    teacher_left: Float[Tensor, "*axes d"], teacher_right: Float[Tensor, "*axes d"],
) -> Float[Tensor, "*axes"]:
    """Squared Frobenius norm of a b' - c e', the difference of two outer products [d, d], without forming them.

    As a b' - c e' = (a - c) b' + c (b - e)', it is |a-c|^2 |b|^2 + |c|^2 |b-e|^2 + 2 <a-c, c> <b, b-e>: of the order of
    d in time and memory, and exact near zero, where |a|^2 |b|^2 + |c|^2 |e|^2 - 2 <a, c> <b, e> would cancel.
    Raises ValueError when shapes differ.
    """
    for other in (student_right, teacher_left, teacher_right):
        same_shape(student_left, other)
    a, b, c, e = (widened(vectors) for vectors in (student_left, student_right, teacher_left, teacher_right))
    left, right = a - c, b - e
    both = _square(left).sum(dim=-1) * _square(b).sum(dim=-1) + _square(c).sum(dim=-1) * _square(right).sum(dim=-1)
    return both + 2 * (left * c).sum(dim=-1) * (b * right).sum(dim=-1)


def layer_attention(
    student: Float[Tensor, "b k d"], teacher: Float[Tensor, "b n d"], scale: float = 1.0,
    allowed: Bool[Tensor, "k n"] | None = None,
) -> Float[Tensor, "b k n"]:
    """How much each student layer attends to each teacher layer: softmax over n of scale <student, teacher>.

    Rows sum to 1 (ALP-KD, Passban et al. 2021). `allowed` is true where a student layer may look; each needs one
    teacher layer at least.
    """
    scores = scale * _product(student, teacher.mT)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(dim=-1)


def layer_mixture(weights: Float[Tensor, "b k n"], teacher: Float[Tensor, "b n d"]) -> Float[Tensor, "b k d"]:
    """The teacher's layers summed with the weights of each student layer."""
    return _product(weights, teacher)


def mean_cosine(vectors: Float[Tensor, "b *axes d"]) -> Float[Tensor, "*axes"]:
    """Mean cosine over all pairs of different examples; 1 when the examples cannot be told apart.

    Needs two examples. Linear in b: the sum over all pairs is the squared norm of the sum.
    """
    examples = vectors.shape[0]
    total = _square(unit(vectors).sum(dim=0)).sum(dim=-1)
    return (total - examples) / (examples * (examples - 1))


def _one_output(logits: Float[Tensor, "b c"]) -> Float[Tensor, " b"]:
    if logits.shape[1] != 1:
        raise ValueError(f"a regression model has one output, this one has {logits.shape[1]}")
    return widened(logits).squeeze(1)


def _product(left: Float[Tensor, "b x y"], right: Float[Tensor, "b y z"]) -> Float[Tensor, "b x z"]:
    """A product of matrices that autocast leaves alone."""
    with torch.autocast(left.device.type, enabled=False):
        return widened(left) @ widened(right)


def _square(values: Tensor) -> Tensor:
    return values * values
