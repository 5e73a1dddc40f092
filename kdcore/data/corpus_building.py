"""Write a corpus shard by shard, so that a killed run goes on at its last finished shard.

Texts are read, cleaned and packed in chunks of documents, numbered through all sources. Each shard has a note that
says where the next one begins. A resumed run reads and cleans the texts before that place again, which finds the same
duplicates, but does not cut them into tokens, which is what takes the time; it ends with the same bytes.
"""

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from kdcore.data.cleaning import Cleaner
from kdcore.data.corpus import COUNTS_FILE, INFO_FILE, CorpusInfo, Shard, Vocabulary
from kdcore.data.corpus_sources import Origin
from kdcore.data.packing import Packer, Rows
from kdcore.data.tokens import TokenTable
from kdcore.errors import UserError

CHUNK_DOCUMENTS = 1000
CHUNK_CHARACTERS = 2**20


@dataclass(frozen=True)
class Limits:
    """Rows of one shard, and of the whole, which also stops at the last row that keeps within `max_tokens`."""

    shard_rows: int
    max_rows: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Part:
    """A finished shard, and where the next one begins: after `used` rows of the chunk with this number.

    `cut_off` counts the tokens that were cut off in the chunks before.
    """

    shard: Shard
    chunk: int
    used: int
    cut_off: int


def build(place: Path, origins: Sequence[Origin], cleaner: Cleaner, packer: Packer, vocabulary: Vocabulary,
          limits: Limits) -> CorpusInfo:
    """Write shards, counts and `corpus.json` into `place`/corpus.

    `place` is for these very sources, settings and this tokenizer only; notes of finished shards lie there.

    Raises:
        UserError: a source cannot be read, or no row is left after cleaning and within the limits.
    """
    folder = place / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    parts = finished(place)
    read = [0] * len(origins)
    chunks = _chunks(origins, packer.joins_texts, read)
    tokens = sum(part.shard.tokens for part in parts)
    with tqdm(desc="corpus", total=limits.max_tokens, initial=tokens, unit=" tokens", unit_scale=True) as bar:
        clean = (cleaner(chunk) for chunk in chunks)
        for rows, chunk, used, cut_off in _shards(clean, packer, limits, parts, bar.update):
            name = f"rows-{len(parts):05d}"
            part = Part(_save(rows, folder / f"{name}.arrow", packer, vocabulary), chunk, used, cut_off)
            _write(place / f"{name}.json", json.dumps(asdict(part)))
            parts.append(part)
    dropped = {**cleaner.dropped, "tokens_cut_off": packer.cut_off}
    documents = sum(read) - cleaner.dropped.total()
    if not parts and documents and limits.max_tokens:
        raise UserError(f"the corpus is empty: its first row has more than corpus.max_tokens = {limits.max_tokens:,} "
                        "tokens; raise it or remove it")
    if not parts:
        raise UserError(f"the corpus is empty: of {sum(read):,} documents in {', '.join(o.name for o in origins)} "
                        f"{dropped['short']:,} are shorter than corpus.cleaning.min_characters and "
                        f"{dropped['duplicates']:,} are duplicates; name other sources, or clean less")
    info = CorpusInfo(
        max_length=packer.max_length, packing=packer.packing, pairs=packer.pairs, specials=packer.template.size,
        documents=documents, vocabulary=vocabulary,
        sources=tuple({"name": origin.name, "fingerprint": origin.fingerprint, "documents": count}
                      for origin, count in zip(origins, read, strict=True)),
        dropped=dropped, shards=tuple(part.shard for part in parts))
    counts = sum(np.bincount(TokenTable.open(folder / part.shard.file).values, minlength=vocabulary.size)
                 for part in parts)
    np.save(folder / COUNTS_FILE, counts)
    _write(folder / INFO_FILE, info.to_json())
    return info


def finished(place: Path) -> list[Part]:
    """The shards that are finished in `place`, in order."""
    notes = itertools.takewhile(Path.is_file, (place / f"rows-{number:05d}.json" for number in itertools.count()))
    contents = [json.loads(note.read_text(encoding="utf-8")) for note in notes]
    return [Part(**content | {"shard": Shard(**content["shard"])}) for content in contents]


def _chunks(origins: Sequence[Origin], joined: bool, read: list[int]) -> Iterator[list[str]]:
    """Documents as they are, in chunks of one source each; `read` counts those of each source."""
    for place, origin in enumerate(origins):
        chunk: list[str] = []
        size = 0
        for row in origin.rows():
            chunk += ["\n".join(row)] if joined and row else row
            size += sum(map(len, row))
            if len(chunk) >= CHUNK_DOCUMENTS or size >= CHUNK_CHARACTERS:
                read[place] += len(chunk)
                yield chunk
                chunk, size = [], 0
        if chunk:
            read[place] += len(chunk)
            yield chunk


def _shards(chunks: Iterator[list[str]], packer: Packer, limits: Limits, parts: Sequence[Part],
            progress: Callable[[int], object]) -> Iterator[tuple[Rows, int, int, int]]:
    """The rows of each shard that is not in `parts`, and where the next one begins, as in `Part`.

    `progress` is called with the number of tokens packed since the last call.
    """
    first, used, packer.cut_off = (parts[-1].chunk, parts[-1].used, parts[-1].cut_off) if parts else (0, 0, 0)
    left_rows = (limits.max_rows or sys.maxsize) - sum(part.shard.rows for part in parts)
    left_tokens = (limits.max_tokens or sys.maxsize) - sum(part.shard.tokens for part in parts)
    waiting: list[Rows] = []
    missing = limits.shard_rows
    for number, documents in enumerate(chunks):
        if number < first:
            continue
        cut_off = packer.cut_off
        rows = packer(documents, number)
        used = used if number == first else 0
        rows = rows.cut(used)
        fitting = min(left_rows, int(np.searchsorted(np.cumsum(rows.lengths), left_tokens, side="right")))
        full = fitting < len(rows.lengths)
        rows = rows.cut(0, fitting)
        left_rows -= len(rows.lengths)
        left_tokens -= len(rows.values)
        progress(len(rows.values))
        while len(rows.lengths) >= missing:
            used += missing
            yield _together([*waiting, rows.cut(0, missing)]), number, used, cut_off
            rows, waiting, missing = rows.cut(missing), [], limits.shard_rows
        if len(rows.lengths):
            used += len(rows.lengths)
            waiting.append(rows)
            missing -= len(rows.lengths)
        if full:
            break
    if waiting:
        yield _together(waiting), number, used, cut_off


def _together(rows: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate(columns) for columns in zip(*rows, strict=True)))


def _save(rows: Rows, path: Path, packer: Packer, vocabulary: Vocabulary) -> Shard:
    offsets = np.concatenate([[0], np.cumsum(rows.lengths)])
    partial = path.with_suffix(".partial")
    TokenTable(rows.values, rows.types, offsets, vocabulary.pad_id, packer.pad_type).save(partial)
    with partial.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    os.replace(partial, path)
    return Shard(path.name, len(rows.lengths), len(rows.values), path.stat().st_size, sha256)


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
