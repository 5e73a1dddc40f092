"""The user's own tables: CSV, TSV, JSONL or Parquet by file ending, read strictly.

Text files are UTF-8. A malformed line is an error that names it; nothing is guessed, dropped or converted.
"""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kdcore.data.raw import Raw
from kdcore.errors import UserError

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")


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


def read(study: Path, name: str, setting: str) -> Raw:
    """Read a table below the study's `data/` folder.

    Args:
        name: path relative to the study folder, e.g. `data/train.csv`.
        setting: the key in `params.yaml` that named it, for messages.

    Raises:
        UserError: outside `data/`, missing, of unknown ending, not UTF-8, malformed (with the line), or no rows.
    """
    path = locate(study, name, setting, ENDINGS)
    if path.suffix.lower() == ".parquet":
        return Raw(name, _parquet(path, name), {}, own=True)
    text = _text(path, name)
    columns, lines = _jsonl(text, name) if path.suffix.lower() == ".jsonl" else _separated(
        text, name, "\t" if path.suffix.lower() == ".tsv" else ",")
    return Raw(name, pa.table({column: _array(values, name, column, lines) for column, values in columns.items()}), {},
               lines, own=True)


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


def _separated(text: str, name: str, delimiter: str) -> tuple[dict[str, list[str]], list[int]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, lines, start = [], [], 1
    try:
        for row in reader:
            if row:  # an empty line is no row
                rows.append(row)
                lines.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{name}, line {start} is malformed ({error}); a quote inside a quoted field is doubled, and "
                        f"every quote is closed") from None
    if not rows:
        raise UserError(f"{name} is empty; expected a header line with column names")
    header = rows.pop(0)
    lines.pop(0)
    if repeated := sorted({column for column in header if header.count(column) > 1}):
        raise UserError(f"{name} has two columns named {repeated[0]!r}; rename one")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise UserError(f"{name}, line {line} has {len(row)} fields, the header has {len(header)} "
                            f"({', '.join(header)}); put quotes around texts that hold {delimiter!r}")
    return {column: [row[place] for row in rows] for place, column in enumerate(header)}, lines


def _jsonl(text: str, name: str) -> tuple[dict[str, list[Any]], list[int]]:
    rows, lines = [], []
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except ValueError as error:
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
        place = next(i for i, value in enumerate(values) if isinstance(value, str) and not _encodable(value))
        raise UserError(f"{name}, line {lines[place]}: column {column!r} holds half a surrogate pair, which is no "
                        f"text; repair the \\u escapes of that line") from None
    except (pa.ArrowInvalid, OverflowError) as error:
        raise UserError(f"{name}: column {column!r} cannot be read ({error}); use texts or numbers") from None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parquet(path: Path, name: str) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{name} is no readable Parquet file ({str(error).splitlines()[0]}); write it again") from None
