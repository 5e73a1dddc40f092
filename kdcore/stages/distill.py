"""Stage `distill`: train one student per seed by one method, from stored or live features of the teacher.

Students are plain transformers folders with a `training.json` beside the weights. Finished seeds and checkpoints
wait in the study's scratch folder until all seeds are published at once, so an interrupted run loses no finished
seed and goes on in the middle of the next. Seconds and memory go to the study's measurements, which are no out.
"""

import json
import os
import shutil
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kdcore import config, methods, origin, scratch, selector_folder
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.export import RECORD, export
from kdcore.features import LOGITS, FeatureKey
from kdcore.layout import Layout
from kdcore.lineage import record_key
from kdcore.method_config import MethodConfig, MethodEntry
from kdcore.models.initialise import FROM_TEACHER, RANDOM, build_student
from kdcore.models.loading import dims, load_tokenizer
from kdcore.objective import Dims, Phase, Setting
from kdcore.teacher import Teacher, teacher_dims
from kdcore.teacher_folder import WithoutLayers, fingerprint, gives_only_logits, models, needs_of, refuse_beyond_logits
from kdcore.tracking import Run
from kdcore.training.datasets import OfDataset
from kdcore.training.journal import Journal
from kdcore.training.precision import device, resolve
from kdcore.training.run import train

CODE = ("training", "models", "objective.py", "features.py", "losses.py", "token_losses.py", "mapping.py",
        "selection.py", "knowledge.py", "choice.py", "composition.py", "intermediate.py", "projection.py",
        "negatives.py", "memory_bank.py", "contrastive.py", "knowledge_types.py", "selector.py",
        "selector_training.py", "selector_folder.py", "origin.py", "teacher.py", "live_model.py", "teacher_folder.py",
        "store.py", "export.py", "data/answers.py", "data/batching.py", "data/tokens.py", "evaluation/metrics.py",
        "evaluation/ood.py", "evaluation/predict.py", "stages/distill.py")
"""What decides what a student becomes, beside the method's own file: a checkpoint of other code is not resumed."""


def run(study: config.Study, layout: Layout, dataset: str, method: str) -> None:
    """Train all seeds of a method on a dataset and publish them.

    Raises:
        UserError: an earlier stage was not run, a setting does not fit, or training diverges.
        BusyError: another process trains the same students.
    """
    work = Work(study, layout, dataset, method)
    folder = layout.scratch / f"distill-{dataset}-{method}"
    first = os.environ.get("RANK", "0") == "0"  # of a distributed training: the one that writes
    with scratch.claim(folder) if first else nullcontext():
        places = {f"seed-{seed}": work.train_once(seed, folder) for seed in study.study.seeds}
        if first:
            scratch.publish({name: place / "finished" for name, place in places.items()},
                            layout.student(dataset, method), folder / "publishing")
            work.write_measured(places)
            shutil.rmtree(folder)


@dataclass(frozen=True)
class Work:
    """The students of one method, by its name in the study, on one dataset."""

    study: config.Study
    layout: Layout
    dataset: str
    method: str

    @cached_property
    def entry(self) -> MethodEntry:
        """The method as the study declares it for this dataset."""
        return self.study.method(self.method, self.dataset)

    @cached_property
    def prepared(self) -> Prepared:
        """The dataset; raises UserError when it is not there."""
        return Prepared.load(self.layout.prepared(self.dataset))

    @cached_property
    def teacher_folder(self) -> Path:
        """Where the teacher lies; raises UserError when it is not there."""
        folder = self.layout.teacher(self.dataset)
        if not folder.is_dir():
            raise UserError(f"no teacher in {folder}; run `kdflow teacher {self.dataset}` first")
        return folder

    @cached_property
    def first_model(self) -> tuple[Path, str]:
        """What a student with `source: teacher` starts from, and its name; the folder itself where it is only files."""
        members = models(self.teacher_folder)
        if len(members) > 1:
            return members[0], f"the first of {len(members)} fine-tuned teachers"
        return self.teacher_folder, "the fine-tuned teacher"

    @cached_property
    def described_teacher(self) -> dict[str, str]:
        """For the student's record, who taught it, where that is not one model of the pair."""
        if not gives_only_logits(self.teacher_folder):
            return {}
        return {"taught_by": json.loads((self.teacher_folder / RECORD).read_text(encoding="utf-8"))["init"]}

    @cached_property
    def first_weights(self) -> dict[str, Any]:
        """Where the weights come from that the student starts with; empty for those of the fine-tuned teacher."""
        student = self.study.pair.student
        if student.source == FROM_TEACHER or student.layers == RANDOM:
            return {}
        return origin.of_source(student.source, student.revision)

    @property
    def unlabelled(self) -> dict[str, float]:
        """For the student's record, how much of what it learned from has no label."""
        train = self.prepared.split(self.prepared.info.train)
        return {"rows": train.unlabelled, "of": train.rows, "share": round(train.unlabelled / train.rows, 4)}

    @cached_property
    def method_config(self) -> MethodConfig:
        """The method's hyper-parameters."""
        return methods.of_entry(self.entry)

    @property
    def variant(self) -> dict[str, Any]:
        """The method's name in the study and what is written there, where that name is not the method's; else empty."""
        return {"name": self.method, "options": dict(self.entry.options)} if self.entry.is_variant else {}

    @cached_property
    def selector(self) -> selector_folder.Found | None:
        """The selector that the method takes as it is; None for a method that takes none."""
        source = self.method_config.ready_selector
        if source is None:
            return None
        with methods.naming(self.method):
            return selector_folder.find(source, self.layout.selector(self.dataset), self.dataset)

    @cached_property
    def settings(self) -> config.Training:
        """The students' training settings."""
        return self.study.student_training(self.dataset, self.method)

    def train_once(self, seed: int, folder: Path) -> Path:
        """Train a seed unless it is finished; returns its place below `folder`."""
        place = folder / scratch.key(f"seed-{seed}", self.identity(seed))
        if os.environ.get("RANK", "0") == "0":
            scratch.once(place, lambda out: self.train(seed, place, out))
        elif not (place / "finished").exists():
            self.train(seed, place, None)
        return place

    def identity(self, seed: int) -> dict[str, Any]:
        """Everything that the student of a seed depends on, as JSON values."""
        prepared, settings = self.prepared, self.settings
        return {
            "seed": seed, "training": settings.deciding(),
            "precision": resolve(settings.precision, device()).name,
            "method": {"name": self.entry.file} | self.method_config.model_dump(mode="json"), "variant": self.variant,
            "student": self.study.pair.student.model_dump(mode="json"), "origin": self.first_weights,
            "prepared": prepared.fingerprint,
            "teacher": fingerprint(self.teacher_folder),
            "selector": self.selector.lineage if self.selector else {},
            "features": self.study.features.model_dump(mode="json"),
            "code": scratch.hash_code(*CODE, *(f"methods/{file}.py" for file in self.entry.files)),
            "libraries": scratch.library_versions()}

    def train(self, seed: int, place: Path, out: Path | None) -> None:
        """Train a seed with checkpoints in `place`, and export it to `out` if given."""
        info, settings, pair = self.prepared.info, self.settings, self.study.pair
        start, name = self.first_model
        student, init = build_student(pair.student, start, info.labels, seed, name)
        phases = self.phases(dims(student), seed)
        identity = self.identity(seed)
        title = f"{self.dataset} {self.method} seed {seed}"
        journal = self.layout.logs / f"distill@{self.dataset}-{self.method}-seed-{seed}.jsonl"
        with Run.start("distill", self.layout, self.dataset, self.method, seed,
                       {name: identity[name] for name in ("training", "precision", "method", "student")},
                       method_file=self.entry.file) as tracked:
            result = train(student, phases, OfDataset(self.prepared), settings, seed, place / "checkpoints",
                           Journal(journal, tracked), title, self.teacher(phases, title))
            if out is None:
                return
            record = result.record | {"init": init, "dataset": self.dataset, "teacher": identity["teacher"],
                                      "method": identity["method"]} | self.described_teacher
            if info.splits[info.train].unlabelled and needs_of(phases):  # without a teacher nobody reads them
                record["unlabelled"] = self.unlabelled
            if self.variant:
                record["variant"] = self.variant
            if self.first_weights:
                record["origin"] = self.first_weights
            if self.selector:
                record["selector"] = lineage = self.selector.lineage
                if lineage["teacher"] != identity["teacher"]:
                    record["warnings"] = [*record["warnings"], "its selector learned from states of another teacher, "
                                          f"{lineage['teacher']}, than this one, {identity['teacher']}"]
            tokenizer = (load_tokenizer(str(start.absolute())) if pair.student.source == FROM_TEACHER
                         else load_tokenizer(pair.student.source, pair.student.revision))
            export(result.student, tokenizer, record, out)
            tracked.artifact(journal)
            measured = result.measured | ({"mlflow_run": tracked.id} if tracked.id else {})
        (place / "measured.json").write_text(json.dumps(measured), encoding="utf-8")
        shutil.rmtree(place / "checkpoints", ignore_errors=True)

    def phases(self, student: Dims, seed: int) -> tuple[Phase, ...]:
        """The method's phases with new objectives.

        Raises:
            UserError: hyper-parameters do not fit the models, or the method reads more of the teacher than it has.
        """
        with methods.naming(self.method, self.entry.file):
            phases = methods.load(self.entry.file).phases(self.method_config, self.setting(student, seed))
        if gives_only_logits(self.teacher_folder):
            refuse_beyond_logits(self.method, needs_of(phases), self.dataset, len(models(self.teacher_folder)))
        return phases

    def setting(self, student: Dims, seed: int) -> Setting:
        """What the method may know."""
        info, folder = self.prepared.info, self.teacher_folder
        teacher = (WithoutLayers(student, self.method, self.dataset, len(models(folder))) if gives_only_logits(folder)
                   else teacher_dims(folder))
        return Setting(teacher, student, info.classes, info.regression, self.prepared.labels(info.train),
                       self.settings.batch_size, seed, self.selector.selector if self.selector else None)

    def teacher(self, phases: tuple[Phase, ...], title: str) -> Teacher | None:
        """The teacher that the phases read; None when they read none. Warns when it runs for what could be stored."""
        needs = needs_of(phases)
        if not needs:
            return None
        stored = self.study.features.kinds
        missing = () if gives_only_logits(self.teacher_folder) else worth_storing(needs, stored)
        if missing and os.environ.get("RANK", "0") == "0":
            print(f"warning: {title}: the teacher runs for every batch of every epoch, as the features store lacks "
                  f"{', '.join(missing)}; with `features.kinds: [{', '.join((*stored, *missing))}]` it runs once",
                  file=sys.stderr)
        return Teacher.open(self.prepared, self.teacher_folder, self.layout.features(self.dataset),
                            self.study.features, needs, device())

    def write_measured(self, places: dict[str, Path]) -> None:
        """Join the seeds' measurements with the teacher's training time."""
        content = {}
        for name, place in places.items():
            record = self.layout.student(self.dataset, self.method) / name / RECORD
            content[name] = (json.loads((place / "measured.json").read_text(encoding="utf-8"))
                             | {"of": record_key(json.loads(record.read_text(encoding="utf-8")))})
        path = self.layout.measured / f"teacher@{self.dataset}.json"
        teachers = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if seconds := sum(trained.get("train_seconds", 0.0) for trained in teachers.values()):
            for measured in content.values():
                measured["train_seconds_by_teachers"] = measured["train_seconds"] / seconds
        self.layout.measured.mkdir(parents=True, exist_ok=True)
        (self.layout.measured / f"distill@{self.dataset}-{self.method}.json").write_text(
            json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def worth_storing(needs: frozenset[FeatureKey], stored: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds of teacher features that, stored as well, would leave nothing to compute live.

    None where the teacher has to run anyway: for token-level features and for embeddings, which no store holds.
    """
    if not all(key == LOGITS or (key.is_sentence_level and key.layer) for key in needs):
        return ()
    return tuple(sorted({key.kind for key in needs} - set(stored)))
