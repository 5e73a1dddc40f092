"""Peak memory of a block of code."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import torch

INTERVAL_S = 0.02
_STATUS = Path("/proc/self/status")


class PeakMemory:
    """The most memory that the process held while the block ran.

    `host`: bytes that belong to this process alone. Pages of memory-mapped files are left out where the system
    tells (Linux): they are a cache that the kernel takes back when it needs them. `device`: bytes of CUDA tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self.host = 0
        self.device = 0
        self._device = device
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if self._device.type == "cuda":
            self.device = torch.cuda.max_memory_allocated(self._device)

    def _sample(self) -> None:
        while True:
            self.host = max(self.host, own_bytes())
            if self._stop.wait(INTERVAL_S):
                return


def own_bytes() -> int:
    """Bytes of anonymous memory of this process, swapped out or not; its resident size where no system tells."""
    if _STATUS.exists():
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        if "RssAnon" in fields:
            return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))
    return psutil.Process().memory_info().rss
