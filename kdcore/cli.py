"""`kdflow ...`: what `dvc.yaml` calls and what people call by hand.

Parses, checks names and hands over to `kdcore.stages`; no work is done here. Heavy libraries are
imported by the stages only, so help and mistakes answer at once. The commands are functions of `kdcore.commands`.
"""

import errno
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from kdcore import __version__
from kdcore.commands import general, methods, release, stages, studies
from kdcore.environment import prepare_environment
from kdcore.errors import UserError

app = typer.Typer(
    name="kdflow",
    help="Distil pre-trained language encoders: from raw data to a registered student.",
    add_completion=False,
    rich_markup_mode=None,  # plain help needs no rich, which costs a tenth of a second
    pretty_exceptions_enable=False,
)

COMMANDS = (
    studies.init, stages.prepare, stages.teacher, stages.features, stages.method, stages.selector, stages.distill,
    stages.evaluate, stages.analyse, stages.report, studies.grid, studies.accept_search, release.export,
    release.register, release.promote, release.rollback, release.models, release.show, methods.explain, studies.status,
    studies.doctor, general.general_teacher, general.corpus, general.pretrain, general.general_report,
)
"""In the order in which help lists them."""

for function in COMMANDS:
    app.command(name=function.__name__.replace("_", "-"))(function)

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
INTERRUPTED = 130  # what typer returns for Ctrl-C


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
    except OSError as error:
        if error.errno in NO_ROOM:
            _fail(f"{error.filename or 'a file'} cannot be written: {error.strerror}; make room, then the same command "
                  "goes on", UserError.exit_code)
        if error.errno in NO_RIGHT and error.filename:
            _fail(f"{error.filename}: {error.strerror}; name a folder that you may read and write, or change its "
                  "rights", UserError.exit_code)
        raise
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # of torch, which most commands need not load
            raise
        _fail(f"the device's memory is full: {str(error).partition('. ')[0]}; raise training's `accumulation`, which "
              "changes no result, lower `batch_size` of `features` or `evaluation`, or run fewer stages per device; "
              "the same command goes on", UserError.exit_code)
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


def _where_to_look(arguments: Sequence[str]) -> str:
    commands = [command.name for command in app.registered_commands if command.name]
    command = next((a for a in arguments if not a.startswith("-")), None)
    return f"see `kdflow {command} --help`" if command in commands else f"commands: {', '.join(commands)}"


def _fail(message: str, code: int) -> NoReturn:
    """Say what is wrong on one line of stderr and exit."""
    print(f"kdflow: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
