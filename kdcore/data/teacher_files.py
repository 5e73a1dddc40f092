"""Answers of a teacher that is only files: read, checked, and brought into the order of the dataset's rows.

A file holds an example id (`id` or `idx`) and, per class, `probability:NAME` or `logit:NAME`; for scores, `score`. In
JSON lines `probabilities` or `logits` may also be one object per row, `{"NAME": number, ...}`. Ids are those of the
raw data where its rows have ids (GLUE's `idx`, an `id` column of the user's own file), else the number of the row in
the raw file, counted from 0: so they mean the same whatever part of the rows a study draws.

A probability p becomes the logit log max(p, FLOOR): softmax gives p back, up to the floor, which keeps a certain
answer (1, 0) finite. Probabilities that sum to 1 within ROUNDING are divided by their sum first.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdcore.data import files
from kdcore.data.answers import LOGIT, PROBABILITY, SCORE, Aligned, Holds, Source
from kdcore.data.checks import ids, numbers
from kdcore.data.own import ID_COLUMNS
from kdcore.data.parts import Part
from kdcore.data.raw import Raw
from kdcore.data.unlabelled import UNLABELLED
from kdcore.errors import UserError, did_you_mean

FLOOR = 1e-6
"""Least probability: about what a confident classifier gives; its log is -13.8."""
ROUNDING = 0.02
"""How far a sum of probabilities may be from 1: three classes rounded to two digits miss it by up to 0.015."""
SHOWN = 5

_NESTED = {"probabilities": PROBABILITY, "logits": LOGIT}


def read(study: Path, name: str, named: Mapping[str, str], labels: tuple[str, ...] | None, whole: Sequence[Part],
         parts: Sequence[Part]) -> dict[str, Aligned]:
    """The answers of a dataset's teacher, aligned with its rows.

    Args:
        named: file by split, relative to the study and inside its `data/`.
        whole: the splits as their sources have them.
        parts: the splits as they are prepared. Rows held out of a split are answered by that split's file, if at all;
            further rows of the training split, without labels, by that split's file too. Rows without labels of a file
            are a split `unlabelled` of `whole` and `parts`.

    Returns:
        By split, in their order.

    Raises:
        UserError: no such split; a file cannot be read; a column, id or number in it is wrong; an id that no row has,
            or rows of two splits that one file is named for; or a row of a named split without an answer.
    """
    known = {part.name: part for part in whole}
    if UNLABELLED in known and UNLABELLED not in named:
        raise UserError(f"datasets.{name}.data.teacher_files has no entry `{UNLABELLED}`, but students learn from the "
                        f"teacher's answers to {known[UNLABELLED].source}; let the teacher answer its rows and name "
                        "the file")
    answers: dict[str, Aligned] = {}
    for split, file in named.items():
        setting = f"datasets.{name}.data.teacher_files.{split}"
        if split not in known:
            raise UserError(f"{setting} names a split that {name} does not have; {did_you_mean(split, known)}")
        raw = files.read(study, file, setting, _wanted(labels))
        given = _file_ids(raw)
        if not raw.table.num_rows:
            raise UserError(f"{raw.where} has no rows; expected one for each row of {split}")
        logits, holds = _logits(raw, labels)
        _refuse_unknown(raw, given, _ids_of_all(raw, [known[other] for other in known if named.get(other) == file]))
        source = Source(file, _sha256(study / file), holds)
        for part in parts:
            places = pc.index_in(part.ids, value_set=given)
            cut_out = split == whole[0].name and part.name not in known  # held out, or further rows without labels
            if places.null_count and (part.name == split or (cut_out and part.name == UNLABELLED)):
                _refuse_missing(raw, part, places)
            if part.name == split or (cut_out and not places.null_count):
                answers[part.name] = Aligned(source, logits[places.to_numpy()])
    return {part.name: answers[part.name] for part in parts if part.name in answers}


def _wanted(labels: tuple[str, ...] | None) -> files.Wanted:
    """The columns with ids or answers."""
    if labels is None:
        return {*ID_COLUMNS, SCORE}.__contains__
    return lambda column: column in (*ID_COLUMNS, *_NESTED) or column.startswith((PROBABILITY, LOGIT))


def _file_ids(raw: Raw) -> pa.Array:
    """The ids of a file, as text, each there and each once."""
    column = next((column for column in ID_COLUMNS if column in raw.table.column_names), None)
    if column is None:
        raise UserError(f"{raw.where} has no column 'id'; {did_you_mean('id', raw.names)} It says which "
                        "row each answer is for")
    found = ids(raw, column)
    if found.null_count:
        place = pc.index(pc.is_null(found), True).as_py()
        value = raw.table.column(column)[place].as_py()
        raise UserError(f"{raw.row(place)}: {column} is {value!r}, expected the id of a row; correct the id or remove "
                        "the line")
    return found


def _ids_of_all(raw: Raw, sharing: Sequence[Part]) -> pa.Array:
    """The ids of the splits that one file answers, which must tell them apart."""
    together = pa.concat_arrays([part.ids for part in sharing])
    counts = pc.value_counts(together.drop_null())
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        raise UserError(f"{raw.where} is named for {' and '.join(part.name for part in sharing)}, whose rows have the "
                        f"same ids (e.g. {twice[0]['values'].as_py()!r}); give each of them a file of its own")
    return together


def _refuse_unknown(raw: Raw, given: pa.Array, known: pa.Array) -> None:
    unknown = pc.is_null(pc.index_in(given, value_set=known))
    if count := pc.sum(unknown).as_py():
        place = pc.index(unknown, True).as_py()
        raise UserError(f"{raw.row(place)}: id {given[place].as_py()!r} is that of no row ({count:,} such ids in "
                        f"the file); ids are those of the raw data (e.g. {known[0].as_py()!r}) or, where it has "
                        "none, row numbers counted from 0")


def _refuse_missing(raw: Raw, part: Part, places: pa.Array) -> NoReturn:
    lacking = part.ids.filter(pc.is_null(places))
    if lacking.null_count:
        raise UserError(f"{lacking.null_count:,} rows of {part.source} have no id, so {raw.where} cannot answer them; "
                        "give every row an id, or remove the id column to use row numbers")
    shown = ", ".join(repr(value) for value in lacking[:SHOWN].to_pylist())
    raise UserError(f"{raw.where} has no answer for {len(lacking):,} of {len(part):,} rows of {part.name}, with the "
                    f"ids {shown}{', ...' if len(lacking) > SHOWN else ''}; let the teacher answer them too")


def _logits(raw: Raw, labels: tuple[str, ...] | None) -> tuple[np.ndarray, Holds]:
    """The answers [n, c] as logits in the order of the labels, and what the file holds."""
    raw = _flat(raw)
    columns = raw.table.column_names
    if labels is None:
        if SCORE not in columns:
            raise UserError(f"{raw.where} has no column {SCORE!r}; {did_you_mean(SCORE, raw.names)} The dataset has "
                            "scores, so its teacher's answers are scores too")
        return _float32(raw, _numbers(raw, [SCORE])), "scores"
    kinds = [start for start in (PROBABILITY, LOGIT) if any(column.startswith(start) for column in columns)]
    if len(kinds) != 1:
        wanted = " or ".join(f"'{start}{labels[0]}'" for start in (PROBABILITY, LOGIT))
        raise UserError(f"{raw.where} has {'both probabilities and logits' if kinds else 'no answers'} (columns "
                        f"{', '.join(raw.names)}); expected one column such as {wanted} for each of the labels "
                        f"{', '.join(labels)}")
    start = kinds[0]
    names = [column.removeprefix(start) for column in columns if column.startswith(start)]
    for label in names:
        if label not in labels:
            raise UserError(f"{raw.where}: column '{start}{label}' is of no label of the dataset; "
                            f"{did_you_mean(label, labels)}")
    for label in labels:
        if label not in names:
            raise UserError(f"{raw.where} has no column '{start}{label}'; every label of the dataset needs one "
                            f"({', '.join(labels)})")
    values = _numbers(raw, [f"{start}{label}" for label in labels])
    if start == LOGIT:
        _refuse_disguised(raw, values, labels)
        return _float32(raw, values), "logits"
    return _log(_distributions(raw, values, labels)), "probabilities"


def _flat(raw: Raw) -> Raw:
    """One column per class where a row holds an object of them."""
    table = raw.table
    for column, start in _NESTED.items():
        if column in table.column_names and pa.types.is_struct(table.column(column).type):
            objects = table.column(column).combine_chunks()
            for field in objects.type:
                name = f"{start}{field.name}"
                if name in table.column_names:
                    raise UserError(f"{raw.where} has '{name}' twice, as a column and in '{column}'; remove one")
                table = table.append_column(name, pc.struct_field(objects, field.name))
            table = table.drop_columns(column)
    return replace(raw, table=table)


def _numbers(raw: Raw, columns: Sequence[str]) -> np.ndarray:
    """Finite numbers: float64 [n, columns]."""
    return np.stack([numbers(raw, column) for column in columns], axis=1)


def _float32(raw: Raw, values: np.ndarray) -> np.ndarray:
    """The same in single precision, as answers are kept."""
    beyond = np.abs(values) > np.finfo(np.float32).max
    if beyond.any():
        place, column = np.argwhere(beyond)[0]
        raise UserError(f"{raw.row(place)}: {values[place, column]:g} is beyond the largest number that is kept "
                        f"({np.finfo(np.float32).max:.2g}); correct the answer")
    return values.astype(np.float32)


def _distributions(raw: Raw, values: np.ndarray, labels: tuple[str, ...]) -> np.ndarray:
    """Probabilities that are each in 0..1 and together 1."""
    outside = (values < 0) | (values > 1 + 1e-6)
    if outside.any():
        place, column = np.argwhere(outside)[0]
        raise UserError(f"{raw.row(place)}: {PROBABILITY}{labels[column]} {values[place, column]:g} is no probability, "
                        f"expected 0 to 1; for other numbers call the columns '{LOGIT}NAME'")
    sums = values.sum(axis=1, keepdims=True)
    wrong = np.abs(sums[:, 0] - 1) > ROUNDING
    if wrong.any():
        place = int(wrong.argmax())
        raise UserError(f"{raw.row(place)}: the probabilities sum to {sums[place, 0]:.4g}, expected 1; give those of "
                        f"all classes ({', '.join(labels)}), divided by their sum")
    return values / sums


def _refuse_disguised(raw: Raw, values: np.ndarray, labels: tuple[str, ...]) -> None:
    """Probabilities under the name of logits would teach next to nothing: softmax would flatten them."""
    if (values >= 0).all() and np.allclose(values.sum(axis=1), 1, atol=1e-3):
        raise UserError(f"{raw.where}: the columns '{LOGIT}NAME' hold probabilities (all of 0 to 1, with sum 1); call "
                        f"them '{PROBABILITY}{labels[0]}' and so on")


def _log(probabilities: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probabilities, FLOOR)).astype(np.float32)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
