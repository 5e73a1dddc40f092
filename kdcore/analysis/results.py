"""Reads what the evaluate stages wrote, checks that it belongs together, and condenses it over seeds."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from kdcore.analysis.resampling import resampled
from kdcore.analysis.statistics import FEWEST_SEEDS, RESAMPLES, Difference, Summary, corrected, difference, summarise
from kdcore.data.prepared import PreparedInfo
from kdcore.errors import UserError
from kdcore.evaluation.metrics import PROTOCOL
from kdcore.method_config import MethodEntry

TEACHER = "teacher"
BASELINES = ("finetune", "vanilla_kd")
"""What every student is compared with: the same initialisation without a teacher, and with its logits only."""

VARIANTS = {"paws_qqp": "paws_wiki", "imdb_128": "imdb"}
"""Out-of-domain sets that are another version of a set: they do not count in the mean beside it."""


@dataclass(frozen=True)
class Column:
    """One number of a table: a metric on a split, the mean of the dataset's metrics there (metric empty), or the
    out-of-domain mean (both empty)."""

    split: str
    metric: str

    @property
    def name(self) -> str:
        return f"{self.split}/{self.metric or 'mean of metrics'}" if self.split else "out-of-domain mean"


OOD_MEAN = Column("", "")


@dataclass(frozen=True)
class System:
    """The teacher, or all seeds of one method, on one dataset. `metrics` and `runs` are by run name."""

    name: str
    folder: Path
    metrics: dict[str, dict[str, dict[str, Any]]]
    runs: dict[str, dict[str, Any]]

    @classmethod
    def load(cls, folder: Path, name: str) -> tuple["System", PreparedInfo]:
        """Read a folder written by the stage `evaluate`, and the dataset it was evaluated on.

        Raises:
            UserError: a file is missing or damaged, or another version of the metrics wrote it.
        """
        again = f"run `kdflow evaluate {folder.parent.name} {name}` again"
        try:
            metrics, context = (json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
                                for part in ("metrics", "context"))
            info = PreparedInfo.from_json(json.dumps(context["dataset"]))
            runs = dict(context["runs"])
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} is missing; {again}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the evaluation in {folder} cannot be read ({error}); {again}") from None
        if context.get("protocol") != PROTOCOL:
            raise UserError(f"{folder} was scored by {context.get('protocol')}, this version computes {PROTOCOL}; "
                            f"{again}")
        if metrics.keys() != runs.keys():
            raise UserError(f"metrics.json and context.json in {folder} name different runs; {again}")
        return cls(name, folder, metrics, runs), info

    @cached_property
    def entry(self) -> MethodEntry:
        """The method as the study declares it, of which the record tells; a teacher's is its own name."""
        record = next(iter(self.runs.values()))["training"]
        file = record.get("method", {}).get("name", self.name)
        return MethodEntry(self.name, file, record.get("variant", {}).get("options", {}))

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Those of its method, which all seeds share; empty for a teacher."""
        found = next(iter(self.runs.values()))["training"].get("method", {})
        return {key: value for key, value in found.items() if key != "name"}

    @property
    def size(self) -> dict[str, int]:
        """Parameters and bytes; equal for all seeds. Empty for a teacher that is only files."""
        return next(iter(self.runs.values()))["size"]

    @property
    def keeps_last(self) -> bool:
        """Whether it was trained here and no checkpoint was chosen: the weights of the last step were kept."""
        phases = [run["training"]["phases"] for run in self.runs.values()]
        return all(phases) and all(of_run[-1].get("keep") == "last" for of_run in phases)

    @property
    def degenerate_splits(self) -> tuple[str, ...]:
        """Splits where some run gives every row the same answer, or a metric is undefined."""
        return tuple(dict.fromkeys(split for splits in self.metrics.values() for split, values in splits.items()
                                   if values["degenerate"]))

    def predictions(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Predicted classes or scores [s, n], runs in order, and the labels [n]."""
        tables = [pq.read_table(self.folder / "predictions" / run / f"{split}.parquet") for run in self.metrics]
        answer = "prediction" if "prediction" in tables[0].column_names else "score"
        labels = tables[0].column("label").to_numpy()
        for table in tables:
            if not np.array_equal(table.column("label").to_numpy(), labels):
                raise UserError(f"the predictions in {self.folder} are of different rows of {split}; evaluate again")
        return np.stack([table.column(answer).to_numpy() for table in tables]), labels


@dataclass
class DatasetResults:
    """All systems on one dataset, teacher first where it was evaluated."""

    info: PreparedInfo
    systems: dict[str, System]
    missing: tuple[str, ...]
    """Methods (or the teacher) that were not evaluated."""
    _resampled: dict[tuple[str, Column], np.ndarray] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, methods: Iterable[str]) -> "DatasetResults":
        """Read the evaluations of a dataset.

        Raises:
            UserError: none is there, or they are of different data.
        """
        names = (TEACHER, *methods)
        found = {name: System.load(folder / name, name) for name in names if (folder / name).is_dir()}
        if not found:
            raise UserError(f"nothing of {folder.name} was evaluated yet; run `dvc repro`, or "
                            f"`kdflow evaluate {folder.name} METHOD`")
        (first, (_, info)), *rest = found.items()
        for name, (_, other) in rest:
            if other != info:
                raise UserError(f"{first} and {name} were evaluated on different preparations of {folder.name}; "
                                "run `dvc repro` to bring them up to date")
        return cls(info, {name: system for name, (system, _) in found.items()},
                   tuple(name for name in names if name not in found))

    @property
    def select(self) -> str:
        """The split that chose the checkpoints."""
        return self.info.select

    @property
    def in_domain(self) -> tuple[str, ...]:
        """Labelled splits of the dataset itself, the selecting one first."""
        return tuple(name for name in self.info.with_role("select", "report", "test")
                     if not self.info.splits[name].hidden)

    @property
    def out_of_domain(self) -> tuple[str, ...]:
        return self.info.with_role("ood")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Everything that is measured: in domain, out of domain, the out-of-domain mean."""
        metric = "accuracy" if self.info.labels else self.info.metrics[0]
        inside = [Column(split, name) for split in self.in_domain for name in self.info.metrics]
        outside = [Column(split, metric) for split in self.out_of_domain]
        return (*inside, *outside, *([OOD_MEAN] if len(self.in_the_mean) > 1 else []))

    @property
    def in_the_mean(self) -> tuple[str, ...]:
        """Out-of-domain sets that count in the unweighted mean."""
        return tuple(name for name in self.out_of_domain if VARIANTS.get(name) not in self.out_of_domain)

    def parts(self, column: Column) -> tuple[Column, ...]:
        """The measured numbers whose mean a column is."""
        if column == OOD_MEAN:
            return tuple(part for part in self.columns if part.split in self.in_the_mean)
        return (column,) if column.metric else tuple(Column(column.split, metric) for metric in self.info.metrics)

    @property
    def headline(self) -> Column:
        """The number that stands for the dataset beside others: the mean of its metrics on the first split of its own
        that had no part in selecting checkpoints, else on the one that selected them."""
        return Column(next((split for split in self.in_domain if split != self.select), self.select), "")

    def has(self, system: str, column: Column) -> bool:
        """Whether a system was evaluated and scored there: a teacher that is only files may not answer every split."""
        return system in self.systems and all(part.split in splits for part in self.parts(column)
                                              for splits in self.systems[system].metrics.values())

    def values(self, system: str, column: Column) -> list[float]:
        """One value per run."""
        return [float(np.mean([splits[part.split][part.metric] for part in self.parts(column)]))
                for splits in self.systems[system].metrics.values()]

    def summary(self, system: str, column: Column) -> Summary:
        """Mean, deviation and n over seeds."""
        return summarise(self.values(system, column))

    def comparisons(self) -> list[tuple[str, str]]:
        """Method and baseline, for every baseline that was evaluated, be it under a name of its own."""
        students = [name for name in self.systems if name != TEACHER]
        found = ([name for name in students if self.systems[name].entry.file == file] for file in BASELINES)
        baselines = [file if file in names else names[0] for file, names in zip(BASELINES, found, strict=True) if names]
        return [(name, baseline) for name in students for place, baseline in enumerate(baselines)
                if name not in baselines[:place + 1]]

    def is_baseline(self, method: str, file: str) -> bool:
        """Whether a method is the baseline of this method file."""
        return self.systems[method].entry.file == file

    @cached_property
    def differences(self) -> dict[tuple[str, str, Column], Difference]:
        """Every method minus every baseline on every column, corrected as one family."""
        pairs = [(method, baseline, column) for method, baseline in self.comparisons() for column in self.columns]
        return dict(zip(pairs, corrected([self.difference(*pair) for pair in pairs]), strict=True))

    @property
    def variants(self) -> list[str]:
        """What the methods are that have names of their own, in Markdown."""
        return [system.entry.told() for system in self.systems.values() if system.entry.is_variant]

    def difference(self, system: str, baseline: str, column: Column) -> Difference:
        """A method minus a baseline over the seeds that both have.

        Raises:
            UserError: they have no seed in common.
        """
        ours, other = self.systems[system], self.systems[baseline]
        shared = [run for run in ours.metrics if run in other.metrics]
        if not shared:
            raise UserError(f"{system} and {baseline} have no seed in common on {self.info.name}; run `dvc repro`")
        pairs = [(self.systems[name], [list(self.systems[name].metrics).index(run) for run in shared])
                 for name in (system, baseline)]
        (values, resamples), (other_values, other_resamples) = (
            (np.array(self.values(one.name, column))[rows],
             self._resample(one.name, column)[:, rows] if len(shared) >= FEWEST_SEEDS else None) for one, rows in pairs)
        return difference(values, other_values, resamples, other_resamples)

    def _resample(self, system: str, column: Column) -> np.ndarray:
        """The column on resamples of its examples [r, s]; the same resamples for every system."""
        if (system, column) not in self._resampled:
            parts = self.parts(column)
            if parts == (column,):
                predictions, labels = self.systems[system].predictions(column.split)
                seed = list(self.info.splits).index(column.split)
                found = resampled(column.metric, predictions, labels, RESAMPLES, seed)
            else:
                found = np.mean([self._resample(system, part) for part in parts], axis=0)
            self._resampled[system, column] = found
        return self._resampled[system, column]
