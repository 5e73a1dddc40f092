"""GPU slots: one stage per GPU across threads and processes, given back by whoever dies."""

import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median

import pytest

from tasks import slots


def test_gpus_are_those_that_the_environment_names(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-ab")
    assert slots.visible_gpus() == ["2", "GPU-ab"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert slots.visible_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert slots.visible_gpus() == []


def test_no_driver_no_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", "")
    assert slots.visible_gpus() == []


def test_without_gpus_nothing_is_locked(tmp_path):
    with slots.gpu([], 4, threading.Event(), tmp_path) as device:
        assert device is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("gpus", "parallel", "share"), [(["0", "1"], 2, 1), (["0", "1"], 4, 2), (["0"], 3, 3)])
def test_never_more_stages_on_a_gpu_than_its_share(tmp_path, gpus, parallel, share):
    used, worst, lock = Counter(), Counter(), threading.Lock()

    def work(_):
        with slots.gpu(gpus, parallel, threading.Event(), tmp_path) as device:
            with lock:
                used[device] += 1
                worst[device] = max(worst[device], used[device])
            time.sleep(0.05)
            with lock:
                used[device] -= 1

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(24)))
    assert set(worst) == set(gpus)
    assert max(worst.values()) <= share


def test_a_freed_gpu_is_taken_at_once(tmp_path):
    """Eight jobs through one GPU; with Prefect's server-side limit the next begins a quarter of a second later."""
    def work(_):
        with slots.gpu(["0"], 1, threading.Event(), tmp_path):
            begin = time.monotonic()
            time.sleep(0.05)
            return begin, time.monotonic()

    with ThreadPoolExecutor(8) as pool:
        held = sorted(pool.map(work, range(8)))
    gaps = [begin - end for (_, end), (begin, _) in pairwise(held)]
    assert min(gaps) >= 0
    assert median(gaps) < 2 * slots._TICK


def test_a_killed_holder_gives_its_gpu_back(tmp_path):
    code = ("import sys, threading, time, pathlib; from tasks import slots\n"
            "with slots.gpu(['0'], 1, threading.Event(), pathlib.Path(sys.argv[1])):\n"
            "    print('held', flush=True); time.sleep(60)")
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedError), slots.gpu(["0"], 1, stop, tmp_path):
        pass
    holder.kill()
    holder.wait()
    with slots.gpu(["0"], 1, stop, tmp_path) as device:
        assert device == "0"
