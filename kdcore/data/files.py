"""The user's own tables: CSV, TSV, JSONL or Parquet by file ending, read strictly.

Text files are UTF-8. A malformed line is an error that names it; nothing is guessed, dropped or converted. Columns that
nobody asks for are left alone, whatever they hold.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kdcore.data import separated
from kdcore.data.raw import Raw
from kdcore.errors import UserError

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")

Wanted = Callable[[str], bool]
"""Whether a column of this name is read."""


def locate(study: Path, name: str, setting: str, endings: tuple[str, ...] = ("",)) -> Path:
    """The path of a file that a setting names, relative to the study.

    Raises:
        UserError: outside the study's `data/` folder, with none of the endings, or missing.
    """
    parts = Path(os.path.normpath(name)).parts
    if parts[:1] != ("data",) or len(parts) < 2:
        raise UserError(f"{setting} = {name!r} is not inside the study's data/ folder; put the file there and write "
                        f"data/{Path(name).name or 'FILE'}, so that DVC sees when it changes")
    path = study / Path(*parts)
    if not path.name.lower().endswith(endings):
        raise UserError(f"{setting} = {name!r} ends in {path.suffix or 'nothing'!r}; expected one of "
                        f"{', '.join(endings)}")
    if not path.is_file():
        raise UserError(f"{setting} = {name!r} does not exist in {study.resolve()}; correct the path, which is seen "
                        f"from the study folder")
    return path


def read(study: Path, name: str, setting: str, wanted: Wanted) -> Raw:
    """Read columns of a table below the study's `data/` folder.

    Args:
        name: path relative to the study folder, e.g. `data/train.csv`.
        setting: the key in `params.yaml` that named it, for messages.
        wanted: whether a column is read. The others may hold anything: only their names count, as the nearest ones of
            one that is missing.

    Raises:
        UserError: outside `data/`, missing, of unknown ending, not UTF-8, malformed (with the line), empty, or with a
            wanted column that comes twice or holds values of several types.
    """
    path = locate(study, name, setting, ENDINGS)
    ending = path.suffix.lower()
    if ending == ".parquet":
        table, names = _parquet(path, name, wanted)
        return Raw(name, table, {}, own=True, unread=_unread(names, wanted))
    text = _text(path, name)
    columns, lines = _jsonl(text, name) if ending == ".jsonl" else _separated(
        text, name, "\t" if ending == ".tsv" else ",", wanted)
    table = pa.table({column: _array(values, name, column, lines) for column, values in columns.items()
                      if wanted(column)})
    return Raw(name, table, {}, lines, own=True, unread=_unread(columns, wanted))


def _unread(columns: Iterable[str], wanted: Wanted) -> tuple[str, ...]:
    return tuple(column for column in columns if not wanted(column))


def _text(path: Path, name: str) -> str:
    content = path.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{name} is UTF-16; save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}, line {line} is not UTF-8 (byte 0x{content[error.start]:02x}); save the file as "
                        f"UTF-8, it is perhaps Latin-1 or Windows-1252") from None


def _separated(text: str, name: str, delimiter: str, wanted: Wanted) -> tuple[dict[str, list[str]], list[int]]:
    (_, header), *numbered = separated.rows(io.StringIO(text, newline=""), name, delimiter)
    _refuse_repeated(header, name, wanted)
    return ({column: [row[place] for _, row in numbered] for place, column in enumerate(header)},
            [line for line, _ in numbered])


def _refuse_repeated(columns: Sequence[str], name: str, wanted: Wanted) -> None:
    if repeated := sorted({column for column in columns if wanted(column) and columns.count(column) > 1}):
        raise UserError(f"{name} has two columns named {repeated[0]!r}; rename one")


def _jsonl(text: str, name: str) -> tuple[dict[str, list[Any]], list[int]]:
    rows, lines = [], []
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}, line {line} is no JSON ({error}); expected one object per line") from None
        if not isinstance(row, dict):
            raise UserError(f"{name}, line {line} holds {type(row).__name__}, expected an object such as "
                            f'{{"text": "...", "label": "..."}}')
        rows.append(row)
        lines.append(line)
    if not rows:
        raise UserError(f"{name} is empty; expected one object per line")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return {column: [row.get(column) for row in rows] for column in columns}, lines


def _array(values: list[Any], name: str, column: str, lines: list[int]) -> pa.Array:
    """One column; JSON values of different types in one column are an error at the first that differs."""
    kinds: dict[type, int] = {}
    for place, value in enumerate(values):
        if value is not None:
            kinds.setdefault(float if isinstance(value, int) and not isinstance(value, bool) else type(value), place)
    if len(kinds) > 1:
        place = max(kinds.values())
        raise UserError(f"{name}, line {lines[place]}: column {column!r} holds {values[place]!r}, but lines before it "
                        f"hold another type; use one type per column")
    try:
        return pa.array(values)
    except UnicodeEncodeError:
        place = next(i for i, value in enumerate(values) if not _encodable(value))
        raise UserError(f"{name}, line {lines[place]}: column {column!r} holds half a surrogate pair, which is no "
                        f"text; repair the \\u escapes of that line") from None
    except (pa.ArrowException, OverflowError) as error:
        raise UserError(f"{name}: column {column!r} cannot be read ({error}); use texts or numbers") from None


def _encodable(value: Any) -> bool:
    """Whether every text in a value of JSON is one in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _parquet(path: Path, name: str, wanted: Wanted) -> tuple[pa.Table, list[str]]:
    """The wanted columns, and the names of all."""
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            _refuse_repeated(columns, name, wanted)
            chosen = [column for column in columns if wanted(column)]
            table = file.read(chosen).select(chosen)  # a name with a dot may bring a part of an object along
            table.validate(full=True)  # texts may be no UTF-8
            return table, columns
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{name} is no readable Parquet file ({str(error).splitlines()[0]}); write it again") from None
