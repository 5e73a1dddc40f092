"""What a search proposes: a table of all trials, and a file that a person reviews before it becomes settings.

`search/trials.csv` has every point that was tried, `search/proposal.yaml` the best one per dataset and method, as the
settings that accepting it writes into `params.yaml`. Nothing is written there before: a search may run for days while
the study is as it is.
"""

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from kdcore import config, grid, methods, strict
from kdcore import study as studies
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.search import Search, Tried

if TYPE_CHECKING:
    from rich.table import Table

TRIALS, PROPOSAL = "trials.csv", "proposal.yaml"
POINT = "point"
"""The column of a table for people with all settings of a point; other programs read a column for each."""
HEADER = """\
The best points that the search found; `kdflow accept-search` writes `settings` into params.yaml.
Change or remove entries as you see fit. Scores are those that select checkpoints, with one seed: they say what to
try with several, and not what is better.
"""


class Entry(strict.Strict):
    """The best point of a method on a dataset. Only `settings` count; the rest says why."""

    dataset: str
    method: str
    score: float
    seed: int
    trials: str
    settings: dict[str, Any]


class Proposal(strict.Strict):
    """The whole of `proposal.yaml`."""

    proposal: tuple[Entry, ...]


def rows(searches: Sequence[Search]) -> list[dict[str, Any]]:
    """One row per trial, by dataset and method; `best` marks the best of each."""
    found = []
    for search in searches:
        best = search.best()
        for tried in search.tried():
            point = {name: json.dumps(value) if isinstance(value, list) else value
                     for name, value in tried.point.items()}
            found.append({"dataset": search.dataset, "method": search.method, "state": tried.state,
                          "score": tried.score, "best": best is not None and tried.point == best.point,
                          "evaluations": tried.evaluations, "seed": search.rules.seed, POINT: search.told(tried.point)}
                         | point)
    return found


def write(study: Path, searches: Sequence[Search]) -> None:
    """Write table and proposal; what an earlier search of other methods or datasets found stays."""
    folder = Layout(study).search
    folder.mkdir(exist_ok=True)
    done = {(search.dataset, search.method) for search in searches}
    kept = [row for row in _read_rows(folder / TRIALS) if (row["dataset"], row["method"]) not in done]
    _write_rows(folder / TRIALS, kept + [{name: value for name, value in row.items() if name != POINT}
                                         for row in rows(searches)])
    entries = [entry.model_dump() for entry in _read(folder / PROPOSAL) if (entry.dataset, entry.method) not in done]
    entries += [_entry(search, best) for search in searches if (best := search.best())]
    content = CommentedMap(proposal=entries)
    content.yaml_set_start_comment(HEADER)
    _replace(folder / PROPOSAL, _dump(_yaml(), content))


def table(found: Sequence[dict[str, Any]]) -> "Table":
    """The trials as a table for the terminal; the best of each method on each dataset are marked."""
    from rich.table import Table

    shown = Table("dataset", "method", "point", "state", "score", "", title="Trials", title_justify="left")
    for row in found:
        score = "" if row["score"] is None else f"{100 * row['score']:.2f}"
        shown.add_row(row["dataset"], row["method"], row[POINT], row["state"], score, "best" if row["best"] else "",
                      style="bold" if row["best"] else None)
    return shown


def accept(study: Path) -> list[str]:
    """Write the proposal of a study's search into its `params.yaml`, whose comments stay.

    Returns:
        What was written, one setting a line.

    Raises:
        UserError: there is no proposal, its entries contradict one another, or the settings would not fit.
    """
    place = Layout(study).search / PROPOSAL
    if not place.is_file():
        raise UserError(f"there is no {place}; run `python -m flows.search --study {study}` first")
    entries = _read(place)
    settings = _joined(entries, place)
    path = study / "params.yaml"
    text = path.read_text(encoding="utf-8")
    if text.startswith(studies.MADE.partition("{")[0]):
        raise UserError(f"{path} is written anew at every start; copy the settings of {place} into the file that its "
                        "first line names")
    accepted = strict.parse(config.Study, grid.placed(strict.read_yaml(path), settings), str(place))
    edited = [setting.split(".")[1] for setting in settings if setting.startswith("methods.")]
    for name in dict.fromkeys([*(entry.method for entry in entries), *edited]):
        for entry in accepted.entries(name):
            methods.of_entry(entry)
    for setting, value in settings.items():
        text = _with_setting(text, setting.split("."), value)
    _replace(path, text)
    return [f"{setting}: {json.dumps(value)}" for setting, value in settings.items()]


def _entry(search: Search, best: Tried) -> dict[str, Any]:
    tried = [row.state for row in search.tried()]
    counts = ", ".join(f"{tried.count(state)} {state}" for state in dict.fromkeys(tried))
    return {"dataset": search.dataset, "method": search.method, "score": round(best.score or 0.0, 6),
            "seed": search.rules.seed, "trials": f"{counts} of {len(search.points)}",
            "settings": grid.own(best.point, search.dataset, search.method)}


def _joined(entries: Sequence[Entry], place: Path) -> dict[str, Any]:
    """All settings; those that concern several methods must be the same for all."""
    joined: dict[str, tuple[Any, Entry]] = {}
    for entry in entries:
        for setting, value in entry.settings.items():
            section, *rest = setting.split(".")
            if section not in grid.SECTIONS or not rest or not all(rest):
                raise UserError(f"{place}: {setting!r} is no setting; expected one such as "
                                f"training.teacher.learning_rate in one of these sections: {', '.join(grid.SECTIONS)}")
            before, other = joined.setdefault(setting, (value, entry))
            if before != value:
                raise UserError(f"{place}: {setting} is {before!r} for {other.method} on {other.dataset}, but "
                                f"{value!r} for {entry.method} on {entry.dataset}; it is one setting for both: choose "
                                "one value")
    return {setting: value for setting, (value, _) in joined.items()}


def _with_setting(text: str, names: Sequence[str], value: Any) -> str:
    """A `params.yaml` with another value of a setting; only the lines of one entry change, e.g. `methods.pkd`."""
    content = _yaml().load(text)
    section = content[names[0]]
    inner = not section.fa.flow_style() and names[1] in section
    parent, key = (section, names[1]) if inner else (content, names[0])
    lines = text.splitlines(keepends=True)
    (begin, column), end = parent.lc.key(key), len(lines)
    for mapping in (content, parent):
        end = min([end, *(line for line, _ in map(mapping.lc.key, mapping) if line > begin)])
    _place(section, names[1:], value)
    entry = CommentedMap({key: parent[key]})
    if key in parent.ca.items:  # remarks: beside the key, before it, beside the value, and inside of it
        beside, _, *rest = parent.ca.items[key]
        entry.ca.items[key] = [beside, None, *rest]
    yaml = _yaml()
    yaml.indent(mapping=column or 2)
    written = _dump(yaml, CommentedMap({names[0]: entry}) if inner else entry).splitlines(keepends=True)
    old, new = _without_remarks(lines[begin:end]), _without_remarks(written[1:] if inner else written)
    return "".join([*lines[:begin], *new, *lines[begin + len(old):]])


def _place(content: CommentedMap, names: Sequence[str], value: Any) -> None:
    *outer, last = names
    for name in outer:
        if not content:
            content.fa.set_flow_style()  # as `{}`, which is how an empty one is written
        if not isinstance(content.get(name), dict):
            made = CommentedMap()
            made.fa.set_flow_style()
            # Remarks after the last line of a block belong to what follows: nothing can stand behind them.
            content.insert(len(content) if content.fa.flow_style() else 0, name, made)
        content = content[name]
    content[last] = value


def _without_remarks(lines: Sequence[str]) -> Sequence[str]:
    """Lines without the comments and empty lines at their end, which belong to what follows."""
    end = len(lines)
    while end > 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return lines[:end]


def _read(path: Path) -> tuple[Entry, ...]:
    return strict.parse(Proposal, strict.read_yaml(path), str(path)).proposal if path.is_file() else ()


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write_rows(path: Path, found: Sequence[dict[str, Any]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in found for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    _replace(path, text.getvalue())


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.width = 120
    yaml.preserve_quotes = True
    return yaml


def _dump(yaml: YAML, content: Any) -> str:
    text = io.StringIO()
    yaml.dump(content, text)
    return text.getvalue()


def _replace(path: Path, text: str) -> None:
    """Write at once: who is killed meanwhile leaves the file as it was."""
    unfinished = path.with_suffix(f"{path.suffix}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
