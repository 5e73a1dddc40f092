"""Latency of several forms of one model, measured side by side.

Forms take turns in short blocks on the same batches, so that whatever else the machine does hits all of them, and the
first run of a block, whose caches and threads are another form's, is not counted.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kdcore.data.prepared import Prepared
from kdcore.portable.parity import Form

_BLOCKS = {1: (20, 5), 32: (10, 3)}
"""Batch size: blocks of each form, timed batches in a block."""


def latency(forms: Mapping[str, Form], prepared: Prepared, split: str) -> dict[str, dict[str, dict[str, float]]]:
    """Time single batches of random rows of a split at their real lengths; tokenisation does not count.

    Returns:
        `{"batch_1": {FORM: {"p50_ms": .., "p95_ms": .., "batches": ..}, ...}, "batch_32": ...}`
    """
    tokens = prepared.tokens(split, "student")
    draw = torch.Generator().manual_seed(0)
    measured: dict[str, Any] = {}
    for rows, (blocks, timed) in _BLOCKS.items():
        seconds: dict[str, list[float]] = {name: [] for name in forms}
        order = list(forms)
        for _ in range(blocks):
            batches = []
            for _ in range(timed):
                chosen = torch.randint(len(tokens), (rows,), generator=draw)
                batches.append({name: values.numpy() for name, values in tokens.pad(chosen).items()})
            for name in order:
                forms[name](batches[0])
                for batch in batches:
                    start = time.perf_counter()
                    forms[name](batch)
                    seconds[name].append(time.perf_counter() - start)
            order = order[1:] + order[:1]
        measured[f"batch_{rows}"] = {name: _words(values) for name, values in seconds.items()}
    return measured


def _words(seconds: list[float]) -> dict[str, float]:
    middle, late = np.quantile(seconds, [0.5, 0.95])
    return {"p50_ms": 1000 * float(middle), "p95_ms": 1000 * float(late), "batches": len(seconds)}
