"""Stage `evaluate`: predict every split with the exported models of a method and score what has labels.

Models are loaded as any user would, by transformers alone; a teacher may also be an average of several, or files, which
answer some splits and the training rows. The outs follow from models and data only:

    metrics.json                        run -> split -> metrics; a run is `seed-N`, or `teacher`
    context.json                        what a reader of the numbers must know: the splits and their notes, the
                                        models' sizes, how each was trained, which submission files were written
    predictions/RUN/SPLIT.parquet       per example: id, label, logits by class name, the predicted class
    submission/RUN/TASK.tsv             for the GLUE test server

Latency and memory go to the study's measurements, which are no out.
"""

import json
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from kdcore import config
from kdcore.data import splitting
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.evaluation import submission
from kdcore.evaluation.evaluate_modules import measure
from kdcore.evaluation.metrics import PROTOCOL, decide, score
from kdcore.evaluation.ood import collapse
from kdcore.evaluation.systems import System, Which, load
from kdcore.export import RECORD
from kdcore.layout import Layout
from kdcore.lineage import record_key
from kdcore.teacher_folder import models
from kdcore.tracking import Run

logger = logging.getLogger(__name__)

TEACHER = "teacher"


def run(study: config.Study, layout: Layout, dataset: str, method: str) -> None:
    """Evaluate all seeds of a method, or with `method` `teacher` the teacher.

    Raises:
        UserError: nothing prepared or trained yet, an exported model that cannot be read, other class names than the
            dataset's, or predictions that are not finite.
    """
    prepared = Prepared.load(layout.prepared(dataset))
    scratch = layout.scratch / f"evaluate-{dataset}-{method}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    which: Which = "teacher" if method == TEACHER else "student"
    metrics: dict[str, dict[str, Any]] = {}
    runs: dict[str, dict[str, Any]] = {}
    measured: dict[str, Any] = {}
    for name, folder in _models(layout, dataset, method).items():
        training = _training(folder)
        with Run.start("evaluate", layout, dataset, method, training["seed"],
                       method_file=training.get("method", {}).get("name")) as tracked:
            start = time.perf_counter()
            system = load(folder, prepared, which, study.evaluation.batch_size)
            metrics[name], files = _evaluate(system, prepared, study.evaluation.submission, scratch, name)
            runs[name] = {"size": system.size, "training": training, "submission": files}
            measured[name] = {"of": record_key(training), "evaluation_seconds": time.perf_counter() - start}
            if study.evaluation.latency and (latency := system.latency()):
                measured[name]["latency"] = latency
            tracked.log(0, {f"{split}/{metric}": value for split, values in metrics[name].items()
                            for metric, value in values.items() if metric not in ("n", "degenerate")})
            if tracked.id:
                measured[name]["mlflow_run"] = tracked.id
    _write(scratch / "metrics.json", metrics)
    _write(scratch / "context.json", {"protocol": PROTOCOL, "dataset": json.loads(prepared.info.to_json()),
                                      "runs": runs})
    out = layout.evaluation(dataset, method)
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    os.replace(scratch, out)
    layout.measured.mkdir(parents=True, exist_ok=True)
    _write(layout.measured / f"evaluate@{dataset}-{method}.json", measured)


def _evaluate(system: System, prepared: Prepared, submits: bool, folder: Path,
              name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Predict all splits that the system can; returns the metrics by split and what became of submission files."""
    info, metrics, files = prepared.info, {}, {}
    (folder / "predictions" / name).mkdir(parents=True)
    for split, about in info.splits.items():
        if split not in system.splits:
            if about.role != "train":
                print(f"{info.name} {name} {split}: the teacher's files do not answer it, so it is not scored")
            continue
        logits = system.logits(split)
        pq.write_table(_predictions(prepared, split, logits), folder / "predictions" / name / f"{split}.parquet")
        if about.hidden:
            if submits and (task := submission.TASKS.get((info.name, split))):
                files[split] = _submit(prepared, split, task, logits, folder / "submission" / name)
            print(f"{info.name} {name} {split}: {len(logits)} predictions written; labels are hidden, so not scored")
        else:
            metrics[split] = score(prepared, split, logits, measure)
            print(f"{info.name} {name} {split}: {_words(metrics[split])}")
    return metrics, files


def _predictions(prepared: Prepared, split: str, logits: torch.Tensor) -> pa.Table:
    """id, a hash of the text, label, one float32 column per class (`logit:NAME`) or `score`, and the predicted class
    of the split."""
    info = prepared.info
    columns: dict[str, Any] = {"id": np.arange(len(logits)),
                               "text_hash": [key.hex() for key in splitting.keys(prepared.table(split))],
                               "label": prepared.labels(split).numpy()}
    if info.labels is None:
        return pa.table(columns | {"score": logits[:, 0].numpy()})
    columns |= {f"logit:{label}": logits[:, column].numpy() for column, label in enumerate(info.labels)}
    return pa.table(columns | {"prediction": collapse(info.labels, prepared.split(split))[decide(logits, False)]})


def _submit(prepared: Prepared, split: str, task: submission.TaskFile, logits: torch.Tensor, folder: Path) -> str:
    if len(logits) != task.rows:
        return f"{task.name} not written: {len(logits)} of {task.rows} rows"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / task.name).write_text(submission.task_file(prepared, split, logits), encoding="utf-8", newline="")
    return task.name


def _models(layout: Layout, dataset: str, method: str) -> dict[str, Path]:
    """The exported model folders by run name, seeds in ascending order."""
    if method == TEACHER:
        folders = {TEACHER: layout.teacher(dataset)}
        command = f"kdflow teacher {dataset}"
    else:
        found = layout.student(dataset, method).glob("seed-*")
        folders = {path.name: path for path in sorted(found, key=lambda path: int(path.name.removeprefix("seed-")))}
        command = f"kdflow distill {dataset} {method}"
    missing = [path for folder in folders.values() for path in models(folder) if not (path / "config.json").is_file()]
    if missing or not folders:
        place = missing[0] if missing else layout.student(dataset, method)
        raise UserError(f"no exported model in {place}; run `{command}` first")
    return folders


def _training(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["seed"], content["history"]
    except FileNotFoundError:
        raise UserError(f"{path} is missing, so nobody knows how this model was trained; run its stage again") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not the record of a training ({error}); run its stage again") from None
    return content


def _words(metrics: dict[str, Any]) -> str:
    shown = {name: value for name, value in metrics.items() if name not in ("n", "degenerate")}
    values = ", ".join(f"{name} {100 * value:.1f}" for name, value in shown.items())
    return f"{values} on {metrics['n']} rows" + (" (degenerate)" if metrics["degenerate"] else "")


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n",
                    encoding="utf-8")
