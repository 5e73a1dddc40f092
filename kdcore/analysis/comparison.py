"""The tables of one dataset: quality, differences with intervals, sizes, and what was measured on this machine."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kdcore.analysis.measured import Measured
from kdcore.analysis.results import OOD_MEAN, TEACHER, Column, DatasetResults
from kdcore.analysis.statistics import FEWEST_SEEDS, Difference
from kdcore.analysis.tables import NAMES, Table, interval, percent, plain, probability

NOT_MEASURED = "not measured"
NO_NUMBER = "-"
MARKS = {"finetune": "†", "vanilla_kd": "‡"}
"""What marks a number that differs from that of a baseline."""

Differences = Mapping[tuple[str, str, Column], Difference]
"""By method, baseline and column."""
FEW_ROWS = 300
"""A split with fewer rows is pointed out with the standard error that it entails."""

_CUT = re.compile(r"rows, drawn with seed \d+$")
_ABSENT = "Not measured: not on this machine; what is evaluated or trained here fills in."
_NO_LATENCY = "Latency and memory were not measured here: with `evaluation.latency`, what is evaluated here fills in."
_NO_TRAINING = "Training time was not measured here: what is trained here fills in, where the teacher is."
_MORE = ("`in sd`: in units of the pooled deviation over seeds. `p` belongs to the interval: below 0.05 where that "
         "leaves 0 out. ")
_TIMES = ("Times of training are of the whole run and of an epoch, the teacher's = 1, medians over seeds and over "
          "epochs without the first, which warms up. They are of the machine as it was: other work makes them longer. "
          "Evaluation does not count, nor do the teacher's stored features, which are computed once beforehand.")


def quality(results: DatasetResults, columns: Sequence[Column], title: str) -> Table:
    """Teacher and methods by the columns given: mean and deviation over seeds, times 100."""
    rows = [(name + (" (!)" if system.degenerate_splits else ""),
             *(cell(results, name, column, results.differences) for column in columns))
            for name, system in results.systems.items()]
    return Table(title, ("", *(heading(column) for column in columns)), tuple(rows),
                 f"{_how_to_read(results, columns)} {marks_told(results.differences.values())}",
                 best(list(results.systems), [(results, column) for column in columns]))


def differences(results: DatasetResults, columns: Sequence[Column], title: str, brief: bool = False) -> Table:
    """Every method minus every baseline, one row per number; brief without what the verdict does not go by.

    Where nothing is tested, for want of seeds, there is no more than the differences.
    """
    rows = []
    tested = any(results.differences[method, baseline, column].p is not None
                 for method, baseline in results.comparisons() for column in columns)
    for method, baseline in results.comparisons():
        for column in columns:
            found = results.differences[method, baseline, column]
            in_sd = "" if found.in_sd is None else f"{found.in_sd:+.1f}"
            rows.append((f"{method} - {baseline}", heading(column).replace("\n", " "), interval(found),
                         *([] if brief or not tested else [in_sd, probability(found.p)]),
                         *([probability(found.p_corrected)] if tested else []), found.verdict))
    if not tested:
        return Table(title, ("", "on", "difference", "verdict"), tuple(rows),
                     "Difference of means x 100 over the seeds that both have; with fewer than "
                     f"{FEWEST_SEEDS} seeds nothing is tested.")
    more = "" if brief else _MORE
    return Table(title, ("", "on", "difference", *([] if brief else ["in sd", "p"]), "p (Holm)", "verdict"),
                 tuple(rows), "Difference of means x 100 over the seeds that both have, with its 95 % interval over "
                 f"examples (bootstrap) and seeds (Student's t). {more}The verdict goes by p after Holm's correction "
                 f"for {family(results.differences.values(), 'all numbers of this dataset')}; with fewer than "
                 f"{FEWEST_SEEDS} seeds nothing is tested.")


def cell(results: DatasetResults, method: str, column: Column, differences: Differences) -> str:
    """Mean and deviation, and a mark for each baseline from which the method differs."""
    if not results.has(method, column):
        return NO_NUMBER
    differs = {file: any(found.verdict in ("better", "worse") for (name, baseline, on), found in differences.items()
                         if (name, on) == (method, column) and results.is_baseline(baseline, file)) for file in MARKS}
    marks = "".join(mark for file, mark in MARKS.items() if differs[file])
    return percent(results.summary(method, column)) + (f" {marks}" if marks else "")


def best(methods: Sequence[str], shown: Sequence[tuple[DatasetResults, Column]]) -> frozenset[tuple[int, int]]:
    """The cells (row, column) of the highest mean among students, all that print the same; column 0 is names."""
    found = set()
    for place, (results, column) in enumerate(shown, start=1):
        means = {row: round(100 * results.summary(name, column).mean, 1) for row, name in enumerate(methods)
                 if name != TEACHER and results.has(name, column)}
        if len(means) > 1:
            found |= {(row, place) for row, mean in means.items() if mean == max(means.values())}
    return frozenset(found)


def marks_told(differences: Collection[Difference]) -> str:
    """What marks and bold print of a table mean."""
    if not differences:
        return ""
    if all(found.p is None for found in differences):
        return f"Bold: best student. Nothing is tested with fewer than {FEWEST_SEEDS} seeds."
    marks = ", ".join(f"{mark} differs from `{file}`" for file, mark in MARKS.items())
    return f"Bold: best student. {marks} (p < 0.05 after Holm's correction for {family(differences, 'these numbers')})."


def family(differences: Collection[Difference], numbers: str) -> str:
    """For how many comparisons p is corrected, and which they are."""
    count = sum(found.p is not None for found in differences)
    tested = "the one tested comparison" if count == 1 else f"all {count} tested comparisons"
    return f"{tested} of methods with `finetune` and `vanilla_kd` on {numbers}"


def sizes(results: DatasetResults) -> Table:
    """Parameters and bytes, which follow from the models alone."""
    rows = [(name, *(_millions(system.size.get(f"{part}parameters")) for part in ("", "transformer_", "embedding_")),
             _megabytes(system.size, digits=1)) for name, system in results.systems.items()]
    return Table(f"Size: {results.info.name}", ("", "parameters M", "transformer M", "embeddings M", "file MB"),
                 tuple(rows), "Parameters without the classification head; the pooler belongs to the transformer.")


def cost(results: DatasetResults, measured: Measured) -> Table:
    """Sizes joined with this machine's measurements; columns of which it has none are left out."""
    dataset = results.info.name
    costs = {name: measured.cost(dataset, name) for name in results.systems}
    teacher = costs.get(TEACHER, {})
    with_latency = any("latency" in own for own in costs.values())
    with_training = "train_seconds" in teacher or "epoch_seconds" in teacher
    rows = []
    for name, system in results.systems.items():
        own = costs[name]
        absent = NOT_MEASURED if system.size else NO_NUMBER
        row = [name, _millions(system.size.get("parameters")), _megabytes(system.size, digits=0)]
        if with_latency:
            latency = own.get("latency", {})
            row += [_milliseconds(latency.get("batch_1")) or absent, _milliseconds(latency.get("batch_32")) or absent,
                    f"{latency['peak_memory_bytes'] / 2**20:.0f}" if latency else absent]
        if with_training:
            row += [f"{own[time] / teacher[time]:.2f}" if time in own and time in teacher else absent
                    for time in ("train_seconds", "epoch_seconds")]
        rows.append(tuple(row))
    incomplete = any(NOT_MEASURED in row for row in rows)
    caption = [_machine(list(costs.values())) if with_latency else _NO_LATENCY,
               _TIMES if with_training else _NO_TRAINING, _ABSENT if incomplete else ""]
    return Table(f"Cost: {dataset}",
                 (dataset, "params\nM", "file\nMB",
                  *(("ms, batch 1\np50 / p95", "ms, batch 32\np50 / p95", "memory\nMiB") if with_latency else ()),
                  *(("training,\nteacher = 1", "s/epoch,\nteacher = 1") if with_training else ())),
                 tuple(rows), " ".join(filter(None, caption)))


def notes(results: DatasetResults) -> list[str]:
    """What a reader must know of the numbers: where rows come from, and every reason to doubt a number."""
    info = results.info
    said = [f"`{name}`: {split.rows:,} rows ({'out of domain' if split.role == 'ood' else split.role}"
            f"{', without labels here' if split.hidden else ''}){f'; {plain(split.note)}' if split.note else ''}"
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
        said.append(f"{weak}Always answering {plain(str(check['answer']))} scores {100 * check['constant']:.1f} on "
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
    return said + [plain(str(warning)) for warning in info.warnings]


def selection(results: DatasetResults) -> str:
    """Which rows chose the checkpoints, if any did, and which are reported."""
    trained = [name for name, system in results.systems.items()
               if all(run["training"]["phases"] for run in system.runs.values())]
    last = [name for name in trained if results.systems[name].keeps_last]
    if trained and last == trained:
        return ("No checkpoint was chosen, the weights of the last step were kept: no reported rows had a part in the "
                "training")
    kept = f"; of {', '.join(f'`{name}`' for name in last)} the weights of the last step were kept" if last else ""
    reported = [split for split in results.in_domain if split != results.select]
    if not reported:
        return (f"Checkpoints were selected on `{results.select}` and are reported on the same rows, as papers do with "
                f"GLUE; this flatters every method a little{kept}")
    return (f"Checkpoints were selected on `{results.select}`; "
            f"{', '.join(f'`{split}`' for split in reported)} had no part in the selection{kept}")


def _how_to_read(results: DatasetResults, columns: Sequence[Column]) -> str:
    seeds = {len(system.metrics) for name, system in results.systems.items() if name != TEACHER}
    count = " to ".join(str(n) for n in sorted({min(seeds), max(seeds)})) if seeds else "0"
    said = [f"Mean ± sd over n = {count} seed{'' if count == '1' else 's'}, x 100."]
    if any(column.split in results.in_domain for column in columns):
        said.append(f"{selection(results)}.")
    if OOD_MEAN in columns:
        said.append(f"Out-of-domain mean: unweighted, of {', '.join(results.in_the_mean)}.")
    return " ".join(said)


def heading(column: Column) -> str:
    """A column's heading in two lines."""
    if column == OOD_MEAN:
        return "out-of-domain\nmean"
    return f"{column.split}\n{NAMES.get(column.metric, column.metric)}"


def _millions(count: int | None) -> str:
    return NO_NUMBER if count is None else f"{count / 1e6:.2f}"


def _megabytes(size: Mapping[str, int], digits: int) -> str:
    return f"{size['weight_bytes'] / 1e6:.{digits}f}" if size else NO_NUMBER


def _milliseconds(latency: Mapping[str, float] | None) -> str:
    return f"{latency['p50_ms']:.1f} / {latency['p95_ms']:.1f}" if latency else ""


def _machine(measured: Sequence[Mapping[str, Any]]) -> str:
    found = [own["latency"] for own in measured if own.get("latency")]
    if not found:
        return ""
    return (f"Measured on {found[0]['device']}, {found[0]['threads']} threads, fp32, at real lengths; memory is the "
            f"peak of the {found[0]['peak_memory_of']}.")
