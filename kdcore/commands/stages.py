"""The stages of `dvc.yaml`, as commands."""

from pathlib import Path
from typing import Annotated

import typer

from kdcore.commands import opening
from kdcore.commands.opening import DatasetArgument, MethodArgument, StudyOption

TEACHER = "teacher"


def prepare(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Read, check and tokenise a dataset.

    Example: kdflow prepare movies
    """
    with opening.inside(study) as (settings, layout):
        settings.dataset(dataset)
        learning = [settings.selectors[dataset].method] if dataset in settings.selectors else []
        for method in (*learning, *settings.study.methods):  # mistakes should not come to light after hours of training
            opening.check_method(settings, method)
        from kdcore.stages import prepare as stage

        stage.run(settings, layout, dataset)


def teacher(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Fine-tune the teacher on a prepared dataset.

    Example: kdflow teacher movies
    """
    with opening.inside(study) as (settings, layout):
        settings.dataset(dataset)
        from kdcore import suitability
        from kdcore.data.prepared import Prepared
        from kdcore.stages import teacher as stage

        prepared = Prepared.load(layout.prepared(dataset))
        suitability.check(settings, prepared, *settings.study.methods)  # before hours of training, not after
        stage.run(settings, layout, dataset)


def features(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Run the teacher once over the training split and store its features.

    Example: kdflow features movies
    """
    with opening.inside(study) as (settings, layout):
        settings.dataset(dataset)
        from kdcore.stages import features as stage

        stage.run(settings, layout, dataset)


def method(name: MethodArgument, study: StudyOption = Path()) -> None:
    """Say which method file an entry of `methods` is, so that DVC looks at that file.

    Example: kdflow method rail_kd_l
    """
    with opening.inside(study) as (settings, layout):
        from kdcore.stages import method as stage

        stage.run(settings, layout, name)


def selector(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Train the selector of knowledge of a dataset, for all students that take it as it is.

    Example: kdflow selector movies
    """
    with opening.inside(study) as (settings, layout):
        settings.dataset(dataset)
        opening.check_method(settings, settings.selector(dataset).method)
        from kdcore.stages import selector as stage

        stage.run(settings, layout, dataset)


def distill(dataset: DatasetArgument, method: MethodArgument, study: StudyOption = Path()) -> None:
    """Train one student per seed with a method.

    Example: kdflow distill movies rail_kd_l
    """
    with opening.inside(study) as (settings, layout):
        settings.dataset(dataset)
        opening.check_method(settings, method)
        from kdcore.stages import distill as stage

        stage.run(settings, layout, dataset, method)


def evaluate(
    dataset: DatasetArgument,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method, or `teacher` for the teacher itself.")],
    study: StudyOption = Path(),
) -> None:
    """Score the students of a method, or the teacher, in and out of domain.

    Example: kdflow evaluate movies rail_kd_l
    """
    with opening.inside(study) as (settings, layout):
        settings.dataset(dataset)
        if method != TEACHER:
            opening.check_method(settings, method)
        from kdcore.stages import evaluate as stage

        stage.run(settings, layout, dataset, method)


def analyse(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Look inside the students of a dataset: alikeness of layers, attention, drawn layers, collapse.

    Example: kdflow analyse movies
    """
    with opening.inside(study) as (settings, layout):
        settings.dataset(dataset)
        from kdcore.stages import analyse as stage

        stage.run(settings, layout, dataset)


def report(study: StudyOption = Path()) -> None:
    """Compare everything that the study evaluated; print the table and write results/report.

    Example: kdflow report --study studies/glue-cpu
    """
    with opening.inside(study) as (settings, layout):
        from kdcore.stages import report as stage

        stage.run(settings, layout)
