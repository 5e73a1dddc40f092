"""One rank of distributed general distillations, as a process of its own: started by torchrun, see
`test_distributed`."""

import json
import os
import sys
from pathlib import Path

import torch

from kdcore.data.corpus import Corpus
from tests.training.corpus_problem import phases_of, run
from tests.training.doubles import crash_at


def main(given: Path, folder: Path, method: str, accumulation: int, model: str = "student", steps: int = 8,
         crash: int = -1) -> None:
    """Train `model` on the corpus in `given`, taught by `teacher`, both folders beside it, and leave weights and record
    in `folder`, per rank; `crash` is a step."""
    corpus, teacher, student = Corpus.load(given / "corpus"), given / "teacher", given / model
    phases = phases_of(method, corpus, teacher, student)
    crash_at(phases[0].objective, crash)
    result = run(method, corpus, teacher, student, folder, phases, accumulation=accumulation, steps=steps)
    rank = os.environ.get("RANK", "0")
    torch.save({"student": result.student.state_dict(), "objective": phases[0].objective.state_dict(),
                "record": result.record}, folder / f"result-{rank}.pt")


if __name__ == "__main__":
    for name, case in json.loads(sys.argv[3]).items():
        main(Path(sys.argv[1]), Path(sys.argv[2]) / name, *case)
