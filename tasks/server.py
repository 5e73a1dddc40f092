"""The Prefect server that a flow talks to: the one that is set or running, else a temporary one of its own."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.settings import get_current_settings, temporary_settings

from kdcore.errors import BusyError, UserError
from kdcore.layout import ROOT
from tasks import services
from tasks.processes import identity
from tasks.stage import OWNER

HOME = ROOT / ".kdflow" / "prefect"
"""Prefect's database and settings of this checkout, instead of the user's `~/.prefect`."""


@contextmanager
def reachable() -> Iterator[str]:
    """Make Prefect's client find a server while the body runs; yields where.

    Without `PREFECT_API_URL` and without `make up`, Prefect starts a temporary server. It keeps its records where
    `make up` finds them later, in SQLite, which two servers must not share: one such flow at a time.

    Raises:
        UserError: the server that is set does not answer.
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
    with (HOME / "temporary.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError("another flow of this checkout runs with a temporary server; wait for it, or start one "
                            "that flows share: `make up`") from None
        os.environ[OWNER] = identity(os.getpid()) or ""  # the next flow ends the server if this one is killed
        with temporary_settings({"home": HOME, "server.analytics_enabled": False,
                                 "server.ephemeral.startup_timeout_seconds": 120}):
            yield "a temporary server"
