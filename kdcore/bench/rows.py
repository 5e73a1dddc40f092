"""What more rows cost in memory and on disk, in a process of its own, so that its memory is its own.

The pair is slim, since memory that grows with the rows does not depend on the models, and a wide one would hide it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdcore.bench import models
from kdcore.bench.memory import PeakMemory, own_bytes
from kdcore.bench.pair import BATCH, Pair
from kdcore.data.batching import LengthGroupedBatches, padding_share

METHOD = "rail_kd_l"
"""Reads stored features of other layers each epoch."""

FEW_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16", "MALLOC_ARENA_MAX": "1",
               "MALLOC_TRIM_THRESHOLD_": "100000"}
"""Environment of the process. The CPU's library keeps kernels for each shape of a batch, hundreds of megabytes, and
more rows have more different shapes: kept few, they do not look like memory that rows cost."""


@dataclass(frozen=True)
class Work:
    """What one process measures: the number of rows, the pair, and the steps of a training."""

    rows: int
    size: str
    steps: int


def measure(work: Work, folder: Path) -> dict[str, Any]:
    """All figures of this number of rows, as they go into the report."""
    pair = Pair(folder, models.SIZES[work.size], work.rows)
    depth = pair.size.teacher_layers
    pair.teacher_folder(depth)
    before = own_bytes()
    with PeakMemory(pair.device) as building:
        pair.build(depth)
    with PeakMemory(pair.device) as training:
        pair.step_seconds(METHOD, depth, "stored", work.steps)
    size = sum(file.stat().st_size for file in pair.store_folder(depth).iterdir())
    batches = list(LengthGroupedBatches(pair.tokens.lengths, BATCH, seed=0))
    return {
        "rows": work.rows, "steps": work.steps, "padding_share": padding_share(pair.tokens.lengths, batches),
        "store": {"bytes": size, "bytes_per_row": size / work.rows},
        "memory": {"before_bytes": before, "store_build_peak_bytes": building.host,
                   "training_peak_bytes": training.host, "training_peak_cuda_bytes": training.device},
    }


def main() -> None:
    """`python -m kdcore.bench.rows WORK FOLDER OUTPUT`: what `kdcore.bench` starts for each number of rows."""
    work, folder, output = sys.argv[1:]
    Path(output).write_text(json.dumps(measure(Work(**json.loads(work)), Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
