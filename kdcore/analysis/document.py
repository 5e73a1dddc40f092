"""The report of a study as Markdown that reads on its own, and the same numbers as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kdcore.analysis import published
from kdcore.analysis.comparison import cost, differences, notes, quality, selection, sizes
from kdcore.analysis.exhibits import Exhibits
from kdcore.analysis.measured import Measured
from kdcore.analysis.overviews import Overview
from kdcore.analysis.plots import Curve, Panel
from kdcore.analysis.provenance import provenance
from kdcore.analysis.repetitions import repeated_selections
from kdcore.analysis.results import OOD_MEAN, TEACHER, Column, DatasetResults
from kdcore.analysis.statistics import LEVEL, RESAMPLES
from kdcore.analysis.tables import NAMES, markdown, plain
from kdcore.config import Published
from kdcore.evaluation.metrics import PROBABILITY_SUM, PROTOCOL

CURVES = "curves"
"""The folder beside the report that holds the training curves of each dataset."""
ANALYSES = "analysis"
"""The folder beside the report that holds a folder of pictures per dataset."""
COST = "cost.png"
RANKS = "ranks.png"
QUALITY = "quality x 100"
SHORT = 12
"""Differences of a dataset that a page shows at once; more are folded."""


@dataclass(frozen=True)
class Content:
    """All that a report is made of. `submissions` are lines on what was written for the GLUE server, `analyses` are by
    dataset, of those that were analysed; `question` is the study's own, None for the one that every study asks;
    `published` are scores of papers by name."""

    everything: Sequence[DatasetResults]
    submissions: Sequence[str]
    analyses: Mapping[str, Exhibits]
    question: str | None
    published: Mapping[str, Published]

    @cached_property
    def overview(self) -> Overview:
        return Overview(self.everything)


def report(content: Content, measured: Measured | None = None) -> str:
    """The report as Markdown, pictures by their names.

    Args:
        measured: what this machine knows, for the report that is no out; None says only what follows from outs.
    """
    everything, overview = content.everything, content.overview
    names = ", ".join(results.info.name for results in everything)
    parts = [f"# Results: {names}\n", content.question.strip() + "\n" if content.question else _QUESTION,
             "## In short\n", _bullets(overview.in_short())]
    if len(everything) > 1:
        parts += ["## All datasets\n", markdown(overview.main())]
        if outside := overview.outside():
            parts += ["### Out of domain, all datasets\n", markdown(outside)]
        if wins := overview.wins():
            parts += ["### Wins and ranks\n", markdown(wins)]
        if overview.ranking:
            parts += [f"![Average ranks of the methods]({RANKS})\n", _RANKS_TOLD]
    if beside := published.table(content.published, everything):
        parts += ["## Beside published numbers\n", markdown(beside)]
    if overview.costs(measured):
        parts += ["## Cost and quality\n", f"![Quality against cost]({COST})\n",
                  f"{_COST_TOLD} Quality: {overview.quality_told()}.\n", markdown(overview.costs_table(measured))]
        if measured is None:
            parts += [_NOT_HERE]
    for results in everything:
        parts += _section(results, everything)
        if measured is not None:
            parts += ["### Cost on this machine\n", markdown(cost(results, measured))]
        parts += ["### Notes\n", _bullets(notes(results))]
        if found := content.analyses.get(results.info.name):
            parts += found.markdown(f"{ANALYSES}/{found.dataset}")
        parts += ["#### Where these numbers come from\n", markdown(provenance(results, measured))]
    if content.submissions:
        parts += ["## GLUE submission\n", _bullets(content.submissions)]
    parts += ["## How to reproduce\n", _REPRODUCE]
    return "\n".join(parts)


def numbers(content: Content) -> dict[str, Any]:
    """The content of `results.json`: every value per seed, its summary, and all differences. Shares are 0 to 1."""
    overview = content.overview
    together = {"headlines": {results.info.name: column.name for results, column in overview.shown},
                "differences": [{"dataset": results.info.name, "method": method, "baseline": baseline} | vars(found)
                                for (results, _), one in zip(overview.shown, overview.differences, strict=True)
                                for (method, baseline, _), found in one.items()],
                "ranking": vars(overview.ranking) if overview.ranking else None}
    return {"protocol": PROTOCOL, "interval": {"level": LEVEL, "resamples": RESAMPLES}, "together": together,
            "datasets": {results.info.name: _numbers(results) for results in content.everything}}


def scores(content: Content) -> list[tuple[str, str, str, str, float]]:
    """Every mean as a row: a name of its own, dataset, system, column, the mean x 100."""
    return [(f"{results.info.name} {column.name}: {name}", results.info.name, name, column.name,
             100 * results.summary(name, column).mean)
            for results in content.everything for column in results.columns for name in results.systems
            if results.has(name, column)]


def panels(everything: Sequence[DatasetResults]) -> list[Panel]:
    """The training curves of every dataset."""
    found = []
    for results in everything:
        score = " and ".join(NAMES.get(name, name) for name in results.info.metrics)
        curves = {name: [_curve(training) for run in system.runs.values() for training in _trainings(run["training"])]
                  for name, system in results.systems.items()}
        found.append(Panel(results.info.name, f"{results.select} ({score})", curves))
    return found


# A paragraph is one line: Prefect and MLflow show what breaks in the source as broken lines.
_QUESTION = (
    "Does a small model that learns from a fine-tuned teacher do better than the same small model fine-tuned alone, on "
    "data like the training data and on data from elsewhere? Each student below starts from the same weights and sees "
    "the same rows in the same order per seed; methods differ in what they take from the teacher. `finetune` takes "
    "nothing.\n")

_RANKS_TOLD = "Dots: average ranks. Bars join methods whose ranks cannot be told apart.\n"

_LOSSES = "A method's loss is the sum of its own terms: compare the shapes of the losses, not their heights.\n"

_COST_TOLD = (
    "The upper left is where one wants to be: good and cheap. Students with the same parameters cost the same where "
    "they are used; what differs is what their training took.")

_NOT_HERE = (
    "Latency and training time are no part of this file, since they are facts of one machine: `kdflow report` writes "
    "the same report with what was measured on the machine that it runs on.\n")

_REPRODUCE = """\
In the study's folder, with the data and models that its `params.yaml` names:

```
# runs whatever is not up to date and writes this report
dvc repro
# prints the tables, and writes this report with what
# this machine measured: latency, training time
kdflow report
```

`params.yaml` holds every setting, `dvc.lock` the hashes of data, code, models and results. \
Every value per seed is in `results.json`, every single prediction in \
`artifacts/evaluation/DATASET/METHOD/predictions/`.
"""


def _section(results: DatasetResults, everything: Sequence[DatasetResults]) -> list[str]:
    inside = [column for column in results.columns if column.split in results.in_domain]
    outside = [column for column in results.columns if column not in inside]
    parts = [f"## {results.info.name}\n", _setting(results, everything),
             "### In domain\n", markdown(quality(results, inside, ""))]
    if outside:
        parts += ["### Out of domain\n", markdown(quality(results, outside, ""))]
        if summed := _probability_sums(results):
            parts += [summed]
    if results.comparisons():
        table = differences(results, results.columns, "")
        folded = len(table.rows) > SHORT
        parts += [f"#### All {len(table.rows)} differences\n" if folded else "### Differences\n", markdown(table)]
    if repeated := repeated_selections(results):
        parts += ["### Repeated random selections\n", markdown(repeated)]
    name = results.info.name
    return [*parts, "### Training curves\n",
            f"![Training loss and score on the selecting split of {name}, by epoch]({CURVES}/{name}.png)\n", _LOSSES,
            "### Size\n", markdown(sizes(results))]


def _setting(results: DatasetResults, everything: Sequence[DatasetResults]) -> str:
    """Who learned what from whom, in a few sentences."""
    info = results.info
    what = f"classes {', '.join(map(plain, info.labels))}" if info.labels else "a score"
    train = info.splits[info.train]
    rows = f"{train.rows:,} training rows"
    if train.unlabelled:
        rows = (f"{train.labelled:,} training rows with labels and {train.unlabelled:,} without "
                f"({train.unlabelled / train.rows:.0%}), which methods without a teacher leave out")
    said = [f"{rows}, {what}; at most {info.max_length} tokens. {selection(results)}."]
    if train.note:
        said.append(f"Training rows: {plain(train.note)}.")
    if TEACHER in results.systems:
        said.append(f"Teacher: {_training(results.systems[TEACHER].runs[TEACHER]['training'])}.")
    alike: dict[str, list[str]] = {}
    for name, system in results.systems.items():
        if name != TEACHER:
            trainings = {run.removeprefix("seed-"): found["training"] for run, found in system.runs.items()}
            seeds = f"{'seed' if len(trainings) == 1 else 'seeds'} {', '.join(trainings)}"
            counts = {seed: len(found["phases"]) for seed, found in trainings.items()}
            few, longest = min(counts.values()), max(counts, key=counts.__getitem__)  # phases may end early
            ran = f"; seeds ran {few} to {counts[longest]} of these phases" if few < counts[longest] else ""
            how = _training(trainings[longest])
            if len({found["init"] for found in trainings.values()}) > 1:
                how = how.replace(f"(seed {longest})", "(seed of the run)")
            how = f"{how}{ran}; {seeds}"
            alike.setdefault(how, []).append(name)
    if results.variants:
        said.append("Methods by names of their own:\n\n" + _bullets(results.variants).rstrip())
    if own := _own_settings(results, everything):
        said.append("Settings of methods that differ between the datasets of this study, as they are here:\n\n"
                    + _bullets(own).rstrip())
    said += [f"{'Students' if len(alike) == 1 else ', '.join(names)}: {how}." for how, names in alike.items()]
    return "\n\n".join(said) + "\n"


def _own_settings(results: DatasetResults, everything: Sequence[DatasetResults]) -> list[str]:
    """Per method the hyper-parameters that it has otherwise on another dataset, which `params.yaml` may say."""
    told = []
    for name, system in results.systems.items():
        own = system.hyperparameters
        others = [other.systems[name].hyperparameters for other in everything if name in other.systems]
        if differing := [key for key, value in own.items() if any(other.get(key) != value for other in others)]:
            values = (f"{key} {json.dumps(own[key], ensure_ascii=False)}".replace('"', "") for key in differing)
            told.append(f"`{name}`: {', '.join(values)}")
    return told


def _training(record: dict[str, Any]) -> str:
    """How a model was trained: its start, then the settings of each phase, if it was trained here."""
    if not record["phases"]:
        return str(record["init"])
    *before, last = (phase | {"precision": record["precision"]} for phase in record["phases"])
    alike: dict[str, list[str]] = {}
    for phase in before:
        alike.setdefault(_settings(phase), []).append(phase["name"])
    phases = [f"{', '.join(names)}: {how}" for how, names in alike.items()]
    settings = _settings(last)
    if selector := record.get("selector"):
        phases.append("with the selector {fingerprint}, trained by {method} on {dataset} with seed {seed} in the study "
                      "{study}".format(**selector))
    return "; ".join([str(record["init"]), *phases, f"{last['name']}: {settings}" if phases else settings])


def _settings(phase: dict[str, Any]) -> str:
    length = "epochs" if phase.get("steps") is None else "steps"
    shown = (length, "batch_size", "learning_rate", "patience", "precision")
    return ", ".join(f"{key.replace('_', ' ')} {_plain(phase[key])}" for key in shown if phase.get(key) is not None)


def _plain(value: Any) -> str:
    """A number as people write it: `2`, `0.0002`, `5e-5`."""
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)


def _probability_sums(results: DatasetResults) -> str:
    """The alternative decision where classes collapse, as a sentence."""
    said = []
    for split in results.out_of_domain:
        column = Column(split, PROBABILITY_SUM)
        scored = [name for name in results.systems if results.has(name, column)]
        if any(PROBABILITY_SUM in splits[split] for name in scored
               for splits in results.systems[name].metrics.values()):
            values = ", ".join(f"{name} {100 * results.summary(name, column).mean:.1f}" for name in scored)
            said.append(f"On `{split}` several classes count as one. The table takes the most probable class first and "
                        f"maps it then; comparing summed probabilities instead gives {values}.\n")
    return "\n".join(said)


def _trainings(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The trainings behind a model: its own, those of the members of an average, or none."""
    return [training for training in record.get("members", [record]) if training["history"]]


def _curve(training: dict[str, Any]) -> Curve:
    """Epochs of a later phase count on from the one before."""
    history, before = training["history"], 0.0
    epochs: list[float] = []
    for place, entry in enumerate(history):
        if place and entry["phase"] != history[place - 1]["phase"]:
            before = epochs[-1]
        epochs.append(before + entry["epoch"])
    scores = [entry.get("development", {}).get("score") for entry in history]
    return Curve(epochs, [entry["loss"] for entry in history], scores)


def _numbers(results: DatasetResults) -> dict[str, Any]:
    systems = {}
    for name, system in results.systems.items():
        values = {column.name: vars(results.summary(name, column)) | {"values": results.values(name, column)}
                  for column in results.columns if results.has(name, column)}
        systems[name] = {"runs": list(system.metrics), "metrics": values, "size": system.size,
                         "degenerate_on": system.degenerate_splits}
    compared = [{"method": method, "baseline": baseline, "on": column.name}
                | vars(found) for (method, baseline, column), found in results.differences.items()]
    return {"selected_on": results.select, "reported_on": [*results.in_domain, *results.out_of_domain],
            "out_of_domain_mean_of": results.in_the_mean if OOD_MEAN in results.columns else [],
            "splits": {name: {"rows": split.rows, "unlabelled": split.unlabelled, "role": split.role,
                              "source": split.source, "note": split.note}
                       for name, split in results.info.splits.items()},
            "not_evaluated": results.missing, "systems": systems, "differences": compared}


def _bullets(lines: Sequence[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)
