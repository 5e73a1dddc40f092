"""Where the texts of a corpus come from, read as streams: the user's own files, or a hub set.

The first row of every file is read at once, so that a wrong name is said before hours of work. Nothing of a local
source is cached: a file that was replaced gives its new texts, and another fingerprint.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from kdcore import scratch
from kdcore.data import separated
from kdcore.errors import UserError, did_you_mean
from kdcore.general_config import CorpusSource
from kdcore.sources import VARIABLE, Location, locate

ENDINGS = (".txt", ".csv", ".tsv", ".jsonl", ".parquet")
BATCH = 1000
LONGEST = 2**20
"""Characters of a paragraph: a text file without an empty line is cut into documents of about this size."""

Row = list[str]
"""The texts of one row, empty ones left out."""


@dataclass(frozen=True)
class Origin:
    """A source that can be read. `fingerprint` is of its bytes, or of the hub's revision; `rows` reads it anew."""

    name: str
    fingerprint: str
    rows: Callable[[], Iterator[Row]]


def find(study: Path, source: CorpusSource, place: str) -> Origin:
    """Find what an entry of `corpus.sources` names.

    Args:
        place: the entry's name in `params.yaml`, e.g. `corpus.sources[0]`, for messages.

    Raises:
        UserError: no such file or set, nothing in a folder, an unknown ending, a missing column, or no texts in it.
    """
    return _hub(source, place) if source.source else _own(study, source, place)


def _own(study: Path, source: CorpusSource, place: str) -> Origin:
    found = [(path, name) for entry in source.files for path, name in _files(study, entry, f"{place}.files")]
    for path, name in found:
        next(_rows(path, name, source.text, source.documents), None)

    def rows() -> Iterator[Row]:
        for path, name in found:
            yield from _rows(path, name, source.text, source.documents)

    return Origin(", ".join(source.files), _fingerprint([path for path, _ in found]), rows)


def _fingerprint(paths: Sequence[Path]) -> str:
    """Of the files' names and bytes in this order, wherever they lie."""
    return _digest([scratch.hash_files([path], path.parent) for path in paths])


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _files(study: Path, entry: str, setting: str) -> list[tuple[Path, str]]:
    """The files that an entry stands for, each with its name for messages."""
    inside = Path(os.path.normpath(entry))
    if not inside.is_absolute() and inside.parts[:1] != ("data",):
        raise UserError(f"{setting} has {entry!r}, which is not inside the study's data/ folder; put it there, so that "
                        "DVC sees when it changes, or give the absolute path of a folder that stays as it is")
    path = study / inside
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix.lower() in ENDINGS)
        if not files:
            raise UserError(f"{setting} has {entry!r}, a folder without files that end in {', '.join(ENDINGS)}; add "
                            "some, or name another folder")
        return [(file, str(inside / file.relative_to(path))) for file in files]
    if not path.is_file():
        raise UserError(f"{setting} has {entry!r}, which does not exist in {study.resolve()}; correct the path, which "
                        "is seen from the study folder")
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{setting} has {entry!r}, which ends in {path.suffix or 'nothing'!r}; expected one of "
                        f"{', '.join(ENDINGS)}")
    return [(path, entry)]


def _rows(path: Path, name: str, columns: Sequence[str], documents: Literal["paragraph", "line"]) -> Iterator[Row]:
    match path.suffix.lower():
        case ".txt":
            yield from ([text] for text in (_paragraphs if documents == "paragraph" else _nonempty)(path, name))
        case ".parquet":
            with _damage_told(name):
                file = pq.ParquetFile(path)
            _check_columns(file.schema_arrow.names, columns, name)
            with _damage_told(name):
                for batch in file.iter_batches(BATCH, columns=list(columns)):
                    batch.validate(full=True)  # texts may be no UTF-8
                    yield from _of_table(pa.Table.from_batches([batch]), columns, name)
        case ".jsonl":
            yield from _jsonl(path, name, columns)
        case ending:
            yield from _separated(path, name, columns, "\t" if ending == ".tsv" else ",")


def _lines(path: Path, name: str) -> Iterator[str]:
    """Lines of a UTF-8 file with their ends, one at a time."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise UserError(f"{name} is UTF-16; save it as UTF-8")
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{name}, line {number} is not UTF-8 (byte 0x{line[error.start]:02x}); save the file "
                                "as UTF-8, it is perhaps Latin-1 or Windows-1252") from None


def _nonempty(path: Path, name: str) -> Iterator[str]:
    return (line for line in _lines(path, name) if line.strip())


def _paragraphs(path: Path, name: str) -> Iterator[str]:
    open_lines: list[str] = []
    size = 0
    for line in _lines(path, name):
        if line.strip():
            open_lines.append(line)
            size += len(line)
        if open_lines and (not line.strip() or size >= LONGEST):
            yield "".join(open_lines)
            open_lines, size = [], 0
    if open_lines:
        yield "".join(open_lines)


def _jsonl(path: Path, name: str, columns: Sequence[str]) -> Iterator[Row]:
    for number, line in enumerate(_lines(path, name), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}, line {number} is no JSON ({error}); expected one object per line") from None
        if not isinstance(row, dict):
            raise UserError(f"{name}, line {number} holds {type(row).__name__}, expected an object such as "
                            f'{{"text": "..."}}')
        _check_columns(row, columns, f"{name}, line {number}")
        yield _texts([row[column] for column in columns], columns, f"{name}, line {number}")


def _separated(path: Path, name: str, columns: Sequence[str], delimiter: str) -> Iterator[Row]:
    rows = separated.rows(_lines(path, name), name, delimiter)
    _, header = next(rows)
    _check_columns(header, columns, name)
    places = [header.index(column) for column in columns]
    for _, row in rows:
        yield [row[place] for place in places if row[place].strip()]


@contextmanager
def _damage_told(name: str) -> Iterator[None]:
    """Say which Parquet file is damaged, at its end, where it is opened, or in a page of it."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{name} is no readable Parquet file ({str(error).splitlines()[0]}); write it again") from None


def _of_table(table: pa.Table, columns: Sequence[str], name: str) -> Iterator[Row]:
    lists = [table.column(column).to_pylist() for column in columns]
    yield from (_texts(values, columns, name) for values in zip(*lists, strict=True))


def _texts(values: Sequence[Any], columns: Sequence[str], where: str) -> Row:
    """The texts of a row; a missing value is no text."""
    for value, column in zip(values, columns, strict=True):
        if value is not None and not isinstance(value, str):
            raise UserError(f"{where}: column {column!r} holds {value!r}, expected texts; name other columns under "
                            "`text`")
    return [value for value in values if value and value.strip()]


def _check_columns(found: Sequence[str] | dict[str, Any], columns: Sequence[str], where: str) -> None:
    for column in columns:
        if column not in found:
            raise UserError(f"{where} has no column {column!r} (`text` of the source); {did_you_mean(column, found)}")


def _hub(source: CorpusSource, place: str) -> Origin:
    """A hub set or a local folder in the hub's layout. Its fingerprint is of the names of the hub's files, which hold
    the revision, or of the local files."""
    assert source.source is not None
    location = locate(source.source, source.revision)
    config, split = location.config or source.config, source.split or "train"
    what = f"{source.source}{f' ({config})' if config else ''}"

    def rows() -> Iterator[Row]:
        with _loading(location, config, source, f"{what} ({place})") as builder:
            for batch in builder.as_streaming_dataset(split).with_format("arrow").iter(BATCH):
                _check_columns(batch.column_names, source.text, f"{what}, {split}")
                yield from _of_table(batch, source.text, f"{what}, {split}")

    with _loading(location, config, source, f"{what} ({place})") as builder:
        files = builder.config.data_files
    if split not in files:
        raise UserError(f"{what} has no split {split!r} ({place}.split); {did_you_mean(split, map(str, files))}")
    next(rows(), None)
    names = sorted(map(str, files[split]))
    fingerprint = _fingerprint(list(map(Path, names))) if location.is_local else _digest(names)
    return Origin(f"{what} {split}", fingerprint, rows)


@contextmanager
def _loading(location: Location, config: str | None, source: CorpusSource, what: str) -> Iterator[Any]:
    """The library's builder of a set. Its own cache would serve what a local folder held before, so it gets another."""
    import datasets
    from httpx import HTTPError
    from huggingface_hub.errors import HfHubHTTPError

    with tempfile.TemporaryDirectory(prefix="kdflow-datasets-") as cache:
        try:
            yield (datasets.load_dataset_builder(location.place, config, cache_dir=cache) if location.is_local
                   else datasets.load_dataset_builder(location.place, config, revision=source.revision))
        except (OSError, ValueError, RuntimeError, HTTPError, HfHubHTTPError, pa.ArrowInvalid,
                datasets.exceptions.DatasetsError) as error:
            remedy = ("correct the folder's files or the names" if location.is_local else
                      "check the names and the network, or say where a copy in the hub's layout lies: "
                      f"{VARIABLE}={source.source}=FOLDER")
            raise UserError(f"cannot read {what}: {' '.join(str(error).split())}; {remedy}") from error
