"""Answers of a teacher that is only files, as preparation aligned them with the rows of a dataset.

A folder of them holds one Parquet file per answered split, whose row i answers example i: `id` and one float32 column
`logit:NAME` per class in the order of the dataset's labels, or `score`. `answers.json` says which file each split's
answers came from.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float
from torch import Tensor

from kdcore.errors import UserError

FOLDER = "answers"
"""Name of the folder, in prepared data and in a teacher's folder."""
ABOUT = "answers.json"
LOGIT, PROBABILITY, SCORE = "logit:", "probability:", "score"
"""Columns: one `logit:NAME` or `probability:NAME` per class, or one `score`."""


Holds = Literal["logits", "probabilities", "scores"]


@dataclass(frozen=True)
class Source:
    """Where answers came from: the user's file, its SHA-256, and what it holds; of several files all, with commas."""

    file: str
    sha256: str
    holds: str


@dataclass(frozen=True, eq=False)
class Aligned:
    """Answers to all rows of one split: float32 [n, c], columns in the order of the dataset's labels."""

    source: Source
    logits: np.ndarray

    def join(self, more: "Aligned") -> "Aligned":
        """These answers and then those to further rows."""
        if more.source == self.source:
            source = self.source
        else:
            source = Source(*(", ".join(dict.fromkeys(pair)) for pair in zip(
                astuple(self.source), astuple(more.source), strict=True)))
        return Aligned(source, np.concatenate([self.logits, more.logits]))


class Answers:
    """Read access to a folder of answers."""

    def __init__(self, folder: Path, sources: Mapping[str, Source]) -> None:
        self.folder = folder
        self.sources = sources

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """The answers inside a prepared dataset's or a teacher's folder; None where there are none.

        Raises:
            UserError: what tells their origin is damaged.
        """
        path = folder / FOLDER / ABOUT
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(folder / FOLDER, {split: Source(**source) for split, source in content.items()})
        except FileNotFoundError:
            return None
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged ({error}); run `kdflow prepare` and `kdflow teacher` again") from None

    def logits(self, split: str) -> Float[Tensor, "n c"]:
        """The answers to a split among `sources`, row i to example i.

        Raises:
            UserError: the file is missing or damaged.
        """
        path = _file(self.folder, split)
        try:
            table = pq.read_table(path).drop_columns("id")
        except (KeyError, pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path} is missing or damaged ({str(error).splitlines()[0]}); run `kdflow prepare` and "
                            "`kdflow teacher` again") from None
        return torch.from_numpy(np.stack([column.to_numpy() for column in table.columns], axis=1))

    @property
    def description(self) -> str:
        """One line for records: whose answers these are."""
        files = dict.fromkeys(f"{source.file} ({source.holds})" for source in self.sources.values())
        return f"answers in {', '.join(files)}"


def write(folder: Path, answers: Mapping[str, Aligned], labels: tuple[str, ...] | None) -> None:
    """Write a folder of answers; equal answers give equal bytes. `labels` None means scores."""
    folder.mkdir()
    names = [SCORE] if labels is None else [f"{LOGIT}{label}" for label in labels]
    for split, aligned in answers.items():
        columns = {"id": pa.array(range(len(aligned.logits)), pa.int64())}
        columns |= {name: pa.array(aligned.logits[:, place]) for place, name in enumerate(names)}
        pq.write_table(pa.table(columns), _file(folder, split))
    about = {split: asdict(aligned.source) for split, aligned in answers.items()}
    (folder / ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _file(folder: Path, split: str) -> Path:
    return folder / f"{split}.parquet"
