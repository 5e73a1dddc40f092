"""Which rows belong to which split: by a hash of the text or by a seeded draw, never by chance.

A row's place by `shares` depends on its text alone, so equal texts never fall into different splits, and two
datasets made of the same texts (`movies`, `movies_rating`) are cut alike.
"""

import hashlib
import zlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa


def key(texts: Iterable[str]) -> bytes:
    """16 bytes that are equal for texts (one, or the two of a pair) that differ in case or white space only."""
    return hashlib.sha256("\0".join(" ".join(text.casefold().split()) for text in texts).encode()).digest()[:16]


def keys(table: pa.Table) -> list[bytes]:
    """The `key` of each row."""
    columns = [table.column(name).to_pylist() for name in ("text", "text_pair") if name in table.column_names]
    return [key(texts) for texts in zip(*columns, strict=True)]


def shares(table: pa.Table, salt: str) -> np.ndarray:
    """A number in [0, 1) per row, uniform over texts and fixed by text and salt: float64 [n]."""
    return np.array([int.from_bytes(hashlib.sha256(salt.encode() + own).digest()[:8]) / 2**64 for own in keys(table)])


def draw(rows: int, size: int, seed: int, purpose: str) -> np.ndarray:
    """`size` of `rows` row numbers in their old order, drawn without replacement: int64 [size]."""
    generator = np.random.default_rng([seed % 2**32, zlib.crc32(purpose.encode())])
    return np.sort(generator.choice(rows, size=size, replace=False))


def take(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """The chosen rows; `rows` are numbers or a mask."""
    return table.take(pa.array(np.flatnonzero(rows) if rows.dtype == bool else rows))
