"""Scores that papers print, in one table with ours."""

from collections.abc import Mapping, Sequence

from kdcore.analysis.comparison import NO_NUMBER, heading
from kdcore.analysis.results import DatasetResults
from kdcore.analysis.tables import Table, percent
from kdcore.config import Published
from kdcore.errors import UserError, did_you_mean


def table(published: Mapping[str, Published], everything: Sequence[DatasetResults]) -> Table | None:
    """Every number of which there is a published score: of our systems, then as published; None where there is none.

    Raises:
        UserError: a score is of a column that its dataset does not have.
    """
    shown = [(results, column) for results in everything for column in results.columns
             if any(column.name in one.scores.get(results.info.name, {}) for one in published.values())]
    for results in everything:
        known = [column.name for column in results.columns]
        for name, one in published.items():
            for column in one.scores.get(results.info.name, {}):
                if column not in known:
                    raise UserError(f"study.published, {name!r}: {results.info.name} has no column {column!r}; "
                                    f"{did_you_mean(column, known)}")
    if not shown:
        return None
    systems = dict.fromkeys(name for results in everything for name in results.systems)
    rows = [(name, *(percent(results.summary(name, column)) if results.has(name, column) else NO_NUMBER
                     for results, column in shown)) for name in systems]
    rows += [(f"{name}, published", *(_score(one, results, column.name) for results, column in shown))
             for name, one in published.items()]
    headings = [f"{results.info.name}\n{heading(column)}" for results, column in shown]
    sources = "; ".join(f"{name}: {one.source}" for name, one in published.items())
    return Table("Published numbers", ("", *headings), tuple(rows),
                 "Ours: mean ± sd over seeds, x 100. Published numbers were not measured here and are compared with "
                 f"nothing: data, budget, seeds and the choice of checkpoints may differ. Sources: {sources}.")


def _score(published: Published, results: DatasetResults, column: str) -> str:
    score = published.scores.get(results.info.name, {}).get(column)
    return NO_NUMBER if score is None else f"{score:.1f}"
