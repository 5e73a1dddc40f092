"""Stage `report`: compare all that the study evaluated, and show what was analysed.

Writes `results/report`, which follows from the evaluations and analyses alone:

    report.md, results.json, curves.png
    analysis/DATASET/           pictures and their data, of the datasets that were analysed
    submission/METHOD.zip       for the GLUE test server, where a dataset of GLUE was predicted

Then prints the tables joined with what was measured on this machine, which is no part of the report.
"""

import json
import os
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kdcore import config
from kdcore.analysis import comparison, document, plots
from kdcore.analysis.exhibits import INDEX, Exhibits
from kdcore.analysis.overviews import Overview
from kdcore.analysis.repetitions import repeated_selections
from kdcore.analysis.results import OOD_MEAN, TEACHER, DatasetResults
from kdcore.analysis.statistics import FEWEST_SEEDS
from kdcore.analysis.tables import WIDTH, show
from kdcore.errors import UserError
from kdcore.evaluation import submission
from kdcore.evaluation.metrics import selection_score
from kdcore.layout import Layout


def run(study: config.Study, layout: Layout) -> None:
    """Write the report and print its tables.

    Raises:
        UserError: nothing was evaluated, or evaluations do not belong together.
    """
    everything = _load(study, layout)
    scratch = layout.scratch / "report"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    written = _submissions(everything, scratch / "submission")
    analyses = _analyses(everything, layout, scratch / document.ANALYSES)
    (scratch / "report.md").write_text(document.report(everything, written, analyses), encoding="utf-8")
    content = json.dumps(document.numbers(everything), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    (scratch / "results.json").write_text(content + "\n", encoding="utf-8")
    plots.draw(document.panels(everything), scratch / document.CURVES)
    shutil.rmtree(layout.report, ignore_errors=True)
    layout.report.parent.mkdir(parents=True, exist_ok=True)
    os.replace(scratch, layout.report)
    _print(everything, layout)
    for line in written:
        _say(f"GLUE submission: {line}")
    print(f"The whole report: {layout.report / 'report.md'}")


def show_tables(study: config.Study, layout: Layout) -> None:
    """Print the tables of a study that was evaluated, without writing anything."""
    _print(_load(study, layout), layout)


def _load(study: config.Study, layout: Layout) -> list[DatasetResults]:
    return [DatasetResults.load(layout.evaluation(name, TEACHER).parent, study.study.methods)
            for name in study.study.datasets]


def _analyses(everything: Sequence[DatasetResults], layout: Layout, folder: Path) -> dict[str, Exhibits]:
    """Copy the pictures and their data; a dataset that was not analysed is left out."""
    found = {}
    for results in everything:
        source = layout.analysis(results.info.name)
        if (source / INDEX).is_file():
            found[results.info.name] = exhibits = Exhibits.load(source)
            (folder / results.info.name).mkdir(parents=True)
            for name in exhibits.files:
                shutil.copyfile(source / name, folder / results.info.name / name)
    return found


def _print(everything: Sequence[DatasetResults], layout: Layout) -> None:
    tables = []
    if len(everything) > 1:
        overview = Overview(everything)
        tables = [overview.main(), *filter(None, [overview.outside(), overview.wins()])]
    for results in everything:
        name = results.info.name
        tables.append(comparison.quality(results, results.columns, f"Quality: {name}"))
        if results.comparisons() and all(len(system.metrics) >= FEWEST_SEEDS for method, system
                                         in results.systems.items() if method != TEACHER):
            columns = [column for column in results.columns if column.split in results.in_domain or column == OOD_MEAN]
            tables.append(comparison.differences(results, columns, f"Differences: {name}", brief=True))
        tables += filter(None, [repeated_selections(results)])
        tables.append(comparison.cost(results, {system: _measured(layout, name, system) for system in results.systems}))
    show(tables)
    for variant in dict.fromkeys(variant for results in everything for variant in results.variants):
        _say(f"{variant}.")
    for results in everything:
        for split in (*results.in_domain, *results.out_of_domain):
            if "subset" in (note := results.info.splits[split].note):
                _say(f"{results.info.name}: {split}: {note}")
        for doubt in comparison.doubts(results):
            _say(f"{results.info.name}: {doubt}")


def _say(line: str) -> None:
    """Print a line of Markdown within the width of the tables."""
    print(textwrap.fill(line.replace("**", "").replace("`", ""), WIDTH, subsequent_indent="  ", break_long_words=False))


def _measured(layout: Layout, dataset: str, system: str) -> dict[str, Any]:
    """This machine's measurements of a system: `latency` of its first seed, `epoch_seconds`; absent ones left out."""
    stage = f"teacher@{dataset}" if system == TEACHER else f"distill@{dataset}-{system}"
    found: dict[str, Any] = {}
    for run in _read(layout.measured / f"evaluate@{dataset}-{system}.json").values():
        if isinstance(run, dict) and "latency" in run:
            found.setdefault("latency", run["latency"])
    return found | _epoch_seconds(_read(layout.measured / f"{stage}.json"))


def _epoch_seconds(content: dict[str, Any]) -> dict[str, float]:
    """Mean seconds of training per epoch over all seeds; the first epoch of each warms up and does not count."""
    seconds = [second for run in content.values() if isinstance(run, dict)
               for second in run.get("epoch_seconds", [])[1:] or run.get("epoch_seconds", [])]
    return {"epoch_seconds": sum(seconds) / len(seconds)} if seconds else {}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}); delete it, it holds measurements only") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {type(content).__name__}, expected a mapping; delete it, it holds measurements "
                        "only")
    return content


def _submissions(everything: Sequence[DatasetResults], folder: Path) -> list[str]:
    """One zip per method, of each dataset the seed that is best on the selecting split. Returns what to tell."""
    lines = []
    for name in dict.fromkeys(name for results in everything for name in results.systems):
        files: dict[str, str] = {}
        chosen = []
        for results in everything:
            if name not in results.systems:
                continue
            system = results.systems[name]
            selected = {run: selection_score(splits[results.select], results.info)
                        for run, splits in system.metrics.items() if results.select in splits}
            best = max(selected or system.metrics, key=lambda run: selected.get(run, 0.0))
            for split, file in system.runs[best]["submission"].items():
                if file.endswith(".tsv"):
                    files[file] = (system.folder / "submission" / best / file).read_text(encoding="utf-8")
                    chosen.append(f"{file} from {best}")
                else:
                    lines.append(f"{name}: {results.info.name}/{split}: {file}")
        if files:
            filled = submission.assemble(files, folder / f"{name}.zip")
            lines.append(f"`submission/{name}.zip`: {', '.join(chosen)}. **Not predicted, one label in every row: "
                         f"{', '.join(filled) or 'none'}**")
    return lines
