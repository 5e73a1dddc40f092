"""What the tests of intermediate-layer methods share: settings of the golden vectors, features of hidden stacks."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kdcore import methods
from kdcore.features import LOGITS, FeatureKey, Features, masked_mean
from kdcore.objective import Batch, Dims, Loss, Objective, Setting
from tests.methods.toys import progress

UNEQUAL = Setting(Dims(8, 12, 2, 11), Dims(4, 8, 2, 11), classes=3, regression=False,
                  labels=torch.tensor([0, 2, 1, 1]), batch_size=4, seed=0)
EQUAL = replace(UNEQUAL, teacher=Dims(8, 8, 2, 11))
DTYPES = {torch.float64: {"rtol": 0, "atol": 1e-9}, torch.float32: {"rtol": 1e-5, "atol": 1e-6}}
"""How near to the golden value a loss is in each type."""


def objective_of(name: str, setting: Setting = UNEQUAL, dtype: torch.dtype = torch.float64,
                 **settings: Any) -> Objective:
    """The one objective of a method."""
    (phase,) = methods.load(name).phases(methods.configure(name, settings), setting)
    return phase.objective.to(dtype)


def features(hidden: Tensor, mask: Tensor | None = None) -> Features:
    """CLS states of all layers (and means, given a mask) of a stack [layer, b, t, d], and some logits."""
    values = {FeatureKey("cls", layer): states[:, 0] for layer, states in enumerate(hidden)}
    if mask is not None:
        values |= {FeatureKey("mean", layer): masked_mean(states, mask) for layer, states in enumerate(hidden)}
    return Features(values | {LOGITS: hidden[-1, :, 1, :3].tanh()})


def loss_of(objective: Objective, student: Tensor, teacher: Tensor) -> Loss:
    """The loss of two hidden stacks [layer, b, t, d]."""
    return objective(features(student), features(teacher), Batch(torch.arange(4), UNEQUAL.labels), progress(0))


def parameters_of(objective: Objective) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in objective.parameters() if parameter.requires_grad)
