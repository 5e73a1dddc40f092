"""Contrastive losses as pure functions, one value per example, and the modules that apply them with memory banks.

Axes: b batch, k negatives, s = 1 + k scores of which the first is the positive's, d width. A score is the dot product
of two unit vectors divided by tau. Vectors come in float32 or float64, as projections give them.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from kdcore.memory_bank import MemoryBank, StepRows

_EPSILON = 1e-7
"""As in the released code, where it keeps a denominator from zero."""


def scores(
    queries: Float[Tensor, "b d"], positives: Float[Tensor, "b d"], negatives: Float[Tensor, "b k d"], tau: float
) -> Float[Tensor, "b s"]:
    """Each query with its positive and with each of its negatives.

    They are multiplied apart: together, a positive with a gradient would have one computed for all negatives.
    """
    with torch.autocast(queries.device.type, enabled=False):
        own = (queries * positives).sum(dim=1, keepdim=True)
        others = (negatives @ queries.unsqueeze(-1)).squeeze(-1)
    return torch.cat([own, others], dim=1) / tau


def info_nce(scores: Float[Tensor, "b s"]) -> Float[Tensor, " b"]:
    """-log of the positive's share of the summed exponentials; 0 without negatives."""
    return scores.logsumexp(dim=1) - scores[:, 0]


def nce(scores: Float[Tensor, "b s"], log_z: Float[Tensor, " b"], examples: int) -> Float[Tensor, " b"]:
    """Noise-contrastive estimation: k negatives, each of `examples` as likely as the other (Tian et al. 2020).

    With P = exp(score) / Z and c = k / examples: -log P / (P + c + 1e-7) for the positive, and
    -log c / (P + c + 1e-7) for each negative. In logarithms, so that small tau overflows nothing.
    """
    count = scores.shape[1] - 1
    share = count / examples
    log_p = scores - log_z.unsqueeze(1)
    either = torch.logaddexp(log_p, torch.full_like(log_p, math.log(share + _EPSILON)))
    return either.sum(dim=1) - log_p[:, 0] - (count * math.log(share) if count else 0.0)


def log_normaliser(scores: Float[Tensor, "b s"], examples: int) -> Float[Tensor, " b"]:
    """log Z by each example's own scores: `examples` times the mean of exp(score)."""
    return scores.logsumexp(dim=1) + math.log(examples / scores.shape[1])


class InfoNce(nn.Module):
    """`info_nce` of the student's vectors: the teacher's fresh one against rows of the teacher's bank."""

    def __init__(self, examples: int, width: int, tau: float, step_examples: int, generator: torch.Generator) -> None:
        """`step_examples` is the largest number of examples of a step."""
        super().__init__()
        self.tau = tau
        self.bank = MemoryBank(examples, width, generator)
        self.rows = StepRows(step_examples)

    def forward(self, student: Float[Tensor, "b d"], teacher: Float[Tensor, "b d"], ids: Int64[Tensor, " b"],
                negatives: Int64[Tensor, "b k"], step: int) -> Float[Tensor, " b"]:
        self.rows.add(step, ids, teacher)
        return info_nce(scores(student, teacher, self.bank(negatives), self.tau))

    def update(self, momentum: float) -> None:
        """Move the rows of the last step's examples, on all ranks alike."""
        ids, vectors, _ = self.rows.take()
        self.bank.update(ids, vectors, momentum)


class TwoSidedNce(nn.Module):
    """Mean of `nce` of the student's vectors against the teacher's bank and of the teacher's against the student's.

    Positives are rows of the banks too. Z, one per side, is fixed by the first step that is applied: the mean over its
    examples. Until then each example has its own, so that it depends on no other example of its batch.
    """

    log_z: Tensor

    def __init__(self, examples: int, width: int, tau: float, step_examples: int, generator: torch.Generator) -> None:
        """`step_examples` is the largest number of examples of a step."""
        super().__init__()
        self.examples, self.width, self.tau = examples, width, tau
        self.teacher_bank = MemoryBank(examples, width, generator)
        self.student_bank = MemoryBank(examples, width, generator)
        self.register_buffer("log_z", torch.full((2,), -torch.inf))  # log of 0: not known yet
        self.rows = StepRows(step_examples)

    def forward(self, student: Float[Tensor, "b d"], teacher: Float[Tensor, "b d"], ids: Int64[Tensor, " b"],
                negatives: Int64[Tensor, "b k"], step: int) -> Float[Tensor, " b"]:
        sides = [scores(queries, bank(ids), bank(negatives), self.tau)
                 for queries, bank in ((student, self.teacher_bank), (teacher, self.student_bank))]
        own = torch.stack([log_normaliser(side.detach(), self.examples) for side in sides], dim=1)
        self.rows.add(step, ids, torch.cat([student, teacher, own], dim=1))
        log_z = torch.where(self.log_z.isneginf(), own, self.log_z).unbind(dim=1)
        losses = [nce(side, z, self.examples) for side, z in zip(sides, log_z, strict=True)]
        return torch.stack(losses).mean(dim=0)

    def update(self, momentum: float) -> None:
        """Move the rows of the last step's examples in both banks, on all ranks alike, and fix Z if it is not."""
        ids, vectors, once = self.rows.take()
        student, teacher, log_z = vectors.tensor_split([self.width, 2 * self.width], dim=1)
        self.student_bank.update(ids, student, momentum)
        self.teacher_bank.update(ids, teacher, momentum)
        mean = log_z.masked_fill(~once.unsqueeze(1), -torch.inf).logsumexp(dim=0) - once.to(log_z.dtype).sum().log()
        self.log_z.copy_(torch.where(self.log_z.isneginf(), mean, self.log_z))
