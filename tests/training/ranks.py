"""One rank of distributed trainings, as a process of its own: started by torchrun, see `test_distributed`."""

import json
import os
import sys
from pathlib import Path

import torch

from kdcore.data.prepared import Prepared
from tests.training.doubles import crash_at
from tests.training.problem import phases_of, run


def main(prepared: Path, folder: Path, method: str, accumulation: int, hyper: str, dropout: float = 0.0,
         crash: int = -1) -> None:
    """Train and leave weights and record in `folder`, per rank; `hyper` is JSON, `crash` a step."""
    data = Prepared.load(prepared)
    phases = phases_of(method, data, **json.loads(hyper))
    crash_at(phases[0].objective, crash)
    result = run(data, folder, phases=phases, dropout=dropout, accumulation=accumulation, keep="last")
    rank = os.environ.get("RANK", "0")
    torch.save({"student": result.student.state_dict(), "objective": phases[0].objective.state_dict(),
                "record": result.record}, folder / f"result-{rank}.pt")


if __name__ == "__main__":
    for name, case in json.loads(sys.argv[3]).items():
        main(Path(sys.argv[1]), Path(sys.argv[2]) / name, *case)
