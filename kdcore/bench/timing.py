"""What methods cost: time per epoch relative to plain fine-tuning of the same student on the same batches.

Three questions, one measurement: the cost with stored teacher features, how it grows with the depth of the teacher,
and the cost with a live teacher, less what the teacher's forward alone takes. All variants run in turn, in another
order each round, so that a slow minute of the machine hits all of them alike.
"""

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kdcore.bench import models, ratios
from kdcore.bench.pair import BASELINE, BATCH, Knowledge, Pair


@dataclass(frozen=True)
class Work:
    """What is measured.

    rows     of the dataset
    steps    optimiser steps of each training
    rounds   how often each training runs; with a live teacher half as often
    build_rounds how often the store is built, each time beside bare inference over the same rows
    methods  those to compare with fine-tuning, with stored features
    live     those to run with a live teacher, too
    deep     those to run with the deeper and shallower teachers, too
    depths   layers of these teachers; the pair's own is among them
    """

    size: str
    rows: int
    steps: int
    rounds: int
    build_rounds: int
    methods: tuple[str, ...]
    live: tuple[str, ...]
    deep: tuple[str, ...]
    depths: tuple[int, ...]


@dataclass(frozen=True)
class Variant:
    """One kind of training that is timed. `turn` tells two of the same kind apart."""

    method: str
    depth: int
    knowledge: Knowledge
    turn: int = 0


class Timing:
    """Times every variant, then compares."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work = work
        self.pair = Pair(folder, models.SIZES[work.size], work.rows)
        self.depth = self.pair.size.teacher_layers
        self.baseline = [Variant(BASELINE, self.depth, "none", turn) for turn in range(2)]
        self.stored = [Variant(name, self.depth, "stored") for name in work.methods]
        self.stored += [Variant(name, depth, "stored")
                        for name in work.deep for depth in work.depths if depth != self.depth]
        self.live = [Variant(name, self.depth, "live") for name in work.live]
        self.seconds: dict[Variant | str, list[list[float]]] = {}

    def measure(self) -> dict[str, Any]:
        """All figures, as they go into the report."""
        store = self._store()
        self._run()
        return {
            "rows": self.work.rows, "steps": self.work.steps, "rounds": self.work.rounds, "depth": self.depth,
            "store": store, "methods": self._methods(), "by_depth": self._by_depth(),
            "teacher_forward": self._forward(),
        }

    def _store(self) -> dict[str, Any]:
        """Build the teacher stores; compare one with bare inference of the same teacher over the same batches."""
        compared, rates = [], []
        self.pair.build(self.depth)  # a library may prepare its kernels now
        for _ in range(self.work.build_rounds):
            bare = self.pair.bare_inference(self.depth)
            built = self.pair.build(self.depth)
            rates.append(built["rows"] / built["seconds"])
            compared.append(rates[-1] / bare)
        for depth in {variant.depth for variant in self.stored} - {self.depth}:
            self.pair.build(depth)
        size = sum(file.stat().st_size for file in self.pair.store_folder(self.depth).iterdir())
        return {"bytes": size, "bytes_per_row": size / self.work.rows, "rows_per_second": statistics.median(rates),
                "rate_relative_to_bare_inference": statistics.median(compared), "ratios": compared}

    def _run(self) -> None:
        self.pair.step_seconds(BASELINE, self.depth, "none", self.work.steps)  # warms up
        for number in range(self.work.rounds):
            variants = [*self.baseline, *self.stored, *(self.live if number % 2 == 0 else [])]
            turned = np.random.default_rng(number).permutation(len(variants))
            print(f"bench: round {number + 1} of {self.work.rounds}, {len(variants)} trainings", file=sys.stderr)
            for place in turned:
                variant = variants[place]
                self._keep(variant, self.pair.step_seconds(variant.method, variant.depth, variant.knowledge,
                                                           self.work.steps))
            if self.live and number % 2 == 0:
                self._keep("forward", self.pair.forward_seconds(self.depth, self.work.steps))

    def _keep(self, what: Variant | str, seconds: list[float]) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    def _compared(self, what: Variant | str, less: str | None = None) -> dict[str, float]:
        """The ratio to fine-tuning in the rounds where both ran."""
        own = np.array(self.seconds[what])
        skip = 2 if len(own) < self.work.rounds else 1  # live ones run in every other round
        base = np.concatenate([np.array(self.seconds[variant])[::skip] for variant in self.baseline])
        return _figures(ratios.ratio(own, base, None if less is None else np.array(self.seconds[less])))

    def _methods(self) -> dict[str, Any]:
        first, second = (np.array(self.seconds[variant]) for variant in self.baseline)
        report = {BASELINE: {"teacher": "none", "rows_per_second": self._rate(self.baseline[0]),
                             **_figures(ratios.ratio(first, second))}}
        for variant in self.stored:
            if variant.depth == self.depth:
                report[variant.method] = {"teacher": self.pair.source(variant.method, self.depth),
                                          "rows_per_second": self._rate(variant), **self._compared(variant)}
        for variant in self.live:
            report.setdefault(variant.method, {})["live"] = self._compared(variant) | {
                "less_forward": self._compared(variant, less="forward")}
        return report

    def _by_depth(self) -> dict[str, dict[str, Any]]:
        """Method -> layers of the teacher -> ratio."""
        return {name: {str(variant.depth): self._compared(variant)
                       for variant in sorted(self.stored, key=lambda v: v.depth) if variant.method == name}
                for name in self.work.deep}

    def _forward(self) -> dict[str, float] | None:
        """The live teacher's forward alone, relative to fine-tuning."""
        return self._compared("forward") if self.live else None

    def _rate(self, variant: Variant) -> float:
        return (self.work.steps - 1) * BATCH / ratios.epoch(np.array(self.seconds[variant]))


def _figures(measured: ratios.Ratio) -> dict[str, float]:
    return {"epoch_ratio": measured.value, "low": measured.low, "high": measured.high}


def main() -> None:
    """`python -m kdcore.bench.timing WORK FOLDER OUTPUT`: what `kdcore.bench` starts."""
    work, folder, output = sys.argv[1:]
    content: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                               for name, value in json.loads(work).items()}
    Path(output).write_text(json.dumps(Timing(Work(**content), Path(folder)).measure()), encoding="utf-8")


if __name__ == "__main__":
    main()
