"""Where every number of a dataset comes from: the runs, the command that gives it, the hashes of what was read."""

from kdcore.analysis.comparison import NO_NUMBER
from kdcore.analysis.measured import Measured
from kdcore.analysis.results import TEACHER, DatasetResults
from kdcore.analysis.tables import Table
from kdcore.lineage import hash_folder
from kdcore.tracking_store import page

_SHORT = 12
"""Characters of a hash that are shown."""


def provenance(results: DatasetResults, measured: Measured | None) -> Table:
    """One row per system; with what this machine knows also the model's hash in DVC and the runs in MLflow."""
    dataset, rows = results.info.name, []
    for name, system in results.systems.items():
        stage = f"evaluate-teacher@{dataset}" if name == TEACHER else f"evaluate@{dataset}-{name}"
        row = (name, ", ".join(system.runs), f"`dvc repro {stage}`", f"`{hash_folder(system.folder)[:_SHORT]}`")
        rows.append((*row, *(_known_here(dataset, name, measured) if measured else ())))
    caption = ("`dvc repro` of the stage brings the numbers and all that they need up to date, from the cache where it "
               "has them; hashes are DVC's, of the folder with the numbers and all predictions.")
    headings = ("", "runs", "command", "evaluation")
    if measured is None:
        return Table("", headings, tuple(rows), caption)
    prepared = _short(measured, f"artifacts/prepared/{dataset}")
    return Table("", (*headings, "model", "MLflow runs of the training"), tuple(rows),
                 f"{caption} Data as prepared: {prepared}. Code and settings: {measured.revision or 'not in git'}. "
                 "Hashes of models and data are those of `dvc.lock`.")


def _known_here(dataset: str, name: str, measured: Measured) -> tuple[str, str]:
    model = f"artifacts/teacher/{dataset}" if name == TEACHER else f"artifacts/student/{dataset}/{name}"
    runs = [f"{run} {_linked(identity, measured.tracking)}" for run, identity
            in measured.runs.get((dataset, name), {}).items()]
    return _short(measured, model), ", ".join(runs) or NO_NUMBER


def _short(measured: Measured, path: str) -> str:
    return f"`{measured.hashes[path][:_SHORT]}`" if path in measured.hashes else NO_NUMBER


def _linked(run: str, tracking: str) -> str:
    """A run as a link where MLflow is served, else its whole name."""
    return f"[{run[:8]}]({page(tracking, f'runs/{run}')})" if tracking.startswith("http") else f"`{run}`"
