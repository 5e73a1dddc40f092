"""What tests with golden vectors share: settings, the objective of a method, a step that is cut, masked tokens."""

import torch
from torch import Tensor

from kdcore.features import Features
from kdcore.objective import Batch, Dims, Loss, Masked, Objective, Setting, Step
from tests.general.toys import corpus, phases_of
from tests.methods.toys import progress

UNEQUAL = corpus(Dims(8, 12, 2, 11), Dims(4, 8, 2, 11))
EQUAL = corpus(Dims(8, 8, 2, 11), Dims(4, 8, 2, 11))
CUTS = [(4,), (1, 3), (2, 1, 1)]
"""Sizes of the micro-batches of a step of four rows."""


def objective_of(name: str, setting: Setting, dtype: torch.dtype = torch.float64, **settings: object) -> Objective:
    """The one objective of a method."""
    (phase,) = phases_of(name, setting, dtype, **settings)
    return phase.objective


def masked_of(labels: Tensor) -> Masked:
    """Positions and targets of labels [b, t] that are -100 where no token is masked."""
    counts = (labels != -100).sum(dim=1)
    order = (labels == -100).long().argsort(dim=1, stable=True)[:, :int(counts.max())]
    there = torch.arange(order.shape[1]) < counts[:, None]
    return Masked(torch.where(there, order, 0), torch.where(there, labels.gather(1, order), -100))


def loss_of(objective: Objective, student: Features, teacher: Features, cut: tuple[int, ...] = (4,),
            masked: Masked | None = None) -> Loss:
    """The loss of a step of rows that is computed in micro-batches of these sizes, put together again."""
    mask = student.token_mask
    counts = torch.zeros(len(mask), dtype=torch.int64) if masked is None else (masked.targets != -100).sum(dim=1)
    step, losses = Step(mask.sum(dim=1), counts), []
    for rows in torch.arange(len(mask)).split(cut):
        own = Masked(masked.positions[rows], masked.targets[rows]) if masked else None
        batch = Batch(rows, torch.full_like(rows, -1), step, own)
        losses.append(objective(_rows(student, rows), _rows(teacher, rows), batch, progress(0)))
    parts = {name: torch.cat([loss.parts[name] for loss in losses]) for name in losses[0].parts}
    return Loss(parts, losses[0].weights, losses[-1].diagnostics)


def _rows(features: Features, rows: Tensor) -> Features:
    return Features({key: value[rows] for key, value in features.items()}, features.token_mask[rows])
