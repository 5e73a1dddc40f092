"""What the flow run's page shows: the results with their curves, the stages, and the way to MLflow.

One artifact of a kind at the end of a flow; progress travels in the log, since every artifact update is an event that
`--watch` prints.
"""

import json
import re
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from kdcore import latest_report
from kdcore.analysis.page import with_pictures
from kdcore.layout import Layout
from tasks import runs
from tasks.chain import Outcome


def publish(study: Path, name: str, outcome: Outcome, registered: list[str], parent_run: str | None) -> None:
    """Attach results, stages and links to the flow run that this is called in."""
    key = artifact_key(name)
    if rows := stage_rows(outcome):
        create_table_artifact(key=f"{key}-stages", table=rows, description=f"Stages of {name}")
    layout = Layout(study)
    numbers = layout.report / "results.json"  # of students on datasets; a general study has none
    report = latest_report.folder(layout) / "report.md"
    old = no_new_report(outcome)
    if numbers.is_file() and (rows := result_rows(json.loads(numbers.read_text("utf-8")))):
        create_table_artifact(key=f"{key}-numbers", table=rows,
                              description=f"Numbers of {name}{', of an earlier run' if old else ''}: mean ± deviation "
                                          "over seeds, x 100")
    text = []
    if outcome.failed:
        text.append(f"**Failed.** {outcome.message}\n")
    if registered:
        text.append("## Registered\n\n" + "\n".join(f"- {line}" for line in registered) + "\n")
    if links := runs.mlflow_links(name, parent_run):
        text.append("## MLflow\n\n" + "\n".join(f"- {link}" for link in links) + "\n")
    if old:
        below = " What follows is of an earlier run." if report.is_file() else ""
        text.append(f"**No new report:** {old}.{below}\n")
    if report.is_file():
        text.append(with_pictures(report.read_text(encoding="utf-8"), [report.parent]))
    if text:
        create_markdown_artifact(key=f"{key}-results", markdown="\n".join(text), description=f"Results of {name}")


def no_new_report(outcome: Outcome) -> str:
    """Why the run wrote no report, where it should have; else empty."""
    if why := outcome.left_out.get("report"):
        return f"it {why}. The whole study writes one; a profile names a smaller study"
    if by := outcome.blocked.get("report"):
        return f"it is blocked by {by}"
    return "its stage failed" if "report" in outcome.failed else ""


def stage_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """One row per stage: what happened to it and how long it took."""
    rows = [{"stage": stage, "outcome": result["outcome"], "seconds": result["seconds"]}
            for stage, result in outcome.done.items()]
    rows += [{"stage": stage, "outcome": "failed", "seconds": ""} for stage in outcome.failed]
    rows += [{"stage": stage, "outcome": f"blocked by {by}", "seconds": ""} for stage, by in outcome.blocked.items()]
    return rows + [{"stage": stage, "outcome": why, "seconds": ""} for stage, why in outcome.left_out.items()]


def result_rows(results: dict[str, Any]) -> list[dict[str, str]]:
    """One row per dataset and number, one column per system, from the report's `results.json`."""
    systems = list(dict.fromkeys(name for dataset in results["datasets"].values() for name in dataset["systems"]))
    rows = []
    for dataset, content in results["datasets"].items():
        metrics = {name: system["metrics"] for name, system in content["systems"].items()}
        for column in dict.fromkeys(column for found in metrics.values() for column in found):
            rows.append({"dataset": dataset, "number": column}
                        | {name: _spread(metrics.get(name, {}).get(column)) for name in systems})
    return rows


def _spread(summary: dict[str, Any] | None) -> str:
    if summary is None:
        return ""
    deviation = "" if summary["sd"] is None else f" ± {100 * summary['sd']:.1f}"
    return f"{100 * summary['mean']:.1f}{deviation}"


def artifact_key(name: str) -> str:
    """A study's name as Prefect wants keys: lower case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "study"
