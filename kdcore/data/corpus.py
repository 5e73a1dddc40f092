"""A corpus on disk: rows of tokens without labels, in shards, and what the rows came from.

`corpus.json` holds `CorpusInfo`, `counts.npy` how often each token id occurs; each shard is a file as of
`kdcore.data.tokens`. Rows have ids 0..n-1 across the shards, which are memory-mapped: a batch of any rows is a
vectorised gather per shard, so that an order is a permutation of ids and nothing is known of shards elsewhere.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from kdcore.data.tokens import TokenTable
from kdcore.errors import UserError

INFO_FILE = "corpus.json"
COUNTS_FILE = "counts.npy"
REMEDY = "run `kdflow corpus` again"


@dataclass(frozen=True)
class Shard:
    """One file of rows. `tokens` counts special tokens too; `sha256` is of the file's bytes."""

    file: str
    rows: int
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Vocabulary:
    """What masking must know of the tokenizer.

    size         token ids are 0..size-1
    special_ids  never masked and never drawn, in order; not the unknown token, which stands for text
    """

    fingerprint: str
    size: int
    pad_id: int
    mask_id: int | None
    unknown_id: int | None
    special_ids: tuple[int, ...]


@dataclass(frozen=True)
class CorpusInfo:
    """What a corpus is.

    specials  special tokens of every row
    sources   of each source its documents and a fingerprint of its bytes, or the hub's revision
    dropped   documents that cleaning dropped, by reason, and what was cut off
    """

    max_length: int
    packing: str
    pairs: bool
    specials: int
    documents: int
    vocabulary: Vocabulary
    sources: tuple[dict[str, Any], ...]
    dropped: dict[str, int]
    shards: tuple[Shard, ...]

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Special tokens included."""
        return sum(shard.tokens for shard in self.shards)

    def to_json(self) -> str:
        """Sorted keys; the totals of rows and tokens are there for a reader."""
        content = asdict(self) | {"rows": self.rows, "tokens": self.tokens}
        return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "CorpusInfo":
        """Inverse of `to_json`; raises KeyError, TypeError or ValueError for other content."""
        content = json.loads(text)
        del content["rows"], content["tokens"]
        vocabulary = content.pop("vocabulary")
        special_ids = tuple(vocabulary.pop("special_ids"))
        return cls(vocabulary=Vocabulary(special_ids=special_ids, **vocabulary),
                   shards=tuple(Shard(**shard) for shard in content.pop("shards")),
                   sources=tuple(content.pop("sources")), **content)


class Corpus:
    """Read access to a corpus's folder."""

    def __init__(self, folder: Path, info: CorpusInfo) -> None:
        self.folder = folder
        self.info = info
        self._shards = [TokenTable.open(folder / shard.file) for shard in info.shards]
        self._starts = np.cumsum([0, *(shard.rows for shard in info.shards)])

    @classmethod
    def load(cls, folder: Path) -> "Corpus":
        """Open a folder written by the stage `corpus`.

        Raises:
            UserError: there is none, it is of another format, or a shard is missing or cut short.
        """
        try:
            info = CorpusInfo.from_json((folder / INFO_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"no corpus in {folder}; run `kdflow corpus` first") from None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / INFO_FILE} is of another format ({error}); {REMEDY}") from None
        for shard in info.shards:
            path = folder / shard.file
            found = path.stat().st_size if path.is_file() else 0
            if found != shard.bytes:
                raise UserError(f"{path} has {found:,} bytes, expected {shard.bytes:,}; {REMEDY}")
        return cls(folder, info)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, special tokens included: int64 [n]."""
        return np.concatenate([shard.lengths for shard in self._shards])

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits of all rows and what they came from."""
        return hashlib.sha256(self.info.to_json().encode()).hexdigest()[:16]

    def counts(self) -> np.ndarray:
        """How often each token id occurs: int64 [vocabulary]."""
        counts: np.ndarray = np.load(self.folder / COUNTS_FILE)
        return counts

    def check_tokenizer(self, fingerprint: str, who: str) -> None:
        """Refuse a model of another tokenizer.

        Raises:
            UserError: `fingerprint` is not that of the corpus.
        """
        own = self.info.vocabulary.fingerprint
        if fingerprint != own:
            raise UserError(f"the corpus in {self.folder} was cut by tokenizer {own}, but {who} has tokenizer "
                            f"{fingerprint}; {REMEDY} with the teacher of now, or name a model of the same tokenizer")

    def tokens(self, rows: Int[Tensor, " b"]) -> dict[str, Tensor]:
        """Return any rows as int64 tensors [b, t], t the longest of them, as `TokenTable.pad` does for one file."""
        chosen = rows.numpy()
        lengths = self.lengths[chosen]
        columns = np.arange(lengths.max())
        real = columns < lengths[:, None]
        ids = np.empty(real.shape, np.int64)
        types = np.empty_like(ids)
        homes = np.searchsorted(self._starts, chosen, side="right") - 1
        for home in np.unique(homes):
            shard, here = self._shards[home], homes == home
            starts = shard.offsets[chosen[here] - self._starts[home]]
            places = np.where(real[here], starts[:, None] + columns, 0)
            ids[here] = np.where(real[here], shard.values[places], shard.pad_id)
            types[here] = np.where(real[here], shard.types[places], shard.pad_type)
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(real.astype(np.int64)),
                "token_type_ids": torch.from_numpy(types)}
