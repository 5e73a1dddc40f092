"""Stage `teacher`: fine-tune the teacher on the dataset and refuse one that is not worth imitating.

The teacher is trained by the method `finetune`. It is published only if it beats always giving the same answer; one
that does not waits in the scratch folder, so that allowing it (`gate.allow_weak`) needs no new training.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from kdcore import config, scratch
from kdcore.data.prepared import Prepared, PreparedInfo
from kdcore.errors import UserError
from kdcore.evaluation.metrics import score, selection_score
from kdcore.evaluation.predict import predict
from kdcore.export import RECORD, export
from kdcore.layout import Layout
from kdcore.losses import label_loss
from kdcore.methods import finetune
from kdcore.models.loading import dims, load_described, load_tokenizer
from kdcore.objective import Setting
from kdcore.tracking import Run
from kdcore.training.journal import Journal
from kdcore.training.precision import device, resolve
from kdcore.training.run import TrainingResult, train

CODE = ("training", "models", "objective.py", "features.py", "losses.py", "mapping.py", "export.py",
        "methods/finetune.py", "data/batching.py", "data/tokens.py", "evaluation/metrics.py", "evaluation/ood.py",
        "evaluation/predict.py", "stages/teacher.py")
"""What decides what a teacher becomes: a checkpoint of other code is not resumed."""


def run(study: config.Study, layout: Layout, dataset: str) -> None:
    """Train the teacher of a dataset, check it and publish it.

    Raises:
        UserError: nothing prepared yet, a setting does not fit, training diverges, or the teacher is no better than
            a constant answer and `gate.allow_weak` is false.
        BusyError: another process trains the same teacher.
    """
    prepared = Prepared.load(layout.prepared(dataset))
    settings = study.teacher_training(dataset)
    identity = _identity(study.pair, settings, prepared)
    folder = layout.scratch / f"teacher-{dataset}"
    place = folder / scratch.key("teacher", identity)
    if os.environ.get("RANK", "0") != "0":  # of a distributed training: the first process writes
        if not (place / "finished").exists():
            _train(study, layout, dataset, prepared, identity, place, None)
        return
    with scratch.claim(folder):
        finished = scratch.once(place, lambda out: _train(study, layout, dataset, prepared, identity, place, out))
        check = json.loads((finished / RECORD).read_text(encoding="utf-8"))["check"]
        _refuse_weak(check, prepared.info, study.gate.allow_weak)
        scratch.publish({".": finished}, layout.teacher(dataset), folder / "publishing")
        layout.measured.mkdir(parents=True, exist_ok=True)
        shutil.copy(place / "measured.json", layout.measured / f"teacher@{dataset}.json")
        shutil.rmtree(folder)


def _identity(pair: config.Pair, settings: config.Training, prepared: Prepared) -> dict[str, Any]:
    """Everything that the teacher depends on, as JSON values; the gate is not among it."""
    return {"training": settings.model_dump(), "precision": resolve(settings.precision, device()).name,
            "model": pair.teacher.model_dump(), "prepared": prepared.fingerprint, "code": scratch.hash_code(*CODE),
            "libraries": scratch.library_versions()}


def _train(study: config.Study, layout: Layout, dataset: str, prepared: Prepared, identity: dict[str, Any],
           place: Path, out: Path | None) -> None:
    info, settings, source = prepared.info, study.teacher_training(dataset), study.pair.teacher
    model, origin = load_described(source.source, source.revision, info.labels, settings.seed)
    setting = Setting(dims(model), dims(model), info.classes, info.regression, prepared.labels(info.train),
                      settings.batch_size, settings.seed)
    journal = layout.logs / f"teacher@{dataset}.jsonl"
    with Run.start("teacher", layout, dataset, seed=settings.seed,
                   params={name: identity[name] for name in ("training", "precision", "model")}) as tracked:
        result = train(model, finetune.phases(finetune.Config(), setting), prepared, settings, settings.seed,
                       place / "checkpoints", Journal(journal, tracked), f"{dataset} teacher", tokens="teacher")
        if out is None:
            return
        record = result.record | {"init": f"{source.source}, {origin}", "dataset": dataset,
                                  "check": compare_with_constant(result, prepared)}
        export(result.student, load_tokenizer(source.source, source.revision), record, out)
        tracked.artifact(journal)
        measured = result.measured | ({"mlflow_run": tracked.id} if tracked.id else {})
    (place / "measured.json").write_text(
        json.dumps({"teacher": measured}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    shutil.rmtree(place / "checkpoints", ignore_errors=True)


def compare_with_constant(result: TrainingResult, prepared: Prepared) -> dict[str, Any]:
    """The teacher's selection score beside that of the best answer that ignores the text.

    That answer is the most frequent class, or the mean score. Correlations do not see the scale, so the squared
    errors of a regression are compared too.
    """
    info = prepared.info
    labels = prepared.labels(info.select)
    check: dict[str, Any] = {"split": info.select, "teacher": result.record["selected"]["score"]}
    if info.labels is not None:
        most = int(torch.bincount(labels).argmax())
        constant = functional.one_hot(torch.tensor(most), info.classes).float().expand(len(labels), -1)
        return check | {"answer": info.labels[most], "constant": _score(prepared, constant)}
    mean = labels.mean()
    logits = predict(result.student, prepared, info.select, 64, "teacher")
    errors = {f"{who}_squared_error": label_loss(guess, labels, True).double().mean().item()
              for who, guess in (("teacher", logits), ("constant", mean.expand(len(labels), 1)))}
    return check | errors | {"answer": f"{mean.item():.2f}", "constant": _score(prepared, mean.expand(len(labels), 1))}


def _score(prepared: Prepared, logits: torch.Tensor) -> float:
    return selection_score(score(prepared, prepared.info.select, logits), prepared.info)


def _refuse_weak(check: dict[str, Any], info: PreparedInfo, allowed: bool) -> None:
    errors = [check[name] for name in ("teacher_squared_error", "constant_squared_error") if name in check]
    if check["teacher"] > check["constant"] and (not errors or errors[0] < errors[1]):
        return
    metrics = " and ".join(info.metrics)
    figures = f"{check['teacher']:.4f} ({metrics})"
    constant = f"{check['constant']:.4f}"
    if errors:
        figures += f" with a squared error of {errors[0]:.3f}"
        constant += f", {errors[1]:.3f}"
    message = (f"the teacher of {info.name} scores {figures} on {check['split']}, no better than always answering "
               f"{check['answer']} ({constant})")
    if not allowed:
        raise UserError(f"{message}; change datasets.{info.name}.teacher (epochs, learning_rate) or the model, or set "
                        "gate.allow_weak: true to distil from it all the same (it is kept: nothing is trained anew)")
    print(f"warning: {message}; gate.allow_weak is true, so it is used")
