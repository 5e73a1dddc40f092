"""Scoring a model on a set with other classes: classes meet by name, never by position.

A model of entailment, neutral, contradiction meets SciTail (entailment, neutral): its prediction is the class
with the highest logit, contradiction counted as neutral. `collapsed_probabilities` is the documented
alternative, which compares p(entailment) with p(neutral) + p(contradiction).
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdcore.data.prepared import SplitInfo
from kdcore.errors import UserError, did_you_mean


def collapse(labels: tuple[str, ...], split: SplitInfo) -> Int[np.ndarray, " c"]:
    """The split's class id for each of the dataset's classes.

    `split.labels` None means the dataset's own classes in their order.

    Raises:
        UserError: a class has no counterpart, or a class of the split can never be predicted.
    """
    if split.labels is None:
        return np.arange(len(labels))
    names = [split.label_map.get(label, label) for label in labels]
    for label, name in zip(labels, names, strict=True):
        if name not in split.labels:
            raise UserError(f"out-of-domain set {split.name}: label {label!r} maps to {name!r}, which it does not have;"
                            f" give `label_map` an entry for it ({did_you_mean(name, split.labels)})")
    for name in split.labels:
        if name not in names:
            raise UserError(f"out-of-domain set {split.name}: none of the labels {', '.join(labels)} maps to its "
                            f"{name!r}, so those rows could never be right; name one in `label_map`")
    return np.array([split.labels.index(name) for name in names])


def collapses(labels: tuple[str, ...], split: SplitInfo) -> bool:
    """True when several of the dataset's classes become one of the split's."""
    return split.labels is not None and len(split.labels) < len(labels)


def collapsed_probabilities(logits: Float[Tensor, "n c"], labels: tuple[str, ...],
                            split: SplitInfo) -> Float[Tensor, "n k"]:
    """Probabilities of the split's classes: those of the dataset's classes that map to each, summed."""
    ids = torch.from_numpy(collapse(labels, split))
    probabilities = torch.softmax(logits.double(), dim=1)
    return torch.zeros(len(logits), int(ids.max()) + 1, dtype=torch.float64).index_add_(1, ids, probabilities)
