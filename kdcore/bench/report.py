"""One report from the measurements of all sizes, held against the targets."""

from typing import Any

from rich.console import Console
from rich.table import Table

from kdcore.bench import corpus, models
from kdcore.bench.size import BASELINE, BATCH
from kdcore.data.batching import LengthGroupedBatches, padding_share

PADDING_ROWS = 10_000


def merge(machine: dict[str, Any], quick: bool, sizes: list[dict[str, Any]]) -> dict[str, Any]:
    """The report: `methods` at the smallest size, `by_rows` for all, `targets` with what was measured."""
    first, last = sizes[0], sizes[-1]
    by_dataset = {name: padding(name) for name in corpus.DECILES}
    report = {
        "machine": machine, "quick": quick, "models": models.SIZES[first["models"]].name, "batch_size": BATCH,
        "methods": first["methods"], "padding_share": by_dataset[corpus.TIMED], "padding_by_dataset": by_dataset,
        "store": first["store"], "by_rows": {str(size["rows"]): size for size in sizes},
    }
    before = sizes[-2]
    growth = {name.removesuffix("_peak_bytes"): last["memory"][name] / before["memory"][name]
              for name in ("store_build_peak_bytes", "training_peak_bytes")}
    report["memory_growth"] = {"from_rows": before["rows"], "to_rows": last["rows"]} | growth
    report["targets"] = _targets(report)
    return report


def padding(like: str) -> float:
    """Padding share of one epoch of training batches with the lengths of a GLUE dataset."""
    lengths = corpus.lengths(like, PADDING_ROWS, seed=0)
    return padding_share(lengths, list(LengthGroupedBatches(lengths, BATCH, seed=0)))


def _targets(report: dict[str, Any]) -> list[dict[str, Any]]:
    stored = {name: figures["epoch_ratio"] for name, figures in report["methods"].items()
              if figures["teacher"] == "stored"}
    rows = [(f"epoch of {name} / fine-tuning", "at most", 1.05, ratio) for name, ratio in stored.items()]
    worst = max(report["padding_by_dataset"].values())
    rows.append(("padding, share of tokens, worst dataset", "at most", 0.10, worst))
    building = report["store"]["rate_relative_to_bare_inference"]
    rows.append(("store building / bare inference", "at least", 0.95, building))
    growth = report["memory_growth"]
    for name in ("store_build", "training"):
        rows.append((f"memory of {name.replace('_', ' ')}, {growth['to_rows']:,} / {growth['from_rows']:,} rows",
                     "at most", 1.05, growth[name]))
    return [{"what": what, "bound": bound, "target": target, "measured": measured,
             "met": measured <= target if bound == "at most" else measured >= target}
            for what, bound, target, measured in rows]


def show(report: dict[str, Any]) -> None:
    """Print the report's tables."""
    console = Console(highlight=False)
    machine = report["machine"]
    console.print(f"{report['models']}, batches of {report['batch_size']}, on {machine['device']} "
                  f"({machine['threads']} threads), torch {machine['torch']}")
    grid = Table("method", "teacher", "epoch / fine-tuning", "lowest .. highest", "with a live teacher", "rows/s")
    for name, figures in report["methods"].items():
        spread = figures["epoch_ratios"]
        live = figures.get("live")
        label = f"{name} against itself" if name == BASELINE else name
        grid.add_row(label, figures["teacher"], f"{figures['epoch_ratio']:.3f}",
                     f"{min(spread):.3f} .. {max(spread):.3f}", f"{live['epoch_ratio']:.3f}" if live else "",
                     f"{figures['rows_per_second']:.0f}")
    console.print(grid)
    sizes = Table("rows", "store MB", "built rows/s", "peak MB building", "peak MB training", "padding")
    for size in report["by_rows"].values():
        memory = size["memory"]
        peak = memory["training_peak_cuda_bytes"] or memory["training_peak_bytes"]
        sizes.add_row(f"{size['rows']:,}", f"{size['store']['bytes'] / 1e6:.1f}",
                      f"{size['store']['rows_per_second']:.0f}", f"{memory['store_build_peak_bytes'] / 1e6:.0f}",
                      f"{peak / 1e6:.0f}", f"{size['padding_share']:.1%}")
    console.print(sizes)
    targets = Table("target", "", "", "measured", "")
    for target in report["targets"]:
        targets.add_row(target["what"], target["bound"], f"{target['target']:g}", f"{target['measured']:.3f}",
                        "met" if target["met"] else "MISSED")
    console.print(targets)
