"""What a model costs: parameters, bytes on disk, latency, memory.

Parameters and bytes follow from the model alone. Latency and memory are true of this machine at this moment, so
they are measured apart and never become an out of a stage.
"""

import platform
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kdcore.data.prepared import Prepared
from kdcore.models.reading import accepts

_RUNS = {1: (10, 100), 32: (3, 30)}
"""Batch size: warm-up batches, timed batches."""


def size(model: PreTrainedModel, folder: Path) -> dict[str, int]:
    """Parameters (embeddings, transformer and head apart) and bytes of the exported weights.

    `parameters` leaves the head out, as papers do; the pooler belongs to the transformer. A shared matrix counts once.
    """
    base = {id(p): p.numel() for p in model.base_model.parameters()}
    embeddings = sum(p.numel() for p in model.base_model.get_submodule("embeddings").parameters())
    head = sum(p.numel() for p in model.parameters() if id(p) not in base)
    total = sum(base.values())
    return {"parameters": total, "embedding_parameters": embeddings, "transformer_parameters": total - embeddings,
            "head_parameters": head,
            "weight_bytes": sum(path.stat().st_size for path in sorted(folder.glob("*.safetensors")))}


def latency(models: Sequence[tuple[PreTrainedModel, Prepared]], split: str,
            which: Literal["teacher", "student"] = "student") -> dict[str, Any]:
    """Time single forwards at real lengths: batches of random rows of the split, padded to their longest.

    Several models, as averaged teachers are, run one after another on the same rows, each with its own tokens of them.
    Runs in float32 under `inference_mode` on the model's device, after warm-up, waiting for the device before each
    reading of the clock. Tokenisation and the copy to the device do not count.

    Returns:
        `{"batch_1": {"p50_ms": .., "p95_ms": .., "batches": ..}, "batch_32": {..., "examples_per_second": ..},
        "peak_memory_bytes": .., "peak_memory_of": .., "device": .., "threads": ..}`. Memory is that of CUDA's
        allocator, or, on a CPU, the largest resident size that the whole process ever had.
    """
    tables = [prepared.tokens(split, which) for _, prepared in models]
    device = models[0][0].device
    draw = torch.Generator().manual_seed(0)
    measured: dict[str, Any] = {}
    for model, _ in models:
        model.eval()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with torch.inference_mode():
        for rows, (warm_up, timed) in _RUNS.items():
            seconds = []
            for number in range(warm_up + timed):
                chosen = torch.randint(len(tables[0]), (rows,), generator=draw)
                work = []
                for (model, _), tokens in zip(models, tables, strict=True):
                    kept = accepts(model)
                    work.append((model, {name: value.to(device) for name, value in tokens.pad(chosen).items()
                                         if name in kept}))
                spent = _time(work, device)
                if number >= warm_up:
                    seconds.append(spent)
            middle, late = np.quantile(seconds, [0.5, 0.95])
            measured[f"batch_{rows}"] = {"p50_ms": 1000 * middle, "p95_ms": 1000 * late, "batches": timed,
                                         "examples_per_second": rows / middle}
    return measured | _peak_memory(device) | {"device": _name(device), "threads": torch.get_num_threads()}


def _time(work: Sequence[tuple[PreTrainedModel, dict[str, Tensor]]], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    for model, inputs in work:
        model(**inputs)
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_memory(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        return {"peak_memory_bytes": torch.cuda.max_memory_allocated(device), "peak_memory_of": "CUDA allocator"}
    unit = 1 if sys.platform == "darwin" else 1024  # macOS tells bytes, Linux kilobytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"peak_memory_bytes": peak, "peak_memory_of": "process"}


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
