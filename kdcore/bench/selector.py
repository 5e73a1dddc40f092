"""What training a selector of knowledge costs over the distillation steps that it contains.

The steps are those of the same types of knowledge with fixed weights (`knowledge_mix`), timed whole; a live teacher's
forward comes on top. What `ksm` adds to a step is timed alone, over a whole segment, since its networks learn once in
it; and so is an examination of the student, of which an episode of N steps has ceil(N / k) + 1. All of it comes one
after the other, so an episode is the sum.
"""

import json
import math
import statistics
import sys
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from kdcore import methods
from kdcore.bench.own_part import OwnPart
from kdcore.bench.own_part import Work as Parts
from kdcore.bench.pair import BATCH
from kdcore.bench.steps import UNTIMED, now
from kdcore.data.batching import Examples, LengthGroupedBatches
from kdcore.methods import ksm
from kdcore.teacher import Teacher
from kdcore.training.development import Development

LEARNING, PLAIN = "ksm", "knowledge_mix"
STEPS = 210
"""Of an episode: three epochs over RTE's 2,490 rows without the 256 that are held back."""


@dataclass(frozen=True)
class Work:
    """What is measured: on `rows` rows, `steps` steps of a kind, so many `rounds`."""

    size: str
    rows: int
    steps: int
    rounds: int


class SelectorCost:
    """Times what an episode consists of."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work = work
        self.own = OwnPart(Parts(work.size, work.rows, work.steps, work.rounds, (LEARNING, PLAIN)), folder)
        self.pair = self.own.pair
        config = methods.configure(LEARNING, {})
        assert isinstance(config, ksm.Config)
        assert isinstance(config.dev_rows, int)
        self.config, self.dev_rows = config, config.dev_rows

    def measure(self) -> dict[str, Any]:
        """Milliseconds of the parts, seconds of an episode, and that over its plain steps; by the source of the
        teacher's features. The least of the rounds counts."""
        rounds = range(self.work.rounds)
        plain = min(self.own.whole_step(PLAIN) for _ in rounds)
        forward = min(self._forward() for _ in rounds)
        added = min(self._segment(LEARNING) for _ in rounds) - min(self._segment(PLAIN) for _ in rounds)
        examination = min(self._examination() for _ in rounds)
        examinations = math.ceil(STEPS / self.config.reward_steps) + 1
        over = STEPS * added + examinations * examination
        return {"steps": STEPS, "episodes": self.config.episodes, "reward_steps": self.config.reward_steps,
                "examinations": examinations, "dev_rows": self.dev_rows, "selector_ms": 1e3 * added,
                "examination_ms": 1e3 * examination,
                "teacher": {teacher: {"step_ms": 1e3 * step, "episode_seconds": STEPS * step + over,
                                      "ratio": 1 + over / (STEPS * step)}
                            for teacher, step in (("stored", plain), ("live", plain + forward))}}

    def _segment(self, method: str) -> float:
        """Seconds a step of what is not the student itself, the mean over a segment and what is learned from it."""
        steps = self.config.reward_steps
        batches = list(islice(cycle(self.own.batches), 2 * steps + 1))  # learns from the first when the second begins
        objective = self.pair.phases(method, self.own.depth)[0].objective
        return statistics.mean(self.own.parts(objective, batches)[steps:2 * steps])

    def _forward(self) -> float:
        """Seconds of the live teacher on the batches of the steps, the median."""
        depth, prepared = self.own.depth, self.pair.prepared
        teacher = Teacher(self.pair.teacher_folder(depth), prepared.info.labels, self.pair.device, self.pair.precision)
        examples = Examples(prepared, "train", teacher_inputs=True)
        keys = self.pair.needs(LEARNING, depth)
        seconds = []
        for rows in islice(LengthGroupedBatches(self.pair.tokens.lengths, BATCH, seed=0), UNTIMED + self.work.steps):
            batch = examples.__getitems__(rows)
            start = now(self.pair.device)
            teacher.features(batch, keys)
            seconds.append(now(self.pair.device) - start)
        return statistics.median(seconds[UNTIMED:])

    def _examination(self) -> float:
        """Seconds of one look at the student, as training takes it."""
        student = self.pair.student.to(self.pair.device)  # type: ignore[arg-type]  # lost in transformers' wrapper
        development = Development(self.pair.prepared, self.pair.precision, 2 * BATCH)
        start = now(self.pair.device)
        development.examine(student, self.dev_rows)
        return now(self.pair.device) - start


def main() -> None:
    """`python -m kdcore.bench.selector WORK FOLDER OUTPUT`: what `kdcore.bench` starts."""
    work, folder, output = sys.argv[1:]
    Path(output).write_text(json.dumps(SelectorCost(Work(**json.loads(work)), Path(folder)).measure()),
                            encoding="utf-8")


if __name__ == "__main__":
    main()
