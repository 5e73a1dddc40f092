"""Stage `report`: compare all that the study evaluated, and show what was analysed.

Writes `results/report`, which follows from the evaluations and analyses alone:

    report.md, report.html      the same report; the page holds its pictures and their data
    results.json, scores.csv    every number; the means as DVC plots them
    cost.png, ranks.png         of all datasets; ranks where there are enough datasets for any
    curves/DATASET.png
    analysis/DATASET/           pictures and their data, of the datasets that were analysed
    submission/METHOD.zip       for the GLUE test server, where a dataset of GLUE was predicted

Then the same joined with what is true of this machine, which is no out: `report.md`, `report.html` and `cost.png` in
`results/measured`, and the printed tables.
"""

import json
import os
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from kdcore import config, latest_report, tracking_store
from kdcore.analysis import comparison, document, overview_plots, page, plots
from kdcore.analysis import measured as measurements
from kdcore.analysis.exhibits import INDEX, Exhibits, write_csv
from kdcore.analysis.measured import Measured
from kdcore.analysis.overviews import Overview
from kdcore.analysis.repetitions import repeated_selections
from kdcore.analysis.results import OOD_MEAN, TEACHER, DatasetResults
from kdcore.analysis.statistics import FEWEST_SEEDS
from kdcore.analysis.tables import WIDTH, as_text, show
from kdcore.evaluation import submission
from kdcore.evaluation.metrics import selection_score
from kdcore.layout import Layout
from kdcore.lineage import locked_outputs, revision
from kdcore.tracking import Run

MARKDOWN = "report.md"
PAGE = "report.html"


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
    content = document.Content(everything, written, analyses, study.study.question, study.study.published)
    _write_outs(content, scratch)
    shutil.rmtree(layout.report, ignore_errors=True)
    layout.report.parent.mkdir(parents=True, exist_ok=True)
    os.replace(scratch, layout.report)
    measured = _measured(everything, layout)
    _write_here(content, layout, measured)
    _print(everything, measured)
    for line in written:
        _say(f"GLUE submission: {line}")
    print(f"The whole report: {layout.measured / PAGE}")


def _write_outs(content: document.Content, folder: Path) -> None:
    """What follows from outs alone; equal inputs give equal bytes."""
    numbers = json.dumps(document.numbers(content), indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "results.json").write_text(numbers + "\n", encoding="utf-8")
    write_csv(folder / "scores.csv", ("number", "dataset", "system", "on", "score"), document.scores(content))
    for panel in document.panels(content.everything):
        plots.draw([panel], folder / document.CURVES / f"{panel.dataset}.png")
    overview = content.overview
    if overview.ranking:
        overview_plots.draw_ranks(overview.ranking, folder / document.RANKS)
    if costs := overview.costs(None):
        overview_plots.draw_cost(costs, document.QUALITY, folder / document.COST)
    text = document.report(content)
    (folder / MARKDOWN).write_text(text, encoding="utf-8")
    (folder / PAGE).write_text(page.page(text, [folder]), encoding="utf-8")


def _write_here(content: document.Content, layout: Layout, measured: Measured) -> None:
    """The report with what this machine knows, as files and in MLflow."""
    with Run.start("report", layout) as tracked:
        layout.measured.mkdir(parents=True, exist_ok=True)
        (layout.measured / document.COST).unlink(missing_ok=True)
        if (costs := content.overview.costs(measured)) != content.overview.costs(None):
            overview_plots.draw_cost(costs, document.QUALITY, layout.measured / document.COST)
        text = document.report(content, measured)
        (layout.measured / PAGE).write_text(page.page(text, [layout.measured, layout.report]), encoding="utf-8")
        (layout.measured / MARKDOWN).write_text(page.beside(text, layout.measured, layout.report), encoding="utf-8")
        latest_report.mark(layout)
        tracked.artifact(layout.measured / PAGE)
        tracked.artifact(layout.report)


def show_tables(study: config.Study, layout: Layout) -> None:
    """Print the tables of a study that was evaluated, without writing anything."""
    everything = _load(study, layout)
    _print(everything, _measured(everything, layout))


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


def _measured(everything: Sequence[DatasetResults], layout: Layout) -> Measured:
    records = {(results.info.name, name): {run: content["training"] for run, content in system.runs.items()}
               for results in everything for name, system in results.systems.items()}
    return Measured({key: measurements.costs(layout, *key, own) for key, own in records.items()},
                    {key: measurements.runs(layout, *key, own) for key, own in records.items()},
                    locked_outputs(layout.study), str(revision(layout.study)), tracking_store.uri())


def _print(everything: Sequence[DatasetResults], measured: Measured) -> None:
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
        tables.append(comparison.cost(results, measured))
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
    print(textwrap.fill(as_text(line), WIDTH, subsequent_indent="  ", break_long_words=False))


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
