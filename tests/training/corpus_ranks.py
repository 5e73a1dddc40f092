"""One rank of distributed general distillations, as a process of its own: started by torchrun, see
`test_distributed`."""

import json
import os
import sys
from pathlib import Path

import torch

from kdcore.data.corpus import Corpus
from tests.training.corpus_problem import phases_of, run


def main(given: Path, folder: Path, method: str, accumulation: int) -> None:
    """Train on the corpus in `given`, from the folders `teacher` and `student` beside it, and leave weights and record
    in `folder`, per rank."""
    corpus, teacher, student = Corpus.load(given / "corpus"), given / "teacher", given / "student"
    phases = phases_of(method, corpus, teacher, student)
    result = run(method, corpus, teacher, student, folder, phases, accumulation=accumulation)
    rank = os.environ.get("RANK", "0")
    torch.save({"student": result.student.state_dict(), "objective": phases[0].objective.state_dict(),
                "record": result.record}, folder / f"result-{rank}.pt")


if __name__ == "__main__":
    for name, case in json.loads(sys.argv[3]).items():
        main(Path(sys.argv[1]), Path(sys.argv[2]) / name, *case)
