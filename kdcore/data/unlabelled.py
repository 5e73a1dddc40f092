"""Rows without labels for the training split: texts of the user's own, or further rows of that split.

They are read and checked as any others and stand in no other split. Teachers answer them like labelled rows; label
losses leave them out, and a training that reads no teacher never sees them.
"""

from dataclasses import replace
from pathlib import Path

from kdcore.data import own
from kdcore.data.checks import Columns, clean
from kdcore.data.parts import SOURCE_ID, Part
from kdcore.data.splitting import draw
from kdcore.data_config import Data
from kdcore.errors import UserError

UNLABELLED = "unlabelled"
"""Name of these rows until they join the training split; no split may have it."""


def read(study: Path, name: str, data: Data, like: Columns, further: Part) -> Part | None:
    """The rows that `data.unlabelled` names, as a part of their own, before any are drawn; None where it names none.

    Args:
        like: the dataset's columns.
        further: rows of the training split beyond `train_rows`.

    Raises:
        UserError: the file cannot be read, has no such column or no text in a row; a second text where the
            dataset has none; or fewer rows than are asked for.
    """
    wanted, setting = data.unlabelled, f"datasets.{name}.data.unlabelled"
    if wanted is None:
        return None
    if wanted.file is None:
        assert wanted.rows is not None
        if data.train_rows is None:
            raise UserError(f"{setting} = {wanted.rows:,} takes rows of the training split beyond train_rows, which is "
                            f"not set; set datasets.{name}.data.train_rows, or name a file as {setting}")
        if wanted.rows > len(further):
            raise UserError(f"{setting} = {wanted.rows:,} is more than the {len(further):,} rows of {further.source} "
                            f"beyond train_rows = {data.train_rows:,}; lower one of them")
        part = replace(further.without_labels(), notes=("beyond train_rows", "their labels left out"))
        return replace(part, name=UNLABELLED)
    if wanted.text_pair is not None and like.text_pair is None:
        raise UserError(f"{setting}.text_pair = {wanted.text_pair!r}, but rows of {name} are single texts; remove it")
    text, text_pair = wanted.text or like.text, wanted.text_pair or like.text_pair
    raw = own.read(study, wanted.file, setting, text, text_pair)
    rows = clean(raw, replace(like, text=text, text_pair=text_pair, row_id=own.row_id(raw.table.column_names),
                              may_hide=True))
    part = Part(UNLABELLED, "train", rows, wanted.file, like.labels,
                notes=(f"whose column {like.label!r} is ignored",) if like.label in raw.unread else ())
    if wanted.rows is not None and wanted.rows > len(part):
        raise UserError(f"{setting}.rows = {wanted.rows:,} is more than the {len(part):,} rows of {wanted.file}; lower "
                        "it or remove it")
    return part


def choose(rows: Part, data: Data) -> Part:
    """Those of them that train: a seeded part of the size that is asked for, else all."""
    assert data.unlabelled is not None
    if data.unlabelled.rows is None:
        return rows
    return rows.choose(draw(len(rows), data.unlabelled.rows, data.seed, UNLABELLED), f"drawn with seed {data.seed}")


def join(train: Part, rows: Part) -> Part:
    """The training split with these rows behind its own. Of another source, they have no ids there."""
    table = rows.rows.table
    if rows.source != train.source and SOURCE_ID in table.column_names:
        table = table.drop_columns(SOURCE_ID)
    return train.join(table, ", ".join([f"then {len(rows):,} rows without labels, of {rows.source}", *rows.notes]))
