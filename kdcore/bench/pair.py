"""A pair of random models on random tokens, and what stages do with one: build the teacher store, train a student.

Runs the code that studies run: preparation's files, `kdcore.store_building`, `kdcore.teacher`,
`kdcore.training.run.train`.
"""

import contextlib
import io
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from kdcore import methods
from kdcore.bench import corpus, models
from kdcore.config import StoredFeatures, Training
from kdcore.data.batching import Examples, LengthGroupedBatches, sorted_batches
from kdcore.features import LOGITS, FeatureKey
from kdcore.models.loading import load_finetuned, quiet
from kdcore.objective import Phase, Setting
from kdcore.store import FeatureStore
from kdcore.store_building import build
from kdcore.teacher import Teacher, manifest, teacher_dims
from kdcore.teacher_folder import needs_of
from kdcore.training.datasets import OfDataset
from kdcore.training.journal import Journal
from kdcore.training.precision import device, resolve
from kdcore.training.run import train

BATCH = 32
BASELINE = "finetune"
STORED = StoredFeatures(kinds=("logits", "cls", "mean"), precision="auto")
Knowledge = Literal["stored", "live", "none"]
"""`stored` computes live what the store has not; `live` computes everything live."""


class StepClock:
    """A training's tracker that notes when each optimiser step ends."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called at the end of each step, and for the last one again after evaluation."""
        self.ends.setdefault(step, time.monotonic())

    @property
    def durations(self) -> list[float]:
        """Seconds of each step but the first, which opens files and makes the optimiser's state."""
        return np.diff(list(self.ends.values())).tolist()


class Pair:
    """The files of one student and of teachers of several depths, in a folder that the caller deletes."""

    def __init__(self, folder: Path, size: models.Size, rows: int) -> None:
        self.folder = folder
        self.size = size
        self.device = device()
        self.precision = resolve("auto", self.device)
        self.prepared = corpus.write(folder / "prepared", rows, dev_rows=BATCH)
        self.tokens = self.prepared.tokens("train", "teacher")
        self.student_folder = models.write_config(folder / "student", size.student_layers, size.width, size.heads)
        self.student = models.classifier(self.student_folder)
        self._teachers: dict[tuple[int, Knowledge], Teacher] = {}
        self._runs = 0

    def teacher_folder(self, depth: int) -> Path:
        """A saved classifier of that many layers."""
        folder = self.folder / f"teacher-{depth}"
        if not folder.exists():
            shape = models.write_config(self.folder / f"shape-{depth}", depth, self.size.width, self.size.heads)
            with quiet():
                models.classifier(shape).save_pretrained(folder)
        return folder

    def store_folder(self, depth: int) -> Path:
        """Where `build` writes the features of that teacher."""
        return self.folder / f"store-{depth}"

    def build(self, depth: int) -> dict[str, float]:
        """Build the store of that teacher, as the stage `features` does; returns its `rows` and `seconds`."""
        teacher = Teacher(self.teacher_folder(depth), self.prepared.info.labels, self.device, self.precision)
        plan = manifest(self.prepared, self.teacher_folder(depth), STORED, self.precision.name)
        keys = frozenset(plan.keys)
        teacher.compute(self.tokens.pad(torch.arange(1)), keys)  # loads the model, which is no part of the rate
        with _silence():
            return build(self.store_folder(depth), self.folder / "scratch", plan, self.tokens,
                         lambda inputs: teacher.compute(inputs, keys), STORED.batch_size, self.device, "bench")

    def bare_inference(self, depth: int) -> float:
        """Rows a second of the bare model, logits only, on batches as the store is built from."""
        model = load_finetuned(self.teacher_folder(depth), self.prepared.info.labels)
        model.to(self.device)  # type: ignore[arg-type]  # its annotation is lost in transformers' wrapper
        batches = sorted_batches(self.tokens.lengths, STORED.batch_size)
        kept = batches[:: max(1, len(batches) // 50)]  # of every length; all of them would take as long as the build
        start = time.monotonic()
        with torch.inference_mode(), self.precision.autocast():
            logits = []
            for rows in kept:
                inputs = {name: value.to(self.device) for name, value in self.tokens.pad(torch.tensor(rows)).items()}
                logits.append(model(**inputs).logits)
            torch.cat(logits).cpu()
        return sum(map(len, kept)) / (time.monotonic() - start)

    def phases(self, method: str, depth: int, seed: int = 0) -> tuple[Phase, ...]:
        """Those of a method with its defaults."""
        setting = Setting(teacher=teacher_dims(self.teacher_folder(depth)), student=teacher_dims(self.student_folder),
                          classes=2, regression=False, labels=self.prepared.labels("train"),
                          batch_size=BATCH, seed=seed)
        return methods.load(method).phases(methods.configure(method, {}), setting)

    def needs(self, method: str, depth: int) -> frozenset[FeatureKey]:
        """All features of the teacher that a method may read."""
        return needs_of(self.phases(method, depth))

    def source(self, method: str, depth: int) -> Literal["none", "stored", "mixed", "live"]:
        """Where a method's teacher features come from in a study: `stored` when nothing is left to compute live."""
        needs = self.needs(method, depth)
        stored = needs & FeatureStore.open(self.store_folder(depth)).keys
        return "none" if not needs else "stored" if needs == stored else "mixed" if stored else "live"

    def step_seconds(self, method: str, depth: int, knowledge: Knowledge, steps: int) -> list[float]:
        """Train for `steps` steps of a method's first phase; returns the seconds of all but the first.

        The student goes on with the weights it has: how fast it learns does not depend on them.
        """
        clock = StepClock()
        per_epoch = LengthGroupedBatches(self.tokens.lengths, BATCH, seed=0).steps
        settings = Training(epochs=(steps - 0.5) / per_epoch, batch_size=BATCH)  # rounded up to whole steps
        first = replace(self.phases(method, depth)[0], epochs=None)  # not as many as its paper has
        folder = self.folder / "runs" / str(self._runs)
        self._runs += 1
        with _silence():
            train(self.student, (first,), OfDataset(self.prepared), settings, 0, folder,
                  Journal(folder / "log.jsonl", clock), method, self._teacher(method, depth, knowledge))
        return clock.durations

    def forward_seconds(self, depth: int, steps: int) -> list[float]:
        """Seconds of the live teacher alone, on the batches whose steps `step_seconds` returns."""
        teacher = self._open("vanilla_kd", depth, "live")
        examples = Examples(self.prepared, "train", teacher_inputs=True)
        seconds = []
        for rows in islice(LengthGroupedBatches(self.tokens.lengths, BATCH, seed=0), steps):
            batch = examples.__getitems__(rows)
            start = time.monotonic()
            teacher.features(batch, frozenset({LOGITS})).logits.cpu()  # waits for the device
            seconds.append(time.monotonic() - start)
        return seconds[1:]

    def _teacher(self, method: str, depth: int, knowledge: Knowledge) -> Teacher | None:
        return None if knowledge == "none" or not self.needs(method, depth) else self._open(method, depth, knowledge)

    def _open(self, method: str, depth: int, knowledge: Knowledge) -> Teacher:
        """The teacher, which stays loaded: reading its weights anew for each training says nothing."""
        place = depth, knowledge
        if place not in self._teachers:
            folder = self.teacher_folder(depth)
            self._teachers[place] = (
                Teacher.open(self.prepared, folder, self.store_folder(depth), STORED, self.needs(method, depth),
                             self.device) if knowledge == "stored"
                else Teacher(folder, self.prepared.info.labels, self.device, self.precision))
        return self._teachers[place]


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The trainings say nothing of interest here."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield
