"""Stage `teacher`: fine-tune the teacher on the dataset and refuse one that is not worth imitating.

The teacher is trained by the method `finetune`, each of several members as if it were alone; one that is only files
comes from preparation and is not trained. It is published only if it beats always giving the same answer; one that
does not waits in the scratch folder, so that allowing it (`gate.allow_weak`) needs no new training. Members of an
average are kept beside the scratch folder: other weights train nothing anew, and one member more trains itself alone
(unless it takes shorter texts than the others, so that the data are cut anew).
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from kdcore import config, scratch
from kdcore.data.answers import FOLDER as ANSWERS
from kdcore.data.answers import Answers
from kdcore.data.prepared import Prepared, PreparedInfo
from kdcore.errors import UserError
from kdcore.evaluation.metrics import score, selection_score
from kdcore.evaluation.predict import predict
from kdcore.export import RECORD, export, write_record
from kdcore.layout import Layout
from kdcore.lineage import record_key
from kdcore.losses import label_loss
from kdcore.methods import finetune
from kdcore.models.loading import dims, load_described, load_finetuned, load_tokenizer
from kdcore.objective import Setting
from kdcore.pair_config import Member
from kdcore.teacher_folder import Average, equal_or_given, member_name
from kdcore.tracking import Run
from kdcore.training.datasets import OfDataset
from kdcore.training.journal import Journal
from kdcore.training.precision import device, resolve
from kdcore.training.run import train

CODE = ("training", "models", "objective.py", "features.py", "losses.py", "mapping.py", "export.py",
        "methods/finetune.py", "data/batching.py", "data/tokens.py", "evaluation/metrics.py", "evaluation/ood.py",
        "evaluation/predict.py", "data/answers.py", "teacher_folder.py", "stages/teacher.py")
"""What decides what a teacher becomes: a checkpoint of other code is not resumed."""


def run(study: config.Study, layout: Layout, dataset: str) -> None:
    """Train the teacher of a dataset, or each of its members, check it and publish it.

    Raises:
        UserError: nothing prepared yet, a setting does not fit, training diverges, or the teacher is no better than
            a constant answer and `gate.allow_weak` is false.
        BusyError: another process trains the same teacher.
    """
    prepared = Prepared.load(layout.prepared(dataset))
    answers = Answers.find(prepared.folder)
    models = study.pair.teacher.models if answers is None else ()
    if answers is None and not models:
        raise UserError(f"{prepared.folder} holds no answers of a teacher, but pair.teacher has `source: files`; run "
                        f"`kdflow prepare {dataset}` again")
    settings = study.teacher_training(dataset)
    works = [Work(layout, dataset, prepared.for_teacher(place), model, settings, place if len(models) > 1 else None)
             for place, model in enumerate(models)]
    folder = (layout.kept if len(works) > 1 else layout.scratch) / f"teacher-{dataset}"
    places = [folder / scratch.key("teacher", work.identity) for work in works]
    if os.environ.get("RANK", "0") != "0":  # of a distributed training: the first process writes
        for work, place in zip(works, places, strict=True):
            if not (place / "finished").exists():
                work.train(place, None)
        return
    with scratch.claim(folder):
        finished = [scratch.once(place, partial(work.train, place)) for work, place in zip(works, places, strict=True)]
        whole = folder / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        if answers is not None:
            _take_answers(answers, prepared, whole)
        elif len(finished) > 1:
            how = Average(study.pair.teacher.average, equal_or_given(study.pair.teacher.weights, len(finished)))
            _describe_average(how, finished, prepared, whole)
        else:
            whole = finished[0]
        described = json.loads((whole / RECORD).read_text(encoding="utf-8"))
        check = described["check"]
        remedy = (f"check whether ids and class names of the {answers.description} mean what those of the dataset mean"
                  if answers else f"change datasets.{dataset}.teacher (epochs, learning_rate) or the model")
        _refuse_weak(check, prepared.info, study.gate.allow_weak, remedy)
        members = {member_name(place): path for place, path in enumerate(finished)} if len(finished) > 1 else {}
        scratch.publish({".": whole} | members, layout.teacher(dataset), folder / "publishing")
        _write_measured(layout.measured / f"teacher@{dataset}.json", places, record_key(described))
        for path in folder.iterdir():
            if path.is_dir() and not (members and path in places):
                shutil.rmtree(path)
    if not members:
        shutil.rmtree(folder)
        shutil.rmtree(layout.kept / f"teacher-{dataset}", ignore_errors=True)  # of settings before these


@dataclass(frozen=True)
class Work:
    """One model to fine-tune on a dataset as its own tokenizer reads it; `place` counts it among several, from 0."""

    layout: Layout
    dataset: str
    prepared: Prepared
    model: Member
    training: config.Training
    place: int | None

    @cached_property
    def settings(self) -> config.Training:
        """The settings of its training."""
        seed = self.training.seed if self.model.seed is None else self.model.seed
        return self.training.model_copy(update={"seed": seed})

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the teacher depends on, as JSON values; the gate is not among it."""
        return {"training": self.settings.deciding(), "seed": self.settings.seed,
                "precision": resolve(self.settings.precision, device()).name,
                "model": self.model.model_dump(exclude={"seed"}), "prepared": self.prepared.fingerprint,
                "code": scratch.hash_code(*CODE), "libraries": scratch.library_versions()}

    def train(self, place: Path, out: Path | None) -> None:
        """Train with checkpoints in `place`, and export to `out` if given."""
        info, settings, source = self.prepared.info, self.settings, self.model
        model, origin = load_described(source.source, source.revision, info.labels, settings.seed)
        setting = Setting(dims(model), dims(model), info.classes, info.regression, self.prepared.labels(info.train),
                          settings.batch_size, settings.seed)
        member = "" if self.place is None else f"-{member_name(self.place)}"
        journal = self.layout.logs / f"teacher@{self.dataset}{member}.jsonl"
        with Run.start("teacher", self.layout, self.dataset, seed=settings.seed,
                       params={name: self.identity[name] for name in ("training", "precision", "model")}) as tracked:
            result = train(model, finetune.phases(finetune.Config(), setting), OfDataset(self.prepared, "teacher"),
                           settings, settings.seed, place / "checkpoints", Journal(journal, tracked),
                           f"{self.dataset} teacher{member}")
            if out is None:
                return
            check = compare_with_constant(self.prepared, info.select, result.record["selected"]["score"],
                                          lambda: _logits(result.student, self.prepared))
            record = result.record | {"init": f"{source.source}, {origin}", "dataset": self.dataset, "check": check}
            export(result.student, load_tokenizer(source.source, source.revision), record, out)
            tracked.artifact(journal)
            measured = result.measured | ({"mlflow_run": tracked.id} if tracked.id else {})
        (place / "measured.json").write_text(json.dumps({"teacher": measured}, indent=2, sort_keys=True) + "\n",
                                             encoding="utf-8")
        shutil.rmtree(place / "checkpoints", ignore_errors=True)


def _describe_average(how: Average, members: Sequence[Path], prepared: Prepared, folder: Path) -> None:
    """Write what the members are together: how they are averaged, how they came about, how good the average is."""
    info = prepared.info
    records = [json.loads((member / RECORD).read_text(encoding="utf-8")) for member in members]
    logits = []
    for place, member in enumerate(members):
        model = load_finetuned(member, info.labels)
        torch.nn.Module.to(model, device())
        logits.append(_logits(model, prepared.for_teacher(place)))
    mean = how(torch.stack(logits), info.regression)
    alone = [record["check"]["teacher"] for record in records]
    check = compare_with_constant(prepared, info.select, _score(prepared, info.select, mean), lambda: mean)
    warnings = [f"member {number}: {text}" for number, record in enumerate(records, start=1)
                for text in record["warnings"]]
    warnings += [f"member {number} alone is no better than a constant answer: consider leaving it out"
                 for number, record in enumerate(records, start=1) if _is_weak(record["check"])]
    averaged = "scores" if info.regression else how.of
    weights = [f", weight {weight:.3g}" if len(set(how.weights)) > 1 else "" for weight in how.weights]
    who = "; ".join(f"{record['init']}, trained with seed {record['seed']}{weight}"
                    for record, weight in zip(records, weights, strict=True))
    folder.mkdir()
    how.save(folder)
    write_record({"init": f"the average of the {averaged} of {len(members)} teachers: {who}",
                  "dataset": info.name, "seed": None, "check": check | {"members": alone}, "warnings": warnings,
                  "members": records, "history": []} | {name: records[0][name] for name in ("precision", "phases")},
                 folder)
    for warning in warnings:
        print(f"warning: {info.name}: {warning}")


def _take_answers(answers: Answers, prepared: Prepared, folder: Path) -> None:
    """Copy the answers and write how good they are: where rows that select are answered on these, else on training
    rows, which may flatter them."""
    info = prepared.info
    split = info.select if info.select in answers.sources else info.train
    logits = answers.logits(split)
    check = compare_with_constant(prepared, split, _score(prepared, split, logits), lambda: logits)
    on_train = score(prepared, info.train, answers.logits(info.train))
    warnings = []
    if split == info.train:
        warnings.append(f"{info.select} has no answers, so the teacher could be checked on its training rows only; if "
                        "it was fitted on these, that says little")
    labels = prepared.labels(info.train)[:info.splits[info.train].labelled]
    if info.labels is not None and answers.logits(info.train)[:len(labels)].argmax(dim=1).equal(labels):
        warnings.append("every answer to a training row agrees with its label: if they come from a model that was "
                        "fitted on these rows, take out-of-fold predictions, which say what it does not know")
    shutil.copytree(answers.folder, folder / ANSWERS)
    write_record({"init": answers.description, "dataset": info.name, "seed": None, "check": check, "on_train": on_train,
                  "warnings": warnings, "precision": None, "phases": [], "history": []}, folder)
    shown = ", ".join(f"{name} {100 * on_train[name]:.1f}" for name in info.metrics)
    print(f"{info.name} teacher, {answers.description}: {shown} on its {on_train['n']:,} training rows")
    for warning in warnings:
        print(f"warning: {info.name}: {warning}")


def compare_with_constant(prepared: Prepared, split: str, teacher: float,
                          logits: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """The teacher's score on a split beside that of the best answer that ignores the text.

    That answer is the most frequent class, or the mean score. Correlations do not see the scale, so the squared
    errors of a regression are compared too; `logits` gives the teacher's answers to the split for that.
    """
    info, about = prepared.info, prepared.split(split)
    labels = prepared.labels(split)[:about.labelled]
    check: dict[str, Any] = {"split": split, "teacher": teacher}
    if info.labels is not None:
        most = int(torch.bincount(labels).argmax())
        constant = functional.one_hot(torch.tensor(most), info.classes).float().expand(about.rows, -1)
        return check | {"answer": info.labels[most], "constant": _score(prepared, split, constant)}
    mean = labels.mean()
    constant = mean.expand(about.rows, 1)
    errors = {f"{who}_squared_error": label_loss(guess[:len(labels)], labels, True).double().mean().item()
              for who, guess in (("teacher", logits()), ("constant", constant))}
    return check | errors | {"answer": f"{mean.item():.2f}", "constant": _score(prepared, split, constant)}


def _logits(model: PreTrainedModel, prepared: Prepared) -> torch.Tensor:
    return predict(model, prepared, prepared.info.select, 64, "teacher")


def _score(prepared: Prepared, split: str, logits: torch.Tensor) -> float:
    return selection_score(score(prepared, split, logits), prepared.info)


def _is_weak(check: dict[str, Any]) -> bool:
    errors = [check[name] for name in ("teacher_squared_error", "constant_squared_error") if name in check]
    return not (check["teacher"] > check["constant"] and (not errors or errors[0] < errors[1]))


def _refuse_weak(check: dict[str, Any], info: PreparedInfo, allowed: bool, remedy: str) -> None:
    if not _is_weak(check):
        return
    errors = [check[name] for name in ("teacher_squared_error", "constant_squared_error") if name in check]
    metrics = " and ".join(info.metrics)
    figures = f"{check['teacher']:.4f} ({metrics})"
    constant = f"{check['constant']:.4f}"
    if errors:
        figures += f" with a squared error of {errors[0]:.3f}"
        constant += f", {errors[1]:.3f}"
    message = (f"the teacher of {info.name} scores {figures} on {check['split']}, no better than always answering "
               f"{check['answer']} ({constant})")
    if not allowed:
        raise UserError(f"{message}; {remedy}, or set gate.allow_weak: true to distil from it all the same (it is "
                        "kept: nothing is trained anew)")
    print(f"warning: {message}; gate.allow_weak is true, so it is used")


def _write_measured(path: Path, places: Sequence[Path], of: str) -> None:
    """What was measured of each training; nothing where nothing was trained."""
    found = [json.loads((place / "measured.json").read_text(encoding="utf-8"))["teacher"] for place in places]
    names = [member_name(number) for number in range(len(found))] if len(found) > 1 else ["teacher"]
    content = {name: measured | {"of": of} for name, measured in zip(names, found, strict=False)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
