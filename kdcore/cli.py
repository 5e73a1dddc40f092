"""`kdflow ...`: what `dvc.yaml` calls and what people call by hand.

Parses, checks names and hands over to `kdcore.stages`; no work is done here. Heavy libraries are
imported by the stages only, so help and mistakes answer at once.
"""

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from kdcore import __version__, config
from kdcore.environment import prepare_environment
from kdcore.errors import UserError
from kdcore.layout import ROOT, Layout

if TYPE_CHECKING:
    from rich.console import Console

    from kdcore import general_config

app = typer.Typer(
    name="kdflow",
    help="Distil pre-trained language encoders: from raw data to a registered student.",
    add_completion=False,
    rich_markup_mode=None,  # plain help needs no rich, which costs a tenth of a second
    pretty_exceptions_enable=False,
)

TEACHER = "teacher"
INTERRUPTED = 130  # what typer returns for Ctrl-C

StudyOption = Annotated[Path, typer.Option("--study", metavar="DIR", help="The study folder, with its params.yaml.")]
DatasetArgument = Annotated[str, typer.Argument(metavar="DATASET", help="A name under `datasets` in params.yaml.")]
MethodArgument = Annotated[str, typer.Argument(metavar="METHOD", help="A name under `methods` in params.yaml.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 2 the user's mistake, 75 the study is busy, 130 interrupted.

    Anything else that goes wrong is a bug and keeps its traceback.
    """
    prepare_environment()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = app(arguments, prog_name="kdflow", standalone_mode=False)
    except UserError as error:
        _fail(str(error), error.exit_code)
    except TyperException as error:
        _fail(f"{error.format_message().rstrip('.')}; {_where_to_look(arguments)}", UserError.exit_code)
    if code == INTERRUPTED:
        _fail("interrupted; the same command goes on from the last checkpoint", INTERRUPTED)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
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


@app.command()
def prepare(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Read, check and tokenise a dataset.

    Example: kdflow prepare movies
    """
    with _inside(study) as (settings, layout):
        settings.dataset(dataset)
        learning = [settings.selectors[dataset].method] if dataset in settings.selectors else []
        for method in (*learning, *settings.study.methods):  # mistakes should not come to light after hours of training
            _check_method(settings, method)
        from kdcore.stages import prepare as stage

        stage.run(settings, layout, dataset)


@app.command()
def teacher(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Fine-tune the teacher on a prepared dataset.

    Example: kdflow teacher movies
    """
    with _inside(study) as (settings, layout):
        settings.dataset(dataset)
        from kdcore import suitability
        from kdcore.data.prepared import Prepared
        from kdcore.stages import teacher as stage

        prepared = Prepared.load(layout.prepared(dataset))
        suitability.check(settings, prepared, *settings.study.methods)  # before hours of training, not after
        stage.run(settings, layout, dataset)


@app.command()
def features(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Run the teacher once over the training split and store its features.

    Example: kdflow features movies
    """
    with _inside(study) as (settings, layout):
        settings.dataset(dataset)
        from kdcore.stages import features as stage

        stage.run(settings, layout, dataset)


@app.command()
def method(name: MethodArgument, study: StudyOption = Path()) -> None:
    """Say which method file an entry of `methods` is, so that DVC looks at that file.

    Example: kdflow method rail_kd_l
    """
    with _inside(study) as (settings, layout):
        from kdcore.stages import method as stage

        stage.run(settings, layout, name)


@app.command()
def selector(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Train the selector of knowledge of a dataset, for all students that take it as it is.

    Example: kdflow selector movies
    """
    with _inside(study) as (settings, layout):
        settings.dataset(dataset)
        _check_method(settings, settings.selector(dataset).method)
        from kdcore.stages import selector as stage

        stage.run(settings, layout, dataset)


@app.command()
def distill(dataset: DatasetArgument, method: MethodArgument, study: StudyOption = Path()) -> None:
    """Train one student per seed with a method.

    Example: kdflow distill movies rail_kd_l
    """
    with _inside(study) as (settings, layout):
        settings.dataset(dataset)
        _check_method(settings, method)
        from kdcore.stages import distill as stage

        stage.run(settings, layout, dataset, method)


@app.command()
def evaluate(
    dataset: DatasetArgument,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method, or `teacher` for the teacher itself.")],
    study: StudyOption = Path(),
) -> None:
    """Score the students of a method, or the teacher, in and out of domain.

    Example: kdflow evaluate movies rail_kd_l
    """
    with _inside(study) as (settings, layout):
        settings.dataset(dataset)
        if method != TEACHER:
            _check_method(settings, method)
        from kdcore.stages import evaluate as stage

        stage.run(settings, layout, dataset, method)


@app.command()
def analyse(dataset: DatasetArgument, study: StudyOption = Path()) -> None:
    """Look inside the students of a dataset: alikeness of layers, attention, drawn layers, collapse.

    Example: kdflow analyse movies
    """
    with _inside(study) as (settings, layout):
        settings.dataset(dataset)
        from kdcore.stages import analyse as stage

        stage.run(settings, layout, dataset)


@app.command()
def report(study: StudyOption = Path()) -> None:
    """Compare everything that the study evaluated; print the table and write results/report.

    Example: kdflow report --study studies/glue-cpu
    """
    with _inside(study) as (settings, layout):
        from kdcore.stages import report as stage

        stage.run(settings, layout)


@app.command()
def grid(dataset: DatasetArgument, method: MethodArgument, study: StudyOption = Path()) -> None:
    """Print a command for each point of the study's grid that concerns a dataset and a method.

    Each runs one point with the study's first seed; run those you want inside the study folder.

    Example: kdflow grid cola pkd --study studies/rail-bert12
    """
    with _inside(study) as (settings, _):
        settings.dataset(dataset)
        _check_method(settings, method)
        for point in settings.points(dataset, method):
            for name, value in point.items():
                if _holds_mapping(value):
                    raise UserError(f"grid: {name} lists {json.dumps(value)}, but `dvc exp run -S` sets no mappings; "
                                    "vary the settings inside it, or give each a study of its own")
            changes = {"study.seeds": list(settings.study.seeds[:1])} | point
            options = " ".join(f"-S {shlex.quote(f'++{name}={json.dumps(value)}')}" for name, value in changes.items())
            typer.echo(f"dvc exp run {options} evaluate@{dataset}-{method}")


@app.command()
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
    with _inside(study) as (settings, layout):
        settings.dataset(dataset)
        if method is not None:
            _check_method(settings, method)
        from kdcore.stages import register as stage

        stage.run(settings, layout, dataset, method, seed, promote)


@app.command()
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


@app.command()
def status(study: StudyOption = Path()) -> None:
    """Tell who works on a study, what is not current, and the results so far.

    Example: kdflow status --study studies/glue-cpu
    """
    _check_folder(study)
    from kdcore.status import tell

    for line in tell(study):
        typer.echo(line)


@app.command()
def doctor(study: StudyOption = Path()) -> None:
    """Look at the machine, the stores and a study, and say what to do. Exit code 1 when something is wrong.

    Example: kdflow doctor --study studies/glue-cpu
    """
    _check_folder(study)
    from kdcore.doctor import examine

    bad = 0
    for finding in examine(study):
        typer.echo(str(finding))
        bad += finding.level == "bad"
    if bad:
        raise typer.Exit(1)


@app.command(name="general-teacher")
def general_teacher(study: StudyOption = Path()) -> None:
    """Bring the teacher of a general study here, and check that it can serve all students.

    Example: kdflow general-teacher --study studies/general-cpu
    """
    with _inside_general(study) as (settings, layout):
        for student in settings.students:
            _check_general_method(settings, student)
        from kdcore.stages import general_teacher as stage

        stage.run(settings, layout)
        _check_students(settings, layout)  # before hours of reading and training, not after


@app.command()
def corpus(study: StudyOption = Path()) -> None:
    """Clean the texts of a general study and cut them into rows of tokens.

    Example: kdflow corpus --study studies/general-cpu
    """
    with _inside_general(study) as (settings, layout):
        from kdcore.stages import corpus as stage

        stage.run(settings.corpus, str(layout.general_teacher.absolute()), None, layout)


@app.command()
def pretrain(
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="A name under `students` in params.yaml.")],
    study: StudyOption = Path(),
) -> None:
    """Distil a student of a general study from its corpus.

    Example: kdflow pretrain minilm --study studies/general-cpu
    """
    with _inside_general(study) as (settings, layout):
        _check_general_method(settings, student)
        from kdcore.stages import pretrain as stage

        stage.run(settings, layout, student)


@app.command(name="general-report")
def general_report(study: StudyOption = Path()) -> None:
    """Show how the students of a general study learned; write results/report.

    Example: kdflow general-report --study studies/general-cpu
    """
    with _inside_general(study) as (settings, layout):
        from kdcore.stages import general_report as stage

        stage.run(settings, layout)


@contextlib.contextmanager
def _inside_general(study: Path) -> "Iterator[tuple[general_config.GeneralStudy, Layout]]":
    """As `_inside`, for a general study."""
    _check_folder(study)
    from kdcore import general_config

    settings = general_config.load(study / "params.yaml")
    with contextlib.chdir(study):
        yield settings, Layout(Path())


def _check_general_method(settings: "general_config.GeneralStudy", student: str) -> None:
    """Refuse a student that is not declared, or whose method has no file or hyper-parameters that do not fit."""
    method = settings.student(student).method
    from kdcore import general

    general.configure(method, settings.options(student))


def _check_students(settings: "general_config.GeneralStudy", layout: Layout) -> None:
    from kdcore import general_students

    for warning in general_students.check(settings, layout.general_teacher):
        print(f"warning: {warning}", file=sys.stderr)


@contextlib.contextmanager
def _inside(study: Path) -> Iterator[tuple[config.Study, Layout]]:
    """Work with the study folder as current folder, as DVC does, so that relative paths mean the same.

    Yields:
        The settings and the layout of the study.
    """
    _check_folder(study)
    settings = config.load(study / "params.yaml")
    with contextlib.chdir(study):
        yield settings, Layout(Path())


def _check_folder(study: Path) -> None:
    if not study.is_dir():
        raise UserError(f"--study {study} is no folder; name one that holds a params.yaml, e.g. studies/glue-cpu")


def _check_method(settings: config.Study, name: str) -> None:
    """Refuse a method that is not declared, has no file, or has hyper-parameters that do not fit, here or in the
    grid."""
    entry = settings.method(name)
    from kdcore import methods

    methods.of_entry(entry)
    try:
        for point in settings.points("", name):
            methods.of_entry(settings.at(point).method(name))
    except UserError as error:
        raise UserError(f"grid: {error}") from None


def _holds_mapping(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, (list, tuple)) and any(map(_holds_mapping, value)))


def _console() -> "Console":
    """Wide enough for a table where the output is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 200)


def _where_to_look(arguments: Sequence[str]) -> str:
    commands = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    command = next((a for a in arguments if not a.startswith("-")), None)
    return f"see `kdflow {command} --help`" if command in commands else f"commands: {', '.join(commands)}"


def _fail(message: str, code: int) -> NoReturn:
    """Say what is wrong on one line of stderr and exit."""
    print(f"kdflow: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
