"""How knowledge was selected, as the records of trainings tell it: actions over time, rewards of segments, episodes.

Methods that weigh types of knowledge say in every step what they did, as `action/TYPE`. A selector that learns says
after each segment of steps what it earned, as `reward`, and what the segment gained, as `gain/loss` and `gain/METRIC`;
after each episode how good its student became, as `episode/score` and others. A record keeps the means between the
points of its curve, and what is said of a phase in its last entry.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ACTION, GAIN, EPISODE, REWARD = "action/", "gain/", "episode/", "reward"


@dataclass(frozen=True)
class Point:
    """Means since the point before. `step` counts within the phase, `step_of_all` over all phases, as in the log."""

    phase: str
    step: int
    step_of_all: int
    values: Mapping[str, float]

    def by_name(self, prefix: str) -> dict[str, float]:
        """Those values whose name begins so, without the beginning."""
        return _without(prefix, self.values)


@dataclass(frozen=True)
class Trace:
    """One training that selected knowledge. `lengths` are the steps of its phases, in order."""

    seed: int
    lengths: Mapping[str, int]
    points: Sequence[Point]
    episodes: Sequence[Mapping[str, float]]
    """What was said of each episode."""

    @property
    def rewarded(self) -> list[Point]:
        """Points before which a segment ended."""
        return [point for point in self.points if REWARD in point.values]

    @property
    def best_episode(self) -> int:
        """Number, from 1, of the one whose selector was kept: the first that no other exceeds."""
        scores = [episode["score"] for episode in self.episodes]
        return scores.index(max(scores)) + 1


@dataclass(frozen=True)
class Entry:
    """A method of a study that selected knowledge. `label` tells it from the others, `traces` are its seeds."""

    method: str
    label: str
    traces: Sequence[Trace]

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Steps of the phases that any seed ran, in order: seeds may play fewer episodes than others."""
        longest = max(self.traces, key=lambda trace: len(trace.lengths))
        return {phase: max(trace.lengths.get(phase, 0) for trace in self.traces) for phase in longest.lengths}

    def names(self, prefix: str) -> list[str]:
        """What its points tell under a prefix, in order."""
        return list(dict.fromkeys(name for trace in self.traces for point in trace.points
                                  for name in point.by_name(prefix)))

    def over_seeds(self, name: str, phase: str) -> dict[int, list[float]]:
        """A value by the steps of a phase, of all seeds that tell it there."""
        told: dict[int, list[float]] = defaultdict(list)
        for trace in self.traces:
            for point in trace.points:
                if point.phase == phase and name in point.values:
                    told[point.step].append(point.values[name])
        return dict(sorted(told.items()))


def read(seed: int, record: Mapping[str, Any]) -> Trace | None:
    """What the record of a training tells; None where nothing was selected."""
    if not any(_without(ACTION, point["diagnostics"]) for point in record["curve"]):
        return None
    lengths: dict[str, int] = {}
    episodes = []
    for entry in record["history"]:
        lengths[entry["phase"]] = entry["step"]
        if episode := _without(EPISODE, entry["diagnostics"]):
            episodes.append(episode)
    starts, before = {}, 0
    for phase, steps in lengths.items():
        starts[phase], before = before, before + steps
    points = [Point(point["phase"], point["step"] - starts[point["phase"]], point["step"], point["diagnostics"])
              for point in record["curve"]]
    return Trace(seed, lengths, points, episodes)


def labels(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Names of methods with the settings in which those of one method file differ from each other.

    `settings` are those of records: the hyper-parameters, and as `name` the method file.
    """
    found = {}
    for method, own in settings.items():
        others = [other for other in settings.values() if other["name"] == own["name"]]
        differing = [key for key in own if any(other.get(key) != own[key] for other in others)]
        found[method] = ": ".join(filter(None, [method, ", ".join(f"{key} {_plain(own[key])}" for key in differing)]))
    return found


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("'", "")


def _without(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
