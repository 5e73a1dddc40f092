"""What commands share: their arguments, and how a study is opened and checked."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdcore import config
from kdcore.errors import UserError
from kdcore.layout import Layout

if TYPE_CHECKING:
    from kdcore import general_config

StudyOption = Annotated[Path, typer.Option("--study", metavar="DIR", help="The study folder, with its params.yaml.")]
DatasetArgument = Annotated[str, typer.Argument(metavar="DATASET", help="A name under `datasets` in params.yaml.")]
MethodArgument = Annotated[str, typer.Argument(metavar="METHOD", help="A name under `methods` in params.yaml.")]


@contextlib.contextmanager
def inside(study: Path) -> Iterator[tuple[config.Study, Layout]]:
    """Work with the study folder as current folder, as DVC does, so that relative paths mean the same.

    Yields:
        The settings and the layout of the study.
    """
    check_folder(study)
    settings = config.load(study / "params.yaml")
    with contextlib.chdir(study):
        yield settings, Layout(Path())


@contextlib.contextmanager
def inside_general(study: Path) -> "Iterator[tuple[general_config.GeneralStudy, Layout]]":
    """As `inside`, for a general study."""
    check_folder(study)
    from kdcore import general_config

    settings = general_config.load(study / "params.yaml")
    with contextlib.chdir(study):
        yield settings, Layout(Path())


def check_folder(study: Path) -> None:
    if not study.is_dir():
        raise UserError(f"--study {study} is no folder; name one that holds a params.yaml, e.g. studies/glue-cpu")


def check_method(settings: config.Study, name: str) -> None:
    """Refuse a method that is not declared, has no file, or has hyper-parameters that do not fit, here, on a dataset
    or in the grid."""
    entries = settings.entries(name)
    from kdcore import methods

    for entry in entries:
        methods.of_entry(entry)
    try:
        for point in settings.points("", name):
            methods.of_entry(settings.at(point).method(name))
    except UserError as error:
        raise UserError(f"grid: {error}") from None
