"""Stage `analyse`: look inside the students of all methods on a dataset, beside its teacher.

Five analyses, each pictures with its data beside it; the ones that a study has nothing for are left out, and those
that are not defined for its models say why:

    similarity.png, pairs.png, similarity.csv   cosine of teacher and student layers (Haidar et al. 2022, figure 2)
    attention.png, attention.csv                weights that student layers give teacher layers (Passban et al. 2021)
    draws.png, draws.csv                        which teacher layers were drawn at random
    collapse.png, collapse.csv                  whether learned projections collapsed, over the epochs
    actions.png, rewards.png, episodes.png      how knowledge was selected, see kdcore/analysis/selection_exhibits.py
    analysis.json                               what is there, with a text to each

The first needs both models on a few rows, the second on the whole training set; the others read training records.
"""

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from kdcore import config, selector_folder
from kdcore.analysis import draws, layer_plots
from kdcore.analysis.attention import mean_attention
from kdcore.analysis.exhibits import Exhibit, Exhibits, write_csv
from kdcore.analysis.layer_plots import HeatMaps, Watch
from kdcore.analysis.selection_exhibits import selection
from kdcore.analysis.similarity import States, read_states, similarity
from kdcore.data.prepared import Prepared, Which
from kdcore.errors import UserError
from kdcore.export import RECORD
from kdcore.layout import Layout
from kdcore.mapping import skip
from kdcore.methods import alp_kd
from kdcore.models.loading import dims, load_config, load_finetuned
from kdcore.objective import Dims, Setting
from kdcore.projection import COLLAPSE_ALARMS
from kdcore.teacher import Teacher, teacher_dims
from kdcore.teacher_folder import gives_only_logits
from kdcore.tracking import Run
from kdcore.training.precision import device

ROWS_AT_ONCE = 16
"""Of the rows that layers are compared on; token states of a batch are kept for all layers."""
MOST_PAIRS = 3
"""Of the pairs that are compared between methods: the figure's (2, 1), (4, 2), (6, 3) for 12 and 6 layers."""


def run(study: config.Study, layout: Layout, dataset: str) -> None:
    """Analyse all students of a dataset.

    Raises:
        UserError: nothing prepared or trained yet, or a model or its record cannot be read.
    """
    work = Work(study, layout, dataset)
    scratch = layout.scratch / f"analyse-{dataset}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with Run.start("analyse", layout, dataset, params=study.analysis.model_dump()) as tracked:
        work.absent.extend(f"`{method}` has no students yet." for method in study.study.methods
                           if method not in work.students)
        shown = [*work.similarity(scratch), *work.attention(scratch), *work.draws(scratch), *work.collapse(scratch),
                 *work.selection(scratch)]
        Exhibits(dataset, tuple(shown), tuple(work.absent)).write(scratch)
        out = layout.analysis(dataset)
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        os.replace(scratch, out)
        tracked.artifact(out)
    for exhibit in shown:
        print(f"{dataset}: {out / exhibit.image}")
    for sentence in work.absent:
        print(f"{dataset}: {sentence.replace('`', '')}")


@dataclass(frozen=True)
class Student:
    """One exported student and the record of its training."""

    seed: int
    folder: Path
    history: list[dict[str, Any]]
    record: dict[str, Any]


@dataclass(frozen=True)
class Work:
    """The students of one dataset. Each analysis returns its pictures; what is not defined is added to `absent`."""

    study: config.Study
    layout: Layout
    dataset: str
    absent: list[str] = field(default_factory=list)

    @cached_property
    def prepared(self) -> Prepared:
        """The dataset; raises UserError when it is not there."""
        return Prepared.load(self.layout.prepared(self.dataset))

    @cached_property
    def teacher(self) -> Dims:
        """The teacher's sizes."""
        return teacher_dims(self.layout.teacher(self.dataset))

    @cached_property
    def students(self) -> dict[str, list[Student]]:
        """By method, seeds in ascending order; raises UserError when there are none."""
        found = {}
        for method in self.study.study.methods:
            folders = self.layout.student(self.dataset, method).glob("seed-*")
            if students := [_student(folder, f"kdflow distill {self.dataset} {method}") for folder in folders]:
                found[method] = sorted(students, key=lambda student: student.seed)
        if not found:
            raise UserError(f"nothing of {self.dataset} was distilled yet; run `dvc repro`, or "
                            f"`kdflow distill {self.dataset} METHOD`")
        return found

    @cached_property
    def student(self) -> Dims:
        """The students' sizes; raises UserError when they differ."""
        (first, size), *others = [(method, dims(load_config(str(student.folder.absolute()))))
                                  for method, students in self.students.items() for student in students]
        for method, other in others:
            if (other.layers, other.width) != (size.layers, size.width):
                raise UserError(f"students of {first} have {size.layers} layers of width {size.width}, those of "
                                f"{method} {other.layers} of {other.width}; run `dvc repro` to bring them up to date")
        return size

    @cached_property
    def seeds(self) -> str:
        """`seeds 1, 2`: those of all methods."""
        seeds = sorted({student.seed for students in self.students.values() for student in students})
        return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"

    def similarity(self, folder: Path) -> list[Exhibit]:
        """Cosines of all pairs of layers, and the first pairs of the skip map by method."""
        if why := self._why_no_cosine():
            self.absent.append(f"The cosine of teacher and student layers is not defined: {why}.")
            return []
        split, batches, rows = self._rows()
        theirs = self._states(self.layout.teacher(self.dataset), "teacher", split, batches)
        found = {method: [similarity(theirs, self._states(student.folder, "student", split, batches)).numpy()
                          for student in students] for method, students in self.students.items()}
        write_csv(folder / "similarity.csv", ("method", "seed", "teacher_layer", "student_layer", "cosine"), (
            (method, student.seed, teacher + 1, layer + 1, float(matrix[teacher, layer]))
            for method, students in self.students.items()
            for student, matrix in zip(students, found[method], strict=True)
            for teacher, layer in np.ndindex(*matrix.shape)))
        return self._show_similarity(folder, found, rows)

    def _why_no_cosine(self) -> str:
        """Why layers cannot be compared; empty when they can."""
        teacher = self.layout.teacher(self.dataset)
        if gives_only_logits(teacher):
            return "the teacher has outputs and no layers"
        if self.teacher.width != self.student.width:
            return f"their widths differ ({self.teacher.width} and {self.student.width})"
        if self.study.analysis.pooling == "tokens" and not self.prepared.same_tokenizer:
            return "teacher and student cut texts differently; set `analysis.pooling` to `mean` or `cls`"
        return ""

    def _rows(self) -> tuple[str, list[list[int]], str]:
        """The split and the batches of rows on which layers are compared, and the same in words."""
        settings, info = self.study.analysis, self.prepared.info
        split = info.train if settings.split == "train" else info.select
        lengths = self.prepared.tokens(split, "teacher").lengths
        count = min(settings.samples, len(lengths))
        rows = random.Random(f"analysis {settings.seed}").sample(range(len(lengths)), count)
        rows.sort(key=lambda row: (-lengths[row], row))
        batches = [rows[start:start + ROWS_AT_ONCE] for start in range(0, count, ROWS_AT_ONCE)]
        drawn = f"{count} rows of `{split}`, drawn with seed {settings.seed}"
        return split, batches, drawn if count < len(lengths) else f"all {count} rows of `{split}`"

    def _states(self, folder: Path, which: Which, split: str, batches: Sequence[Sequence[int]]) -> list[States]:
        model = self._load(folder)
        return read_states(model, self.prepared.tokens(split, which), batches, self.study.analysis.pooling)

    def _load(self, folder: Path) -> PreTrainedModel:
        model = load_finetuned(folder, self.prepared.info.labels)
        nn.Module.to(model, device())
        return model

    def _show_similarity(self, folder: Path, found: Mapping[str, Sequence[np.ndarray]], rows: str) -> list[Exhibit]:
        means = {method: np.mean(matrices, axis=0).T for method, matrices in found.items()}
        lowest = min(float(mean.min()) for mean in means.values())
        pairs = (skip(self.teacher.layers, self.student.layers)[:MOST_PAIRS]
                 if self.student.layers <= self.teacher.layers else ())
        layer_plots.draw_heat_maps(
            HeatMaps(f"{self.dataset}: cosine of teacher and student layers", "mean cosine", means,
                     min(0.9, np.floor(10 * lowest) / 10), 1.0, pairs), folder / "similarity.png")
        shown = [Exhibit(
            "Cosine of teacher and student layers", "similarity.png", "similarity.csv",
            f"Mean cosine of {_POOLED[self.study.analysis.pooling]} in each teacher layer (to the right) and each "
            f"student layer (up), over {rows}, and over {self.seeds}. States of an encoder share much of their "
            "direction, so compare methods and layers with each other, not with 1."
            + (" Framed: the pairs below." if pairs else ""))]
        if pairs:
            layer_plots.draw_pairs(f"{self.dataset}: cosine of pairs of layers", pairs,
                                   {method: [matrix.T for matrix in matrices] for method, matrices in found.items()},
                                   folder / "pairs.png")
            shown.append(Exhibit(
                "Cosine by method", "pairs.png", "similarity.csv",
                "The same cosine where the skip map pairs teacher and student layers: circles are seeds, dots "
                "and numbers on the right their mean. Scales differ by panel."))
        return shown

    def attention(self, folder: Path) -> list[Exhibit]:
        """The weights of the first seed of each ALP-KD: one pass of the student over the training set."""
        found = {method: (student, objective) for method, (student, *_) in self.students.items()
                 if student.record["method"]["name"] == "alp_kd" and (objective := self._attending(method, student))}
        if not found:
            return []
        weights = {method: mean_attention(objective, self._load(student.folder), self._teacher(objective),
                                          self.prepared, f"attention {self.dataset} {method}").numpy()
                   for method, (student, objective) in found.items()}
        write_csv(folder / "attention.csv", ("method", "seed", "student_layer", "teacher_layer", "weight"), (
            (method, student.seed, objective.student_layers[row], objective.teacher_layers[column],
             float(weights[method][row, column])) for method, (student, objective) in found.items()
            for row, column in np.ndindex(*weights[method].shape)))
        layer_plots.draw_heat_maps(HeatMaps(f"{self.dataset}: attention of student layers on teacher layers",
                                            "mean weight", weights, 0.0,
                                            max(float(one.max()) for one in weights.values())),
                                   folder / "attention.png")
        info, (student, objective) = self.prepared.info, next(iter(found.values()))
        blocks = any(objective.allowed is not None for _, objective in found.values())
        return [Exhibit("Attention of ALP-KD", "attention.png", "attention.csv",
                        f"The weight that each student layer (up) gives each teacher layer (to the right), averaged "
                        f"over all {info.splits[info.train].rows:,} training rows, by the final student of seed "
                        f"{student.seed} without dropout. Rows sum to 1" + (
                            ", within the block that a student layer looks at." if blocks else
                            f"; equal weights would be {layer_plots.decimals(1 / len(objective.teacher_layers), 2)}."))]

    def _attending(self, method: str, student: Student) -> alp_kd.AlpKd | None:
        """A student's objective anew; None where its weights are computed through what was not exported."""
        info = self.prepared.info
        written = {name: value for name, value in student.record["method"].items() if name != "name"}
        objective = alp_kd.AlpKd(alp_kd.Config(**written), Setting(
            self.teacher, self.student, info.classes, info.regression, self.prepared.labels(info.train),
            student.record["phases"][-1]["batch_size"], student.seed)).to(device())
        if list(objective.parameters()):
            self.absent.append(f"The attention of `{method}` is not shown: it is computed through learned maps between "
                               f"widths {self.teacher.width} and {self.student.width}, which are not exported.")
            return None
        return objective

    def _teacher(self, objective: alp_kd.AlpKd) -> Teacher:
        return Teacher.open(self.prepared, self.layout.teacher(self.dataset), self.layout.features(self.dataset),
                            self.study.features, objective.needs.teacher, device())

    def draws(self, folder: Path) -> list[Exhibit]:
        """How often each teacher layer was drawn, over all epochs and seeds."""
        counts, expected = {}, {}
        for method, students in self.students.items():
            layers = [epoch for student in students for epoch in draws.drawn(student.history)]
            if not layers:
                continue
            if any(student.record["method"].get("resample") != "epoch" for student in students):
                self.absent.append(f"How often `{method}` drew each layer is not shown: it draws at every step, and "
                                   "records keep the mean of each epoch.")
                continue
            counts[method] = draws.counts(layers, self.teacher.layers - 1)
            expected[method] = draws.expected(*counts[method].shape)
        if not counts:
            return []
        write_csv(folder / "draws.csv", ("method", "slot", "teacher_layer", "draws", "expected"), (
            (method, slot + 1, layer + 1, int(table[slot, layer]),
             float(expected[method][slot, layer] * table[slot].sum()))
            for method, table in counts.items() for slot, layer in np.ndindex(*table.shape)))
        layer_plots.draw_draws(f"{self.dataset}: teacher layers drawn", counts, expected, folder / "draws.png")
        return [Exhibit("Teacher layers drawn", "draws.png", "draws.csv",
                        f"Left: how often each teacher layer was drawn in all epochs of {self.seeds}, and how often "
                        "uniform draws give it on average (dashed). Right: by slot; the j-th drawn layer teaches the "
                        "j-th student layer that is taught, and triangles mark where it lies on average. Methods that "
                        "draw as many layers draw the same ones with the same seed.")]

    def collapse(self, folder: Path) -> list[Exhibit]:
        """The collapse watch of the methods that learn projections, over the epochs."""
        trainings = {}
        for method, students in self.students.items():
            seeds = [_over_epochs(student.history, [watch.name for watch in _WATCHES]) for student in students]
            if any(value is not None for _, values in seeds for series in values.values() for value in series):
                trainings[method] = seeds
        if not trainings:
            return []
        write_csv(folder / "collapse.csv", ("method", "seed", "epoch", *(watch.name for watch in _WATCHES)), (
            (method, student.seed, float(epoch), *("" if value is None else value for value in values))
            for method, seeds in trainings.items()
            for student, (epochs, series) in zip(self.students[method], seeds, strict=True)
            for epoch, *values in zip(epochs, *series.values(), strict=True)))
        numbers = {method: number for number, method in enumerate(self.study.study.methods, 1)}  # 0 is the teacher
        layer_plots.draw_watches(f"{self.dataset}: do the projected vectors collapse?", _WATCHES, trainings, numbers,
                                 folder / "collapse.png")
        return [Exhibit("Collapse watch", "collapse.png", "collapse.csv",
                        "Left: mean cosine between the projected teacher vectors of different examples; at 1 all are "
                        "alike and nothing is taught. Right: standard deviation of their entries; at 0 likewise. "
                        f"Means over each epoch, by {self.seeds} (thin) and on average (thick); dotted: where training "
                        "warns.")]

    def selection(self, folder: Path) -> list[Exhibit]:
        """How methods weighed types of knowledge, and how selectors learned to: theirs, and the dataset's own."""
        records = {method: {student.seed: student.record for student in students}
                   for method, students in self.students.items()}
        path = self.layout.selector(self.dataset) / selector_folder.RECORD
        if path.is_file():
            own = json.loads(path.read_text(encoding="utf-8"))
            records = {"selector": {own["lineage"]["seed"]: own | {"method": {"name": "selector"}}}} | records
        return selection(self.dataset, records, folder)


_POOLED = {"mean": "the states, averaged over real tokens,", "cls": "the states of token 0",
           "tokens": "the states token by token, averaged over real tokens,"}
_LIMITS = {alarm.diagnostic: alarm for alarm in COLLAPSE_ALARMS}
_WATCHES = (Watch("collapse", "mean cosine between examples", _LIMITS["collapse"].high),
            Watch("spread", "standard deviation of entries", _LIMITS["spread"].low, logarithmic=True))


def _student(folder: Path, command: str) -> Student:
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Student(int(record["seed"]), folder, record["history"], record)
    except FileNotFoundError:
        raise UserError(f"{path} is missing, so nobody knows how this model was trained; run `{command}` again") \
            from None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not the record of a training ({error}); run `{command}` again") from None


def _over_epochs(history: Sequence[Mapping[str, Any]], names: Sequence[str]) -> layer_plots.Seed:
    """Diagnostics over the epochs of all phases, one after another."""
    epochs, before, last, phase = [], 0.0, 0.0, None
    for entry in history:
        if entry["phase"] != phase:
            before, phase = last, entry["phase"]
        last = before + entry["epoch"]
        epochs.append(last)
    return epochs, {name: [entry["diagnostics"].get(name) for entry in history] for name in names}
