"""Stage `features`: run the teacher once over the training split and store what methods read of it.

Of several teachers each runs once, into a store of its own that lives as long as the stage; the average is kept.
Answers of a teacher that is only files are stored as they are.
"""

import json
import shutil
import time
from pathlib import Path

import torch

from kdcore import config, scratch
from kdcore.config import StoredFeatures
from kdcore.data.answers import Answers
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.features import LOGITS
from kdcore.layout import Layout
from kdcore.store import FeatureStore, Manifest
from kdcore.store_building import build, describe, write
from kdcore.teacher import Teacher, manifest
from kdcore.teacher_folder import average, gives_only_logits, models
from kdcore.training.precision import Precision, device, resolve

CODE = ("models", "data/answers.py", "data/batching.py", "data/tokens.py", "features.py", "live_model.py",
        "objective.py", "store.py", "store_building.py", "teacher.py", "teacher_folder.py", "training/precision.py",
        "stages/features.py")
"""What decides the numbers."""


def run(study: config.Study, layout: Layout, dataset: str) -> None:
    """Write the store of a dataset, saying its size first; an interrupted run goes on where it stopped.

    Raises:
        UserError: nothing prepared or no teacher yet, the disk is too small, or features overflow the stored type.
        BusyError: another process writes the same store.
    """
    settings = study.features
    prepared = Prepared.load(layout.prepared(dataset))
    model = layout.teacher(dataset)
    if not model.is_dir():
        raise UserError(f"no teacher in {model}; run `kdflow teacher {dataset}` first")
    where = device()
    precision = resolve(settings.precision, where)
    plan = manifest(prepared, model, settings, precision.name)
    print(f"teacher features of {dataset}: {describe(plan)}", flush=True)
    folder = layout.scratch / f"features-{dataset}"
    with scratch.claim(folder):
        place = folder / scratch.key("store", {
            "manifest": plan.to_json(), "batch_size": settings.batch_size, "code": scratch.hash_code(*CODE),
            "libraries": scratch.library_versions()})
        if gives_only_logits(model):
            start = time.monotonic()
            logits = _logits(prepared, model, settings, precision, place)
            write(layout.features(dataset), place / "whole", plan, {LOGITS: logits})
            took = {"rows": plan.rows, "seconds": time.monotonic() - start, "bytes": plan.bytes}
        else:
            took = _run(prepared, model, plan, layout.features(dataset), place, precision, settings.batch_size,
                        f"features {dataset}")
        shutil.rmtree(folder)  # with what other settings left unfinished
    layout.measured.mkdir(parents=True, exist_ok=True)
    (layout.measured / f"features@{dataset}.json").write_text(
        json.dumps(took | {"device": where.type, "precision": precision.name}, indent=2, sort_keys=True) + "\n",
        encoding="utf-8")


def _run(prepared: Prepared, model: Path, plan: Manifest, target: Path, place: Path, precision: Precision,
         batch_size: int, title: str) -> dict[str, float]:
    """Run one model over the training split and put the store of what `plan` names into `target`."""
    where, keys = device(), frozenset(plan.keys)
    teacher = Teacher(model, prepared.info.labels, where, precision)
    return build(target, place, plan, prepared.tokens(prepared.info.train, "teacher"),
                 lambda inputs: teacher.compute(inputs, keys), batch_size, where, title)


def _logits(prepared: Prepared, folder: Path, settings: StoredFeatures, precision: Precision,
            place: Path) -> torch.Tensor:
    """The logits [rows, c] of an average, or of answers. Members that ran stay in `place` when the stage is killed."""
    info = prepared.info
    if answers := Answers.find(folder):
        return answers.logits(info.train)
    how, found = average(folder), []
    assert how is not None
    own = settings.model_copy(update={"kinds": ("logits",), "dtype": "float32"})  # rounded once, when averaged
    for number, member in enumerate(models(folder)):
        view, target = prepared.for_teacher(number), place / member.name
        if not target.is_dir():
            _run(view, member, manifest(view, member, own, precision.name), target, place / "unfinished", precision,
                 settings.batch_size, f"features {info.name}, {member.name}")
        rows = torch.arange(info.splits[info.train].rows)
        found.append(FeatureStore.open(target).gather(rows, {LOGITS}, torch.device("cpu"))[LOGITS])
    return how(torch.stack(found), info.regression)
