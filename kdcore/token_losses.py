"""Losses of token-level features: states, attention scores, attention and relations.

Pure functions that give one value per example. Axes: b batch, t tokens (q queries, k keys), d width, h heads;
`*slots` any axes between batch and the rest, such as the layers that are compared. `mask` [b, t] is 1 at real tokens.
Padding counts neither as a state nor as a query nor as a key, whatever it holds, and each example is divided by its own
length: amount of padding and company in a batch change nothing. An example without real tokens has the value 0.
Half precision is widened to float32 inside, float64 stays. `per_token` and `per_pair` turn averages over an
example's own tokens into its share of the average over all tokens of an optimiser step.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kdcore.losses import same_shape, unit, widened
from kdcore.objective import Step


def real_states(states: Float[Tensor, "b *slots t d"], mask: Int[Tensor, "b t"]) -> Float[Tensor, "b *slots t d"]:
    """Zero at padding. What goes through learned maps or weights goes through this first: the gradient of a weight is a
    sum over all tokens, in which 0 times an infinite number would be no number."""
    return states.masked_fill(~_tokens(mask, states.dim()), 0)


def real_scores(scores: Float[Tensor, "b *slots h q k"], mask: Int[Tensor, "b k"]) -> Float[Tensor, "b *slots h q k"]:
    """Zero where query or key is padding, for the reason of `real_states`."""
    return scores.masked_fill(~_pairs(mask, scores.dim()), 0)


def hidden_distance(
    student: Float[Tensor, "b *slots t d"], teacher: Float[Tensor, "b *slots t d"], mask: Int[Tensor, "b t"]
) -> Float[Tensor, "b *slots"]:
    """Squared difference of token states, averaged over real tokens and width (TinyBERT's for hidden states).

    Raises ValueError when shapes differ.
    """
    same_shape(student, teacher)
    gaps = real_states(widened(student) - widened(teacher), mask)
    return (gaps * gaps).sum(dim=(-2, -1)) / (_lengths(mask, gaps.dim() - 2) * student.shape[-1])


def cosine_distance(
    student: Float[Tensor, "b *slots t d"], teacher: Float[Tensor, "b *slots t d"], mask: Int[Tensor, "b t"]
) -> Float[Tensor, "b *slots"]:
    """1 - cosine of token states, averaged over real tokens (DistilBERT).

    Raises ValueError when shapes differ.
    """
    same_shape(student, teacher)
    cosines = (unit(real_states(student, mask)) * unit(real_states(teacher, mask))).sum(dim=-1, keepdim=True)
    return real_states(1 - cosines, mask).sum(dim=(-2, -1)) / _lengths(mask, student.dim() - 2)


def score_distance(
    student: Float[Tensor, "b *slots h q k"], teacher: Float[Tensor, "b *slots h q k"], mask: Int[Tensor, "b k"]
) -> Float[Tensor, "b *slots"]:
    """Squared difference of attention scores before the softmax, averaged over heads and pairs of real tokens
    (TinyBERT's for attention).

    Raises ValueError when shapes differ.
    """
    same_shape(student, teacher)
    gaps = real_scores(widened(student) - widened(teacher), mask)
    return (gaps * gaps).sum(dim=(-3, -2, -1)) / (student.shape[-3] * _lengths(mask, gaps.dim() - 3) ** 2)


def relation_scores(
    vectors: Float[Tensor, "b *slots h t d"], mask: Int[Tensor, "b t"]
) -> Float[Tensor, "b *slots h t t"]:
    """Scaled dot products of the vectors of one head with each other, x x^T / sqrt(d) (MiniLM, section 3.2)."""
    with torch.autocast(vectors.device.type, enabled=False):
        real = real_states(widened(vectors), mask)
        return real @ real.mT / math.sqrt(vectors.shape[-1])


def split_heads(vectors: Float[Tensor, "b *slots h t d"], heads: int) -> Float[Tensor, "b *slots heads t e"]:
    """The heads' vectors joined and cut anew into `heads` (MiniLMv2's relation heads).

    Raises ValueError when the whole width cannot be cut so.
    """
    width = vectors.shape[-3] * vectors.shape[-1]
    if width % heads:
        raise ValueError(f"a width of {width} cannot be cut into {heads} heads")
    if heads == vectors.shape[-3]:
        return vectors
    return vectors.transpose(-3, -2).flatten(-2).unflatten(-1, (heads, -1)).transpose(-3, -2)


def probabilities(
    scores: Float[Tensor, "b *slots h q k"], mask: Int[Tensor, "b k"]
) -> Float[Tensor, "b *slots h q k"]:
    """Softmax over the real keys; 0 at padding, whole rows of padding queries included."""
    pairs = _pairs(mask, scores.dim())
    return widened(scores).masked_fill(~pairs, _LOWEST).softmax(dim=-1).masked_fill(~pairs, 0)


def attention_divergence(
    student: Float[Tensor, "b *slots h q k"], teacher: Float[Tensor, "b *slots h q k"], mask: Int[Tensor, "b k"]
) -> Float[Tensor, "b *slots"]:
    """KL(teacher || softmax(student)) over real keys, averaged over heads and real queries (MiniLM, sections 3.1, 3.2).

    `student` holds scores, `teacher` the `probabilities` that they are to reach. Raises ValueError when shapes differ.
    """
    same_shape(student, teacher)
    pairs = _pairs(mask, student.dim())
    # Zero at padding afterwards: a gradient scaler would make that log-probability infinite.
    log_student = F.log_softmax(widened(student).masked_fill(~pairs, _LOWEST), dim=-1).masked_fill(~pairs, 0)
    target = widened(teacher)
    log_teacher = target.clamp_min(torch.finfo(target.dtype).tiny).log()  # finite at p = 0, where p log p is 0
    terms = target * (log_teacher - log_student)
    return terms.sum(dim=(-3, -2, -1)) / (student.shape[-3] * _lengths(mask, terms.dim() - 3))


def relation_divergence(
    student: Float[Tensor, "b *slots h t d"], teacher: Float[Tensor, "b *slots h t e"], mask: Int[Tensor, "b t"]
) -> Float[Tensor, "b *slots"]:
    """`attention_divergence` of the `relation_scores` of both, whose vectors may differ in width (MiniLM, section 3.2).

    Raises ValueError when head counts differ.
    """
    target = probabilities(relation_scores(teacher, mask), mask)
    return attention_divergence(relation_scores(student, mask), target, mask)


def per_token(
    means: Float[Tensor, "b *slots"], mask: Int[Tensor, "b t"], step: Step | None
) -> Float[Tensor, "b *slots"]:
    """From means over the real tokens of each example to values whose mean over the examples of the optimiser step is
    the mean over all its tokens.

    Raises ValueError when the batch does not know its step.
    """
    return _by_weight(means, mask.sum(dim=1).clamp_min(1), _step_lengths(step))


def per_pair(
    means: Float[Tensor, "b *slots"], mask: Int[Tensor, "b t"], step: Step | None
) -> Float[Tensor, "b *slots"]:
    """`per_token` for means over pairs of tokens."""
    return _by_weight(means, mask.sum(dim=1).clamp_min(1) ** 2, _step_lengths(step) ** 2)


def _by_weight(means: Tensor, own: Tensor, whole: Tensor) -> Tensor:
    shares = own.to(means.dtype) / whole.double().mean().item()
    return means * shares.view(-1, *(1,) * (means.dim() - 1))


def _step_lengths(step: Step | None) -> Int[Tensor, " s"]:
    if step is None:
        raise ValueError("this loss is an average over the tokens of a step, but the batch names no step")
    return step.lengths.clamp_min(1)


_LOWEST = torch.finfo(torch.float32).min
"""Not minus infinity: a row without any real key would become NaN."""


def _tokens(mask: Int[Tensor, "b t"], dimensions: int) -> Tensor:
    """True at real tokens, on the last axis but one of so many."""
    return mask.bool().view(len(mask), *(1,) * (dimensions - 3), -1, 1)


def _pairs(mask: Int[Tensor, "b t"], dimensions: int) -> Tensor:
    """True where query and key are real tokens, on the last two of so many axes."""
    tokens = _tokens(mask, dimensions)
    return tokens & tokens.mT


def _lengths(mask: Int[Tensor, "b t"], dimensions: int) -> Tensor:
    """The number of real tokens of each example on the first of so many axes, at least 1."""
    return mask.sum(dim=1).clamp_min(1).view(-1, *(1,) * (dimensions - 1))
