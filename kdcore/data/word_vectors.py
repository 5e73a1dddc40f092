"""Vectors of words from a text file, and the words nearest to a word.

The file is GloVe's: UTF-8, one word a line and its numbers behind it, separated by single spaces, the most frequent
words first. A first line with two numbers alone (count and width, as word2vec and fastText write it) is skipped.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from kdcore.errors import UserError

BLOCK = 256
"""Words that are compared with all others at a time."""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors, scaled to length 1; a vector of zeros stays one."""

    words: tuple[str, ...]
    vectors: Float[Tensor, "v d"]

    @classmethod
    def read(cls, path: Path, limit: int, device: torch.device) -> "WordVectors":
        """The first `limit` words of a file; of a word that comes twice the first vector counts.

        Raises:
            UserError: not UTF-8, a line without numbers, of another width than the first or with a number that is
                none, or no words at all.
        """
        words: dict[str, int] = {}
        rows: list[np.ndarray] = []
        width = 0
        try:
            with path.open(encoding="utf-8", newline="\n") as file:
                for number, line in enumerate(file, start=1):
                    parts = line.rstrip("\r\n").rstrip(" ").split(" ")
                    if number == 1 and len(parts) == 2 and all(part.isdecimal() for part in parts):
                        continue
                    width = width or len(parts) - 1
                    # A few words of GloVe's largest file hold spaces, so the numbers are counted from the right.
                    word = " ".join(parts[:-width]) if width else ""
                    if not word:
                        raise UserError(f"{path.name}, line {number} holds {len(parts)} fields, expected a word and "
                                        f"{width or 'its'} numbers, separated by single spaces")
                    if word not in words:
                        rows.append(_numbers(parts[-width:], path.name, number))
                        words[word] = len(words)
                    if len(words) == limit:
                        break
        except UnicodeDecodeError as error:
            raise UserError(f"{path.name} is not UTF-8 (byte 0x{error.object[error.start]:02x}); unpack it if it is an "
                            "archive, else save it as UTF-8") from None
        if not rows:
            raise UserError(f"{path.name} holds no words; expected a word and its numbers on each line")
        return cls(tuple(words), functional.normalize(torch.from_numpy(np.stack(rows)).to(device), dim=1))

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over words and vectors."""
        digest = hashlib.sha256("\n".join(self.words).encode())
        digest.update(self.vectors.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def _place(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def nearest(self, words: Iterable[str], count: int) -> dict[str, tuple[str, ...]]:
        """The `count` nearest other words by cosine, in alphabetical order, of each word that has a vector.

        A word that is not there as it is written is looked up in lower case. In float32, also inside somebody's
        autocast: bfloat16 has but 128 steps between cosines of 0.5 and 1.
        """
        known = {word: self._place.get(word, self._place.get(word.lower())) for word in sorted(set(words))}
        found = {word: place for word, place in known.items() if place is not None}
        if not found or len(self.words) < 2:
            return {}
        places = torch.tensor(list(found.values()), device=self.vectors.device)
        nearest: list[list[int]] = []
        with torch.autocast(self.vectors.device.type, enabled=False):
            for own in places.split(BLOCK):
                cosines = self.vectors[own] @ self.vectors.T
                cosines.scatter_(1, own.unsqueeze(1), -torch.inf)
                nearest += cosines.topk(min(count, len(self.words) - 1)).indices.tolist()
        return {word: tuple(sorted(self.words[place] for place in row))
                for word, row in zip(found, nearest, strict=True)}


def _numbers(texts: list[str], name: str, line: int) -> np.ndarray:
    try:
        numbers = np.array(texts, dtype=np.float32)
    except ValueError as error:
        raise UserError(f"{name}, line {line}: {error}; expected a word and its numbers, separated by single spaces"
                        ) from None
    if not np.isfinite(numbers).all():
        raise UserError(f"{name}, line {line} holds a number that is not finite; correct or remove the line")
    return numbers
