"""The stages of `general.dvc.yaml`, as commands."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdcore.commands import opening
from kdcore.commands.opening import StudyOption
from kdcore.layout import Layout

if TYPE_CHECKING:
    from kdcore import general_config


def general_teacher(study: StudyOption = Path()) -> None:
    """Bring the teacher of a general study here, and check that it can serve all students.

    Example: kdflow general-teacher --study studies/general-cpu
    """
    with opening.inside_general(study) as (settings, layout):
        for student in settings.students:
            _check_general_method(settings, student)
        from kdcore.stages import general_teacher as stage

        stage.run(settings, layout)
        _check_students(settings, layout)  # before hours of reading and training, not after


def corpus(study: StudyOption = Path()) -> None:
    """Clean the texts of a general study and cut them into rows of tokens.

    Example: kdflow corpus --study studies/general-cpu
    """
    with opening.inside_general(study) as (settings, layout):
        from kdcore.stages import corpus as stage

        stage.run(settings.corpus, str(layout.general_teacher.absolute()), None, layout)


def pretrain(
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="A name under `students` in params.yaml.")],
    study: StudyOption = Path(),
) -> None:
    """Distil a student of a general study from its corpus.

    Example: kdflow pretrain minilm --study studies/general-cpu
    """
    with opening.inside_general(study) as (settings, layout):
        _check_general_method(settings, student)
        from kdcore.stages import pretrain as stage

        stage.run(settings, layout, student)


def general_report(study: StudyOption = Path()) -> None:
    """Show how the students of a general study learned; write results/report.

    Example: kdflow general-report --study studies/general-cpu
    """
    with opening.inside_general(study) as (settings, layout):
        from kdcore.stages import general_report as stage

        stage.run(settings, layout)


def _check_general_method(settings: "general_config.GeneralStudy", student: str) -> None:
    """Refuse a student that is not declared, or whose method has no file or hyper-parameters that do not fit."""
    method = settings.student(student).method
    from kdcore import general

    general.configure(method, settings.options(student))


def _check_students(settings: "general_config.GeneralStudy", layout: Layout) -> None:
    from kdcore import general_students

    for warning in general_students.check(settings, layout.general_teacher):
        print(f"warning: {warning}", file=sys.stderr)
