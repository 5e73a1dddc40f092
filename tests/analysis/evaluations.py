"""Evaluation folders as the stage `evaluate` leaves them, of systems with a known accuracy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from kdcore.data.prepared import PreparedInfo
from kdcore.evaluation.metrics import PROBABILITY_SUM, PROTOCOL, measure
from kdcore.layout import Layout
from tests.evaluation.synthetic import SENTIMENT, split, training_record

SIZE = {"parameters": 22_710_000, "transformer_parameters": 10_800_000, "embedding_parameters": 11_910_000,
        "head_parameters": 770, "weight_bytes": 90_900_000}
SPLITS = (split("train", "train", 3000, SENTIMENT), split("validation", "select", 400, SENTIMENT),
          split("test", "report", 500, SENTIMENT, note="a part of the whole"), split("amazon", "ood", 300, SENTIMENT),
          split("tweets", "ood", 350, SENTIMENT))


def info_of(name: str, labels: tuple[str, ...] | None = SENTIMENT, metrics: tuple[str, ...] = ("accuracy",),
            splits: Any = SPLITS, warnings: tuple[str, ...] = ()) -> PreparedInfo:
    return PreparedInfo(name, labels, None if labels else (0.0, 5.0), metrics, False, 128,
                        {about.name: about for about in splits}, {"teacher": "t" * 12, "student": "s" * 12}, warnings)


def write(layout: Layout, info: PreparedInfo, method: str, accuracies: dict[str, float],
          submissions: dict[str, dict[str, str]] | None = None, **record: Any) -> Path:
    """One system: `accuracies` by run name. Systems err on the same rows first, as real ones do."""
    folder = layout.evaluation(info.name, method)
    metrics: dict[str, Any] = {}
    for number, (run, accuracy) in enumerate(accuracies.items()):
        (folder / "predictions" / run).mkdir(parents=True)
        metrics[run] = {}
        for about in info.splits.values():
            if about.role == "train" or about.hidden:
                continue
            columns = _predictions(about.name, about.rows, info, accuracy, seed=number)
            labels, answer = columns["label"], columns.get("prediction", columns.get("score"))
            names = ("accuracy",) if about.role == "ood" and info.labels else info.metrics
            values = {name: measure(name, answer, labels).value for name in names}
            if about.labels and info.labels and len(about.labels) < len(info.labels):
                values[PROBABILITY_SUM] = 0.5
            metrics[run][about.name] = values | {"degenerate": bool(np.ptp(answer) == 0), "n": about.rows}
            pq.write_table(pa.table(columns), folder / "predictions" / run / f"{about.name}.parquet")
    runs = {run: {"size": SIZE, "training": training_record(number + 1, **record),
                  "submission": dict((submissions or {}).get(run, {}))} for number, run in enumerate(accuracies)}
    for run, files in (submissions or {}).items():
        (folder / "submission" / run).mkdir(parents=True)
        for name in files.values():
            if name.endswith(".tsv"):
                rows = {"WNLI.tsv": 146}[name]
                (folder / "submission" / run / name).write_text(
                    "index\tprediction\n" + "".join(f"{row}\t1\n" for row in range(rows)))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "context.json").write_text(json.dumps(
        {"protocol": PROTOCOL, "dataset": json.loads(info.to_json()), "runs": runs}))
    return folder


def _predictions(name: str, rows: int, info: PreparedInfo, accuracy: float, seed: int) -> dict[str, np.ndarray]:
    shared, own = np.random.default_rng([len(name), rows]), np.random.default_rng([seed, rows])
    difficulty = shared.random(rows)
    if info.labels is None:
        labels = np.round(5 * shared.random(rows), 1).astype(np.float32)
        return {"id": np.arange(rows), "label": labels,
                "score": (labels + own.normal(size=rows) * 10 * (1 - accuracy)).astype(np.float32)}
    count = len(info.splits[name].labels)
    labels = shared.integers(0, count, rows)
    right = 0.9 * difficulty + 0.1 * own.random(rows) < np.quantile(0.9 * difficulty + 0.05, accuracy)
    return {"id": np.arange(rows), "label": labels, "prediction": np.where(right, labels, (labels + 1) % count),
            "logit:any": torch.zeros(rows).numpy()}


def write_study(folder: Path, seeds: int = 3, name: str = "movies", **info: Any) -> tuple[Layout, PreparedInfo]:
    """A teacher at 90 %, finetune at 75, vanilla_kd at 75 and rail_kd_l at 85, each seed a little different."""
    layout, about = Layout(folder), info_of(name, **info)
    write(layout, about, "teacher", {"teacher": 0.9})
    for method, accuracy in (("finetune", 0.75), ("vanilla_kd", 0.752), ("rail_kd_l", 0.85)):
        write(layout, about, method, {f"seed-{s}": accuracy + 0.004 * (s - 2) for s in range(1, seeds + 1)})
    return layout, about
