"""From raw rows to clean ones: required columns, real texts, labels by name, scores in range, unique ids.

Every problem is one line that names the file, the row, the value and the remedy. Label ids that leave here are
positions in the declared label names, whatever order or spelling the source has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdcore.data.raw import Raw
from kdcore.errors import UserError, did_you_mean

HIDDEN = -1
"""Class of a row whose label nobody may know, in the hub's GLUE test splits, or nobody does; NaN is such a score."""


@dataclass(frozen=True)
class Columns:
    """Which raw columns to take, and what their labels mean.

    `labels` None: scores, in `score_range` where given. `aliases`: other spellings of label names.
    `row_id` None: ids of the source are not kept. `may_hide`: the split may come without labels, all of them.
    """

    text: str
    text_pair: str | None
    label: str
    labels: tuple[str, ...] | None
    score_range: tuple[float, float] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    row_id: str | None = None
    may_hide: bool = False


@dataclass(frozen=True)
class Rows:
    """Clean rows: text, [text_pair], label int64 or float32, [source_id]. `hidden`: no label is known."""

    table: pa.Table
    hidden: bool
    warnings: tuple[str, ...] = ()


def clean(raw: Raw, columns: Columns) -> Rows:
    """Check one split and bring it into the prepared form.

    Raises:
        UserError: a column is missing, the split is empty, a text is null or no text, a label is outside the names,
            hidden where it must not be, or no number; a score is not finite or out of range; an id comes twice.
    """
    known = raw.table.column_names
    wanted = [columns.text, *([columns.text_pair] if columns.text_pair else [])]
    unlabelled = columns.label not in known and columns.may_hide
    for column in wanted if unlabelled else [*wanted, columns.label]:
        if column not in known:
            remedy = " Name the column under `text`, `text_pair` or `label`" if raw.own else ""
            raise UserError(f"{raw.where} has no column {column!r}; {did_you_mean(column, raw.names)}{remedy}")
    if raw.table.num_rows == 0:
        raise UserError(f"{raw.where} has no rows; expected at least one")
    table: dict[str, pa.Array] = {}
    warnings = []
    for name, column in zip(("text", "text_pair"), wanted, strict=False):
        table[name], warning = _texts(raw, column)
        warnings += warning
    rows = raw.table.num_rows
    if unlabelled:
        hidden, labels = True, np.full(rows, HIDDEN if columns.labels is not None else np.nan)
    elif columns.labels is None:
        hidden, labels = _scores(raw, columns)
    else:
        hidden, labels = _classes(raw, columns, columns.labels)
    table["label"] = pa.array(labels, pa.float32() if columns.labels is None else pa.int64())
    if columns.row_id is not None and columns.row_id in known:
        table["source_id"] = ids(raw, columns.row_id)
    return Rows(pa.table(table), hidden, tuple(warnings))


def _texts(raw: Raw, column: str) -> tuple[pa.Array, list[str]]:
    values = _one_array(raw, column)
    if pa.types.is_null(values.type):
        raise UserError(f"{raw.row(0)}: {column!r} is null; give a text or remove the row")
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise UserError(f"{raw.row(0)}: {column!r} is {values[0].as_py()!r} ({values.type}), expected text; name the "
                        f"column that holds the text")
    if values.null_count:
        raise UserError(f"{raw.row(_first(pc.is_null(values)))}: {column!r} is null; give a text or remove the row")
    empty = pc.equal(pc.utf8_trim_whitespace(values), "")
    count = pc.sum(empty).as_py()
    if count and raw.own:
        raise UserError(f"{raw.row(_first(empty))}: {column!r} is empty; give a text or remove the row")
    warnings = [f"{raw.where}: {count} empty {column!r}, first in {raw.row(_first(empty))}"] if count else []
    return values.cast(pa.large_string()), warnings


def _classes(raw: Raw, columns: Columns, names: tuple[str, ...]) -> tuple[bool, np.ndarray]:
    """Ids of the label names; integers mean what the source's class names say, else positions in `names`."""
    values = _one_array(raw, columns.label)
    try:
        distinct = pc.dictionary_encode(values)
    except pa.ArrowNotImplementedError:  # lists and objects
        place = max(_first(pc.is_valid(values)), 0)
        raise UserError(f"{raw.row(place)}: {columns.label} is {values[place].as_py()!r} ({values.type}), expected one "
                        f"label per row; write it as a text or a whole number") from None
    source_names = raw.class_names.get(columns.label)
    codes = distinct.dictionary.to_pylist()
    spelled = [_spelling(code, source_names, columns.aliases) for code in codes]
    # Names win over ids: a column of 1, 2, 3 under the names "1", "2", "3" holds names.
    by_name = source_names is not None or any(text in names for text in spelled)
    lookup = np.full(len(codes) + 1, HIDDEN, dtype=np.int64)
    for place, (code, text) in enumerate(zip(codes, spelled, strict=True)):
        if text in names if by_name else text.isdecimal() and int(text) < len(names):
            lookup[place] = names.index(text) if by_name else int(text)
        elif text not in ("", str(HIDDEN)):
            where = raw.row(_first(pc.equal(values, pa.scalar(code, values.type))))
            meaning = "" if text == str(code) else f" ({text})"
            known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise UserError(f"{where}: {columns.label} {code!r}{meaning} is none of the labels {known}; correct the "
                            f"row{' or add it to `labels`' if raw.own else ''}{_near(text, names)}")
    indices = pc.fill_null(distinct.indices, len(codes)).to_numpy(zero_copy_only=False)
    labels = lookup[indices]
    return _all_hidden(raw, columns, labels == HIDDEN), labels


def _near(text: str, names: tuple[str, ...]) -> str:
    near = did_you_mean(text, names)
    return f" ({near})" if near.startswith("did") else ""


def _spelling(code: object, source_names: tuple[str, ...] | None, aliases: Mapping[str, str]) -> str:
    """A raw label as a label name would be written; empty where there is none."""
    if code is None or code != code:  # null or NaN
        return ""
    if isinstance(code, float) and code.is_integer():  # whole numbers of tables that had gaps
        code = int(code)
    if source_names is not None and isinstance(code, int) and 0 <= code < len(source_names):
        code = source_names[code]
    return aliases.get(str(code), str(code))


def _scores(raw: Raw, columns: Columns) -> tuple[bool, np.ndarray]:
    values = _one_array(raw, columns.label)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        numbers = np.array([_number(raw, columns.label, place, text.as_py()) for place, text in enumerate(values)])
        hidden = np.array([text.as_py() in ("", None) for text in values])
    elif pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_null(values.type):
        hidden = pc.is_null(values).to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(values.cast(pa.float64(), safe=False), 0.0).to_numpy(zero_copy_only=False)
    else:
        raise UserError(f"{raw.row(0)}: {columns.label} is {values[0].as_py()!r} ({values.type}), expected a number")
    low, high = columns.score_range or (-np.inf, np.inf)
    if columns.may_hide and not low <= HIDDEN <= high:
        hidden = hidden | (numbers == HIDDEN)
    largest = float(np.finfo(np.float32).max)
    for wrong, problem, otherwise in (
            (~np.isfinite(numbers), "not finite", ""),
            ((numbers < low) | (numbers > high), f"outside the range {low:g} to {high:g}", " or widen score_range"),
            (np.abs(numbers) > largest, f"beyond the largest number that is kept ({largest:.2g})", "")):
        if (wrong & ~hidden).any():
            place = int(np.argmax(wrong & ~hidden))
            raise UserError(f"{raw.row(place)}: {columns.label} {numbers[place]:g} is {problem}; correct or remove "
                            f"the row{otherwise}")
    numbers = np.where(hidden, np.nan, numbers).astype(np.float32)
    return _all_hidden(raw, columns, hidden), numbers


def _number(raw: Raw, column: str, place: int, text: str | None) -> float:
    if text in ("", None):
        return 0.0
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{raw.row(place)}: {column} {text!r} is no number; for classes name them under `labels`"
                        ) from None


def _all_hidden(raw: Raw, columns: Columns, hidden: np.ndarray) -> bool:
    """Hidden labels are for whole test splits: never partly, never where labels are needed."""
    if not hidden.any():
        return False
    place = int(np.argmax(hidden))
    if not columns.may_hide:
        raise UserError(f"{raw.row(place)}: {columns.label} is hidden (-1 or empty), but this split needs labels; give "
                        f"the label or remove the row")
    if not hidden.all():
        raise UserError(f"{raw.row(place)}: {columns.label} is hidden (-1 or empty) while other rows have labels; hide "
                        f"all of a test split or none")
    return True


def ids(raw: Raw, column: str) -> pa.Array:
    """Ids of the source as text. Empty or negative ones count as absent (null); any other may come once.

    Raises:
        UserError: an id comes twice, or the column holds something else.
    """
    values = _one_array(raw, column)
    try:
        values = values.cast(pa.large_string())
    except pa.ArrowException:
        raise UserError(f"{raw.where}: {column!r} holds {values.type}, expected ids as texts or numbers; rename the "
                        f"column if it holds something else") from None
    absent = pc.or_kleene(pc.match_substring_regex(values, "^-[0-9]+$"), pc.equal(values, ""))
    values = pc.if_else(absent, pa.scalar(None, pa.large_string()), values)
    counts = pc.value_counts(values.drop_null())
    for entry in counts:
        if entry["counts"].as_py() > 1:
            value = entry["values"].as_py()
            places = np.flatnonzero(pc.fill_null(pc.equal(values, value), False).to_numpy(zero_copy_only=False))
            raise UserError(f"{raw.row(int(places[1]))}: {column} {value!r} was already in "
                            f"{raw.row(int(places[0])).removeprefix(raw.where + ', ')}; ids must be unique")
    return values


def numbers(raw: Raw, column: str) -> np.ndarray:
    """A column of finite numbers, also written as text (as in CSV): float64 [n].

    Raises:
        UserError: a value is missing, no number or not finite.
    """
    values = _one_array(raw, column)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = pa.array([None if text in ("", None) else _parsed(raw, column, place, text)
                           for place, text in enumerate(values.to_pylist())], pa.float64())
    if values.null_count:
        raise UserError(f"{raw.row(_first(pc.is_null(values)))}: {column} is missing; give a number")
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise UserError(f"{raw.row(0)}: {column} is {values[0].as_py()!r} ({values.type}), expected a number")
    found = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if not np.isfinite(found).all():
        place = int(np.argmin(np.isfinite(found)))
        raise UserError(f"{raw.row(place)}: {column} {found[place]:g} is not finite; give a number")
    return found


def _parsed(raw: Raw, column: str, place: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{raw.row(place)}: {column} {text!r} is no number") from None


def _one_array(raw: Raw, column: str) -> pa.Array:
    values = raw.table.column(column).combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values


def _first(mask: pa.Array) -> int:
    return pc.index(mask, True).as_py()
