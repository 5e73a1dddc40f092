"""A frozen model that is run when its features are asked for.

It is no module and part of none: no `train()`, optimiser, checkpoint or data-parallel wrapper can reach its weights.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kdcore.features import FeatureKey, Features
from kdcore.models.reading import read
from kdcore.training.precision import Precision


class LiveModel:
    """A model on one device, loaded when it is first run."""

    def __init__(self, load: Callable[[], PreTrainedModel], device: torch.device, precision: Precision) -> None:
        self.device = device
        self.precision = precision
        self._load = load
        self._model: PreTrainedModel | None = None

    @property
    def is_loaded(self) -> bool:
        """True once it was run."""
        return self._model is not None

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, loaded if need be, without gradients."""
        if self._model is None:
            model = self._load().requires_grad_(False)
            nn.Module.to(model, self.device)
            self._model = model
        return self._model

    def features(self, batch: Mapping[str, Any], keys: frozenset[FeatureKey]) -> Features:
        """The features `keys` of the inputs in `batch["teacher"]`, see `compute`."""
        return self.compute(batch["teacher"], keys)

    def compute(self, inputs: Mapping[str, Tensor], keys: frozenset[FeatureKey]) -> Features:
        """Run the model on inputs anywhere; the features are float32 on its device, without gradients.

        The model is in eval mode, whatever was done to it between calls.
        """
        model = self.model.eval()
        # Not inference mode: what comes out goes into losses, whose gradients for the student keep it.
        with torch.no_grad(), self.precision.autocast():
            moved = {name: value.to(self.device, non_blocking=True) for name, value in inputs.items()}
            result = read(model, moved, keys)
        return Features({key: value.float() for key, value in result.items()}, result.mask)
