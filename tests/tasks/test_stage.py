"""Stages as supervised process trees: nothing outlives its flow, nothing is said twice, locks are waited for."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tasks import stage
from tasks.processes import identity, session_members, with_environment
from tasks.stage import OWNER, Order, StageBusy, StageFailed, StageTimedOut, as_dictionary, run, run_stage
from tests.toy import Toy

LOG = logging.getLogger("test")


def go(toy: Toy, name: str, stop: threading.Event | None = None, **order) -> dict:
    return run(name, Order(str(toy.folder), **order), stop or threading.Event(), LOG)


def wait_for(condition, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def collected(pids: list[int], seconds: float = 5.0) -> bool:
    """Whether the numbers of orphans that have ended are free again; in some containers process 1 collects none."""
    deadline = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(psutil.pid_exists(pid) for pid in pids)


def worker_of(toy: Toy, name: str) -> int:
    """The process that does the stage's work, once it has begun."""
    return int(wait_for(lambda: [line for line in toy.start_lines() if line[0] == name])[-1][1])


def test_outcomes_ran_unchanged_restored_forced(small):
    assert go(small, "prepare@a")["outcome"] == "ran"
    assert go(small, "prepare@a")["outcome"] == "unchanged"
    (small.folder / "artifacts/prepared/a/out.txt").unlink()
    assert go(small, "prepare@a")["outcome"] == "restored"
    assert go(small, "prepare@a", force=True)["outcome"] == "ran"
    assert small.starts() == {"prepare@a": 2}


def test_failure_names_stage_reason_and_log(small, caplog):
    small.behave(fail=("prepare@a",))
    with pytest.raises(StageFailed, match="prepare@a failed: prepare@a was told to fail; log: ") as error:
        go(small, "prepare@a")
    assert Path(str(error.value).rpartition("log: ")[2]).is_file()


def test_a_stage_past_its_limit_is_gone_with_its_children(small, monkeypatch):
    """With a shell in place of DVC, whose start alone takes longer than a limit that a test can wait for."""
    monkeypatch.setattr(stage, "_command", lambda name, order: ["sh", "-c", "sleep 600 & echo $$ $! > pids; wait"])
    with pytest.raises(StageTimedOut, match="prepare@a ran longer than 1 s"):
        go(small, "prepare@a", limit=1.0)
    shell, child = (small.folder / "pids").read_text().split()
    assert identity(int(shell)) is None
    assert identity(int(child)) is None


@pytest.mark.parametrize("victim", ["command", "guard"])
def test_kill_9_of_a_part_fails_the_stage_and_leaves_no_process(small, victim):
    small.behave(seconds=60)
    with ThreadPoolExecutor() as pool:
        future = pool.submit(go, small, "prepare@a")
        pid = worker_of(small, "prepare@a")
        session = os.getsid(pid)
        group = session_members(session)
        os.kill(pid if victim == "command" else session, signal.SIGKILL)
        with pytest.raises(StageFailed, match="prepare@a"):
            future.result(timeout=20)
    assert not session_members(session)
    if not collected([session, *group]):
        # DVC takes a zombie for a process that uses the files; a person would delete this.
        (small.folder / ".dvc/tmp/rwlock").unlink()
    small.behave()
    assert go(small, "prepare@a")["outcome"] == "ran"


def test_stopping_ends_the_whole_tree(small):
    small.behave(seconds=60)
    stop = threading.Event()
    with ThreadPoolExecutor() as pool:
        future = pool.submit(go, small, "prepare@a", stop)
        session = os.getsid(worker_of(small, "prepare@a"))
        stop.set()
        with pytest.raises(InterruptedError, match="prepare@a was stopped"):
            future.result(timeout=15)
    assert not session_members(session)


def test_kill_9_of_the_asker_ends_the_stage(small):
    small.behave(seconds=60)
    code = ("import sys, threading, logging; from tasks.stage import run, Order; "
            "run('prepare@a', Order(sys.argv[1], owner='dead'), threading.Event(), logging.getLogger())")
    asker = subprocess.Popen([sys.executable, "-c", code, str(small.folder)])
    session = os.getsid(worker_of(small, "prepare@a"))
    assert session != os.getsid(0)
    assert with_environment(OWNER, "dead")
    asker.kill()
    asker.wait()
    wait_for(lambda: not session_members(session), seconds=10)


def test_eight_stages_at_once_all_succeed(tmp_path):
    toy = Toy(tmp_path / "toy", tuple("abcdefgh"), ("finetune",))
    toy.behave(seconds=1.0)
    names = [f"prepare@{dataset}" for dataset in "abcdefgh"]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda name: go(toy, name), names))
    assert [result["outcome"] for result in results] == ["ran"] * 8
    assert "prepare@" not in toy.dvc("status").stdout
    assert toy.starts() == dict.fromkeys(names, 1)


def test_files_in_use_by_another_dvc_are_named_and_retried(small):
    """DVC's --wait-for-lock does not wait for these."""
    go(small, "prepare@a")
    rwlock = small.folder / ".dvc/tmp/rwlock"
    used = str(small.folder / "artifacts/teacher/a")
    rwlock.write_text(json.dumps({"write": {used: {"pid": os.getpid(), "cmd": "dvc repro"}}, "read": {}}))
    with pytest.raises(StageBusy, match=rf"another DVC process works on its files \(PID {os.getpid()}\): dvc repro"):
        go(small, "teacher@a")

    class State:
        def __init__(self, error):
            self.error = error

        def result(self, raise_on_failure):
            return self.error

    assert stage.is_busy(None, None, State(StageBusy("x")))
    assert not stage.is_busy(None, None, State(StageFailed("x")))
    assert run_stage.retries > 0
    assert run_stage.retry_condition_fn is stage.is_busy


def test_threads_and_device_reach_the_command(small, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    go(small, "prepare@a", threads=3, gpus=("GPU-7",))
    assert small.start_lines()[0][2:] == ["3", "GPU-7"]


def test_a_users_thread_count_stays(small, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    go(small, "prepare@a", threads=3)
    assert small.start_lines()[0][2] == "5"


def test_orders_are_json(tmp_path):
    order = Order(str(tmp_path), threads=2, gpus=("0", "1"), owner=identity(os.getpid()) or "")
    assert json.loads(json.dumps(as_dictionary(order))) == as_dictionary(order)
    restored = Order(**as_dictionary(order))
    assert (restored.study, restored.threads, tuple(restored.gpus)) == (order.study, 2, ("0", "1"))
