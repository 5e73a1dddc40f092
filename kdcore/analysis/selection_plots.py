"""Pictures of knowledge selection as PNG: actions over time, rewards by segment, scores by episode.

They are narrow, with panels below each other and letters that can still be read on a phone, and have their legend
below. Colours are those of `kdcore/analysis/plots.py`; episodes run from dark blue to yellow. Equal values give equal
bytes.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean as mean

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kdcore.analysis.plots import COLOURS, STYLES, lines, write
from kdcore.analysis.selection_curves import ACTION, GAIN, REWARD, Entry

WIDTH = 6.0
"""Of a figure, in inches."""
_LETTERS = 70
"""Of a title or legend in a line."""
_LEAST_LOSS, _LEAST_RISE = 0.005, 0.5
"""What axes of gains show at least above and below 0, so that rounding errors do not fill them."""
_MAP = colormaps["cividis"]
_LOWEST, _HIGHEST = -0.04, 1.24
"""Of the axis of actions, which has room for the names of phases above 1."""
_NAMES_FROM = 0.84
"""Where that room begins, as a share of the axis's height."""


def draw_actions(title: str, entries: Sequence[Entry], path: Path) -> None:
    """A panel per method: the mean action on each type of knowledge, in a band from the lowest to the highest seed.

    Lines stand between phases; the name of the last of several is shaded where nothing was rewarded in it.
    """
    figure = Figure(figsize=(WIDTH, 1.9 * len(entries) + 0.9), layout="constrained", dpi=130)
    canvas = FigureCanvasAgg(figure)
    types = list(dict.fromkeys(name for entry in entries for name in entry.names(ACTION)))
    for axes, entry in zip(figure.subplots(len(entries), 1, squeeze=False).flat, entries, strict=True):
        _phases(axes, entry)
        starts = _starts(entry)
        for number, name in enumerate(types):
            colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
            for phase, start in starts.items():
                seeds = entry.over_seeds(ACTION + name, phase)
                steps = [start + step for step in seeds]
                axes.fill_between(steps, [min(values) for values in seeds.values()],
                                  [max(values) for values in seeds.values()], color=colour, alpha=0.1, linewidth=0)
                axes.plot(steps, [mean(values) for values in seeds.values()], style, color=colour, linewidth=1.5,
                          marker="." if len(steps) < 2 else "", label=name if phase == next(iter(starts)) else "")
        axes.set_title(_wrapped(entry.label), fontsize=9)
        axes.set(ylabel="action", ylim=(_LOWEST, _HIGHEST), yticks=(0, 0.5, 1), xlim=(0, sum(entry.lengths.values())))
        _small(axes)
    axes.set_xlabel("step", fontsize=8)
    _legend(figure, 4)
    figure.suptitle(title, fontsize=10)
    write(canvas, path)


def draw_rewards(title: str, entries: Sequence[Entry], measures: Sequence[str], path: Path) -> None:
    """A row per method and a column per measure: what the segments of an episode gained, a line per episode."""
    figure = Figure(figsize=(WIDTH, 1.8 * len(entries) + 1.1), layout="constrained", dpi=130)
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(len(entries), len(measures), squeeze=False, sharey="col", sharex="row")
    most = max(len(trace.episodes) for entry in entries for trace in entry.traces)
    for row, entry in zip(grid, entries, strict=True):
        for axes, measure in zip(row, measures, strict=True):
            factor = 1 if measure == "loss" else 100
            axes.axhline(0, color="black", linewidth=0.6)
            for number, phase in enumerate(entry.lengths):
                if gains := entry.over_seeds(GAIN + measure, phase):
                    axes.plot(list(gains), [factor * mean(values) for values in gains.values()], "o-", markersize=2.5,
                              linewidth=1.2, color=_MAP(0.9 * number / max(1, most - 1)), label=f"episode {number + 1}")
            _small(axes)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        row[0].set_ylabel(textwrap.fill(entry.method, 18), fontsize=8)
    for axes, measure in zip(grid[0], measures, strict=True):
        axes.set_title("fall of the loss" if measure == "loss" else f"rise of {measure} x 100", fontsize=9)
        low, high = axes.get_ylim()
        least = _LEAST_LOSS if measure == "loss" else _LEAST_RISE
        axes.set_ylim(min(low, -least), max(high, least))
    for axes in grid[-1]:
        axes.set_xlabel("step of the episode", fontsize=8)
    _legend(figure, 5)
    figure.suptitle(title, fontsize=10)
    write(canvas, path)


def draw_scores(title: str, entries: Sequence[Entry], path: Path) -> None:
    """One panel: the score of each episode's student, by method; each seed's best episode has a ring."""
    figure = Figure(figsize=(WIDTH, 3.2 + 0.2 * len(entries)), layout="constrained", dpi=130)
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, entry in enumerate(entries):
        played = [(list(range(1, len(trace.episodes) + 1)), [100 * episode["score"] for episode in trace.episodes])
                  for trace in entry.traces]
        lines(axes, _wrapped(entry.label), played, number)
        for trace, (_, scores) in zip(entry.traces, played, strict=True):
            axes.plot([trace.best_episode], [scores[trace.best_episode - 1]], "o", markersize=9, fillstyle="none",
                      color=COLOURS[number % len(COLOURS)])
    axes.set(xlabel="episode", ylabel="score x 100")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _small(axes)
    figure.legend(loc="outside lower left", frameon=False, fontsize=8, handlelength=3.5)
    figure.suptitle(title, fontsize=10)
    write(canvas, path)


def _starts(entry: Entry) -> dict[str, int]:
    starts, before = {}, 0
    for phase, steps in entry.lengths.items():
        starts[phase], before = before, before + steps
    return starts


def _phases(axes: Axes, entry: Entry) -> None:
    """Where phases begin, and their names where there are several."""
    starts = _starts(entry)
    if len(starts) == 1:
        return
    *_, last = starts
    for number, (phase, start) in enumerate(starts.items()):
        if number:
            axes.axvline(start, color="black", linewidth=0.8)
        # `episode-3` is short after `episode-1`
        name = phase.replace("-", " ") if number == 0 or phase == last else phase.removeprefix("episode-")
        axes.annotate(name, (start + entry.lengths[phase] / 2, 1.0), xycoords=("data", "axes fraction"),
                      xytext=(0, -3), textcoords="offset points", ha="center", va="top", fontsize=7)
    if not entry.over_seeds(REWARD, last):
        axes.axvspan(starts[last], starts[last] + entry.lengths[last], _NAMES_FROM, color="black", alpha=0.15,
                     linewidth=0)


def _wrapped(label: str) -> str:
    return textwrap.fill(textwrap.shorten(label, 2 * _LETTERS, placeholder=" ..."), _LETTERS)


def _legend(figure: Figure, columns: int) -> None:
    """Below all panels, each name once."""
    handles = {label: handle for axes in figure.axes
               for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8,
                  handlelength=3)


def _small(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.yaxis.label.set_fontsize(8)
    axes.xaxis.label.set_fontsize(8)
    axes.grid(alpha=0.3)
