"""The grid of a study: alternatives by dotted setting, and which of them concern a method on a dataset.

Plain mappings in, plain mappings out; `kdcore.config` checks each point as a study.
"""

import itertools
from collections.abc import Collection, Mapping
from typing import Any

from kdcore.errors import did_you_mean

SECTIONS = ("pair", "training", "datasets", "methods", "features")
"""Sections of `params.yaml` whose settings a grid may vary."""

Axes = Mapping[str, tuple[Any, ...]]
"""Values to try by dotted setting."""


def check(axes: Axes, declared: Mapping[str, Collection[str]]) -> None:
    """Refuse what is no setting of a section, or lists no values; `declared` has the names of datasets and methods.

    Raises:
        ValueError: with what was expected.
    """
    for setting, values in axes.items():
        section, *rest = setting.split(".")
        if section not in SECTIONS or len(rest) < 1 + (section in declared):
            raise ValueError(f"grid names {setting!r}, expected a setting such as training.student.learning_rate "
                             f"in one of these sections: {', '.join(SECTIONS)}")
        if section in declared and rest[0] not in declared[section]:
            raise ValueError(f"grid names {setting!r}, but {rest[0]!r} has no entry under `{section}`; "
                             f"{did_you_mean(rest[0], declared[section])}")
        if section == "methods" and rest[1] == "datasets":
            raise ValueError(f"grid names {setting!r}, which is of one dataset; name methods.{rest[0]}.SETTING, and "
                             "each dataset has its own best value")
        if not values or any(value in values[:place] for place, value in enumerate(values)):
            raise ValueError(f"grid: {setting} lists {list(values)}, expected at least one value, and each once")


def points(axes: Axes) -> tuple[dict[str, Any], ...]:
    """Every combination, as value by dotted setting, the last setting fastest; one empty point where there is none."""
    return tuple(dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def own(point: Mapping[str, Any], dataset: str, method: str) -> dict[str, Any]:
    """A point with settings of students where they are of one method on one dataset alone; the others stay."""
    place = f"methods.{method}.datasets.{dataset}."
    others = {f"methods.{method}.": place, "training.student.": f"{place}student.",
              f"datasets.{dataset}.student.": f"{place}student."}
    return {next((to + setting.removeprefix(prefix) for prefix, to in others.items() if setting.startswith(prefix)),
                 setting): value for setting, value in point.items()}


def placed(content: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the settings with those of a point in place."""
    result = dict(content)
    for setting, value in point.items():
        section, _, rest = setting.partition(".")
        inner = result.get(section)
        result[section] = placed(inner if isinstance(inner, dict) else {}, {rest: value}) if rest else value
    return result
