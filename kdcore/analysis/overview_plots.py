"""Pictures of all datasets together: what quality costs, and average ranks with the critical difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kdcore.analysis.plots import COLOURS, MARKERS, write
from kdcore.analysis.ranks import Ranking


@dataclass(frozen=True)
class CostPanel:
    """One cost: `label` names it with its unit, `points` are (cost, quality x 100) by system."""

    label: str
    points: Mapping[str, tuple[float, float]]


def draw_cost(panels: Sequence[CostPanel], quality: str, path: Path) -> None:
    """Quality up, cost to the right, a panel per cost: the better, the nearer to the corner at the top left."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.points))
    across = 1 + 2 * len(panels)  # names in a line of the legend
    size = 1.2 + 3.0 * len(panels), 3.2 + 0.2 * (len(names) // across)
    figure = Figure(figsize=size, layout="constrained", dpi=110)
    canvas = FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
        for number, name in enumerate(names):
            if name in panel.points:
                colour, marker = mark(number)
                axes.plot(*panel.points[name], marker, color=colour, markersize=8, label=name)
        axes.set(xlabel=panel.label)
        axes.margins(x=0.15, y=0.12)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel(quality)
    marks = {mark.get_label(): mark for axes in figure.axes for mark in axes.get_lines()}
    figure.legend([marks[name] for name in names], names, frameon=False, loc="outside lower center", ncols=across)
    write(canvas, path)


def mark(number: int) -> tuple[str, str]:
    """Colour and marker of the system with this number; no pair comes twice among as many as both lists allow."""
    return COLOURS[number % len(COLOURS)], MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]


def draw_ranks(ranking: Ranking, path: Path) -> None:
    """Each method at its average rank, best on top; bars join methods that lie closer than the critical difference."""
    names = list(ranking.ranks)
    figure = Figure(figsize=(6.4, 1.5 + 0.32 * len(names)), layout="constrained", dpi=110)
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, name in enumerate(names):
        axes.plot(ranking.ranks[name], place, MARKERS[0], color=COLOURS[0], markersize=7, zorder=3)
    last = len(names)
    for number, group in enumerate(ranking.groups):
        axes.plot([ranking.ranks[group[0]], ranking.ranks[group[-1]]], [last + 0.3 * number] * 2, color="#555555",
                  linewidth=4, solid_capstyle="round")
    axes.errorbar(1 + ranking.critical / 2, -0.9, xerr=ranking.critical / 2, color="black", capsize=4)
    axes.text(1 + ranking.critical, -0.9, f"  critical difference {ranking.critical:.2f}", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(last + 0.3 * max(len(ranking.groups), 1), -1.5)
    axes.set_xlim(0.8, max(len(names), 1 + 2 * ranking.critical) + 0.2)
    axes.set(xlabel=f"average rank over {ranking.datasets} datasets (1 is best)")
    axes.grid(axis="x", alpha=0.3)
    write(canvas, path)
