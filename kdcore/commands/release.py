"""From a student to a registered model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdcore.commands import opening
from kdcore.commands.opening import DatasetArgument, StudyOption

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


def _console() -> "Console":
    """Wide enough for a table where the output is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 200)
