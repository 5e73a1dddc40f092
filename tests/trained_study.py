"""A study as it stands after `evaluate`, made of a tiny random model: what the registry reads, without training."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ruamel.yaml import YAML

from kdcore import config, strict
from kdcore.data.prepared import PreparedInfo, SplitInfo
from kdcore.layout import Layout
from kdcore.lineage import hash_folder, record_key
from tests.tiny import save_tiny

ROWS = 200
LABELS = ("not_entailment", "entailment")
Quality = dict[str, float]
"""Share of right answers per split."""
GOOD: Quality = {"validation": 0.8, "elsewhere": 0.7}


def settings(pair: bool = True) -> config.Study:
    """Settings that fit the study of `write_study`."""
    return strict.parse(config.Study, {
        "code": ".", "study": {"datasets": ["toy"], "methods": ["finetune", "rail_kd_l"], "seeds": [1, 2]},
        "pair": {"teacher": {"source": "somewhere"}, "max_length": 32},
        "training": {"teacher": {}, "student": {"epochs": 2}}, "methods": {"finetune": {}, "rail_kd_l": {"width": 8}},
        "datasets": {"toy": {"data": {}, "teacher": {}, "student": {"epochs": 5}}},
        "features": {}, "gate": {}, "evaluation": {}}, "params.yaml")


def info(pair: bool, labels: tuple[str, ...] | None = LABELS) -> PreparedInfo:
    """What `prepare` would say of the dataset."""
    splits = {"train": SplitInfo("train", "train", 500, "somewhere", labels),
              "validation": SplitInfo("validation", "select", ROWS, "somewhere", labels),
              "elsewhere": SplitInfo("elsewhere", "ood", ROWS, "another place", labels, note="first 200 rows")}
    return PreparedInfo("toy", labels, None if labels else (0.0, 5.0), ("accuracy",) if labels else ("pearson",), pair,
                        32, splits, {"teacher": "aaa", "student": "aaa"})


def write_study(layout: Layout, pair: bool = True, labels: tuple[str, ...] | None = LABELS, method: str = "rail_kd_l",
                family: str = "bert", models: dict[int, int] | None = None, quality: Quality | None = None,
                latency: bool = True, about: PreparedInfo | None = None) -> None:
    """Write prepared data, students of two seeds, their evaluation and dvc.lock; call again to replace them.

    Args:
        about: the data, where these have been prepared already; in place of `pair` and `labels`.
        models: seed of the study -> seed of the random weights.
        quality: share of right answers per split; seed 2 has a little more on validation.
    """
    if about is None:
        about = info(pair, labels)
        _prepared(layout.prepared("toy"), about)
    for seed, weights in (models or {1: 11, 2: 12}).items():
        folder = layout.student("toy", method) / f"seed-{seed}"
        save_tiny(folder, family, seed=weights, labels=about.labels)
        (folder / "training.json").write_text("{}")
    _evaluate(layout, about, method, quality or GOOD, tuple(models or {1: 11, 2: 12}))
    if latency:
        _write(layout.measured / f"evaluate@toy-{method}.json", {
            "seed-1": {"of": record_key({}), "latency": {"batch_1": {"p50_ms": 3.2, "p95_ms": 4.1},
                                                             "peak_memory_bytes": 1}}})
    lock(layout)


def lock(layout: Layout) -> None:
    """Write the dvc.lock that fits the files as they are."""
    stages = {}
    for folder in sorted((layout.study / "artifacts" / "student" / "toy").iterdir()):
        student, evaluation = f"artifacts/student/toy/{folder.name}", f"artifacts/evaluation/toy/{folder.name}"
        stages[f"distill@toy-{folder.name}"] = {"outs": [{"path": student, "md5": hash_folder(layout.study / student)}]}
        stages[f"evaluate@toy-{folder.name}"] = {
            "deps": [{"path": student, "md5": hash_folder(layout.study / student)}],
            "outs": [{"path": evaluation, "md5": hash_folder(layout.study / evaluation)}]}
    prepared = hash_folder(layout.prepared("toy"))
    stages["prepare@toy"] = {"outs": [{"path": "artifacts/prepared/toy", "md5": prepared}]}
    stages["teacher@toy"] = {"outs": [{"path": "artifacts/teacher/toy", "md5": "feed.dir"}]}
    write_lock(layout, stages)


def write_lock(layout: Layout, stages: Mapping[str, object]) -> None:
    """Write a dvc.lock of these stages."""
    with (layout.study / "dvc.lock").open("w") as file:
        YAML(typ="safe").dump({"schema": "2.0", "stages": stages}, file)


def under_git(folder: Path) -> str:
    """Commit everything in a folder; returns the commit."""
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=folder, check=True)
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True,
                          text=True).stdout.strip()


def _prepared(folder: Path, about: PreparedInfo) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(about.to_json())


def _evaluate(layout: Layout, about: PreparedInfo, method: str, quality: Quality, seeds: tuple[int, ...]) -> None:
    folder = layout.evaluation("toy", method)
    metrics: dict[str, dict[str, dict[str, float | bool]]] = {}
    for place, seed in enumerate(sorted(seeds)):
        scores = metrics[f"seed-{seed}"] = {}
        for split, share in quality.items():
            share += 0.02 * place if split == "validation" else 0.0
            (folder / "predictions" / f"seed-{seed}").mkdir(parents=True, exist_ok=True)
            pq.write_table(answers(about, split, share), folder / "predictions" / f"seed-{seed}" / f"{split}.parquet")
            scores[split] = {about.metrics[0]: share, "degenerate": False, "n": ROWS}
    _write(folder / "metrics.json", metrics)
    teacher = {split: {about.metrics[0]: 0.9, "degenerate": False, "n": ROWS} for split in quality}
    _write(layout.evaluation("toy", "teacher") / "metrics.json", {"teacher": teacher})


def answers(about: PreparedInfo, split: str, share: float) -> pa.Table:
    """Predictions of which the first `share` are right; the labels are the same for every model."""
    draw = np.random.default_rng(len(split))
    ids = np.arange(ROWS)
    texts = [f"{split} {number}" for number in ids]
    if about.labels is None:
        scores = draw.uniform(0, 5, ROWS)
        noise = np.random.default_rng(7).normal(0, 1, ROWS) * (1 - share) * 5
        return pa.table({"id": ids, "text_hash": texts, "label": scores.astype(np.float32),
                         "score": (scores + noise).astype(np.float32)})
    truth = draw.integers(0, len(about.labels), ROWS)
    right = ids < round(share * ROWS)
    chosen = np.where(right, truth, (truth + 1) % len(about.labels))
    logits = {f"logit:{name}": np.where(chosen == place, 2.0, -2.0).astype(np.float32)
              for place, name in enumerate(about.labels)}
    return pa.table({"id": ids, "text_hash": texts, "label": truth} | logits | {"prediction": chosen})


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def renamed(about: PreparedInfo, labels: tuple[str, ...]) -> PreparedInfo:
    """The same dataset with other class names."""
    return replace(about, labels=labels, splits={name: replace(split, labels=labels)
                                                 for name, split in about.splits.items()})
