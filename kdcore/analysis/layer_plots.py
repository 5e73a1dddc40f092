"""Pictures of layers as PNG: heat maps of layer by layer, dots by method, draws, and the collapse watch.

Teacher layers run to the right and student layers up in all of them. Colours are cividis, which runs from dark blue
to yellow in even steps for any colour vision; numbers stand in the cells and beside the dots. Equal values give equal
bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from kdcore.analysis.plots import COLOURS, lines, write
from kdcore.mapping import Pairs

WIDTH = 10.0
"""Of a figure, in inches."""
_CELL = (0.33, 0.27)  # inches: room for `-.83` in the smallest letters that read well
_AROUND = (0.5, 0.6)  # inches beside and below a heat map, for its labels and title
_BAR = 0.9  # inches beside the heat maps, for the scale
_MAP = colormaps["cividis"]


@dataclass(frozen=True)
class HeatMaps:
    """One heat map per method, all on one scale: values [student layers, teacher layers] of the layers 1, 2, ...

    Attributes:
        title: of the figure.
        value: what the colours mean.
        low, high: ends of the scale.
        marked: pairs of layers whose cells get a frame.
    """

    title: str
    value: str
    maps: Mapping[str, Float[np.ndarray, "student teacher"]]
    low: float
    high: float
    marked: Pairs = ()


def draw_heat_maps(what: HeatMaps, path: Path) -> None:
    """As many maps in a row as fit."""
    rows, columns = next(iter(what.maps.values())).shape
    wide, high = _CELL[0] * columns + _AROUND[0], _CELL[1] * rows + _AROUND[1]
    beside = max(1, min(len(what.maps), int((WIDTH - _BAR) // wide)))
    below = -(-len(what.maps) // beside)
    figure = Figure(figsize=(max(beside * wide + _BAR, 5.5), below * high + 0.6), layout="constrained", dpi=110)
    canvas = FigureCanvasAgg(figure)
    grid = list(figure.subplots(below, beside, squeeze=False).flat)
    scale = Normalize(what.low, what.high)
    for number, (axes, (method, values)) in enumerate(zip(grid, what.maps.items(), strict=False)):
        _heat_map(axes, values, scale, [[decimals(value, 2) for value in row] for row in values])
        axes.set_title(method, fontsize=10)
        axes.set(xlabel="teacher layer" if number + beside >= len(what.maps) else "",
                 ylabel="student layer" if number % beside == 0 else "")
        for student, teacher in what.marked:
            axes.add_patch(Rectangle((teacher - 0.5, student - 0.5), 1, 1, fill=False, edgecolor="white",
                                     linewidth=1.6))
    figure.colorbar(ScalarMappable(scale, _MAP), ax=grid, label=what.value, fraction=0.04,
                    shrink=min(1.0, 3 / (below * high)), aspect=12)
    for axes in grid[len(what.maps):]:
        axes.remove()
    figure.suptitle(what.title, fontsize=11)
    write(canvas, path)


def draw_pairs(title: str, pairs: Pairs, cosines: Mapping[str, Sequence[Float[np.ndarray, "student teacher"]]],
               path: Path) -> None:
    """One panel per pair of layers, one line per method: circles are seeds, the dot and the number their mean."""
    figure = Figure(figsize=(WIDTH, 0.3 * len(cosines) + 1.3), layout="constrained", dpi=110)
    canvas = FigureCanvasAgg(figure)
    for axes, (student, teacher) in zip(figure.subplots(1, len(pairs), squeeze=False, sharey=True).flat, pairs,
                                        strict=True):
        means = []
        for place, seeds in enumerate(cosines.values()):
            values = [float(matrix[student - 1, teacher - 1]) for matrix in seeds]
            means.append(sum(values) / len(values))
            axes.plot(means[-1:], [place], "o", color=COLOURS[4], markersize=9)
            axes.plot(values, [place] * len(values), "o", color=COLOURS[0], markersize=4, fillstyle="none")
        axes.set(title=f"teacher {teacher}, student {student}", xlabel="cosine", ylim=(len(cosines) - 0.5, -0.5))
        axes.set_yticks(range(len(cosines)), list(cosines))
        numbers = axes.secondary_yaxis("right")
        numbers.set_yticks(range(len(cosines)), [decimals(mean, 3) for mean in means])
        numbers.tick_params(length=0)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.margins(x=0.12)
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=11)
    write(canvas, path)


def draw_draws(title: str, counts: Mapping[str, Int[np.ndarray, "k c"]],
               expected: Mapping[str, Float[np.ndarray, "k c"]], path: Path) -> None:
    """One row per method: left how often each layer was drawn, right which slot had it."""
    tallest = max(len(table) for table in counts.values())
    figure = Figure(figsize=(WIDTH, len(counts) * (_CELL[1] * max(tallest, 5) + _AROUND[1]) + 0.4),
                    layout="constrained", dpi=110)
    canvas = FigureCanvasAgg(figure)
    for (left, right), (method, table) in zip(figure.subplots(len(counts), 2, squeeze=False), counts.items(),
                                              strict=True):
        draws, layers = int(table[0].sum()), np.arange(1, table.shape[1] + 1)
        left.bar(layers, table.sum(axis=0), color=COLOURS[4], width=0.7)
        left.axhline(draws * expected[method].sum(axis=0)[0], color="black", linewidth=1.2, linestyle="--",
                     label="expected")
        what = "1 layer" if len(table) == 1 else f"{len(table)} layers"
        times = "1 draw" if draws == 1 else f"{draws} draws"
        left.set(title=f"{method}: {times} of {what}", xlabel="teacher layer", ylabel="times drawn")
        left.title.set_fontsize(10)
        left.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        left.set_xticks(layers)
        left.tick_params(labelsize=8)
        left.margins(y=0.25)
        left.legend(frameon=False, fontsize=8, loc="upper right")
        _heat_map(right, table / draws, Normalize(0, (table / draws).max()),
                  [[str(n) if n else "" for n in row] for row in table])
        slots = np.arange(1, len(table) + 1)
        right.plot(expected[method] @ layers, slots - 0.36, "^", color="white", markeredgecolor="black", markersize=5,
                   markeredgewidth=0.5)  # below the numbers
        right.set(title=f"{method}: times by slot", xlabel="teacher layer", ylabel="slot")
        right.title.set_fontsize(10)
    figure.suptitle(title, fontsize=11)
    write(canvas, path)


@dataclass(frozen=True)
class Watch:
    """One diagnostic of the collapse watch: its name, what it is, the value that warns, and on which scale it is drawn.
    """

    name: str
    about: str
    alarm: float
    logarithmic: bool = False


Seed = tuple[Sequence[float], Mapping[str, Sequence[float | None]]]
"""The epochs of a training, and each diagnostic after each of them."""


def draw_watches(title: str, watches: Sequence[Watch], trainings: Mapping[str, Sequence[Seed]],
                 numbers: Mapping[str, int], path: Path) -> None:
    """One panel per diagnostic over the epochs; `numbers` choose each method's colour, as in the training curves."""
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained", dpi=110)
    canvas = FigureCanvasAgg(figure)
    for axes, watch in zip(figure.subplots(1, len(watches), squeeze=False).flat, watches, strict=True):
        for method, seeds in trainings.items():
            lines(axes, method, [(epochs, values[watch.name]) for epochs, values in seeds], numbers[method])
        if watch.logarithmic:
            axes.set_yscale("log")
        axes.axhline(watch.alarm, color="black", linewidth=1, linestyle=":")
        axes.annotate(f"warns at {watch.alarm:g}", (0.02, watch.alarm), xycoords=("axes fraction", "data"),
                      xytext=(0, 3), textcoords="offset points", fontsize=8)
        axes.set(title=watch.name, xlabel="epoch", ylabel=watch.about)
        axes.margins(y=0.15)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.axes[-1].legend(frameon=False)
    figure.suptitle(title, fontsize=11)
    write(canvas, path)


def _heat_map(axes: Axes, values: Float[np.ndarray, "student teacher"], scale: Normalize,
              texts: Sequence[Sequence[str]]) -> None:
    rows, columns = values.shape
    axes.imshow(values, cmap=_MAP, norm=scale, origin="lower", aspect="auto", interpolation="nearest",
                extent=(0.5, columns + 0.5, 0.5, rows + 0.5))
    for row in range(rows):
        for column in range(columns):
            dark = float(scale(values[row, column])) < 0.55
            axes.text(column + 1, row + 1, texts[row][column], ha="center", va="center", fontsize=7,
                      color="white" if dark else "black")
    axes.set_xticks(range(1, columns + 1))
    axes.set_yticks(range(1, rows + 1))
    axes.tick_params(length=0, labelsize=8)


def decimals(value: float, places: int) -> str:
    """A number of -1..1 without its leading zero: `.83`, `-.07`, `1.00`."""
    text = f"{round(value, places) + 0.0:.{places}f}"  # plus zero: no `-.00`
    return text.replace("0.", ".", 1) if abs(value) < 1 and not text.lstrip("-").startswith("1") else text
