"""One report from all measurements, held against the targets: as JSON, as tables to look at, as Markdown."""

import math
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from kdcore.bench import corpus, models
from kdcore.bench.pair import BASELINE, BATCH
from kdcore.bench.ratios import Ratio
from kdcore.data.batching import LengthGroupedBatches, padding_share

PADDING_ROWS = 10_000
EPOCH, MEMORY, PADDING, STORE_RATE = 1.05, 1.05, 0.10, 0.95
EPOCH_OF = {"codir": 1.15}
"""CoDIR compares each example with a hundred others."""
LIVE_STEP = 1.10
SELECTOR = 1.30
"""Training a selector over the distillation steps that it contains."""
BOUNDED_LIVE = ("minilm",)
"""General methods with a target. Heads over the vocabulary cost what they cost."""


@dataclass(frozen=True)
class Table:
    """Rows of text under a title and a header."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def merge(machine: dict[str, Any], quick: bool, size: str, timing: dict[str, Any] | None,
          own_part: dict[str, Any] | None, live_step: dict[str, Any] | None,
          selector: dict[str, Any] | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The report of what was measured; None and no `rows` leave their sections out."""
    report: dict[str, Any] = {
        "machine": machine, "quick": quick, "models": models.SIZES[size].name, "batch_size": BATCH,
        "padding_by_dataset": {name: padding(name) for name in corpus.DECILES},
        "by_rows": {str(entry["rows"]): entry for entry in rows},
    }
    report["padding_share"] = report["padding_by_dataset"][corpus.TIMED]
    report |= timing or {}
    report |= {name: measured for name, measured in (("own_part", own_part), ("live_step", live_step),
                                                     ("selector", selector)) if measured}
    if len(rows) > 1:
        small, large = rows[-2], rows[-1]
        report["memory_growth"] = {"from_rows": small["rows"], "to_rows": large["rows"]} | {
            name: large["memory"][f"{name}_peak_bytes"] / small["memory"][f"{name}_peak_bytes"]
            for name in ("store_build", "training")}
    report["targets"] = _targets(report)
    return report


def padding(like: str) -> float:
    """Padding share of one epoch of training batches with the lengths of a GLUE dataset."""
    lengths = corpus.lengths(like, PADDING_ROWS, seed=0)
    return padding_share(lengths, list(LengthGroupedBatches(lengths, BATCH, seed=0)))


def _targets(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    timed = report.get("methods", {})
    noise = _as_ratio(timed[BASELINE]).reach if timed else 0
    for name, figures in timed.items():
        if figures["teacher"] == "stored":
            found.append(_epoch_target(f"epoch of {name}", name, figures, noise))
        elif figures["teacher"] in ("mixed", "live") and "live" in figures:
            found.append(_epoch_target(f"epoch of {name} less the teacher's forward", name,
                                       figures["live"]["less_forward"], noise))
    for name, figures in report.get("own_part", {}).get("methods", {}).items():
        found.append(_target(f"own part of {name} / step of fine-tuning", "at most", EPOCH_OF.get(name, EPOCH) - 1,
                             figures["share"]))
    for name in BOUNDED_LIVE:
        if name in (ratios := report.get("live_step", {}).get("methods", {})):
            found.append(_target(f"step of {name} / teacher's forward and student's step", "at most", LIVE_STEP,
                                 ratios[name]))
    for teacher, figures in report.get("selector", {}).get("teacher", {}).items():
        found.append(_target(f"training a selector / its distillation steps, teacher {teacher}", "at most", SELECTOR,
                             figures["ratio"]))
    found.append(_target("padding, share of tokens, worst dataset", "at most", PADDING,
                         max(report["padding_by_dataset"].values())))
    if "store" in report:
        found.append(_target("store building / bare inference", "at least", STORE_RATE,
                             report["store"]["rate_relative_to_bare_inference"]))
    growth = report.get("memory_growth", {})
    for name in ("store_build", "training") if growth else ():
        what = f"memory of {name.replace('_', ' ')}, {growth['to_rows']:,} / {growth['from_rows']:,} rows"
        found.append(_target(what, "at most", MEMORY, growth[name]))
    return found


def _target(what: str, bound: str, target: float, measured: float) -> dict[str, Any]:
    met = measured <= target if bound == "at most" else measured >= target
    return {"what": what, "bound": bound, "target": target, "measured": measured, "verdict": "met" if met else "missed"}


def _as_ratio(figures: dict[str, Any]) -> Ratio:
    return Ratio(figures["epoch_ratio"], figures["low"], figures["high"])


def _epoch_target(what: str, method: str, figures: dict[str, Any], noise: float) -> dict[str, Any]:
    at_most = EPOCH_OF.get(method, EPOCH)
    return {"what": f"{what} / fine-tuning", "bound": "at most", "target": at_most, "measured": figures["epoch_ratio"],
            "verdict": _as_ratio(figures).verdict(at_most, noise)}


def tables(report: dict[str, Any]) -> list[Table]:
    """What people read of the report."""
    found = []
    if "methods" in report:
        found.append(_methods(report))
    if report.get("by_depth"):
        found.append(_depths(report["by_depth"]))
    if "own_part" in report:
        found.append(_own_part(report["own_part"]))
    if "live_step" in report:
        found.append(_live_step(report["live_step"]))
    if "selector" in report:
        found.append(_selector(report["selector"]))
    if report["by_rows"]:
        found.append(Table("Rows (a slim pair)", ("rows", "store MB", "peak MB building", "peak MB training",
                                                  "padding"),
                           [_size(entry) for entry in report["by_rows"].values()]))
    found.append(Table("Targets", ("what", "", "target", "measured", "verdict"), [
        (target["what"], target["bound"], f"{target['target']:g}", f"{target['measured']:.3f}", target["verdict"])
        for target in report["targets"]]))
    return found


def _methods(report: dict[str, Any]) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, figures in report["methods"].items():
        live = figures.get("live")
        rows.append((f"{name} against itself" if name == BASELINE else name, figures["teacher"], _ratio(figures),
                     f"{figures['rows_per_second']:.0f}", _ratio(live) if live else "",
                     _ratio(live["less_forward"]) if live else ""))
    if report["teacher_forward"]:
        rows.append(("the teacher's forward alone", "live", "", "", _ratio(report["teacher_forward"]), ""))
    return Table("Epoch / epoch of fine-tuning (interval of nine in ten)",
                 ("method", "teacher", "as in a study", "rows/s", "all live", "all live, less the forward"), rows)


def _depths(by_depth: dict[str, dict[str, Any]]) -> Table:
    depths = sorted({int(depth) for figures in by_depth.values() for depth in figures})
    return Table("Epoch / epoch of fine-tuning, by layers of the teacher, stored features",
                 ("method", *map(str, depths), f"{depths[-1]} less {depths[0]}"),
                 [(name, *(_ratio(figures[str(depth)]) for depth in depths), f"{_growth(figures, depths):+.3f}")
                  for name, figures in by_depth.items()])


def _own_part(measured: dict[str, Any]) -> Table:
    return Table(f"What a method with stored features adds to a step of fine-tuning ({measured['step_ms']:.0f} ms)",
                 ("method", "ms", "share of the step"),
                 [(name, f"{figures['ms']:.2f}", f"{figures['share']:.1%}")
                  for name, figures in measured["methods"].items()])


def _live_step(measured: dict[str, Any]) -> Table:
    return Table(f"A step of general distillation, {measured['rows']} rows of {measured['tokens']} tokens, over the "
                 f"bare teacher's forward ({measured['teacher_forward_ms']:.0f} ms) and the bare student's step "
                 f"({measured['student_step_ms']:.0f} ms)", ("method", "ratio"),
                 [(name, f"{ratio:.2f}") for name, ratio in measured["methods"].items()])


def _selector(measured: dict[str, Any]) -> Table:
    return Table(f"Training a selector: episodes of {measured['steps']} steps, k = {measured['reward_steps']}, "
                 f"{measured['examinations']} examinations of {measured['dev_rows']} rows "
                 f"({measured['examination_ms']:.0f} ms each); the selector itself takes "
                 f"{measured['selector_ms']:.1f} ms a step",
                 ("teacher", "step without selector, ms", "episode, s", f"{measured['episodes']} episodes, s",
                  "over the steps alone"),
                 [(teacher, f"{figures['step_ms']:.0f}", f"{figures['episode_seconds']:.0f}",
                   f"{measured['episodes'] * figures['episode_seconds']:.0f}", f"{figures['ratio']:.3f}")
                  for teacher, figures in measured["teacher"].items()])


def _growth(figures: dict[str, Any], depths: list[int]) -> float:
    shallow, deep = (figures[str(depth)]["epoch_ratio"] for depth in (depths[0], depths[-1]))
    return float(deep - shallow)


def _ratio(figures: dict[str, float]) -> str:
    if math.isclose(figures["low"], figures["high"]):
        return f"{figures['epoch_ratio']:.3f}"
    return f"{figures['epoch_ratio']:.3f} ({figures['low']:.3f} to {figures['high']:.3f})"


def _size(entry: dict[str, Any]) -> tuple[str, ...]:
    memory, store = entry["memory"], entry["store"]
    peak = memory["training_peak_cuda_bytes"] or memory["training_peak_bytes"]
    return (f"{entry['rows']:,}", f"{store['bytes'] / 1e6:.1f}",
            f"{memory['store_build_peak_bytes'] / 1e6:.0f}", f"{peak / 1e6:.0f}", f"{entry['padding_share']:.1%}")


def headline(report: dict[str, Any]) -> str:
    """The pair and the machine."""
    machine = report["machine"]
    return (f"{report['models']}, batches of {report['batch_size']}, on {machine['device']} "
            f"({machine['processor']}, {machine['threads']} threads), torch {machine['torch']}, "
            f"load {machine['load_average']:.1f}")


def show(report: dict[str, Any]) -> None:
    """Print the report's tables."""
    console = Console(highlight=False)
    console.print(headline(report))
    for table in tables(report):
        shown = RichTable(*table.header, title=table.title, title_justify="left")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)


def markdown(report: dict[str, Any]) -> str:
    """The report's tables for a document."""
    parts = [headline(report)]
    for table in tables(report):
        lines = [table.header, tuple("---" for _ in table.header), *table.rows]
        parts.append(f"**{table.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"
