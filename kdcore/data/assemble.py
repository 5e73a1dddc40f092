"""A dataset as a study declares it: all splits read and checked, cut to size, their roles decided."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kdcore.data import builtin, own, teacher_files, unlabelled
from kdcore.data.answers import Aligned
from kdcore.data.checks import Columns
from kdcore.data.parts import Part
from kdcore.data.specs import built_in
from kdcore.data.splitting import draw, keys, shares
from kdcore.data_config import Data
from kdcore.errors import UserError

HELD_OUT = "held_out"


@dataclass(frozen=True)
class Assembled:
    """Everything of a prepared dataset but the token ids.

    `answers` are by split, of a teacher that is only files. `unlabelled` are the rows without labels with the ids of
    their own source, as they were before they joined the training split of `parts`.
    """

    labels: tuple[str, ...] | None
    score_range: tuple[float, float] | None
    metrics: tuple[str, ...]
    is_pair: bool
    parts: tuple[Part, ...]
    warnings: tuple[str, ...]
    answers: dict[str, Aligned] = field(default_factory=dict)
    unlabelled: Part | None = None


def assemble(study: Path, name: str, data: Data, usable: int) -> Assembled:
    """Read, check and cut a dataset; `usable` is the most tokens that both models take.

    Raises:
        UserError: the declaration does not fit together, a source is not there, or rows are wrong.
    """
    own.check_declaration(name, data)
    if data.files is None:
        spec = built_in(name)
        parts, warnings = builtin.read_splits(spec, data)
        parts += builtin.read_partners(spec, data, usable)
        like, metrics = builtin.columns(spec), data.metrics or spec.metrics
    else:
        parts, warnings = own.read_files(study, name, data), []
        like, metrics = own.columns(data), own.default_metrics(data)
    parts += own.read_ood(study, name, data.ood, like)
    _check_names(name, parts)
    whole = parts
    chosen, further = _train_rows(name, parts[0], data)
    unchosen = unlabelled.read(study, name, data, like, further)
    more = None if unchosen is None else unlabelled.choose(unchosen, data)
    parts = _select(name, [chosen, *parts[1:]], data)
    parts = [_eval_rows(part, data) if part.role != "train" else part for part in parts]
    extra = [more] if more else []
    answers = {}
    if data.teacher_files:
        of_files = [unchosen] if unchosen and unchosen.source != whole[0].source else []
        answers = teacher_files.read(study, name, data.teacher_files, like.labels, [*whole, *of_files],
                                     [*parts, *extra])
    warnings = [*warnings, *(text for part in (*parts, *extra) for text in part.rows.warnings),
                *_check_train(name, parts[0], like), *_overlaps(parts[0], parts[1:])]
    if more:
        warnings += _overlaps(more, parts)
        parts = [unlabelled.join(parts[0], more), *parts[1:]]
        if more.name in answers:
            answers[parts[0].name] = answers[parts[0].name].join(answers.pop(more.name))
    return Assembled(like.labels, like.score_range, metrics, like.text_pair is not None, tuple(parts), tuple(warnings),
                     answers, more)


def _check_names(name: str, parts: Sequence[Part]) -> None:
    names = [part.name for part in parts]
    reserved = (HELD_OUT, unlabelled.UNLABELLED)
    for taken in (*names, *reserved):
        if names.count(taken) > 1 or (taken in reserved and taken in names):
            raise UserError(f"datasets.{name}.data.ood.{taken} is also the name of another split; rename it")


def _train_rows(name: str, train: Part, data: Data) -> tuple[Part, Part]:
    """The training split cut to `train_rows`, and what is left of it."""
    if data.train_rows is None:
        return train, train.choose(np.zeros(len(train), bool))
    if data.train_rows > len(train):
        note = f" ({train.notes[0]})" if train.notes else ""
        raise UserError(f"datasets.{name}.data.train_rows = {data.train_rows:,} is more than the {len(train):,} rows "
                        f"of {train.source}{note}; lower it or remove it")
    rows = draw(len(train), data.train_rows, data.seed, "train")
    further = train.choose(np.setdiff1d(np.arange(len(train)), rows))
    note = f"{len(rows):,} of {len(train):,} rows, drawn with seed {data.seed}"
    return train.choose(rows, note) if len(rows) < len(train) else train, further


def _select(name: str, parts: Sequence[Part], data: Data) -> list[Part]:
    """Keep a part of the training rows for selection, if asked to; the validation split then only reports."""
    if data.selection == "validation":
        return list(parts)
    train, *others = parts
    kept = shares(train.rows.table, f"held out {data.seed}") < data.held_out_share
    if kept.all() or not kept.any():
        raise UserError(f"datasets.{name}.data.held_out_share = {data.held_out_share:g} of {len(train):,} training "
                        f"rows leaves none to {'train' if kept.all() else 'select'} on; change it or use more rows")
    share = f"held out of {train.source}, by a hash of the text (seed {data.seed})"
    held_out = replace(train.choose(kept, share), name=HELD_OUT, role="select")
    reports = [replace(part, role="report") if part.role == "select" else part for part in others]
    return [train.choose(~kept, f"without {kept.sum():,} rows held out"), held_out, *reports]


def _eval_rows(part: Part, data: Data) -> Part:
    """Cut an evaluation split to `eval_rows`: drawn, since published files may be sorted by label."""
    if data.eval_rows is None or data.eval_rows >= len(part):
        return part
    rows = draw(len(part), data.eval_rows, data.seed, part.name)
    return part.choose(rows, f"{len(rows):,} of {len(part):,} rows, drawn with seed {data.seed}")


def _check_train(name: str, train: Part, like: Columns) -> list[str]:
    """Warn about classes without training rows; refuse training rows that are all alike."""
    values = train.rows.table.column("label").to_numpy()
    if (values == values[0]).all():
        what = f"{values[0]:g}" if like.labels is None else repr(like.labels[values[0]])
        raise UserError(f"all {len(train):,} training rows of {name} ({train.source}) have {like.label} {what}; there "
                        f"is nothing to learn, give rows of at least two different labels")
    if like.labels is None:
        return []
    counts = np.bincount(values, minlength=len(like.labels))
    return [f"{train.source}: no training row has label {label!r}"
            for label, count in zip(like.labels, counts, strict=True) if count == 0]


def _overlaps(train: Part, others: Sequence[Part]) -> list[str]:
    """Count rows of other splits whose text is also among these."""
    texts = set(keys(train.rows.table))
    warnings = []
    for part in others:
        if part.role != "test" and (count := sum(key in texts for key in keys(part.rows.table))):
            warnings.append(f"{part.name}: {count:,} of {len(part):,} rows have a text that is also in {train.name}")
    return warnings
