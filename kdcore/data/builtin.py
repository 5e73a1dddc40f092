"""The built-in datasets read from their sources and checked: GLUE, its out-of-domain partners, rated snippets."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow.compute as pc

from kdcore.data import hub, ratings
from kdcore.data.checks import Columns, Rows, clean
from kdcore.data.parts import Part
from kdcore.data.raw import Raw
from kdcore.data.specs import OodSpec, Spec, partners
from kdcore.data_config import Data
from kdcore.errors import UserError, did_you_mean


def columns(spec: Spec) -> Columns:
    """The columns of a built-in dataset."""
    return Columns(spec.text, spec.text_pair, spec.label, spec.labels, spec.score_range, row_id=spec.row_id)


def read_splits(spec: Spec, data: Data) -> tuple[list[Part], list[str]]:
    """The splits of a built-in dataset, and warnings about absent optional ones.

    Raises:
        UserError: a split is missing, or rows are not as declared.
    """
    source = data.source or spec.source
    if spec.ratings:
        return _rated_splits(spec, source, data), []
    splits = hub.read(source, spec.config, data.revision)
    parts, warnings = [], []
    for split in spec.splits:
        if split.name not in splits and split.optional:
            warnings.append(f"{source} {spec.config} here has no split {split.name!r}: no predictions for a submission")
            continue
        raw = _split(splits, split.name, f"{source} {spec.config}")
        rows = clean(raw, replace(columns(spec), may_hide=split.role == "test"))
        parts.append(Part(split.name, split.role, rows, f"{source} {spec.config} {split.name}", spec.labels,
                          notes=tuple(filter(None, [_subset(rows, split.official_rows)]))))
    return parts, warnings


def read_partners(spec: Spec, data: Data, usable: int) -> list[Part]:
    """The out-of-domain partners that a study uses; `usable` bounds their own token limits.

    Raises:
        UserError: an unknown partner, or its source is not there (says how to go on without it).
    """
    parts = []
    chosen = partners(spec, data.ood_sets)
    for partner in chosen:
        limit = None if partner.max_length is None else min(partner.max_length, usable)
        try:
            if spec.ratings:
                assert partner.config is not None
                rows, note = ratings.rows(data.source or partner.source, partner.config, partner.labels,
                                          margin(spec, data))
            else:
                rows = _partner(partner)
                note = _subset(rows, partner.official_rows)
        except UserError as error:
            others = ", ".join(other.name for other in chosen if other.name != partner.name)
            raise UserError(f"out-of-domain set {partner.name}: {error}; or leave it out with "
                            f"datasets.{spec.name}.data.ood_sets: [{others}]") from None
        notes = tuple(text for text in (note, f"up to {limit} tokens" if limit else "") if text)
        parts.append(Part(partner.name, "ood", rows, f"{partner.source} {partner.config or partner.split}",
                          partner.labels, partner.label_map, notes, limit))
    return parts


def margin(spec: Spec, data: Data) -> float | None:
    """Ratings nearer to zero than this are dropped; None keeps them as scores."""
    return spec.margin if data.margin is None else data.margin


def _rated_splits(spec: Spec, source: str, data: Data) -> list[Part]:
    assert spec.config is not None
    rows, note = ratings.rows(source, spec.config, spec.labels, margin(spec, data))
    whole = Part(spec.name, "train", rows, f"{spec.source} {spec.config}", spec.labels)
    masks = ratings.cut(rows.table)
    parts = []
    for split in spec.splits:
        share = f"{split.name} part, by a hash of the text{f', of {note}' if note else ''}"
        parts.append(replace(whole.choose(masks[split.name], share), name=split.name, role=split.role))
    return parts


def _partner(partner: OodSpec) -> Rows:
    splits = hub.read(partner.source, partner.config, None, partner.help)
    raw = _split(splits, partner.split, partner.source)
    if partner.strip is not None:
        text = raw.table.column(partner.text)
        position = raw.table.column_names.index(partner.text)
        cleaned = pc.replace_substring(text, partner.strip, " ")
        raw = replace(raw, table=raw.table.set_column(position, partner.text, cleaned))
    return clean(raw, Columns(partner.text, partner.text_pair, partner.label, partner.labels, aliases=partner.aliases))


def _split(splits: Mapping[str, Raw], name: str, where: str) -> Raw:
    if name not in splits:
        raise UserError(f"{where} has no split {name!r}; {did_you_mean(name, splits)}")
    return splits[name]


def _subset(rows: Rows, official: int) -> str:
    found = rows.table.num_rows
    return "" if found == official else f"subset: {found:,} of the official {official:,} rows"
