"""Data of the user's own, by declaration only: `datasets.<name>.data` with `files`, and own out-of-domain files."""

import re
from dataclasses import replace
from pathlib import Path

from kdcore.data import files
from kdcore.data.checks import Columns, clean
from kdcore.data.parts import Part
from kdcore.data.prepared import Role
from kdcore.data.raw import Raw
from kdcore.data.specs import CLASS_METRICS, SCORE_METRICS, SPECS, built_in, partners
from kdcore.data_config import Data, OutOfDomain
from kdcore.errors import UserError, did_you_mean

NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")
ID_COLUMNS = ("id", "idx")
_FILES_ONLY = ("text", "text_pair", "label", "labels", "score_range")
_BUILT_IN_ONLY = ("source", "revision", "ood_sets", "margin")


def check_declaration(name: str, data: Data) -> None:
    """Refuse settings that do not go together.

    Raises:
        UserError: keys of own data beside a built-in dataset or the reverse, no training file, no way to select,
            augmentation beside files of answers, fewer than two or repeated labels, an empty score range, or metrics
            that do not fit.
    """
    place = f"datasets.{name}.data"
    if data.augment is not None and data.teacher_files is not None:
        raise UserError(f"{place} has `augment` beside `teacher_files`, but files hold no answers to rows that "
                        "augmentation makes; remove one of them, or name a model as pair.teacher")
    if data.files is None:
        _check_built_in(name, place, data)
        return
    if name in SPECS:
        raise UserError(f"{name} is a built-in dataset; give data of your own ({place}.files) another name")
    if not NAME.fullmatch(name):
        raise UserError(f"dataset name {name!r} becomes a folder name; use letters, digits, '_', '-' and '.' only")
    for key in _BUILT_IN_ONLY:
        if getattr(data, key) is not None:
            raise UserError(f"{place}.{key} is for built-in datasets, but {place}.files names data of your own; remove "
                            f"one of them")
    if data.files.train is None:
        raise UserError(f"{place}.files.train is missing; name the file with the training rows, e.g. data/train.csv")
    if data.files.validation is None and data.selection == "validation":
        raise UserError(f"{place}.files.validation is missing; name the file that chooses checkpoints, or set "
                        f"`selection: held_out` to keep a part of the training rows for that")
    _check_labels(place, data)


def _check_built_in(name: str, place: str, data: Data) -> None:
    spec = built_in(name)
    for key in _FILES_ONLY:
        if getattr(data, key) is not None:
            raise UserError(f"{place}.{key} describes files of your own, but there are no {place}.files; name them, or "
                            f"remove `{key}`: built-in datasets bring their own")
    if data.margin is not None and spec.margin is None:
        raise UserError(f"{place}.margin = {data.margin:g} is for movies, where it decides which ratings become "
                        f"classes; remove it")
    partners(spec, data.ood_sets)
    check_metrics(place, data.metrics, spec.labels)


def _check_labels(place: str, data: Data) -> None:
    if data.labels is not None:
        _check_names(f"{place}.labels", data.labels)
        if data.score_range is not None:
            raise UserError(f"{place} has `labels` (classes) and `score_range` (scores); remove one")
    if data.score_range is not None and not data.score_range[0] < data.score_range[1]:
        raise UserError(f"{place}.score_range = {list(data.score_range)} is empty; give the lowest score first")
    check_metrics(place, data.metrics, data.labels)


def check_metrics(place: str, metrics: tuple[str, ...], labels: tuple[str, ...] | None) -> None:
    """Refuse metrics that do not exist or do not fit classes or scores."""
    fitting = SCORE_METRICS if labels is None else CLASS_METRICS
    for metric in metrics:
        if metric not in fitting:
            kind = "scores (no `labels` are given)" if labels is None else f"{len(labels)} classes"
            raise UserError(f"{place}.metrics names {metric!r}, which does not fit {kind}; "
                            f"{did_you_mean(metric, fitting)}")
        if metric == "f1" and labels is not None and len(labels) != 2:
            raise UserError(f"{place}.metrics names 'f1', which is of class 1 of two, but there are {len(labels)} "
                            f"labels; use 'macro_f1'")
    if len(set(metrics)) != len(metrics):
        twice = next(metric for metric in metrics if metrics.count(metric) > 1)
        raise UserError(f"{place}.metrics names {twice!r} twice; name it once")


def _check_names(place: str, names: tuple[str, ...]) -> None:
    if len(names) < 2:
        raise UserError(f"{place} = {list(names)} is fewer than two classes; leave it out for scores")
    if len(set(names)) != len(names) or "" in names:
        wrong = next(name for name in names if not name or names.count(name) > 1)
        raise UserError(f"{place} names {wrong!r}{' twice' if wrong else ', which is empty'}; every class needs one "
                        f"name of its own")


def default_metrics(data: Data) -> tuple[str, ...]:
    """The metrics of own data where none are named."""
    return data.metrics or (SCORE_METRICS if data.labels is None else ("accuracy",))


def columns(data: Data) -> Columns:
    """The columns of own data; `text` and `label` are the names where none are given."""
    return Columns(data.text or "text", data.text_pair, data.label or "label", data.labels, data.score_range)


def read(study: Path, file: str, setting: str, *wanted: str | None) -> Raw:
    """The wanted columns of a table of the user's own, as far as they are there, and those that may hold ids."""
    return files.read(study, file, setting, {*wanted, *ID_COLUMNS}.__contains__)


def read_files(study: Path, name: str, data: Data) -> list[Part]:
    """The splits that `files` names, checked."""
    assert data.files is not None
    parts = []
    for split, role in (("train", "train"), ("validation", "select"), ("test", "report")):
        file = getattr(data.files, split)
        if file is None:
            continue
        like = columns(data)
        raw = read(study, file, f"datasets.{name}.data.files.{split}", like.text, like.text_pair, like.label)
        rows = clean(raw, replace(like, row_id=row_id(raw.table.column_names), may_hide=split == "test"))
        actual: Role = "test" if rows.hidden else role  # type: ignore[assignment]
        parts.append(Part(split, actual, rows, file, data.labels))
    return parts


def read_ood(study: Path, name: str, declared: dict[str, OutOfDomain], like: Columns) -> list[Part]:
    """The user's own out-of-domain files; columns and labels default to the dataset's (`like`).

    Raises:
        UserError: a bad file, a `label_map` with unknown names, or a class without a counterpart.
    """
    parts = []
    for ood_name, ood in declared.items():
        place = f"datasets.{name}.data.ood.{ood_name}"
        if not NAME.fullmatch(ood_name):
            raise UserError(f"{place}: the name becomes a file name; use letters, digits, '_', '-' and '.' only")
        labels = ood.labels or like.labels
        label_map = _label_map(place, ood, like.labels, labels)
        found = Columns(ood.text or like.text, ood.text_pair or like.text_pair, ood.label or like.label, labels,
                        like.score_range)
        raw = read(study, ood.file, f"{place}.file", found.text, found.text_pair, found.label)
        rows = clean(raw, replace(found, row_id=row_id(raw.table.column_names)))
        parts.append(Part(ood_name, "ood", rows, ood.file, labels, label_map))
    return parts


def _label_map(place: str, ood: OutOfDomain, names: tuple[str, ...] | None,
               own: tuple[str, ...] | None) -> dict[str, str]:
    if names is None or own is None:
        if ood.labels is not None or ood.label_map:
            raise UserError(f"{place} names labels, but the dataset has scores; remove `labels` and `label_map`")
        return {}
    _check_names(f"{place}.labels", own)
    for key in ood.label_map:
        if key not in names:
            raise UserError(f"{place}.label_map has {key!r}, which is no label of the dataset; "
                            f"{did_you_mean(key, names)}")
    complete = {label: ood.label_map.get(label, label) for label in names}
    for label, target in complete.items():
        if target not in own:
            meaning = "" if target == label else f" becomes {target!r}, which"
            raise UserError(f"{place}: the dataset's label {label!r}{meaning} is none of this file's labels "
                            f"{', '.join(own)}; say in `label_map` which of them it counts as")
    for target in own:
        if target not in complete.values():
            raise UserError(f"{place}: no label of the dataset becomes {target!r}, so its rows could never be right; "
                            f"give one an entry in `label_map`")
    return complete


def row_id(columns: list[str]) -> str | None:
    """The column with ids of rows; None where there is none."""
    return next((column for column in ID_COLUMNS if column in columns), None)
