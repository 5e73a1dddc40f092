"""Documents as they come to documents worth reading, with a count of what was dropped."""

import hashlib
import re
import unicodedata
from collections import Counter
from typing import Literal

import numpy as np

SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters, as broken escapes of JSON give; always removed, since no tokenizer reads them."""
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff\ufffd]")
"""Control characters, soft hyphens, marks of width zero or of direction, and what stands for undecodable bytes. The
joiners U+200C and U+200D stay: they are letters' shapes in some scripts and parts of emoji."""
CAPACITY = 2**25
"""Documents whose hashes are kept to find duplicates: at 8 bytes each 256 MB."""


class Cleaner:
    """Cleans documents in the order given; `dropped` counts those that it leaves out, by reason."""

    def __init__(self, unicode: Literal["NFC", "NFKC"] | None = "NFC", control_characters: bool = True,
                 whitespace: bool = True, min_characters: int = 1, duplicates: bool = True,
                 capacity: int = CAPACITY) -> None:
        """The switches are those of `general_config.Cleaning`; `capacity` is that of `Seen`."""
        self._unicode = unicode
        self._control_characters = control_characters
        self._whitespace = whitespace
        self._min_characters = min_characters
        self._seen = Seen(capacity) if duplicates else None
        self.dropped: Counter[str] = Counter(short=0, duplicates=0)

    def __call__(self, documents: list[str]) -> list[str]:
        """The documents that stay, cleaned."""
        clean = [text for text in map(self._clean, documents) if len(text) >= self._min_characters]
        self.dropped["short"] += len(documents) - len(clean)
        if self._seen is None or not clean:
            return clean
        new = self._seen.first_times(np.array([_hash(text) for text in clean], np.uint64))
        self.dropped["duplicates"] += len(clean) - int(new.sum())
        return [text for text, first in zip(clean, new, strict=True) if first]

    def _clean(self, text: str) -> str:
        if not text.isascii():
            text = SURROGATES.sub("", text)
            if self._unicode:
                text = unicodedata.normalize(self._unicode, text)
        if self._control_characters:
            text = CONTROL.sub("", text)
        if self._whitespace:
            lines = (" ".join(line.split()) for line in text.splitlines())
            text = "\n".join(line for line in lines if line)
        return text if text.strip() else ""


class Seen:
    """Which 64-bit hashes were met before, in bounded memory.

    Sorted arrays, merged when their sizes come near each other; beyond `capacity` hashes the oldest array is forgotten,
    so that old duplicates may pass. Two of 30 million different texts share a hash with probability 2e-5.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._runs: list[np.ndarray] = []

    def first_times(self, hashes: np.ndarray) -> np.ndarray:
        """True [n] where a hash is met for the first time, in these or those before; uint64 [n]."""
        distinct, places = np.unique(hashes, return_index=True)
        known = np.zeros(len(distinct), bool)
        for run in self._runs:
            found = np.searchsorted(run, distinct)
            known |= run[np.minimum(found, len(run) - 1)] == distinct
        first = np.zeros(len(hashes), bool)
        first[places[~known]] = True
        if not known.all():
            self._add(distinct[~known])
        return first

    def _add(self, run: np.ndarray) -> None:
        largest = self._capacity // 4  # so that never more than a quarter is forgotten at once
        while self._runs and len(self._runs[-1]) <= min(2 * len(run), largest - len(run)):
            run = np.sort(np.concatenate([self._runs.pop(), run]))
        self._runs.append(run)
        while sum(map(len, self._runs)) > self._capacity:
            del self._runs[0]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
