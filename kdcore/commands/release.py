"""From a student to a registered model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdcore.commands import opening
from kdcore.commands.opening import DatasetArgument, StudyOption
from kdcore.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def register(
    dataset: DatasetArgument,
    method: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="Default: the best on the dataset.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Goes with METHOD.")] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Make it champion if it passes all gates.")] = False,
    study: StudyOption = Path(),
) -> None:
    """Register a student in MLflow, by default the best one. Registering the same bytes again changes nothing.

    Example: kdflow register movies rail_kd_l --seed 1 --promote
    """
    with opening.inside(study) as (settings, layout):
        settings.dataset(dataset)
        if method is not None:
            opening.check_method(settings, method)
        from kdcore.stages import register as stage

        stage.run(settings, layout, dataset, method, seed, promote)


def promote(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="NAME, whose challenger is meant, or NAME/VERSION.")],
) -> None:
    """Make a registered student champion if it passes all gates: by default the challenger.

    Example: kdflow promote kdflow-demo-movies
    """
    from kdcore.stages import register as stage

    stage.promote_version(model)


def rollback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The name of a registered model.")],
) -> None:
    """Make the champion before champion again. Nothing is lost: `kdflow show` says who was champion when.

    Example: kdflow rollback kdflow-demo-movies
    """
    from kdcore import promotion

    left, came = promotion.rollback(model)
    typer.echo(f"{model}: version {came} is champion again, in place of version {left}")


def models(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="NAME, NAME@ALIAS or NAME/VERSION.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
) -> None:
    """List registered students with aliases, metrics and lineage, or tell all about one of them.

    Example: kdflow models kdflow-demo-movies@champion
    """
    from kdcore import catalogue

    found = catalogue.entries() if model is None else [catalogue.one(model)]
    if as_json:
        typer.echo(catalogue.as_json(found))
    elif model is not None:
        typer.echo(found[0].description)
    elif found:
        _console().print(catalogue.table(found))
    else:
        typer.echo("nothing is registered yet; `kdflow register DATASET` registers the best student of a study")


def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="NAME, NAME@ALIAS or NAME/VERSION.")],
) -> None:
    """Tell what a registered student is: data, teacher, scores, gates passed, commit, and how to make it again.

    Example: kdflow show kdflow-demo-movies@champion
    """
    from kdcore import catalogue

    typer.echo(catalogue.page(catalogue.one(model)))


def export(
    what: Annotated[str, typer.Argument(metavar="DATASET|MODEL", help="A dataset of the study, or a registered student "
                                        "as for `kdflow models`.")],
    method: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="Default: the best on the dataset.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Default: the method's best.")] = None,
    int8: Annotated[bool, typer.Option("--int8/--no-int8", help="Also with int8 weights.")] = True,
    tolerance: Annotated[float, typer.Option(metavar="POINTS", min=0.0, help="What int8 may lose where the checkpoint "
                                             "was selected.")] = 1.0,
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="Default: inside artifacts/export.")] = None,
    study: StudyOption = Path(),
) -> None:
    """Export a finished student to ONNX and int8, with its answers checked and its latency measured.

    Example: kdflow export movies rail_kd_l --seed 1
    """
    folder = folder.absolute() if folder else None
    is_registered = what.startswith("kdflow-")
    if is_registered and (method is not None or seed is not None):
        raise UserError(f"{what} is one student already; leave out METHOD and --seed")
    if seed is not None and method is None:
        raise UserError(f"--seed {seed} of which method? Name it: `kdflow export {what} METHOD --seed {seed}`")
    with opening.inside(study) as (settings, layout):
        if not is_registered:
            settings.dataset(what)
            if method is not None:
                opening.check_method(settings, method)
        from kdcore.stages import export as stage

        if is_registered:
            stage.run_registered(layout, what, int8, tolerance, folder)
        else:
            stage.run(settings, layout, what, method, seed, int8, tolerance, folder)


def _console() -> "Console":
    """Wide enough for a table where the output is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 200)
