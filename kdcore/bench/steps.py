"""What steps are timed with."""

import time

import torch
from torch import Tensor, nn

UNTIMED = 2
"""Batches at the beginning, while libraries prepare themselves."""


class Update:
    """Backward, clipping and optimiser, as in training."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.parameters())
        self.optimiser = torch.optim.AdamW(self.parameters, lr=1e-5, fused=True)

    def __call__(self, total: Tensor) -> None:
        total.mean().backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()


def now(device: torch.device) -> float:
    """Seconds: on a CPU those of the processor, which other work on the machine hardly touches."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()
