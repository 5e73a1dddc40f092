"""Making a study, and looking at one."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from kdcore.commands import opening
from kdcore.commands.opening import DatasetArgument, MethodArgument, StudyOption
from kdcore.errors import UserError
from kdcore.layout import ROOT


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The new study's folder.")],
    like: Annotated[Path, typer.Option(metavar="DIR", help="A study to start from, e.g. studies/general-cpu.")] = ROOT,
) -> None:
    """Make a study folder that starts from the settings of another study, by default the checkout's own.

    Example: kdflow init studies/mine
    """
    from kdcore import study

    made = study.initialise(folder, study.find(like) / "params.yaml", git=folder.resolve().is_relative_to(ROOT))
    typer.echo(f"{folder} is a study now: edit {made.params}, then run `dvc repro` in the folder")


def grid(dataset: DatasetArgument, method: MethodArgument, study: StudyOption = Path()) -> None:
    """Print a command for each point of the study's grid that concerns a dataset and a method.

    Each runs one point with the study's first seed; run those you want inside the study folder.

    Example: kdflow grid cola pkd --study studies/rail-bert12
    """
    with opening.inside(study) as (settings, _):
        settings.dataset(dataset)
        opening.check_method(settings, method)
        for point in settings.points(dataset, method):
            for name, value in point.items():
                if _holds_mapping(value):
                    raise UserError(f"grid: {name} lists {json.dumps(value)}, but `dvc exp run -S` sets no mappings; "
                                    "vary the settings inside it, or give each a study of its own")
            changes = {"study.seeds": list(settings.study.seeds[:1])} | point
            options = " ".join(f"-S {shlex.quote(f'++{name}={json.dumps(value)}')}" for name, value in changes.items())
            typer.echo(f"dvc exp run {options} evaluate@{dataset}-{method}")


def accept_search(study: StudyOption = Path()) -> None:
    """Write what a search proposes, after you have read search/proposal.yaml, into params.yaml.

    Example: kdflow accept-search --study studies/rail-bert12
    """
    opening.check_folder(study)
    from kdcore import proposal

    for line in proposal.accept(study):
        typer.echo(line)


def status(study: StudyOption = Path()) -> None:
    """Tell who works on a study, what is not current, and the results so far.

    Example: kdflow status --study studies/glue-cpu
    """
    opening.check_folder(study)
    from kdcore.status import tell

    for line in tell(study):
        typer.echo(line)


def doctor(study: StudyOption = Path()) -> None:
    """Look at the machine, the stores and a study, and say what to do. Exit code 1 when something is wrong.

    Example: kdflow doctor --study studies/glue-cpu
    """
    opening.check_folder(study)
    from kdcore.doctor import examine

    bad = 0
    for finding in examine(study):
        typer.echo(str(finding))
        bad += finding.level == "bad"
    if bad:
        raise typer.Exit(1)


def _holds_mapping(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, (list, tuple)) and any(map(_holds_mapping, value)))
