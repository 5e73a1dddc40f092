"""One rank of distributed trainings that crash or go on, as a process of its own: started by torchrun, see
`test_distributed`."""

import contextlib
import json
import sys
from pathlib import Path

from kdcore.training import trainer
from tests.training import corpus_ranks, ranks
from tests.training.doubles import Stop


def main(prepared: Path, given: Path, folder: Path, crash: int) -> None:
    """Train on the dataset and on the corpus in `given`, twelve steps with dropout each, up to `crash` if it comes."""
    with contextlib.suppress(Stop):
        ranks.main(prepared, folder / "rail_kd_l", "rail_kd_l", 1, "{}", dropout=0.1, crash=crash)
    with contextlib.suppress(Stop):
        corpus_ranks.main(given, folder / "distilbert", "distilbert", 1, "dropout", steps=12, crash=crash)


if __name__ == "__main__":
    trainer.SAVE_SECONDS, trainer.SAVING_SHARE = 0.0, 1e9  # a checkpoint after every step
    for name, step in json.loads(sys.argv[4]).items():
        main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) / name, step)
