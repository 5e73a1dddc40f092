"""Training curves as PNG: the loss and the score on the selecting split, per method, by epoch.

Colours are those of Okabe and Ito (2008), told apart with any colour vision, and each method also has its own line
style and marker. Equal values give equal bytes: no date or version is written into the file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Curve:
    """One training: after each epoch the mean training loss, and the score on the selecting split, 0 to 1.

    None where a phase does not evaluate.
    """

    epochs: Sequence[float]
    losses: Sequence[float | None]
    scores: Sequence[float | None]


@dataclass(frozen=True)
class Panel:
    """The trainings of one dataset by method, one curve per seed. `score` names the metric and the split."""

    dataset: str
    score: str
    curves: Mapping[str, Sequence[Curve]]


def draw(panels: Sequence[Panel], path: Path) -> None:
    """One row per dataset: losses left, scores right. Seeds are thin lines, their mean is thick."""
    height = max(3.4, *(0.24 * len(panel.curves) for panel in panels))  # of a row, so that its legend has room
    figure = Figure(figsize=(10, height * len(panels)), layout="constrained", dpi=110)
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), 2, squeeze=False)
    for (left, right), panel in zip(grid, panels, strict=True):
        for number, (method, curves) in enumerate(panel.curves.items()):
            lines(left, method, [(curve.epochs, curve.losses) for curve in curves], number)
            lines(right, method, [(curve.epochs, [None if score is None else 100 * score for score in curve.scores])
                                  for curve in curves], number)
        left.set(title=f"{panel.dataset}: training loss", xlabel="epoch", ylabel="mean loss per example")
        right.set(title=f"{panel.dataset}: score on {panel.score}", xlabel="epoch", ylabel="score x 100")
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        right.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), handlelength=3.5)
    write(canvas, path)


def write(canvas: FigureCanvasAgg, path: Path) -> None:
    """The figure as PNG, without date and version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_png(path, metadata={"Software": None})


def lines(axes: Axes, method: str, seeds: Sequence[tuple[Sequence[float], Sequence[float | None]]],
          number: int) -> None:
    """Each seed's line, and the mean at the epochs that all seeds reached."""
    colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
    points = [{epoch: value for epoch, value in zip(*seed, strict=True) if value is not None} for seed in seeds]
    if len(points) > 1:
        for line in points:
            axes.plot(list(line), list(line.values()), style, color=colour, linewidth=0.8, alpha=0.4)
    common = sorted(set.intersection(*(set(line) for line in points))) if points else []
    means = [sum(line[epoch] for line in points) / len(points) for epoch in common]
    axes.plot(common, means, style, color=colour, linewidth=1.8, marker=MARKERS[number % len(MARKERS)], markersize=4,
              label=method)
