"""All datasets of a study side by side: the main table, out of domain, wins and losses, average ranks."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from kdcore.analysis.comparison import NO_NUMBER, Differences, best, cell, marks_told
from kdcore.analysis.measured import Measured
from kdcore.analysis.overview_plots import CostPanel
from kdcore.analysis.ranks import FEWEST_METHODS, Ranking, fewest_datasets, rank
from kdcore.analysis.results import BASELINES, TEACHER, Column, DatasetResults
from kdcore.analysis.statistics import ALPHA, FEWEST_SEEDS, Difference, corrected, summarise
from kdcore.analysis.tables import NAMES, Table, percent, probability


class Overview:
    """What the datasets of a study say together. Each stands with its headline number."""

    def __init__(self, everything: Sequence[DatasetResults]) -> None:
        self.everything = everything
        self.names = list(dict.fromkeys(name for results in everything for name in results.systems))
        self.shown = [(results, results.headline) for results in everything]

    @cached_property
    def differences(self) -> Sequence[Differences]:
        """Of each dataset, on its headline number; all corrected as one family."""
        return _one_family(self.shown)

    def in_short(self) -> list[str]:
        """The main table in a few sentences."""
        means = {name: float(np.mean([results.summary(name, column).mean for results, column in self.shown]))
                 for name in self.names if all(results.has(name, column) for results, column in self.shown)}
        said = []
        if students := {name: mean for name, mean in means.items() if name != TEACHER}:
            first = max(students, key=lambda name: students[name])
            beside = f"; the teacher has {100 * means[TEACHER]:.1f}" if TEACHER in means else ""
            said.append(f"Highest of all students: `{first}` with {100 * students[first]:.1f}{beside}. "
                        f"Numbers: {self.quality_told()}.")
        for file in BASELINES:
            found = [(difference, f"`{name}` on {results.info.name}")
                     for (results, _), one in zip(self.shown, self.differences, strict=True)
                     for (name, baseline, _), difference in one.items() if results.is_baseline(baseline, file)]
            if not found:
                continue
            tested = [difference for difference, _ in found if difference.p is not None]
            if not tested:
                said.append(f"Nothing is said of differences from `{file}`: fewer than {FEWEST_SEEDS} seeds.")
                continue
            sides = [f"{side}: {', '.join(which)}" for side in ("better", "worse")
                     if (which := [what for difference, what in found if difference.verdict == side])]
            alike = sum(difference.verdict == "not distinguishable" for difference in tested)
            count = "1 comparison" if len(tested) == 1 else f"{len(tested)} comparisons"
            said.append(f"Against `{file}`, {count} of a method on a dataset: "
                        f"{'; '.join([*sides, f'{alike} not distinguishable'])}.{_open(found)}")
        return said

    def quality_told(self) -> str:
        """Which numbers stand for the datasets."""
        where = ", ".join(f"{results.info.name} ({column.split}, {metrics(results)})" for results, column in self.shown)
        over = ", averaged over the datasets" if len(self.shown) > 1 else ""
        return f"means over seeds, x 100, of {where}{over}"

    def main(self) -> Table:
        """Methods by datasets, as papers print it."""
        headings = [f"{results.info.name}\n{column.split}\n{metrics(results)}" for results, column in self.shown]
        rows = []
        for name in self.names:
            cells = [cell(results, name, column, found)
                     for (results, column), found in zip(self.shown, self.differences, strict=True)]
            means = [results.summary(name, column).mean for results, column in self.shown if results.has(name, column)]
            mean = f"{100 * np.mean(means):.1f}" if len(means) == len(self.shown) else NO_NUMBER
            rows.append((name, *cells, mean))
        told = marks_told([found for one in self.differences for found in one.values()])
        return Table("All datasets", ("", *headings, "mean of\ndatasets"), tuple(rows),
                     "Mean ± sd over seeds, x 100; where a dataset has two metrics, of their mean. Of each dataset the "
                     f"first split without a part in the selection of checkpoints, where there is one. {told}",
                     best(self.names, self.shown))

    def outside(self) -> Table | None:
        """The sets of another domain of all datasets, with their unweighted mean per seed; None for fewer than two.

        The mean of RAIL-KD (Haidar et al. 2022): of accuracies only, so sets that are scored by correlation are left
        out.
        """
        shown = [(results, Column(split, "accuracy")) for results in self.everything if results.info.labels
                 for split in results.in_the_mean]
        if len({results.info.name for results, _ in shown}) < 2:
            return None
        families, rows = _one_family(shown), []
        for name in self.names:
            cells = [cell(results, name, column, found)
                     for (results, column), found in zip(shown, families, strict=True)]
            values = [results.values(name, column) for results, column in shown if results.has(name, column)]
            whole = len(values) == len(shown) and len({len(seeds) for seeds in values}) == 1
            mean = percent(summarise([float(np.mean(seed)) for seed in zip(*values, strict=True)])) if whole \
                else NO_NUMBER
            rows.append((name, *cells, mean))
        headings = [f"{column.split}\nfrom {results.info.name}" for results, column in shown]
        told = marks_told([found for one in families for found in one.values()])
        return Table("Out of domain", ("", *headings, "mean"), tuple(rows),
                     "Accuracy x 100, mean ± sd over seeds; the last column is the unweighted mean of the sets. "
                     f"{told}", best(self.names, shown))

    def wins(self) -> Table | None:
        """On how many datasets each method is better, not distinguishable and worse; None without baselines."""
        students = [name for name in self.names if name != TEACHER]
        counted = {file: {name: self._counts(name, file) for name in students} for file in BASELINES}
        counted = {file: counts for file, counts in counted.items() if any(counts.values())}
        if not counted:
            return None
        ranking = self.ranking
        ranks = {name: f"{ranking.ranks[name]:.2f}" if name in ranking.ranks else NO_NUMBER
                 for name in students} if ranking else {}
        rows = [(name, *(counts[name] or NO_NUMBER for counts in counted.values()), *([ranks[name]] if ranks else []))
                for name in students]
        return Table("Wins and ranks", ("", *(f"against\n{file}" for file in counted),
                                        *(["average\nrank"] if ranks else [])), tuple(rows),
                     "Datasets where the method is better / not distinguishable / worse on the main table's number, by "
                     f"its corrected p; in brackets those with fewer than {FEWEST_SEEDS} seeds, which are not tested. "
                     f"{self.ranks_told()}")

    @cached_property
    def ranking(self) -> Ranking | None:
        """Of the students that every dataset has; None where there are too few of either to rank."""
        scores = {name: [results.summary(name, column).mean for results, column in self.shown] for name in self.names
                  if name != TEACHER and all(results.has(name, column) for results, column in self.shown)}
        if len(scores) < FEWEST_METHODS or len(self.shown) < fewest_datasets(len(scores)):
            return None
        return rank(scores)

    def ranks_told(self) -> str:
        """What the average ranks say, or why there are none."""
        found = self.ranking
        if found is None:
            return (f"No ranks: they need {FEWEST_METHODS} methods on {fewest_datasets(FEWEST_METHODS)} datasets, with "
                    "fewer no two methods could be told apart by them.")
        apart = ("Friedman's test finds no difference among them, so no two ranks are to be compared"
                 if found.p >= ALPHA else
                 f"methods whose ranks differ by less than {found.critical:.2f} (Nemenyi, 5 %) cannot be told apart")
        return (f"Ranks over {found.datasets} datasets, 1 is best: {apart} (chi-square {found.chi_square:.2f}, "
                f"p {probability(found.p)}, which is rough below ten datasets).")

    def costs(self, measured: Measured | None) -> list[CostPanel]:
        """Quality against size and, where measured, against this machine's times; means over the datasets."""
        def panel(label: str, cost: Callable[[str, str], float | None]) -> CostPanel:
            points = {}
            for name in self.names:
                found = [cost(results.info.name, name) for results, _ in self.shown]
                values = [value for value in found if value is not None]
                if len(values) == len(self.shown) and all(results.has(name, column) for results, column in self.shown):
                    means = [results.summary(name, column).mean for results, column in self.shown]
                    points[name] = (float(np.mean(values)), 100 * float(np.mean(means)))
            return CostPanel(label, points)

        def size(dataset: str, name: str) -> float | None:
            systems = next(results.systems for results in self.everything if results.info.name == dataset)
            parameters = systems[name].size.get("parameters") if name in systems else None
            return None if parameters is None else parameters / 1e6

        def latency(dataset: str, name: str) -> float | None:
            found = measured.cost(dataset, name).get("latency") if measured else None
            return found["batch_1"]["p50_ms"] if found else None

        def training(dataset: str, name: str) -> float | None:
            if measured is None or not (teacher := measured.cost(dataset, TEACHER).get("train_seconds")):
                return None
            seconds = measured.cost(dataset, name).get("train_seconds")
            return None if seconds is None else seconds / teacher

        panels = [panel("parameters, M", size), panel("latency at batch 1, ms", latency),
                  panel("training time, teacher = 1", training)]
        return [one for one in panels if one.points]

    def costs_table(self, measured: Measured | None) -> Table:
        """The numbers of the picture of costs."""
        panels = self.costs(measured)
        rows = []
        for name in self.names:
            if found := {panel.label: panel.points[name] for panel in panels if name in panel.points}:
                (_, quality), *_ = found.values()
                costs = (f"{found[panel.label][0]:.2f}" if panel.label in found else NO_NUMBER for panel in panels)
                rows.append((name, f"{quality:.1f}", *costs))
        return Table("", ("", "quality x 100", *(panel.label for panel in panels)), tuple(rows))

    def _counts(self, method: str, file: str) -> str:
        """`2 / 1 / 0`; empty where the method was never compared with this baseline."""
        verdicts = [found.verdict for (results, _), one in zip(self.shown, self.differences, strict=True)
                    for (name, baseline, _), found in one.items()
                    if name == method and results.is_baseline(baseline, file)]
        if not verdicts:
            return ""
        untested = verdicts.count("not tested")
        counts = " / ".join(str(verdicts.count(verdict)) for verdict in ("better", "not distinguishable", "worse"))
        return counts + (f" ({untested})" if untested else "")


def _open(found: Sequence[tuple[Difference, str]]) -> str:
    """Which differences more seeds may bring out: those that the correction alone keeps from a verdict."""
    which = [f"{what} ({100 * difference.mean:+.1f})" for difference, what in found
             if difference.p is not None and difference.p < ALPHA and difference.verdict == "not distinguishable"]
    return f" p is below 0.05 before the correction: {', '.join(which)}; more seeds would tell." if which else ""


def metrics(results: DatasetResults) -> str:
    """A dataset's metrics as a heading: `F1+acc`."""
    return "+".join(NAMES.get(name, name) for name in results.info.metrics)


def _one_family(shown: Sequence[tuple[DatasetResults, Column]]) -> Sequence[Differences]:
    """The differences on each number shown, corrected for the comparisons on all of them."""
    pairs = [(place, results, (method, baseline, column)) for place, (results, column) in enumerate(shown)
             for method, baseline in results.comparisons()
             if results.has(method, column) and results.has(baseline, column)]
    found = corrected([results.difference(*pair) for _, results, pair in pairs])
    families: list[dict[tuple[str, str, Column], Difference]] = [{} for _ in shown]
    for (place, _, pair), difference in zip(pairs, found, strict=True):
        families[place][pair] = difference
    return families
