"""Which numbers a training computes in: float32, or half precision where the hardware is quick at it.

Only the models run in half precision; weights, optimiser state and losses stay in float32.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from kdcore.errors import UserError

Name = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Precision:
    """The precision of the models' forward passes on a kind of device."""

    name: Name
    device: str

    def autocast(self) -> AbstractContextManager[None]:
        """Run what is inside in this precision. For fp32 it is off, also inside somebody else's autocast."""
        half = torch.float16 if self.name == "fp16" else torch.bfloat16
        return torch.autocast(self.device, dtype=half, enabled=self.name != "fp32")

    def losses(self) -> AbstractContextManager[None]:
        """Run what is inside in float32: softmax, norms and losses lose too much in half precision."""
        return torch.autocast(self.device, enabled=False)


def device() -> torch.device:
    """Where training runs: CUDA if there is any, else the CPU. In distributed training this rank's GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def resolve(wanted: Literal["auto", "fp32", "bf16", "fp16"], device: torch.device) -> Precision:
    """Turn the setting into what this machine shall do; `auto` is bf16 where it is native, else fp32.

    Raises:
        UserError: fp16 without CUDA, where nothing scales the gradients of its small range.
    """
    if wanted == "fp16" and device.type != "cuda":
        raise UserError(f"training.precision is fp16, which needs CUDA, but this machine trains on {device.type}; "
                        "use auto, bf16 or fp32")
    if wanted != "auto":
        return Precision(wanted, device.type)
    return Precision("bf16" if native_bf16(device) else "fp32", device.type)


def native_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 itself, so that it is faster than float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    if device.type != "cpu":
        return False
    # torch tells the instruction sets in functions that it does not document; without them auto means fp32.
    tests = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(test() for test in tests if test is not None)
