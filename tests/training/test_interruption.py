"""Ctrl-C and SIGTERM: the step is finished, a checkpoint written, and the next run goes on."""

import os
import signal
import threading
from pathlib import Path

import pytest
from torch import Tensor

from kdcore.data.prepared import Prepared
from kdcore.training import checkpoint
from kdcore.training.interruption import Interruption
from tests.training.doubles import watched
from tests.training.problem import run, same_weights


@pytest.mark.parametrize(("number", "ends_with", "code"), [
    (signal.SIGTERM, SystemExit, 143), (signal.SIGINT, KeyboardInterrupt, None)])
@pytest.mark.parametrize("step", [2, 5])  # in the middle and at the end of an epoch
def test_saved_before_the_end(number: signal.Signals, ends_with: type[BaseException], code: int | None, step: int,
                              prepared: Prepared, tmp_path: Path) -> None:
    def send(now: int, part: Tensor) -> Tensor:
        if now == step:
            os.kill(os.getpid(), number)
        return part

    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(ends_with) as error:
        run(prepared, tmp_path / "a", phases=watched(interfere=send))
    assert getattr(error.value, "code", None) == code
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    assert checkpoint.step_of(checkpoint.latest(tmp_path / "a")) == step + 1
    straight, resumed = (run(prepared, tmp_path / name, phases=watched()) for name in "ba")
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record


def test_a_second_signal_stops_at_once() -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.received is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_threads_and_ranks_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def elsewhere() -> None:
        with Interruption():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    with Interruption(active=False):
        seen.append(signal.getsignal(signal.SIGTERM))
    assert seen == [before, before]
