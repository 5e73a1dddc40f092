"""Stage `pretrain`: distil one student from the corpus, live from its teacher or from a teacher assistant.

The student is a plain transformers folder, a bare encoder or one with a masked-language-model head, as its method has
it, with a `training.json` beside the weights. Checkpoints wait in the study's scratch folder, so an interrupted run
goes on where it was. Seconds and memory go to the study's measurements, which are no out.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from kdcore import general, scratch
from kdcore import general_config as settings
from kdcore.data.corpus import Corpus
from kdcore.errors import UserError
from kdcore.export import RECORD, export
from kdcore.general_students import (
    has_language_model,
    missing_assistant,
    phases_of,
    student_needs,
    teacher_needs,
)
from kdcore.layout import Layout
from kdcore.live_model import LiveModel
from kdcore.models.files import weights_fingerprint
from kdcore.models.general import build
from kdcore.models.loading import load_config, load_encoder, load_masked_lm, load_tokenizer, tokenizer_fingerprint
from kdcore.objective import Phase
from kdcore.tracking import Run
from kdcore.tracking_store import study_name
from kdcore.training.corpora import OfCorpus
from kdcore.training.journal import Journal
from kdcore.training.precision import device, resolve
from kdcore.training.run import train

CODE = ("training", "models", "objective.py", "features.py", "losses.py", "token_losses.py", "mlm_losses.py",
        "mapping.py", "selection.py", "knowledge.py", "intermediate.py", "projection.py", "live_model.py",
        "general_students.py", "export.py", "data/batching.py", "data/corpus.py", "data/masking.py", "data/tokens.py",
        "stages/pretrain.py")
"""What decides what a student becomes, beside the method's own file: a checkpoint of other code is not resumed."""


def run(study: settings.GeneralStudy, layout: Layout, name: str) -> None:
    """Train a student and publish it.

    Raises:
        UserError: an earlier stage was not run, a setting does not fit, or training diverges.
        BusyError: another process trains the same student.
    """
    work = Work(study, layout, name)
    folder = layout.scratch / f"pretrain-{name}"
    first = os.environ.get("RANK", "0") == "0"  # of a distributed training: the one that writes
    with scratch.claim(folder) if first else nullcontext():
        place = folder / scratch.key("student", work.identity)
        if not first:
            if not (place / "finished").exists():
                work.train(place, None)
            return
        scratch.once(place, partial(work.train, place))
        target = layout.general_student(name)
        scratch.publish({".": place / "finished"}, target, folder / "publishing")
        layout.measured.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place / "measured.json", layout.measured / f"pretrain@{name}.json")
        shutil.rmtree(folder)
    print(f"{name} is done. To start the students of a study from it:\n"
          f"pair:\n  student: {{source: {target.absolute()}, revision: {weights_fingerprint(target)}}}")


@dataclass(frozen=True)
class Work:
    """One student."""

    study: settings.GeneralStudy
    layout: Layout
    name: str

    @cached_property
    def student(self) -> settings.Student:
        """What `params.yaml` says of it; raises UserError with near names."""
        return self.study.student(self.name)

    @cached_property
    def training(self) -> settings.GeneralTraining:
        """Its training settings."""
        return self.study.student_training(self.name)

    @cached_property
    def teacher_folder(self) -> Path:
        """Where its teacher lies; raises UserError when it is not there."""
        if self.student.teacher == settings.TEACHER:
            folder, command = self.layout.general_teacher, "general-teacher"
        else:
            folder, command = self.layout.general_student(self.student.teacher), f"pretrain {self.student.teacher}"
        if not folder.is_dir():
            raise UserError(f"no teacher of {self.name} in {folder}; run `kdflow {command}` first")
        return folder

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus; raises UserError when it is not there, or was cut by another tokenizer."""
        corpus = Corpus.load(self.layout.corpus)
        fingerprint = tokenizer_fingerprint(load_tokenizer(str(self.teacher_folder.absolute())))
        corpus.check_tokenizer(fingerprint, f"the teacher in {self.teacher_folder}")
        return corpus

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The method's phases with new objectives; raises UserError when it does not fit. Warns as MiniLM's rule
        does."""
        teacher = load_config(str(self.teacher_folder.absolute()))
        student, phases = phases_of(self.study, self.name, teacher, len(self.corpus),
                                    self.corpus.info.max_length)
        if advice := missing_assistant(self.student.method, teacher, student):
            _warn(f"{self.name}: {advice}")
        return phases

    @property
    def assistants(self) -> list[str]:
        """The students between the study's teacher and this one, the first of them first."""
        if self.student.teacher == settings.TEACHER:
            return []
        above = json.loads((self.teacher_folder / RECORD).read_text(encoding="utf-8"))
        return [*above["assistants"], above["student"]]

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the student depends on, as JSON values."""
        wanted = general.configure(self.student.method, self.study.options(self.name))
        return {
            "training": self.training.deciding(), "seed": self.training.seed,
            "precision": resolve(self.training.precision, device()).name,
            "teacher_precision": resolve(self.training.teacher_precision, device()).name,
            "method": {"name": self.student.method} | wanted.model_dump(mode="json"),
            "model": self.student.model.model_dump(mode="json"), "masking": self.study.masking.model_dump(mode="json"),
            "teacher": weights_fingerprint(self.teacher_folder), "corpus": self.corpus.fingerprint,
            "code": scratch.hash_code(*CODE, f"general/{self.student.method}.py"),
            "libraries": scratch.library_versions()}

    def train(self, place: Path, out: Path | None) -> None:
        """Train with checkpoints in `place`, and export to `out` if given."""
        identity, phases = self.identity, self.phases
        with_head = has_language_model(student_needs(phases))
        student, init = build(self.student.model, self.teacher_folder, with_head, self.training.seed,
                              f"students.{self.name}.model")
        journal = self.layout.logs / f"pretrain@{self.name}.jsonl"
        with Run.start("pretrain", self.layout, method=self.student.method, seed=self.training.seed, student=self.name,
                       params={key: identity[key] for key in ("training", "precision", "method", "model")},
                       tags={"kdflow.general.teacher": identity["teacher"],
                             "kdflow.general.corpus": identity["corpus"]}) as tracked:
            result = train(student, phases, OfCorpus(self.corpus, self.study.masking), self.training,
                           self.training.seed, place / "checkpoints", Journal(journal, tracked), self.name,
                           self.teacher())
            if out is None:
                return
            record = result.record | {
                "init": init, "study": study_name(self.layout.study), "student": self.name,
                "assistants": self.assistants,
                "corpus": {"rows": self.corpus.info.rows, "tokens": self.corpus.info.tokens,
                           "fingerprint": identity["corpus"]}}
            record |= {key: identity[key] for key in ("method", "model", "teacher", "masking")}
            record["parameters"] = sum(weights.numel() for weights in result.student.base_model.parameters())
            if not any(phase.objective.masks_tokens for phase in phases):
                del record["masking"]
            export(result.student, load_tokenizer(str(self.teacher_folder.absolute())), record, out)
            tracked.artifact(journal)
            measured = result.measured | ({"mlflow_run": tracked.id} if tracked.id else {})
        (place / "measured.json").write_text(json.dumps(measured, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        shutil.rmtree(place / "checkpoints", ignore_errors=True)

    def teacher(self) -> LiveModel | None:
        """The teacher, which is run for every batch; None when the phases read none."""
        needs = teacher_needs(self.phases)
        if not needs:
            return None
        load: Callable[[str], PreTrainedModel] = load_masked_lm if has_language_model(needs) else load_encoder
        where = device()
        return LiveModel(partial(load, str(self.teacher_folder.absolute())), where,
                         resolve(self.training.teacher_precision, where))


def _warn(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"warning: {text}", file=sys.stderr)
