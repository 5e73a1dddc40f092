"""Prepared datasets and exported models made on the spot, with any labels, splits and roles."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from kdcore import config, strict
from kdcore.data.prepared import INFO_FILE, Prepared, PreparedInfo, SplitInfo, split_file, token_file
from kdcore.data.tokenise import tokenise
from kdcore.layout import Layout
from kdcore.models.loading import tokenizer_fingerprint
from tests.tiny import save_tiny, tiny_texts, tiny_tokenizer

NLI = ("entailment", "neutral", "contradiction")
SENTIMENT = ("negative", "positive")


def split(name: str, role: str, rows: int, labels: tuple[str, ...] | None, **more: Any) -> SplitInfo:
    return SplitInfo(name, role, rows, "made up", labels, **more)


def write_prepared(folder: Path, labels: tuple[str, ...] | None = SENTIMENT, metrics: tuple[str, ...] = ("accuracy",),
                   splits: tuple[SplitInfo, ...] | None = None, name: str | None = None,
                   answers: dict[str, list[float]] | None = None, source_ids: dict[str, list[str]] | None = None,
                   longest: int = 12) -> Prepared:
    """Random sentences; labels as given in `answers`, else drawn at random, hidden ones -1 or NaN."""
    splits = splits or (split("train", "train", 20, labels), split("validation", "select", 30, labels))
    folder.mkdir(parents=True)
    tokenizer = tiny_tokenizer("bert")
    fingerprint = tokenizer_fingerprint(tokenizer)
    info = PreparedInfo(name or folder.name, labels, None if labels else (0.0, 5.0), metrics, False, 32,
                        {about.name: about for about in splits}, {"teacher": fingerprint, "student": fingerprint})
    for seed, about in enumerate(splits):
        draw = torch.Generator().manual_seed(seed)
        if about.labels is None:
            values = (torch.full((about.rows,), torch.nan) if about.hidden
                      else 5 * torch.rand(about.rows, generator=draw))
        else:
            values = (torch.full((about.rows,), -1) if about.hidden
                      else torch.randint(len(about.labels), (about.rows,), generator=draw))
        given = (answers or {}).get(about.name)
        column = pa.array(values.tolist() if given is None else given, pa.int64() if about.labels else pa.float32())
        table = pa.table({"id": pa.array(range(about.rows), pa.int64()), "text": tiny_texts(about.rows, seed, longest),
                          "label": column})
        if about.name in (source_ids or {}):
            table = table.append_column("source_id", pa.array(source_ids[about.name]))
        pq.write_table(table, split_file(folder, about.name))
        path = token_file(folder, fingerprint, about.name)
        path.parent.mkdir(exist_ok=True)
        tokenise(table, tokenizer, 32, lambda done: None).save(path)
    (folder / INFO_FILE).write_text(info.to_json())
    return Prepared.load(folder)


def training_record(seed: int = 1, losses: tuple[float, ...] = (0.7, 0.5), scores: tuple[float, ...] = (0.6, 0.7),
                    warnings: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a training writes beside its model."""
    history = [{"phase": "finetune", "epoch": epoch, "step": 3 * epoch, "loss": loss, "parts": {"ce": loss},
                "diagnostics": {}, "skipped_steps": 0, "development": {"accuracy": score, "score": score}}
               for epoch, (loss, score) in enumerate(zip(losses, scores, strict=True), start=1)]
    settings = config.Training(epochs=len(losses)).model_dump(exclude={"seed"})
    return {"seed": seed, "precision": "fp32", "init": "layers 1 and 2 of a tiny model", "teacher": "0" * 12,
            "phases": [{"name": "finetune", **settings}],
            "selected": {"epoch": len(losses), "score": scores[-1]}, "history": history, "curve": [],
            "skipped_steps": 0, "warnings": list(warnings)}


def export(folder: Path, labels: tuple[str, ...] | None = SENTIMENT, seed: int = 1, family: str = "bert",
           **record: Any) -> Path:
    """A model folder as the training stages leave it."""
    save_tiny(folder, family, labels=labels, seed=seed)
    (folder / "training.json").write_text(json.dumps(training_record(seed, **record)))
    return folder


def study(methods: tuple[str, ...] = ("finetune", "vanilla_kd"), seeds: tuple[int, ...] = (1, 2),
          datasets: tuple[str, ...] = ("toy",), **evaluation: Any) -> config.Study:
    return strict.parse(config.Study, {
        "code": ".", "study": {"datasets": datasets, "methods": methods, "seeds": seeds},
        "pair": {"teacher": {"source": "tiny"}}, "training": {"teacher": {}, "student": {}},
        "datasets": {name: {"data": {}, "teacher": {}, "student": {}} for name in datasets},
        "methods": {name: {} for name in methods}, "features": {}, "gate": {},
        "evaluation": {"latency": False, **evaluation}}, "made-up params")


def write_study(folder: Path, methods: tuple[str, ...] = ("finetune", "vanilla_kd"), seeds: tuple[int, ...] = (1, 2),
                **prepared: Any) -> Layout:
    """A study on `toy` with a teacher and students that only need to be evaluated."""
    layout = Layout(folder)
    info = write_prepared(layout.prepared("toy"), **prepared).info
    export(layout.teacher("toy"), info.labels, seed=9)
    for number, method in enumerate(methods):
        for seed in seeds:
            export(layout.student("toy", method) / f"seed-{seed}", info.labels, seed=10 * number + seed)
    return layout
