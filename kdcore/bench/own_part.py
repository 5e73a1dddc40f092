"""What a method adds to a step of fine-tuning, timed alone: reading stored features, pooling, loss, projections.

A step is hundreds of milliseconds and varies by tens; what a method adds is a few. Their difference says little, the
part itself says it to a tenth. On a CPU the time is that of the processor, which other work on the machine hardly
touches. What the part does not hold: hooks on the student's layers, which cost microseconds.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kdcore.bench import models
from kdcore.bench.pair import BASELINE, BATCH, Pair
from kdcore.bench.steps import UNTIMED, Update, now
from kdcore.data.batching import Examples, LengthGroupedBatches
from kdcore.features import LOGITS, FeatureKey, Features, masked_mean
from kdcore.objective import Batch, Objective, Progress, Standing
from kdcore.store import FeatureStore
from kdcore.training.distiller import Distiller


@dataclass(frozen=True)
class Work:
    """What is measured: `methods` over so many `steps`, so many `rounds`; those that run the teacher are left out."""

    size: str
    rows: int
    steps: int
    rounds: int
    methods: tuple[str, ...]


class OwnPart:
    """Times the parts of methods with stored features, on the batches of one epoch's beginning."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work = work
        self.pair = pair = Pair(folder, models.SIZES[work.size], work.rows)
        self.depth = pair.size.teacher_layers
        pair.build(self.depth)
        self.store = FeatureStore.open(pair.store_folder(self.depth))
        examples = Examples(pair.prepared, "train", teacher_inputs=False)
        drawn = LengthGroupedBatches(pair.tokens.lengths, BATCH, seed=0)
        self.batches = [_moved(examples.__getitems__(rows), pair.device)
                        for rows in islice(drawn, UNTIMED + work.steps)]

    def measure(self) -> dict[str, Any]:
        """Milliseconds of a step of fine-tuning, and what each method adds to it; the least of the rounds counts."""
        stored = [name for name in self.work.methods if self.pair.source(name, self.depth) == "stored"]
        rounds = range(self.work.rounds)
        step = min(self.whole_step(BASELINE) for _ in rounds)
        base = min(self._part(BASELINE) for _ in rounds)
        added = {name: min(self._part(name) for _ in rounds) - base for name in stored}
        return {"step_ms": 1e3 * step, "methods": {
            name: {"ms": 1e3 * seconds, "share": seconds / step} for name, seconds in added.items()}}

    def whole_step(self, method: str) -> float:
        """Seconds of a whole step of a method of one phase, the median over the batches."""
        (phase,) = self.pair.phases(method, self.depth)
        distiller = Distiller(self.pair.student.to(self.pair.device),  # type: ignore[arg-type]
                              phase.objective, self.pair.precision).train()
        step = Update(distiller)
        seconds = []
        for number, batch in enumerate(self.batches):
            progress = Progress(0, number, len(self.batches))
            start = now(self.pair.device)
            teacher = self._stored(batch["ids"], phase.objective.needs_at(progress).teacher)
            step(distiller(batch, teacher, progress).total)
            seconds.append(now(self.pair.device) - start)
        return statistics.median(seconds[UNTIMED:])

    def _part(self, method: str) -> float:
        """Seconds of what is not the student itself, the median over the batches."""
        return statistics.median(self.parts(self.pair.phases(method, self.depth)[0].objective, self.batches)[UNTIMED:])

    def parts(self, objective: Objective, batches: Sequence[dict[str, Any]]) -> list[float]:
        """Seconds of what is not the student itself in a step on each of these batches."""
        objective.to(self.pair.device)
        objective.before_epoch(Progress(0, 0, len(batches)), self._stored)
        step = Update(objective) if any(True for _ in objective.main_parameters()) else None
        seconds = []
        for number, batch in enumerate(batches):
            progress = Progress(0, number, len(batches))
            needs = objective.needs_at(progress)
            states = {key.layer: self._random(*batch["student"]["input_ids"].shape, self.pair.size.width)
                      for key in needs.student if key != LOGITS}
            logits = self._random(len(batch["ids"]), 2)
            start = now(self.pair.device)
            student = {key: logits if key == LOGITS else _pooled(key, states[key.layer], batch)
                       for key in needs.student}
            teacher = self._stored(batch["ids"], needs.teacher)
            total = objective(Features(student), teacher, Batch(batch["ids"], batch["labels"]), progress).total
            if step is None:
                total.mean().backward()
            else:
                step(total)
            objective.after_step(progress, _not_examined)
            seconds.append(now(self.pair.device) - start)
        return seconds

    def _stored(self, ids: Tensor, keys: frozenset[FeatureKey]) -> Features:
        return Features(self.store.gather(ids.cpu(), keys, self.pair.device) if keys else {})

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.pair.device, requires_grad=True)


def _pooled(key: FeatureKey, states: Tensor, batch: dict[str, Any]) -> Tensor:
    return states[:, 0] if key.kind == "cls" else masked_mean(states, batch["student"]["attention_mask"])


def _moved(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: {inner: value.to(device) for inner, value in content.items()} if isinstance(content, dict)
            else content.to(device) for name, content in batch.items()}


def _not_examined() -> Standing:
    """A reward costs a pass of the student over development rows, which is no part of the method itself."""
    return Standing(loss=0.0, score=0.0, metrics={})


def main() -> None:
    """`python -m kdcore.bench.own_part WORK FOLDER OUTPUT`: what `kdcore.bench` starts."""
    work, folder, output = sys.argv[1:]
    content = json.loads(work)
    measured = OwnPart(Work(**content | {"methods": tuple(content["methods"])}), Path(folder)).measure()
    Path(output).write_text(json.dumps(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
