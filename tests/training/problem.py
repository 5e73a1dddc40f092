"""A small training problem: random sentences, labels that follow from words, tiny models, no store."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import PreTrainedModel

from kdcore import config, methods
from kdcore.data.prepared import INFO_FILE, Prepared, PreparedInfo, SplitInfo, split_file, token_file
from kdcore.data.tokenise import tokenise
from kdcore.live_model import LiveModel
from kdcore.models.loading import dims, tokenizer_fingerprint
from kdcore.objective import Phase, Setting
from kdcore.training.datasets import OfDataset
from kdcore.training.journal import Journal
from kdcore.training.precision import Precision, device
from kdcore.training.run import TrainingResult, train
from tests.tiny import tiny_model, tiny_texts, tiny_tokenizer

LABELS = ("negative", "positive")
FRIENDLY = ("good", "great", "fine", "liked")
HYPER: dict[str, dict[str, Any]] = {
    "tinybert": {"hidden": [[0, 0], [1, 1], [2, 3], [3, 4]], "attention": [[1, 1], [2, 3], [3, 4]],
                 "intermediate_epochs": None, "prediction_epochs": None},
    "ksm": {"episodes": 1, "reward_steps": 2}}
"""What a method needs in place of its defaults for the tiny pair, four and three layers, and for short trainings."""


def write_prepared(folder: Path, rows: int = 90, regression: bool = False, longest: int = 12) -> Prepared:
    """Training rows and 40 that select. The label says whether the text has a friendly word; the score counts them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer("bert")
    labels = None if regression else LABELS
    splits = {"train": SplitInfo("train", "train", rows, "toy", labels),
              "validation": SplitInfo("validation", "select", 40, "toy", labels)}
    fingerprint = tokenizer_fingerprint(tokenizer)
    info = PreparedInfo("toy", labels, (0.0, 5.0) if regression else None,
                        ("pearson",) if regression else ("accuracy",), False, 32, splits,
                        {"teacher": fingerprint, "student": fingerprint})
    for seed, split in enumerate(splits.values()):
        texts = tiny_texts(split.rows, seed, longest)
        counts = [sum(word in FRIENDLY for word in text.split()) for text in texts]
        answers = pa.array([float(c) for c in counts], pa.float32()) if regression else pa.array(
            [int(c > 0) for c in counts], pa.int64())
        table = pa.table({"id": pa.array(range(split.rows), pa.int64()), "text": texts, "label": answers})
        pq.write_table(table, split_file(folder, split.name))
        path = token_file(folder, fingerprint, split.name)
        path.parent.mkdir(exist_ok=True)
        tokenise(table, tokenizer, 32, lambda done: None).save(path)
    (folder / INFO_FILE).write_text(info.to_json())
    return Prepared.load(folder)


def tiny_teacher(prepared: Prepared) -> LiveModel:
    """Four layers of width 32, run for every batch where the student trains."""
    return LiveModel(lambda: tiny_model("bert", layers=4, width=32, labels=prepared.info.labels, seed=3), device(),
                     Precision("fp32", device().type))


def tiny_student(prepared: Prepared, dropout: float = 0.1) -> PreTrainedModel:
    """Three layers of width 16, always the same."""
    return tiny_model("bert", layers=3, width=16, labels=prepared.info.labels, seed=5, dropout=dropout)


def phases_of(method: str, prepared: Prepared, batch_size: int = 16, seed: int = 1,
              **hyper: Any) -> tuple[Phase, ...]:
    """The phases of a method for the tiny pair."""
    teacher, student = tiny_teacher(prepared).model, tiny_student(prepared)
    setting = Setting(dims(teacher), dims(student), prepared.info.classes, prepared.info.regression,
                      prepared.labels("train"), batch_size, seed)
    return methods.load(method).phases(methods.configure(method, HYPER.get(method, {}) | hyper), setting)


def settings(**changes: Any) -> config.Training:
    """Two epochs of six steps in fp32, at a rate at which tiny models learn."""
    return config.Training(**{"epochs": 2, "batch_size": 16, "learning_rate": 1e-3, "precision": "fp32"} | changes)


def run(prepared: Prepared, folder: Path, method: str = "rail_kd_l", dropout: float = 0.1, tracker: Any = None,
        phases: tuple[Phase, ...] | None = None, **changes: Any) -> TrainingResult:
    """Train the tiny student; `changes` are settings."""
    return train(tiny_student(prepared, dropout), phases or phases_of(method, prepared), OfDataset(prepared),
                 settings(**changes), 1, folder, Journal(folder / "journal.jsonl", tracker), "toy",
                 tiny_teacher(prepared))


def lines(folder: Path) -> list[dict[str, float]]:
    """The journal of a training in `folder`."""
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def steps(folder: Path) -> list[dict[str, float]]:
    """The journal's lines of steps, one each in trainings this short."""
    return [line for line in lines(folder) if "gradient_norm" in line]


def same_weights(one: PreTrainedModel, other: PreTrainedModel) -> bool:
    """True when all weights are equal to the bit."""
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
