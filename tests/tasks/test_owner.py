"""One flow per study; a killed one leaves nothing that blocks or runs."""

import json
import os
import subprocess
import sys

import pytest

from kdcore.errors import BusyError
from tasks.owner import claim, left_dead
from tasks.processes import identity
from tasks.stage import OWNER

HOLD = ("import sys, time, pathlib; from tasks.owner import claim\n"
        "with claim(pathlib.Path(sys.argv[1])) as c:\n"
        "    c.record('run-7'); print(c.process, flush=True); time.sleep(60)")


@pytest.fixture
def other(tmp_path):
    """Another process that holds the study, and its identity."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()


def test_the_second_is_told_who_and_since_when(tmp_path, other):
    with pytest.raises(BusyError, match=rf"PID {other[0].pid} on .* since 20\d\d-.* UTC") as error, claim(tmp_path):
        pass
    assert error.value.exit_code == 75


def test_a_killed_holder_blocks_nobody_and_is_remembered(tmp_path, other):
    other[0].kill()
    other[0].wait()
    assert left_dead(tmp_path)
    with claim(tmp_path) as found:
        assert (found.previous.process, found.previous.flow_run) == (other[1], "run-7")
        assert found.process == identity(os.getpid())
    assert not left_dead(tmp_path)


def test_processes_that_a_killed_flow_left_are_ended(tmp_path, other):
    leftover = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, "
                                 "signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"],
                                env=os.environ | {OWNER: other[1]}, stdout=subprocess.PIPE, text=True)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | {OWNER: "1:1"})
    try:
        assert leftover.stdout.readline() == "ready\n"
        other[0].kill()
        other[0].wait()
        with claim(tmp_path):
            assert identity(leftover.pid) is None
            assert identity(stranger.pid) is not None
    finally:
        leftover.kill()
        stranger.kill()
        leftover.wait()
        stranger.wait()


def test_a_trace_that_was_cut_off_does_not_matter(tmp_path):
    with claim(tmp_path):
        pass
    (tmp_path / ".kdflow/flow").write_text('{"process": "1:')
    with claim(tmp_path) as found:
        assert found.previous is None


def test_the_claim_is_given_up_when_the_body_fails(tmp_path):
    def body() -> None:
        with claim(tmp_path):
            assert json.loads((tmp_path / ".kdflow/flow").read_text())["flow_run"] is None
            raise RuntimeError

    with pytest.raises(RuntimeError):
        body()
    with claim(tmp_path):
        pass
