"""How far apart random selections of knowledge end: best, worst and their difference over repetitions.

The probing experiments of Wang et al., Findings of EMNLP 2022, "Improved Knowledge Distillation for Pre-trained
Language Models via Knowledge Selection", section 4, which repeat Random-All and Random-One 200 times to show that it
matters what a student learns when. A repetition is a seed of the study here. A seed orders the rows too and makes the
dropout, so the same knowledge without any draw stands beside: what it varies by is no matter of selection.
"""

from typing import Any

from kdcore.analysis.results import DatasetResults, System
from kdcore.analysis.tables import NAMES, Table

METHOD = "knowledge_mix"
CALLED = {"random_hard": "Random-All", "random_one": "Random-One", "random_soft": "Random-Soft", "fixed": "no draw"}
"""The selections of `knowledge_mix` in the words of the paper."""


def repeated_selections(results: DatasetResults) -> Table | None:
    """Random selections of a dataset over their seeds, on all of its own splits; None where none was repeated."""
    repeated = {name: found for name, system in results.systems.items()
                if len(system.runs) > 1 and (found := _settings(system)) is not None}
    drawn = [found["knowledge"] for found in repeated.values() if found["selection"] != "fixed"]
    if not drawn:
        return None
    rows = []
    for name, found in repeated.items():
        if found["selection"] == "fixed" and found["knowledge"] not in drawn:
            continue
        for column in (column for column in results.columns if column.split in results.in_domain):
            values = results.values(name, column)
            best, worst = 100 * max(values), 100 * min(values)
            rows.append((name, CALLED[found["selection"]], f"{column.split} {NAMES.get(column.metric, column.metric)}",
                         f"{best:.1f}", f"{worst:.1f}", f"{best - worst:.1f}", str(len(values))))
    return Table(f"Repeated random selections: {results.info.name}",
                 ("", "selection", "on", "best", "worst", "difference", "n"), tuple(rows),
                 "Best and worst of n seeds, x 100, as in section 4 of Wang et al. (2022), who repeat 200 times and "
                 "report dev. Seeds also order the rows: what varies without any draw is no matter of selection. More "
                 "repetitions lie further apart.")


def _settings(system: System) -> dict[str, Any] | None:
    """The hyper-parameters of a selection that is drawn or fixed; None for any other method."""
    found: dict[str, Any] = next(iter(system.runs.values()))["training"].get("method", {})
    return found if found.get("name") == METHOD else None
