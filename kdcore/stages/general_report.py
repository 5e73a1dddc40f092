"""Stage `report` of a general study: what the students are and how they learned.

Writes `results/report`, which follows from the students' records alone:

    report.md      the table of students and their curves
    students.csv   the table's numbers
    curves.csv     student, phase, step, term, loss
    curves.png

How good the students are is for the studies to say that start from them.
"""

import csv
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kdcore.analysis.loss_curves import LossCurve, draw
from kdcore.analysis.tables import Table, markdown, show
from kdcore.errors import UserError
from kdcore.export import RECORD
from kdcore.general_config import GeneralStudy
from kdcore.layout import Layout
from kdcore.models.files import weights_fingerprint

CURVES = "curves.png"


def run(study: GeneralStudy, layout: Layout) -> None:
    """Write the report and print its table.

    Raises:
        UserError: a student is missing.
    """
    records = {name: _record(layout, name) for name in study.students}
    scratch = layout.scratch / "report"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    table = _table(study, records)
    draw([LossCurve(name, _terms(record)) for name, record in records.items()], scratch / CURVES)
    (scratch / "report.md").write_text(_report(study, table, records), encoding="utf-8")
    _write(scratch / "students.csv", ("student", "method", "teacher", "init", "parameters", "steps", "tokens", "loss"),
           ((name, record["method"]["name"], study.students[name].teacher, record["init"], record["parameters"],
             _steps(record), record["tokens"], record["curve"][-1]["loss"]) for name, record in records.items()))
    _write(scratch / "curves.csv", ("student", "phase", "step", "term", "loss"),
           ((name, point["phase"], point["step"], term, loss) for name, record in records.items()
            for point in record["curve"] for term, loss in point["parts"].items()))
    shutil.rmtree(layout.report, ignore_errors=True)
    layout.report.parent.mkdir(parents=True, exist_ok=True)
    os.replace(scratch, layout.report)
    _print(layout, table, records)
    print(f"The whole report: {layout.report / 'report.md'}")


def show_table(study: GeneralStudy, layout: Layout) -> None:
    """Print the table of a study whose students are all there, without writing anything."""
    records = {name: _record(layout, name) for name in study.students}
    _print(layout, _table(study, records), records)


def _print(layout: Layout, table: Table, names: Iterable[str]) -> None:
    show([table])
    for name in names:
        folder = layout.general_student(name)
        print(f"{name}: {{source: {folder.absolute()}, revision: {weights_fingerprint(folder)}}}")


def _record(layout: Layout, name: str) -> dict[str, Any]:
    path = layout.general_student(name) / RECORD
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run `kdflow pretrain {name}` first") from None


def _table(study: GeneralStudy, records: Mapping[str, dict[str, Any]]) -> Table:
    rows = tuple((name, record["method"]["name"], study.students[name].teacher, f"{record['parameters'] / 1e6:.3g}",
                  f"{_steps(record):,}", f"{record['tokens'] / 1e6:.3g}", _ends(record))
                 for name, record in records.items())
    return Table("Students", ("student", "method", "teacher", "encoder, M\nparameters", "steps", "M tokens",
                              "losses, first to last"), rows)


def _ends(record: dict[str, Any]) -> str:
    """Each term at both ends of its curve."""
    return ", ".join(f"{term} {points[0][1]:.3g} to {points[-1][1]:.3g}" for term, points in _terms(record).items())


def _terms(record: dict[str, Any]) -> dict[str, list[tuple[int, float]]]:
    """The points of each term over all phases; stretches in which every step was skipped have none."""
    terms: dict[str, list[tuple[int, float]]] = {}
    for point in record["curve"]:
        for term, loss in point["parts"].items():
            terms.setdefault(term, []).append((point["step"], loss))
    return terms


def _steps(record: dict[str, Any]) -> int:
    return record["curve"][-1]["step"]


def _report(study: GeneralStudy, table: Table, records: Mapping[str, dict[str, Any]]) -> str:
    corpus = next(iter(records.values()))["corpus"]
    lines = ["# General students", "",
             f"From the teacher `{study.teacher.source}` on a corpus of {corpus['rows']:,} rows, {corpus['tokens']:,} "
             "tokens.", "", markdown(table), "", f"![losses of each student]({CURVES})", "",
             "Losses are those of the training texts, each term before its weight. They tell how a student learned, "
             "not how good it is: terms of different methods are different numbers.", "", "## Where they started", ""]
    lines += [f"- {name}: {record['init']}" for name, record in records.items()]
    if warnings := [f"- {name}: {warning}" for name, record in records.items() for warning in record["warnings"]]:
        lines += ["", "## Warnings", "", *warnings]
    return "\n".join(lines) + "\n"


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
