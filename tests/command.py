"""Runs `kdflow` inside the test process, as the console script would."""

import contextlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from kdcore import cli


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def kdflow(*arguments: str, cwd: Path) -> Outcome:
    """Run the command line with `cwd` as current folder; only bugs raise."""
    out, err = io.StringIO(), io.StringIO()
    with (mock.patch.dict(os.environ), contextlib.chdir(cwd), contextlib.redirect_stdout(out),
          contextlib.redirect_stderr(err)):
        try:
            cli.main(arguments)
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    return Outcome(code, out.getvalue(), err.getvalue())
