"""Candidates of many texts, computed block by block into a folder: what is there is not computed again.

A block is a file named by its texts, written whole or not at all. The folder belongs to one way to compute.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kdcore.data.candidates import Sentence, Slot
from kdcore.data.word_prediction import Span

BLOCK = 512
"""Texts in a block: what a kill may lose."""
_SLOT = pa.struct([("start", pa.int32()), ("end", pa.int32()), ("source", pa.string()),
                   ("candidates", pa.list_(pa.string()))])
_SCHEMA = pa.schema([("words", pa.int32()), ("slots", pa.list_(_SLOT))])


class KeptCandidates:
    """Looks up what `compute` found for each of some texts.

    Args:
        texts: each once.
        finished: called with the number of texts that are done, and whether they were computed now, after each block.
    """

    def __init__(self, folder: Path, texts: Sequence[str], compute: Callable[[Sequence[str]], list[Sentence]],
                 finished: Callable[[int, bool], object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        blocks = []
        for start in range(0, len(texts), BLOCK):
            block = texts[start:start + BLOCK]
            path = folder / f"{hashlib.sha256(repr(block).encode()).hexdigest()[:16]}.parquet"
            absent = not path.exists()
            if absent:
                _write(path, compute(block))
            blocks.append(pq.read_table(path, memory_map=False))
            finished(start + len(block), absent)
        self._table = pa.concat_tables(blocks)
        self._place = {text: place for place, text in enumerate(texts)}

    def __getitem__(self, text: str) -> Sentence:
        place = self._place[text]
        slots: list[dict[str, Any]] = self._table.column("slots")[place].as_py()
        return Sentence(self._table.column("words")[place].as_py(), tuple(
            Slot(Span(slot["start"], slot["end"]), slot["source"], tuple(slot["candidates"])) for slot in slots))


def _write(path: Path, sentences: Sequence[Sentence]) -> None:
    rows = [{"words": sentence.words, "slots": [
        {"start": slot.span.start, "end": slot.span.end, "source": slot.source, "candidates": slot.candidates}
        for slot in sentence.slots]} for sentence in sentences]
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), unfinished)
    os.replace(unfinished, path)
