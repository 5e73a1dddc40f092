"""Everything that is measured at one number of rows, in a process of its own, so that its memory is its own.

Runs the code that studies run: preparation's files, `kdcore.store_building`, `kdcore.teacher`,
`kdcore.training.run.train`. A method's cost is its training time per example relative to plain fine-tuning of the
same student on the same batches; both are run in turn, several times, and the median of the pairs' ratios counts.
"""

import contextlib
import io
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from kdcore import methods
from kdcore.bench import corpus, models
from kdcore.bench.memory import PeakMemory, own_bytes
from kdcore.config import StoredFeatures, Training
from kdcore.data.batching import LengthGroupedBatches, padding_share, sorted_batches
from kdcore.models.loading import load_finetuned, quiet
from kdcore.objective import Phase, Setting
from kdcore.store import FeatureStore
from kdcore.store_building import build
from kdcore.teacher import Teacher, manifest, teacher_dims
from kdcore.training.journal import Journal
from kdcore.training.precision import device, resolve
from kdcore.training.run import train

BATCH = 32
BASELINE = "finetune"
STORED = StoredFeatures(precision="auto")
Knowledge = Literal["stored", "live", "none"]


@dataclass(frozen=True)
class Work:
    """What one process measures.

    rows     training rows
    steps    optimiser steps of each timed training
    rounds   how often each is timed
    build_rounds how often the store is built, each time beside bare inference over the same rows
    methods  those to compare with fine-tuning
    live     whether to time them with a live teacher, too
    """

    rows: int
    size: str
    steps: int
    rounds: int
    build_rounds: int
    methods: tuple[str, ...]
    live: bool


class Bench:
    """The files and models of one measurement, in a folder that the caller deletes."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work = work
        self.folder = folder
        self.device = device()
        self.precision = resolve("auto", self.device)
        self.prepared = corpus.write(folder / "prepared", work.rows)
        size = models.SIZES[work.size]
        self.teacher_folder = folder / "teacher"
        teacher = models.classifier(models.write_config(folder / "shape", size.teacher_layers, size.width, size.heads))
        with quiet():
            teacher.save_pretrained(self.teacher_folder)
        self.student_folder = models.write_config(folder / "student", size.student_layers, size.width, size.heads)
        self.tokens = self.prepared.tokens("train", "teacher")
        self.store_folder = folder / "store"
        self._runs = 0

    def measure(self) -> dict[str, Any]:
        """All figures of this size, as they go into the report."""
        before = own_bytes()
        store = self.store()
        compared, memory = self.train()
        return {
            "rows": self.work.rows, "steps": self.work.steps, "rounds": self.work.rounds,
            "padding_share": self.training_padding(), "store": store, "methods": compared,
            "memory": {"before_bytes": before, "kernel_bytes": store.pop("kernel_bytes"),
                       "store_build_peak_bytes": store.pop("peak_bytes"),
                       "training_peak_bytes": memory.host, "training_peak_cuda_bytes": memory.device},
        }

    def training_padding(self) -> float:
        """Padding of one epoch's training batches as a share of all tokens."""
        return padding_share(self.tokens.lengths, list(LengthGroupedBatches(self.tokens.lengths, BATCH, seed=0)))

    def store(self) -> dict[str, Any]:
        """Build the teacher store and compare with bare inference of the same teacher over the same batches."""
        ratios, rates, peak = [], [], 0
        kernels = self._make_kernels()
        for _ in range(self.work.build_rounds):
            bare = self._bare_inference()
            with PeakMemory(self.device) as memory:
                built = self._build()
            peak = max(peak, memory.host)
            rates.append(built["rows"] / built["seconds"])
            ratios.append(rates[-1] / bare)
        size = sum(file.stat().st_size for file in self.store_folder.iterdir())
        return {"bytes": size, "bytes_per_row": size / self.work.rows, "rows_per_second": statistics.median(rates),
                "rate_relative_to_bare_inference": statistics.median(ratios), "ratios": ratios, "peak_bytes": peak,
                "kernel_bytes": kernels}

    def _make_kernels(self) -> int:
        """Run the teacher once at every length; returns the bytes that stay.

        The CPU's library compiles and keeps kernels per shape of a batch. Done beforehand, that neither slows the
        first timing nor makes more rows look costly in memory, only because they have more different lengths.
        """
        teacher = Teacher(self.teacher_folder, self.prepared.info.labels, self.device, self.precision)
        keys = frozenset(manifest(self.prepared, self.teacher_folder, STORED, self.precision.name).keys)
        teacher.compute(self.tokens.pad(torch.arange(1)), keys)
        before = own_bytes()
        for length in range(1, corpus.MAX_LENGTH + 1):
            ids = torch.full((STORED.batch_size, length), corpus.FIRST_WORD)
            teacher.compute({"input_ids": ids, "attention_mask": torch.ones_like(ids),
                             "token_type_ids": torch.zeros_like(ids)}, keys)
        return own_bytes() - before

    def _build(self) -> dict[str, float]:
        teacher = Teacher(self.teacher_folder, self.prepared.info.labels, self.device, self.precision)
        plan = manifest(self.prepared, self.teacher_folder, STORED, self.precision.name)
        keys = frozenset(plan.keys)
        teacher.compute(self.tokens.pad(torch.arange(1)), keys)  # loads the model, which is no part of the rate
        with _silence():
            return build(self.store_folder, self.folder / "scratch", plan, self.tokens,
                         lambda inputs: teacher.compute(inputs, keys), STORED.batch_size, self.device, "bench")

    def _bare_inference(self) -> float:
        """Rows a second of the bare model, logits only, on the batches that the store is built from."""
        model = load_finetuned(self.teacher_folder, self.prepared.info.labels)
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

    def train(self) -> tuple[dict[str, Any], PeakMemory]:
        """Time every method in turn, round by round, in changing order; the first, untimed one warms up."""
        variants: list[tuple[str, Knowledge]] = [(BASELINE, "none"), (f"{BASELINE} again", "none")]
        for name in self.work.methods:
            variants.append((name, "stored"))
            if self.work.live:
                variants.append((name, "live"))
        self._rate(BASELINE, "none", seed=0)
        rates: dict[tuple[str, Knowledge], list[float]] = {variant: [] for variant in variants}
        with PeakMemory(self.device) as memory:
            for number in range(self.work.rounds):
                turned = variants[number % len(variants):] + variants[:number % len(variants)]
                for name, knowledge in turned:
                    rates[name, knowledge].append(self._rate(name.removesuffix(" again"), knowledge, seed=number))
        return self._compare(rates), memory

    def _compare(self, rates: dict[tuple[str, Knowledge], list[float]]) -> dict[str, Any]:
        first, second = rates[BASELINE, "none"], rates[f"{BASELINE} again", "none"]
        base = [(a * b) ** 0.5 for a, b in zip(first, second, strict=True)]
        report: dict[str, Any] = {BASELINE: {
            "teacher": "none", "rows_per_second": statistics.median(base),
            **_ratio([a / b for a, b in zip(first, second, strict=True)])}}
        for (name, knowledge), own in rates.items():
            if name.startswith(BASELINE):
                continue
            figures = _ratio([b / o for b, o in zip(base, own, strict=True)]) | {
                "rows_per_second": statistics.median(own)}
            if knowledge == "stored":
                report[name] = {"teacher": self._source(name)} | figures
            else:
                report[name]["live"] = figures
        return report

    def _source(self, method: str) -> str:
        """`stored` when nothing that the method reads is left to compute live."""
        needs = frozenset().union(*(phase.objective.needs.teacher for phase in self._phases(method, seed=0)))
        stored = FeatureStore.open(self.store_folder).keys
        return "stored" if needs <= stored else "mixed" if needs & stored else "live"

    def _phases(self, method: str, seed: int) -> tuple[Phase, ...]:
        setting = Setting(teacher=teacher_dims(self.teacher_folder), student=teacher_dims(self.student_folder),
                          classes=2, regression=False, labels=self.prepared.labels("train"),
                          batch_size=BATCH, seed=seed)
        return methods.load(method).phases(methods.configure(method, {}), setting)

    def _rate(self, method: str, knowledge: Knowledge, seed: int) -> float:
        """Rows a second of one training."""
        per_epoch = -(-self.work.rows // BATCH)
        settings = Training(epochs=(self.work.steps - 0.5) / per_epoch, batch_size=BATCH)  # rounded up to whole steps
        folder = self.folder / "runs" / str(self._runs)
        self._runs += 1
        student = models.classifier(self.student_folder, seed)
        with _silence():
            result = train(student, self._phases(method, seed), self.prepared, settings, seed, folder,
                           Journal(folder / "log.jsonl"), method, self._teacher(method, knowledge))
        return float(result.measured["examples_per_second"])

    def _teacher(self, method: str, knowledge: Knowledge) -> Teacher | None:
        needs = frozenset().union(*(phase.objective.needs.teacher for phase in self._phases(method, seed=0)))
        if knowledge == "none" or not needs:
            return None
        if knowledge == "stored":
            return Teacher.open(self.prepared, self.teacher_folder, self.store_folder, STORED, needs, self.device)
        return Teacher(self.teacher_folder, self.prepared.info.labels, self.device, self.precision)


def _ratio(ratios: list[float]) -> dict[str, Any]:
    return {"epoch_ratio": statistics.median(ratios), "epoch_ratios": ratios}


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The trainings say nothing of interest here."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def main() -> None:
    """`python -m kdcore.bench.size WORK FOLDER OUTPUT`: what `kdcore.bench` starts for each size."""
    work, folder, output = sys.argv[1:]
    content = json.loads(work)
    bench = Bench(Work(**content | {"methods": tuple(content["methods"])}), Path(folder))
    Path(output).write_text(json.dumps(bench.measure()), encoding="utf-8")


if __name__ == "__main__":
    main()
