"""The tables of a report: quality, differences with intervals, sizes, and what was measured on this machine."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kdcore.analysis.results import OOD_MEAN, TEACHER, Column, DatasetResults
from kdcore.analysis.statistics import FEWEST_SEEDS, summarise
from kdcore.analysis.tables import NAMES, Table, interval, percent

NOT_MEASURED = "not measured"
NO_NUMBER = "-"
FEW_ROWS = 300
"""A split with fewer rows is pointed out with the standard error that it entails."""

_CUT = re.compile(r"rows, drawn with seed \d+$")
_ABSENT = "Not measured: not on this machine; what is evaluated or trained here fills in."
_EPOCHS = ("s/epoch: training alone, without each run's first epoch, which warms up; the teacher's stored features "
           "are computed once beforehand and not counted.")


def quality(results: DatasetResults, columns: Sequence[Column], title: str) -> Table:
    """Teacher and methods by the columns given: mean and deviation over seeds, times 100."""
    rows = [(name + (" (!)" if system.degenerate_splits else ""),
             *(_cell(results, name, column) for column in columns))
            for name, system in results.systems.items()]
    return Table(title, ("", *(_heading(column) for column in columns)), tuple(rows),
                 _how_to_read(results, OOD_MEAN in columns))


def differences(results: DatasetResults, columns: Sequence[Column], title: str) -> Table:
    """Every method minus every baseline, one row per number."""
    rows = []
    for method, baseline in results.comparisons():
        for column in columns:
            found = results.difference(method, baseline, column)
            in_sd = "" if found.in_sd is None else f"{found.in_sd:+.1f}"
            rows.append((f"{method} - {baseline}", _heading(column).replace("\n", " "), interval(found), in_sd,
                         found.verdict))
    return Table(title, ("", "on", "difference", "in sd", "verdict"), tuple(rows),
                 "Difference of means x 100 over the seeds that both have, with its 95 % interval over examples "
                 "(bootstrap) and seeds (Student's t). `in sd`: in units of the pooled deviation over seeds. An "
                 "interval that holds 0 is not distinguishable from noise; with fewer than "
                 f"{FEWEST_SEEDS} seeds nothing is tested.")


def overview(everything: Sequence[DatasetResults]) -> Table:
    """All datasets side by side: the mean of each dataset's metrics on its own labelled splits."""
    names = list(dict.fromkeys(name for results in everything for name in results.systems))
    shown = [(results, split) for results in everything for split in results.in_domain if split != "held_out"]
    headings, rows = [], []
    for results, split in shown:
        metrics = "+".join(NAMES.get(name, name) for name in results.info.metrics)
        headings.append(f"{results.info.name}\n{split}\n{metrics}")
    for name in names:
        scored = [results.has(name, Column(split, "")) for results, split in shown]
        cells = [percent(results.mean_of_metrics(name, split)) if there else NO_NUMBER
                 for (results, split), there in zip(shown, scored, strict=True)]
        whole = all(scored)
        means = [np.mean([results.mean_of_metrics(name, split).mean for owner, split in shown if owner is results])
                 for results in everything] if whole else []
        rows.append((name, *cells, f"{100 * np.mean(means):.1f}" if whole else NO_NUMBER))
    return Table("All datasets", ("", *headings, "mean of\ndatasets"), tuple(rows),
                 "Mean ± sd over seeds, x 100; where a dataset has two metrics, of their mean.")


def overview_out_of_domain(everything: Sequence[DatasetResults]) -> Table | None:
    """The sets of another domain of all datasets, with their unweighted mean per seed; None for fewer than two.

    The mean of RAIL-KD (Haidar et al. 2022): of accuracies only, so sets that are scored by correlation are left out.
    """
    shown = [(results, Column(split, "accuracy")) for results in everything if results.info.labels
             for split in results.in_the_mean]
    if len({results.info.name for results, _ in shown}) < 2:
        return None
    rows = []
    for name in dict.fromkeys(name for results in everything for name in results.systems):
        cells = [_cell(results, name, column) for results, column in shown]
        values = [results.values(name, column) for results, column in shown if results.has(name, column)]
        whole = len(values) == len(shown) and len({len(seeds) for seeds in values}) == 1
        mean = percent(summarise([float(np.mean(seed)) for seed in zip(*values, strict=True)])) if whole else NO_NUMBER
        rows.append((name, *cells, mean))
    headings = [f"{column.split}\nfrom {results.info.name}" for results, column in shown]
    return Table("Out of domain", ("", *headings, "mean"), tuple(rows),
                 "Accuracy x 100, mean ± sd over seeds; the last column is the unweighted mean of the sets.")


def sizes(results: DatasetResults) -> Table:
    """Parameters and bytes, which follow from the models alone."""
    rows = [(name, *(_millions(system.size.get(f"{part}parameters")) for part in ("", "transformer_", "embedding_")),
             _megabytes(system.size, digits=1)) for name, system in results.systems.items()]
    return Table(f"Size: {results.info.name}", ("", "parameters M", "transformer M", "embeddings M", "file MB"),
                 tuple(rows), "Parameters without the classification head; the pooler belongs to the transformer.")


def cost(results: DatasetResults, measured: Mapping[str, Mapping[str, Any]]) -> Table:
    """Sizes joined with this machine's measurements; `measured` holds latency and epoch seconds by system."""
    teacher = measured.get(TEACHER, {}).get("epoch_seconds")
    rows = []
    for name, system in results.systems.items():
        own = measured.get(name, {})
        absent = NOT_MEASURED if system.size else NO_NUMBER
        latency = own.get("latency", {})
        one, many = latency.get("batch_1"), latency.get("batch_32")
        seconds = own.get("epoch_seconds")
        rows.append((name, _millions(system.size.get("parameters")), _megabytes(system.size, digits=0),
                     _milliseconds(one) or absent, _milliseconds(many) or absent,
                     f"{latency['peak_memory_bytes'] / 2**20:.0f}" if latency else absent,
                     f"{seconds / teacher:.2f}" if seconds and teacher else absent))
    incomplete = any(NOT_MEASURED in row for row in rows)
    caption = [_machine(measured), _EPOCHS if teacher else "", _ABSENT if incomplete else ""]
    return Table(f"Cost: {results.info.name}",
                 ("", "params\nM", "file\nMB", "ms, batch 1\np50 / p95", "ms, batch 32\np50 / p95", "memory\nMiB",
                  "s/epoch,\nteacher = 1"), tuple(rows), " ".join(filter(None, caption)))


def notes(results: DatasetResults) -> list[str]:
    """What a reader must know of the numbers: where rows come from, and every reason to doubt a number."""
    info = results.info
    said = [f"`{name}`: {split.rows:,} rows ({split.role}){f'; {split.note}' if split.note else ''}"
            for name, split in info.splits.items()]
    return said + doubts(results)


def doubts(results: DatasetResults) -> list[str]:
    """Cut or tiny splits, weak teachers, degenerate models, missing systems, warnings of preparation and training."""
    info, said = results.info, []
    splits = (*results.in_domain, *results.out_of_domain)
    cut = [split for split in splits if _CUT.search(info.splits[split].note)]  # the last note is that of the last cut
    if cut:
        parts = ", ".join(f"{info.splits[split].rows:,} of `{split}`" for split in cut)
        said.append(f"**Evaluated on random parts (`eval_rows`): {parts}.** Not to be compared with numbers on the "
                    "whole sets.")
    for split in splits:
        rows = info.splits[split].rows
        if split not in cut and rows < FEW_ROWS:
            said.append(f"**`{split}` has only {rows} rows**: an accuracy of 80 % there has a standard error of "
                        f"{100 * (0.16 / rows) ** 0.5:.1f} points.")
    if check := next((run["training"]["check"] for name, system in results.systems.items() if name == TEACHER
                      for run in system.runs.values() if "check" in run["training"]), None):
        weak = "" if check["teacher"] > check["constant"] else "**The teacher is no better than a constant answer.** "
        alone = ", ".join(f"{100 * score:.1f}" for score in check.get("members", ()))
        said.append(f"{weak}Always answering {check['answer']} scores {100 * check['constant']:.1f} on "
                    f"`{check['split']}`, the teacher {100 * check['teacher']:.1f}"
                    f"{f' (its members {alone})' if alone else ''}.")
    said += [f"**{name} was not evaluated** and is missing from the tables." for name in results.missing]
    for name, system in results.systems.items():
        if where := system.degenerate_splits:
            said.append(f"**{name} (!) is degenerate** on {', '.join(where)}: some run gives every row the same "
                        "answer, or a metric is undefined there and counted as 0.")
        warned: dict[str, list[str]] = {}
        for run, content in system.runs.items():
            for warning in content["training"].get("warnings", ()):
                warned.setdefault(warning, []).append(run)
        said += [f"{name} ({', '.join(runs)}): {warning}" for warning, runs in warned.items()]
    return said + [str(warning) for warning in info.warnings]


def selection(results: DatasetResults) -> str:
    """Which rows chose the checkpoints and which are reported."""
    reported = [split for split in results.in_domain if split != results.select]
    if not reported:
        return (f"Checkpoints were selected on `{results.select}` and are reported on the same rows, as papers do with "
                "GLUE; this flatters every method a little")
    return (f"Checkpoints were selected on `{results.select}`; "
            f"{', '.join(f'`{split}`' for split in reported)} had no part in the selection")


def _how_to_read(results: DatasetResults, with_mean: bool) -> str:
    seeds = {len(system.metrics) for name, system in results.systems.items() if name != TEACHER}
    count = " to ".join(str(n) for n in sorted({min(seeds), max(seeds)})) if seeds else "0"
    mean = f" Out-of-domain mean: unweighted, of {', '.join(results.in_the_mean)}." if with_mean else ""
    return f"Mean ± sd over n = {count} seeds, x 100. {selection(results)}.{mean}"


def _heading(column: Column) -> str:
    if column == OOD_MEAN:
        return "out-of-domain\nmean"
    return f"{column.split}\n{NAMES.get(column.metric, column.metric)}"


def _cell(results: DatasetResults, system: str, column: Column) -> str:
    return percent(results.summary(system, column)) if results.has(system, column) else NO_NUMBER


def _millions(count: int | None) -> str:
    return NO_NUMBER if count is None else f"{count / 1e6:.2f}"


def _megabytes(size: Mapping[str, int], digits: int) -> str:
    return f"{size['weight_bytes'] / 1e6:.{digits}f}" if size else NO_NUMBER


def _milliseconds(latency: Mapping[str, float] | None) -> str:
    return f"{latency['p50_ms']:.1f} / {latency['p95_ms']:.1f}" if latency else ""


def _machine(measured: Mapping[str, Mapping[str, Any]]) -> str:
    found = [own["latency"] for own in measured.values() if own.get("latency")]
    if not found:
        return ""
    return (f"Measured on {found[0]['device']}, {found[0]['threads']} threads, fp32, at real lengths; memory is the "
            f"peak of the {found[0]['peak_memory_of']}.")
