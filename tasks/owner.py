"""One flow at a time per study: who runs, and what a flow that died left behind.

The claim is a lock on a file, which the operating system drops with the process, however it dies. The file's text
says who holds it; text without a lock is the trace of a flow that was killed.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from kdcore.errors import BusyError
from tasks.processes import GRACE, alive, end_with_environment, identity, with_environment
from tasks.stage import OWNER


@dataclass(frozen=True)
class Holder:
    """Who works on a study. `process` is `PID:START`; `flow_run` is Prefect's id, once there is one."""

    process: str
    since: str
    host: str
    flow_run: str | None = None


class Claim:
    """A held claim. `previous` is the flow that was killed before it could give up its own, if so."""

    def __init__(self, path: Path, previous: Holder | None) -> None:
        self._path = path
        self._holder = Holder(identity(os.getpid()) or "", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
                              socket.gethostname())
        self.previous = previous
        self._write()

    @property
    def process(self) -> str:
        """The claiming process, as `Order.owner` wants it."""
        return self._holder.process

    def record(self, flow_run: str) -> None:
        """Note the flow run, so that the next flow can close it if this one is killed."""
        self._holder = Holder(self._holder.process, self._holder.since, self._holder.host, flow_run)
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps(asdict(self._holder)), encoding="utf-8")


@contextmanager
def claim(study: Path) -> Iterator[Claim]:
    """Hold a study while the body runs; first end the stage processes of a flow that was killed.

    Raises:
        BusyError: another flow holds it; says its process and since when.
    """
    path = _path(study)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another flow runs study {study.name}: {_who(path)}; wait for it, or stop it") from None
        previous = holder(path)
        if previous is not None:
            end_leftovers(previous.process)
        try:
            yield Claim(path, previous)
        finally:
            path.unlink(missing_ok=True)


def left_dead(study: Path) -> bool:
    """Whether a flow on this study was killed and nobody has cleaned up after it yet."""
    found = holder(_path(study))
    return found is not None and not alive(found.process)


def holder(path: Path) -> Holder | None:
    """The holder that a claim's file names; None when there is none, or it was cut off while being written."""
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None


def end_leftovers(process: str) -> None:
    """End what a dead flow started and what still runs.

    Guards end their stages by themselves a moment after the flow is gone; this waits for that, and ends what is left
    where a guard was killed, too, and the server that a flow without one had started for itself.
    """
    deadline = time.monotonic() + GRACE + 2
    while with_environment(OWNER, process):
        if time.monotonic() > deadline:
            end_with_environment(OWNER, process)
            return
        time.sleep(0.1)


def _path(study: Path) -> Path:
    return study / ".kdflow" / "flow"


def _who(path: Path) -> str:
    found = holder(path)
    if found is None:
        return "a process that is just starting"
    return f"PID {found.process.partition(':')[0]} on {found.host} since {found.since}"
