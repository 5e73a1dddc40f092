"""The Prefect server that a flow talks to: the one that is set or running, else a temporary one of its own."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

from prefect.settings import get_current_settings, temporary_settings

from kdcore.errors import BusyError, UserError
from kdcore.layout import ROOT
from tasks import services
from tasks.processes import alive, end_session, identity
from tasks.stage import OWNER

HOME = ROOT / ".kdflow" / "prefect"
"""Prefect's database and settings of this checkout, instead of the user's `~/.prefect`."""


@contextmanager
def reachable() -> Iterator[str]:
    """Make Prefect's client find a server while the body runs; yields where.

    Without `PREFECT_API_URL` and without `make up`, Prefect starts a temporary server. It keeps its records where
    `make up` finds them later, in SQLite, which two servers must not share: one such flow at a time.

    Raises:
        UserError: the server that is set does not answer, or the temporary one does not start.
        BusyError: another flow is running with a temporary server.
    """
    given = get_current_settings().api.url
    if given:
        if not services.answers(f"{given}/health"):
            raise UserError(f"Prefect's server {given} does not answer; start it (`make up`), or forget it "
                            "(`make down`, and unset PREFECT_API_URL)")
        yield given
        return
    if running := services.prefect_api():
        with temporary_settings({"api.url": running}):
            yield running
        return
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "temporary.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError("another flow of this checkout runs with a temporary server; wait for it, or start one "
                            "that flows share: `make up`") from None
        lock.seek(0)
        _end_left_over(lock.read())
        us = identity(os.getpid()) or ""
        os.environ[OWNER] = us  # the next flow of the study ends all that has this if this one is killed
        with temporary_settings({"home": HOME, "server.analytics_enabled": False,
                                 "server.ephemeral.startup_timeout_seconds": 120}):
            process = _start_apart()
            lock.truncate(0)
            lock.write(f"{us} {identity(process)}")
            lock.flush()
            yield "a temporary server"


def _end_left_over(noted: str) -> None:
    """End the server of a flow that was killed or whose terminal was closed: it has the database that ours is to have.
    """
    flow, _, process = noted.partition(" ")
    if ":" in process and not alive(flow) and alive(process):
        end_session(int(process.partition(":")[0]))


def _start_apart() -> int:
    """Start Prefect's temporary server in a session of its own; returns its process number.

    Ctrl-C goes to all processes of a terminal's job. It would end the server before the flow has told it how it ended,
    and Prefect would go on asking for minutes. Prefect starts the server as its child and has no option for this.
    """
    from prefect.server.api.server import SubprocessASGIServer

    with patch.object(subprocess, "Popen", partial(subprocess.Popen, start_new_session=True)):
        server = SubprocessASGIServer()
        try:
            server.start(get_current_settings().server.ephemeral.startup_timeout_seconds)
        except RuntimeError as error:
            raise UserError(f"Prefect's temporary server does not start: {error} Start one with `make up`") from error
    assert server.server_process is not None
    return server.server_process.pid
