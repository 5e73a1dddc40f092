"""A prepared dataset on disk: checked rows, labels by name, token ids, and where each split came from.

`dataset.json` holds `PreparedInfo`; each split has a Parquet file with its rows and one token file per tokenizer.
Everything after preparation reads data through `Prepared` and never sees a raw file.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from kdcore.data.tokens import TokenTable
from kdcore.errors import UserError, did_you_mean

Role = Literal["train", "select", "report", "test", "ood"]
Which = Literal["teacher", "student"]
INFO_FILE = "dataset.json"
TOKENS = "tokens-"
"""With a tokenizer's fingerprint behind it, the name of a folder."""


@dataclass(frozen=True)
class SplitInfo:
    """One split: what it is for, where it came from, what its labels mean.

    role        train: fits weights. select: chooses checkpoints (and reports, unless another split does).
                report: labelled, reports only. test: hidden labels, for submissions. ood: another domain, reports only.
    labels      names of this split's classes in order of its ids; None for scores.
    label_map   of out-of-domain splits: every label name of the dataset -> the name it counts as here; else empty.
    note        anything a reader of a result must know: "subset: 7,600 of the official 40,430 rows".
    hidden      True: no labels here (-1 or NaN in the table).
    max_length  tokens a row may have here, special tokens included.
    unlabelled  of the training split: so many rows, its last ones, have no label (-1 or NaN in the table).
    """

    name: str
    role: Role
    rows: int
    source: str
    labels: tuple[str, ...] | None
    label_map: dict[str, str] = field(default_factory=dict)
    note: str = ""
    hidden: bool = False
    max_length: int = 0
    unlabelled: int = 0

    @property
    def labelled(self) -> int:
        """The number of rows with a label, which come first; 0 where labels are hidden."""
        return 0 if self.hidden else self.rows - self.unlabelled


@dataclass(frozen=True)
class PreparedInfo:
    """What a prepared dataset is. Label ids everywhere are positions in `labels`; None means scores to regress.

    `metrics`: their mean selects checkpoints. `tokenizers`: fingerprints under "teacher" and "student", and of several
    teachers under `teacher_key` for those whose tokenizer is not the first one's.
    """

    name: str
    labels: tuple[str, ...] | None
    score_range: tuple[float, float] | None
    metrics: tuple[str, ...]
    is_pair: bool
    max_length: int
    splits: dict[str, SplitInfo]
    tokenizers: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def regression(self) -> bool:
        return self.labels is None

    @property
    def classes(self) -> int:
        """Outputs of the head: number of classes, 1 for regression."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def train(self) -> str:
        """Name of the training split."""
        return self.with_role("train")[0]

    @property
    def select(self) -> str:
        """Name of the split that chooses checkpoints."""
        return self.with_role("select")[0]

    def with_role(self, *roles: Role) -> tuple[str, ...]:
        """Names of the splits with one of these roles, in order."""
        return tuple(name for name, split in self.splits.items() if split.role in roles)

    def to_json(self) -> str:
        """Sorted keys, but splits as a list, since their order matters."""
        content = asdict(self) | {"splits": [asdict(split) for split in self.splits.values()]}
        return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "PreparedInfo":
        """Inverse of `to_json`; raises KeyError, TypeError or ValueError for other content."""
        content = json.loads(text)
        splits = [SplitInfo(**split | {"labels": _tuple(split["labels"])}) for split in content.pop("splits")]
        if unknown := {split.role for split in splits} - set(get_args(Role)):
            raise ValueError(f"unknown roles {sorted(unknown)}")
        for key in ("labels", "score_range", "metrics", "warnings"):
            content[key] = _tuple(content[key])
        return cls(**content, splits={split.name: split for split in splits})


class Prepared:
    """Read access to a prepared dataset's folder."""

    def __init__(self, folder: Path, info: PreparedInfo) -> None:
        self.folder = folder
        self.info = info

    @classmethod
    def load(cls, folder: Path) -> "Prepared":
        """Open a folder written by the stage `prepare`.

        Raises:
            UserError: nothing was prepared there, or `dataset.json` is not ours.
        """
        try:
            info = PreparedInfo.from_json((folder / INFO_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"nothing prepared in {folder} ({INFO_FILE} is missing); "
                            f"run `kdflow prepare {folder.name}` first") from None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / INFO_FILE} cannot be read ({error}); "
                            f"run `kdflow prepare {folder.name}` again") from None
        return cls(folder, info)

    def split(self, name: str) -> SplitInfo:
        """What is known of a split; raises UserError with near names."""
        if name not in self.info.splits:
            raise UserError(f"dataset {self.info.name!r} has no split {name!r}; {did_you_mean(name, self.info.splits)}")
        return self.info.splits[name]

    def table(self, split: str, columns: list[str] | None = None) -> pa.Table:
        """Rows of a split: id, text, [text_pair], label, [source_id]; row i has id i. `columns` reads only some.

        `source_id` is the row's id in the source. Without one in the source, and with all its rows here, there is no
        such column; with some of them, it is the row's number there, from 0. Rows that joined a split from elsewhere
        have none (null).
        """
        path = split_file(self.folder, self.split(split).name)
        try:
            return pq.read_table(path, columns=columns)
        except FileNotFoundError:
            raise UserError(f"{path} is missing; run `kdflow prepare {self.info.name}` again") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path} is damaged ({error}); run `kdflow prepare {self.info.name}` again") from None

    def labels(self, split: str) -> Tensor:
        """int64 [n] class ids of this split's own names (-1 without label), or float32 [n] scores (NaN without)."""
        return torch.tensor(self.table(split, ["label"]).column("label").to_numpy())

    def tokens(self, split: str, which: Which) -> TokenTable:
        """Token ids of a split under the teacher's or the student's tokenizer, memory-mapped."""
        return TokenTable.open(token_file(self.folder, self.info.tokenizers[which], self.split(split).name))

    def for_teacher(self, place: int) -> "Prepared":
        """The dataset as the teacher in this place (from 0) of several reads it: its tokens are the teacher's, and
        tokens of the others are not there."""
        own = self.info.tokenizers.get(teacher_key(place), self.info.tokenizers["teacher"])
        return Prepared(self.folder, replace(self.info, tokenizers={
            "teacher": own, "student": self.info.tokenizers["student"]}))

    @property
    def same_tokenizer(self) -> bool:
        """True when teacher and student read the same token ids."""
        return self.info.tokenizers["teacher"] == self.info.tokenizers["student"]

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over `info` and the bytes of every file in the folder, of token files those of the tokenizers
        in `info`; the same content anywhere gives the same."""
        digest = hashlib.sha256(self.info.to_json().encode())
        own = {token_folder(self.folder, tokenizer) for tokenizer in self.info.tokenizers.values()}
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file() and p != self.folder / INFO_FILE):
            if path.parent in own or not path.parent.name.startswith(TOKENS):
                digest.update(path.relative_to(self.folder).as_posix().encode() + b"\0")
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()[:16]


def teacher_key(place: int) -> str:
    """The name of a teacher's tokenizer by the teacher's place among several, counted from 0."""
    return f"teacher-{place + 1}" if place else "teacher"


def split_file(folder: Path, split: str) -> Path:
    """Where the rows of a split lie."""
    return folder / f"{split}.parquet"


def token_file(folder: Path, fingerprint: str, split: str) -> Path:
    """Where the token ids of a split lie."""
    return token_folder(folder, fingerprint) / f"{split}.arrow"


def token_folder(folder: Path, fingerprint: str) -> Path:
    """Where the token ids under a tokenizer lie."""
    return folder / f"{TOKENS}{fingerprint}"


def _tuple(value: list[Any] | None) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value)
