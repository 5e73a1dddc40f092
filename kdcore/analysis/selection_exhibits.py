"""What the report shows of methods that selected knowledge; nothing where none did.

    actions.png, actions.csv      how much of each type of knowledge was learned, over time
    rewards.png, rewards.csv      what segments of steps gained, where a selector learned
    episodes.png, episodes.csv    how good the student of each episode became
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kdcore.analysis import selection_plots
from kdcore.analysis.exhibits import Exhibit, write_csv
from kdcore.analysis.selection_curves import ACTION, GAIN, REWARD, Entry, labels, read


def selection(dataset: str, records: Mapping[str, Mapping[int, Mapping[str, Any]]], folder: Path) -> list[Exhibit]:
    """Draw what the records of trainings tell, by method and seed."""
    found = {method: [trace for seed, record in seeds.items() if (trace := read(seed, record))]
             for method, seeds in records.items()}
    selecting = {method: traces for method, traces in found.items() if traces}
    named = labels({method: next(iter(records[method].values()))["method"] for method in selecting})
    entries = [Entry(method, named[method], traces) for method, traces in selecting.items()]
    if not entries:
        return []
    shown = [_actions(dataset, entries, folder)]
    learning = [entry for entry in entries if entry.names(GAIN)]
    return [*shown, _rewards(dataset, learning, folder), _episodes(dataset, learning, folder)] if learning else shown


def _actions(dataset: str, entries: Sequence[Entry], folder: Path) -> Exhibit:
    write_csv(folder / "actions.csv", ("method", "seed", "phase", "step", "type", "action"), (
        (entry.method, trace.seed, point.phase, point.step_of_all, name, action)
        for entry in entries for trace in entry.traces for point in trace.points
        for name, action in point.by_name(ACTION).items()))
    selection_plots.draw_actions(f"{dataset}: knowledge selected over time", entries, folder / "actions.png")
    return Exhibit(
        "Knowledge selected over time", "actions.png", "actions.csv",
        "How much of each type of knowledge was learned in a step, averaged over the steps between points: weights of "
        "0 to 1 where actions are soft; where they are hard, the share of steps that took the type. Lines are means "
        f"over {_seeds(entries)}, of those that ran the phase; bands reach from the lowest to the highest. Each phase "
        "begins with a fresh student; in the one whose name is shaded the selector is used as it is.")


def _rewards(dataset: str, entries: Sequence[Entry], folder: Path) -> Exhibit:
    gains = list(dict.fromkeys(name for entry in entries for name in entry.names(GAIN)))
    columns = ("method", "seed", "phase", "step", REWARD, *(f"gain_{name}" for name in gains))
    write_csv(folder / "rewards.csv", columns, (
        (entry.method, trace.seed, point.phase, point.step_of_all, point.values[REWARD],
         *(point.values[GAIN + name] for name in gains))
        for entry in entries for trace in entry.traces for point in trace.rewarded))
    measures = ["loss", *(name for name in gains if name not in ("loss", "score"))]
    selection_plots.draw_rewards(f"{dataset}: what segments of steps gained", entries, measures,
                                 folder / "rewards.png")
    return Exhibit(
        "Rewards by segment", "rewards.png", "rewards.csv",
        "By how much the loss fell and each metric rose from the first to the last step of a segment, on the rows "
        f"that give rewards (`dev_rows`); above 0 is better. Means over {_seeds(entries)}, and over segments where "
        "several ended since the point before. `reward` in the data is what the selector learned from.")


def _episodes(dataset: str, entries: Sequence[Entry], folder: Path) -> Exhibit:
    told = list(dict.fromkeys(name for entry in entries for trace in entry.traces for episode in trace.episodes
                              for name in episode))
    write_csv(folder / "episodes.csv", ("method", "seed", "episode", *told), (
        (entry.method, trace.seed, number, *(episode[name] for name in told))
        for entry in entries for trace in entry.traces for number, episode in enumerate(trace.episodes, 1)))
    selection_plots.draw_scores(f"{dataset}: score of each episode's student", entries, folder / "episodes.png")
    return Exhibit(
        "Score by episode", "episodes.png", "episodes.csv",
        "How good the student was at the end of each episode, on the same rows. Thin: "
        f"{_seeds(entries)}, thick: their mean over the episodes that all of them played. Ringed: the episode whose "
        "selector was kept. An episode that is not better than those before may end the selector's training.")


def _seeds(entries: Sequence[Entry]) -> str:
    seeds = sorted({trace.seed for entry in entries for trace in entry.traces})
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
