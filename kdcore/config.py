"""`params.yaml` of a study as frozen, strict objects.

Every stage lists in `dvc.yaml` the sections it reads, so a section holds what one kind of stage needs
and nothing else. Unknown keys are errors that name the nearest known one.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from kdcore import grid
from kdcore.data_config import Data
from kdcore.errors import UserError, did_you_mean
from kdcore.method_config import DATASETS, METHOD, STUDENT, MethodEntry
from kdcore.pair_config import Pair
from kdcore.strict import Seed, Strict, merge, parse, read_yaml

_METHOD_NAME = re.compile(r"(?!teacher$)[A-Za-z0-9_]+")


class Training(Strict):
    """One training run. Defaults follow `docs/methods` (AdamW, linear decay, 10 % warm-up)."""

    epochs: float = Field(default=3, gt=0)
    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps, in place of `epochs`."""
    batch_size: int = Field(default=32, ge=1)
    """Examples per optimiser step, over all micro-batches and devices."""
    accumulation: int = Field(default=1, ge=1)
    """Micro-batches per step; divides `batch_size`."""
    learning_rate: float = Field(default=5e-5, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay rates of AdamW's averages of gradients and of their squares."""
    epsilon: float = Field(default=1e-8, gt=0)
    """What AdamW adds to the root of the averaged squares."""
    warmup_share: float = Field(default=0.1, ge=0, lt=1)
    schedule: Literal["linear", "constant"] = "linear"
    clip_norm: float = Field(default=1.0, gt=0)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """`auto` is bf16 where the hardware computes it natively (CPU or CUDA), else fp32."""
    patience: int | None = Field(default=None, ge=1)
    """Evaluations without improvement before stopping; None never stops early."""
    keep: Literal["best", "last"] = "best"
    compile: bool = False
    save_minutes: float | None = Field(default=None, ge=0)
    """Time between two checkpoints; None is half a minute. Longer where writing them would take over 2 % of it."""
    save_steps: int | None = Field(default=None, ge=1)
    """Checkpoints after every so many steps as well."""
    seed: Seed = 0
    """Of the teacher; students take theirs from `study.seeds`."""

    def deciding(self) -> dict[str, Any]:
        """What the result depends on, as plain values; the seed, which is told beside it, is left out."""
        return self.model_dump(mode="json", exclude={"seed", "save_minutes", "save_steps"})

    @model_validator(mode="after")
    def _accumulation_divides_the_batch(self) -> Self:
        if self.batch_size % self.accumulation:
            raise ValueError(f"accumulation {self.accumulation} does not divide batch_size {self.batch_size}")
        return self


class Dataset(Strict):
    """One dataset of a study. `teacher` and `student` replace fields of `training` for this dataset."""

    data: Data
    teacher: dict[str, Any]
    student: dict[str, Any]


class BothTrainings(Strict):
    """Defaults of the study for teacher and student training."""

    teacher: Training
    student: Training


class Published(Strict):
    """Scores as a paper prints them, x 100, by dataset and column of the report; `source` says where they stand."""

    source: str
    scores: dict[str, dict[str, float]] = Field(min_length=1)


class Selection(Strict):
    """What the study runs; each list is a matrix axis in `dvc.yaml`. `question` is what it asks, as its report says;
    `published` is what papers give, by the name of the row beside ours."""

    datasets: tuple[str, ...] = Field(min_length=1)
    methods: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    question: str | None = None
    published: dict[str, Published] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _no_repeats(self) -> Self:
        for field in ("datasets", "methods", "seeds"):
            values = getattr(self, field)
            repeated = sorted({v for v in values if values.count(v) > 1}, key=str)
            if repeated:
                raise ValueError(f"{field} names {repeated[0]!r} twice")
        return self


class SelectorTraining(Strict):
    """The entry of `methods` whose episodes train the selector of a dataset, and the seed."""

    method: str
    seed: Seed = 0


class StoredFeatures(Strict):
    """Which sentence-level teacher features are computed once and stored; other needs are computed live."""

    kinds: tuple[Literal["logits", "cls", "mean"], ...] = ("logits", "mean")
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    """Of the teacher's forward, stored and live alike; `auto` is bf16 where the hardware computes it natively."""
    batch_size: int = Field(default=64, ge=1)


class TeacherGate(Strict):
    """What to do with a teacher that does not beat the majority class."""

    allow_weak: bool = False


class Evaluation(Strict):
    """Evaluation of teacher and students. Latency runs on this machine and is no out of DVC."""

    batch_size: int = Field(default=64, ge=1)
    latency: bool = True
    submission: bool = True


class Analysis(Strict):
    """Which rows the layers of teacher and students are compared on, and what stands for a layer's states."""

    samples: int = Field(default=100, ge=1)
    split: Literal["dev", "train"] = "dev"
    """`dev` is the split that selects checkpoints."""
    pooling: Literal["mean", "cls", "tokens"] = "mean"
    """The mean over real tokens, the state of token 0, or token by token."""
    seed: Seed = 0
    """Of the rows."""


class Study(Strict):
    """The whole of `params.yaml`.

    `code` is the folder of the kdflow checkout, seen from the study folder.
    An entry of `methods` holds hyper-parameters, under `method` the method file where its name is not that, and under
    `datasets` what differs on single datasets: hyper-parameters, and `student` for `training.student`.
    `selectors` are trained each on the dataset of its name, for methods with `selector: study`.
    `grid` lists values to try, by dotted setting: `training.student.learning_rate: [1e-5, 2e-5]`. No stage reads it:
    the study runs what the other sections say, and a search runs it with the points of the grid in their place.
    """

    code: str
    study: Selection
    pair: Pair
    training: BothTrainings
    datasets: dict[str, Dataset]
    methods: dict[str, dict[str, Any]]
    features: StoredFeatures
    gate: TeacherGate
    evaluation: Evaluation
    analysis: Analysis = Analysis()
    selectors: dict[str, SelectorTraining] = Field(default={})
    grid: dict[str, tuple[Any, ...]] = Field(default={})

    @model_validator(mode="after")
    def _names_are_declared(self) -> Self:
        for section in ("datasets", "methods"):
            known = getattr(self, section)
            for name in getattr(self.study, section):
                if name not in known:
                    raise ValueError(f"study.{section} names {name!r}, which has no entry under `{section}`; "
                                     f"{did_you_mean(name, known)}")
        for name in self.datasets:
            self.teacher_training(name)
            self.student_training(name)
        for name, written in self.methods.items():
            if not _METHOD_NAME.fullmatch(name):
                raise ValueError(f"methods names {name!r}; a name there is letters, digits and _, and not `teacher`")
            if not isinstance(file := written.get(METHOD, name), str):
                raise ValueError(f"methods.{name}.{METHOD} = {file!r}, expected the name of a method file")
            self._check_own(name, written.get(DATASETS, {}))
        return self

    def _check_own(self, method: str, own: Any) -> None:
        """Refuse what an entry of `methods` says of single datasets, but for its hyper-parameters."""
        place = f"methods.{method}.{DATASETS}"
        if not isinstance(own, dict) or not all(isinstance(written, dict) for written in own.values()):
            raise ValueError(f"{place} = {own!r}, expected hyper-parameters by dataset, and `{STUDENT}` for settings "
                             "of its training")
        for dataset, written in own.items():
            if dataset not in self.datasets:
                raise ValueError(f"{place} names {dataset!r}, which has no entry under `datasets`; "
                                 f"{did_you_mean(str(dataset), self.datasets)}")
            if not isinstance(written.get(STUDENT, {}), dict):
                raise ValueError(f"{place}.{dataset}.{STUDENT} = {written[STUDENT]!r}, expected settings of a training")
            self.student_training(dataset, method)

    @model_validator(mode="after")
    def _published_scores_are_of_known_datasets(self) -> Self:
        for name, published in self.study.published.items():
            for dataset in published.scores:
                if dataset not in self.datasets:
                    raise ValueError(f"study.published.{name}.scores names {dataset!r}, which has no entry under "
                                     f"`datasets`; {did_you_mean(dataset, self.datasets)}")
        return self

    @model_validator(mode="after")
    def _selectors_are_of_the_study(self) -> Self:
        for name, wanted in self.selectors.items():
            if name not in self.study.datasets:
                raise ValueError(f"selectors names {name!r}, which is not in study.datasets; "
                                 f"{did_you_mean(name, self.study.datasets)}")
            if wanted.method not in self.methods:
                raise ValueError(f"selectors.{name}.method names {wanted.method!r}, which has no entry under "
                                 f"`methods`; {did_you_mean(wanted.method, self.methods)}")
        return self

    @model_validator(mode="after")
    def _every_dataset_has_a_teacher(self) -> Self:
        for name in self.study.datasets:
            self._check_teacher(name)
        return self

    def _check_teacher(self, name: str) -> None:
        files, place = self.datasets[name].data.teacher_files, f"datasets.{name}.data.teacher_files"
        if files is None and not self.pair.teacher.models:
            raise ValueError(f"pair.teacher has `source: files`, but {place} is missing; name the file with the "
                             "teacher's answers, e.g. {train: data/teacher.parquet}, or a model as pair.teacher")
        if files is not None and "train" not in files:
            raise ValueError(f"{place} names no file for `train`; students learn from answers to training rows")
        if files is not None and self.pair.student.source == "teacher":
            raise ValueError(f"pair.student has `source: teacher`, but the teacher of {name} is only files "
                             f"({place}), which hold no layers; name a model as pair.student.source")

    @model_validator(mode="after")
    def _grid_fits(self) -> Self:
        """Every point is a valid study; hyper-parameters of methods are checked where method files are loaded."""
        grid.check(self.grid, {"datasets": self.datasets, "methods": self.methods})
        for setting in self.grid:
            if all(setting in self._own_training(name) for name in self.study.datasets):
                name = self.study.datasets[0]
                own = setting.replace("training", f"datasets.{name}", 1)
                raise ValueError(f"grid varies {setting}, but every dataset of the study has a value of its own, which "
                                 f"stands; vary {own} instead, or remove it there")
        varied = {setting.split(".")[1] for setting in self.grid if setting.startswith("datasets.")}
        for dataset in ("", *sorted(varied)) if self.grid else ():
            for point in self.points(dataset, method=""):
                self.at(point)
        return self

    def _own_training(self, dataset: str) -> set[str]:
        """The settings of `training` in whose place a dataset has values of its own, written or in the grid."""
        if dataset not in self.datasets:
            return set()
        own, prefix = self.datasets[dataset], f"datasets.{dataset}."
        written = {f"{who}.{key}" for who in ("teacher", "student") for key in getattr(own, who)}
        varied = {setting.removeprefix(prefix) for setting in self.grid if setting.startswith(prefix)}
        return {f"training.{setting}" for setting in written | varied}

    def points(self, dataset: str, method: str) -> tuple[dict[str, Any], ...]:
        """What a search tries for a method on a dataset: every combination of the grid's settings that concern both.

        A setting of `training` does not concern a dataset that has a value of its own.

        Returns:
            Value by dotted setting, the last setting fastest. One empty point where the grid says nothing.
        """
        others = (*(f"methods.{name}." for name in self.methods if name != method),
                  *(f"datasets.{name}." for name in self.datasets if name != dataset))
        own = self._own_training(dataset)
        return grid.points({setting: values for setting, values in self.grid.items()
                            if not setting.startswith(others) and setting not in own})

    def at(self, point: Mapping[str, Any]) -> "Study":
        """The study with a point of its grid in place; raises UserError when a value does not fit."""
        return parse(Study, grid.placed(self.model_dump(exclude={"grid"}), point), "grid")

    def teacher_training(self, dataset: str) -> Training:
        """Training of the teacher on a dataset: the study's defaults under the dataset's overrides."""
        return _override(self.training.teacher, self.datasets[dataset].teacher, f"datasets.{dataset}.teacher")

    def student_training(self, dataset: str, method: str | None = None) -> Training:
        """Training of students on a dataset: the study's defaults under the dataset's overrides, and under those of a
        method on this dataset."""
        settings = _override(self.training.student, self.datasets[dataset].student, f"datasets.{dataset}.student")
        if method is None:
            return settings
        return _override(settings, self._own(method, dataset).get(STUDENT, {}),
                         f"methods.{method}.{DATASETS}.{dataset}.{STUDENT}")

    def _own(self, method: str, dataset: str | None) -> dict[str, Any]:
        """What the entry of a method says of a dataset."""
        return self.methods[method].get(DATASETS, {}).get(dataset, {})

    def dataset(self, name: str) -> Dataset:
        """The declaration of a dataset; raises UserError with near names, or where it has no teacher."""
        if name not in self.datasets:
            raise UserError(f"dataset {name!r} is not declared in params.yaml; {did_you_mean(name, self.datasets)}")
        try:
            self._check_teacher(name)  # it may be none of study.datasets
        except ValueError as error:
            raise UserError(f"params.yaml: {error}") from None
        return self.datasets[name]

    def selector(self, dataset: str) -> SelectorTraining:
        """How the selector of a dataset is trained; raises UserError where the study asks for none."""
        if dataset not in self.selectors:
            raise UserError(f"params.yaml asks for no selector on {dataset}; add `selectors: {{{dataset}: {{method: "
                            "NAME}}`, where methods.NAME trains one, as ksm does")
        return self.selectors[dataset]

    def method(self, name: str, dataset: str | None = None) -> MethodEntry:
        """An entry of `methods`, as it is on a dataset if one is named; raises UserError with near names."""
        if name not in self.methods:
            raise UserError(f"method {name!r} is not declared in params.yaml; {did_you_mean(name, self.methods)}")
        written = self.methods[name]
        options = {key: value for key, value in written.items() if key not in (METHOD, DATASETS)}
        own = {key: value for key, value in self._own(name, dataset).items() if key != STUDENT}
        return MethodEntry(name, written.get(METHOD, name), merge(options, own))

    def entries(self, name: str) -> tuple[MethodEntry, ...]:
        """All that an entry of `methods` is: by itself, and on each dataset of which it says something."""
        entry = self.method(name)
        return entry, *(self.method(name, dataset) for dataset in self.methods[name].get(DATASETS, {}))


def load(path: Path) -> Study:
    """Read and check a `params.yaml`.

    Raises:
        UserError: the file is missing, is no YAML mapping, is that of a general study, or a value does not fit.
    """
    content = read_yaml(path)
    if is_general(content):
        raise UserError(f"{path} is a general study, which has students but no datasets; its commands are "
                        "`python -m flows.pretrain`, `kdflow pretrain STUDENT` and `dvc repro`")
    return parse(Study, content, str(path))


def is_general(content: Mapping[str, Any]) -> bool:
    """Whether a `params.yaml` is that of a general study, see `kdcore.general_config`."""
    return "corpus" in content


def _override(base: Training, changes: dict[str, Any], where: str) -> Training:
    return parse(Training, base.model_dump() | changes, where)
