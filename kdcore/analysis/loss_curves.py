"""Loss curves of general students as one small PNG: a panel per student, a line per term of its loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kdcore.analysis.plots import COLOURS, STYLES, write

COLUMNS = 3


@dataclass(frozen=True)
class LossCurve:
    """What a student learned from: for each term its points (steps, mean loss), in order."""

    student: str
    terms: Mapping[str, Sequence[tuple[int, float]]]


def draw(curves: Sequence[LossCurve], path: Path) -> None:
    """Steps across, unweighted losses up, on a logarithmic scale where all of them are positive."""
    columns = min(COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(3.4 * columns, 2.4 * rows), layout="constrained", dpi=110)
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, curve in zip(panels, curves, strict=False):
        for number, (term, points) in enumerate(curve.terms.items()):
            axes.plot([step for step, _ in points], [loss for _, loss in points], STYLES[number % len(STYLES)],
                      color=COLOURS[number % len(COLOURS)], linewidth=1.4, label=term)
        if all(loss > 0 for points in curve.terms.values() for _, loss in points):
            axes.set_yscale("log")
        axes.set_title(curve.student, fontsize=9)
        axes.tick_params(which="both", labelsize=7)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7)
    for axes in panels[len(curves):]:
        axes.set_axis_off()
    write(canvas, path)
