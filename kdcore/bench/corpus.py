"""A prepared dataset of random tokens whose lengths follow those of a real one.

Speed and memory depend on how many rows there are and how long they are, not on what they say, so the bench needs
no download. Lengths are drawn from the deciles of GLUE training splits under BERT's uncased vocabulary.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kdcore.data.prepared import INFO_FILE, Prepared, PreparedInfo, SplitInfo, split_file, token_file
from kdcore.data.tokens import TokenTable

VOCABULARY = 30522
"""Of BERT uncased."""
MAX_LENGTH = 128
CLS, SEP, FIRST_WORD = 101, 102, 1000

DECILES = {
    "cola": (5, 7, 8, 9, 10, 10, 11, 13, 14, 18, 47),
    "mnli": (5, 18, 23, 27, 31, 35, 40, 45, 51, 60, 128),
    "mrpc": (19, 36, 41, 45, 50, 53, 57, 61, 64, 70, 103),
    "qnli": (13, 31, 35, 39, 43, 46, 50, 55, 61, 73, 128),
    "qqp": (11, 19, 21, 23, 25, 27, 30, 33, 38, 46, 128),
    "rte": (13, 33, 40, 45, 50, 56, 62, 72, 103, 128, 128),
    "sst2": (3, 4, 6, 7, 8, 10, 12, 15, 20, 27, 57),
    "stsb": (10, 17, 18, 20, 22, 25, 28, 34, 44, 56, 125),
}
"""Tokens per row, special tokens included, cut at 128: minimum, 10 % ... 90 %, maximum of up to 4,000 rows."""

TIMED = "mnli"
"""The lengths of the batches that are timed: the middle of the range."""

_TOKENIZER = "bench"


def lengths(like: str, rows: int, seed: int) -> np.ndarray:
    """Row lengths, int64 [rows], distributed as those of a GLUE dataset."""
    quantile = np.random.default_rng(seed).random(rows)
    return np.rint(np.interp(quantile, np.linspace(0, 1, 11), DECILES[like])).astype(np.int64)


def write(folder: Path, train_rows: int, dev_rows: int = 64, like: str = TIMED, seed: int = 0) -> Prepared:
    """Write a two-class dataset of random tokens as the stage `prepare` would, and open it."""
    labels = ("negative", "positive")
    splits = {
        "train": SplitInfo("train", "train", train_rows, "random tokens", labels, max_length=MAX_LENGTH),
        "validation": SplitInfo("validation", "select", dev_rows, "random tokens", labels, max_length=MAX_LENGTH),
    }
    info = PreparedInfo(name="bench", labels=labels, score_range=None, metrics=("accuracy",), is_pair=False,
                        max_length=MAX_LENGTH, splits=splits,
                        tokenizers={"teacher": _TOKENIZER, "student": _TOKENIZER})
    folder.mkdir(parents=True)
    for number, split in enumerate(splits.values()):
        _write_split(folder, split, like, np.random.default_rng([seed, number]))
    (folder / INFO_FILE).write_text(info.to_json(), encoding="utf-8")
    return Prepared.load(folder)


def _write_split(folder: Path, split: SplitInfo, like: str, draw: np.random.Generator) -> None:
    sizes = lengths(like, split.rows, int(draw.integers(2**31)))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    values = draw.integers(FIRST_WORD, VOCABULARY, int(offsets[-1]), dtype=np.int32)
    values[offsets[:-1]] = CLS
    values[offsets[1:] - 1] = SEP
    path = token_file(folder, _TOKENIZER, split.name)
    path.parent.mkdir(exist_ok=True)
    TokenTable(values, np.zeros(len(values), np.int8), offsets, pad_id=0).save(path)
    pq.write_table(pa.table({
        "id": np.arange(split.rows),
        "text": pa.array([""] * split.rows),
        "label": draw.integers(0, 2, split.rows),
    }), split_file(folder, split.name))
