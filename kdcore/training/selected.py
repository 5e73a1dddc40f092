"""The student's best weights so far, held in memory until a checkpoint or the end needs them."""

from pathlib import Path

import torch
from torch import Tensor, nn

_FILE = "selected.pt"


class Selected:
    """A copy of a module's weights on the host."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] | None = None

    def take(self, module: nn.Module) -> None:
        """Copy the weights as they are now."""
        self._weights = {name: value.detach().to("cpu", copy=True) for name, value in module.state_dict().items()}

    def restore(self, module: nn.Module) -> None:
        """Put the copy back; does nothing when none was taken."""
        if self._weights is not None:
            module.load_state_dict(self._weights)

    def forget(self) -> None:
        """Drop the copy."""
        self._weights = None

    def save(self, folder: Path) -> None:
        """Write the copy into a checkpoint, if there is one."""
        if self._weights is not None:
            torch.save(self._weights, folder / _FILE)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        path = folder / _FILE
        self._weights = torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None
