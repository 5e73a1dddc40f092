"""End whole process trees, and say which process is meant when a number may have been reused."""

import os
import signal
import time
from collections.abc import Callable, Iterable

import psutil

GRACE = 3.0
"""Seconds between SIGTERM, which a training may answer with a last checkpoint, and SIGKILL."""


def identity(pid: int) -> str | None:
    """`PID:START`, which no later process shares; None when there is none (a zombie counts as gone)."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{pid}:{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None


def alive(who: str) -> bool:
    """Whether the process that `identity` named still runs."""
    return identity(int(who.partition(":")[0])) == who


def session_members(session: int, but: Iterable[int] = ()) -> list[int]:
    """The live processes of a session: a guard's children and theirs, also those that changed their group."""
    skip = set(but)
    members = []
    for process in psutil.process_iter(["pid", "status"]):
        pid = process.info["pid"]
        if pid in skip or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        try:
            if os.getsid(pid) == session:
                members.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return members


def end_session(session: int, but: Iterable[int] = (), grace: float = GRACE) -> None:
    """End all processes of a session: SIGTERM, then SIGKILL after `grace` seconds."""
    but = set(but)
    _end(lambda: session_members(session, but), grace)


def with_environment(name: str, value: str) -> list[int]:
    """This user's live processes that were started with an environment variable of this value."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def end_with_environment(name: str, value: str, grace: float = GRACE) -> None:
    """End the processes that `with_environment` finds: SIGTERM, then SIGKILL after `grace` seconds."""
    _end(lambda: with_environment(name, value), grace)


def _end(members: Callable[[], list[int]], grace: float) -> None:
    _signal(members(), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline:
        if not members():
            return
        time.sleep(0.05)
    for _ in range(20):  # a process may fork while it is being killed
        if not (left := members()):
            return
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
