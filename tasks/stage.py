"""Run one stage of a study's pipeline: `dvc repro --single-item STAGE` in a process tree of its own.

DVC decides whether the stage is current, restores its outs from the run cache, or runs its command; Prefect decides
when and where. Prefect's own caching is off: only `dvc.lock` tells what is done.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from kdcore.layout import Layout
from tasks import guard, slots
from tasks.output import LogTail, reason
from tasks.processes import GRACE, end_session

OWNER = "KDFLOW_OWNER"
"""Environment variable of every stage process: which flow process started it."""
STOP: ContextVar[threading.Event] = ContextVar("stop")
"""Set by the flow when it is cancelled or interrupted; stages started under it end their process trees."""
NEWS_SECONDS = 10.0
"""A stage reports at most this often ..."""
NEWS_LINES = 3
"""... and then at most so many lines; the log file has all."""
_TICK = 0.1
_BUSY = ("is busy, it is being blocked by", "Unable to acquire lock")


class Stop(threading.Event):
    """Ends the stages of one trial of a search. `give_up` does so without calling it a failure."""

    NAME = "Pruned"
    """Of the state in which a stage that was given up ends."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up = False

    def give_up(self) -> None:
        """End the stage that runs: it is not worth its time."""
        self.given_up = True
        self.set()


class StageFailed(Exception):
    """A stage's command failed; the message says which, why, and where its log is."""


class StageBusy(StageFailed):
    """Another DVC process, started by hand, works on the same files."""


class StageTimedOut(StageFailed):
    """The stage ran past its limit and was ended with all its processes."""


@dataclass(frozen=True)
class Order:
    """How to run a stage; plain values, so that it travels to another process as JSON.

    Attributes:
        study: the study folder.
        threads: CPU threads for its numerical libraries, unless the user has set OMP_NUM_THREADS.
        parallel: how many stages run at a time.
        gpus: GPUs to choose from; empty on a machine without.
        force: run the command although nothing changed.
        limit: seconds until the stage is ended.
        owner: identity of the flow's process.
        parent_run: MLflow run that groups the runs of this flow.
    """

    study: str
    threads: int = 1
    parallel: int = 1
    gpus: tuple[str, ...] = ()
    force: bool = False
    limit: float = 7 * 24 * 3600.0
    owner: str = ""
    parent_run: str | None = None


def is_busy(_task: Any, _run: Any, state: Any) -> bool:
    """Whether to try again: only while a DVC process of somebody else is in the way."""
    return isinstance(state.result(raise_on_failure=False), StageBusy)


@task(name="stage", task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False, log_prints=False,
      retries=8, retry_delay_seconds=15, retry_condition_fn=is_busy)
def run_stage(stage: str, order: dict[str, Any]) -> dict[str, Any] | State[Any]:
    """Run one stage; `order` is an `Order` as a dictionary. Returns what `run` returns.

    A stage that failed ends the task Failed with one line that says why; the rest is in its log. One that a search gave
    up ends it Completed, by the name of `Stop.NAME`.
    """
    stop = STOP.get(threading.Event())
    try:
        return run(stage, Order(**order), stop, get_run_logger())
    except StageBusy:
        raise  # an exception is what makes Prefect try again
    except (StageFailed, InterruptedError) as error:
        if isinstance(stop, Stop) and stop.given_up:
            return Completed(message=str(error), name=Stop.NAME)
        return Failed(message=str(error), name="TimedOut" if isinstance(error, StageTimedOut) else "Failed")


def run(stage: str, order: Order, stop: threading.Event, log: Any) -> dict[str, Any]:
    """Run one stage and wait for it.

    Args:
        stage: its name in `dvc.yaml`, e.g. `distill@rte-rail_kd_l`.
        stop: set from another thread to end the stage.
        log: gets the stage's news, condensed.

    Returns:
        `outcome` (`ran`, `restored` from the cache, or `unchanged`), `seconds`, and `log`, the file with all output.

    Raises:
        StageFailed: see its subclasses.
        InterruptedError: `stop` was set.
    """
    file = _log_file(Path(order.study), stage)
    begin = time.monotonic()
    with slots.gpu(list(order.gpus), order.parallel, stop) as device:
        if device is not None:
            log.info(f"{stage} has GPU {device}")
        code = _supervise(_command(stage, order), Path(order.study), _environment(order, device), file,
                          order.limit, stop, log)
    seconds = time.monotonic() - begin
    text = file.read_text(encoding="utf-8", errors="replace")
    if stop.is_set() and code != 0:
        raise InterruptedError(f"{stage} was stopped after {seconds:.0f} s; the next run goes on from there")
    if code == guard.TIMED_OUT:
        raise StageTimedOut(f"{stage} ran longer than {order.limit:.0f} s and was ended; log: {file}")
    if code in (guard.ABANDONED, -signal.SIGKILL):
        raise StageFailed(f"{stage} was ended from outside after {seconds:.0f} s; the next run goes on from there; "
                          f"log: {file}")
    if code != 0:
        kind = StageBusy if any(sign in text for sign in _BUSY) else StageFailed
        raise kind(f"{stage} failed: {_why(text, file)}; log: {file}")
    outcome = "ran" if "Running stage '" in text else "restored" if "is cached - skipping run" in text else "unchanged"
    log.info(f"{stage} {outcome} in {seconds:.0f} s")
    return {"stage": stage, "outcome": outcome, "seconds": round(seconds, 1), "log": str(file)}


def _command(stage: str, order: Order) -> list[str]:
    # --wait-for-lock stands before the verb: it is for the lock of the whole project, held between commands.
    dvc = [sys.executable, "-P", "-m", "dvc", "--wait-for-lock", "repro", "--single-item"]
    return [*dvc, *(["--force"] if order.force else []), stage]


def _environment(order: Order, device: str | None) -> dict[str, str]:
    here = str(Path(sys.executable).parent)  # `kdflow` in dvc.yaml is the one of this environment
    env = os.environ | {"PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath)]),
                        "PYTHONUNBUFFERED": "1", OWNER: order.owner}
    env.setdefault("OMP_NUM_THREADS", str(order.threads))
    if device is not None:
        env["CUDA_VISIBLE_DEVICES"] = device
    if order.parent_run:
        env["KDFLOW_PARENT_RUN"] = order.parent_run
    return env


def _log_file(study: Path, stage: str) -> Path:
    folder = Layout(study).logs
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{stage}.{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.log"


def _supervise(command: list[str], study: Path, env: dict[str, str], file: Path, limit: float,
               stop: threading.Event, log: Any) -> int:
    with file.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-P", "-m", "tasks.guard", str(limit), *command], cwd=study,
                                   env=env, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True)
    tail, last = LogTail(file), time.monotonic()
    try:
        while process.poll() is None:
            stop.wait(_TICK)
            if stop.is_set():
                break
            if time.monotonic() - last > NEWS_SECONDS:
                last = time.monotonic()
                if news := tail.news(NEWS_LINES):
                    log.info("\n".join(news))
    finally:
        process.stdin.close()  # type: ignore[union-attr]  # tells the guard to end what still runs
        try:
            code = process.wait(timeout=GRACE + 5)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        end_session(process.pid)  # when the guard itself was killed
    if news := tail.news(NEWS_LINES):
        log.info("\n".join(news))
    return code


def _why(text: str, file: Path) -> str:
    if any(sign in text for sign in _BUSY):
        blockers = [line.strip() for line in text.splitlines() if line.strip().startswith("(PID ")]
        return f"another DVC process works on its files {' '.join(blockers)}; wait for it, then start again"
    return reason(file)


def as_dictionary(order: Order) -> dict[str, Any]:
    """An order as JSON-ready values."""
    return json.loads(json.dumps(asdict(order)))
