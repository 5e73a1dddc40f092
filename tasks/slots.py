"""One GPU per stage: which there are, and who has which right now.

A slot is a lock on a file, held while a stage runs. The operating system gives it back the moment its holder dies,
and it counts across flow runs, studies and checkouts of one host, with or without a Prefect server.
"""

import fcntl
import math
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICK = 0.1


def visible_gpus() -> list[str]:
    """GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them; asks the driver, not torch."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True,
                                text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split()


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def gpu(gpus: list[str], parallel: int, stop: threading.Event, folder: Path | None = None) -> Iterator[str | None]:
    """Hold one GPU while the body runs; waits until one is free. None on a machine without.

    Args:
        gpus: names as of `visible_gpus`.
        parallel: stages at a time; more than GPUs means that stages share them evenly.
        stop: set to give up waiting.
        folder: where the locks lie; one place per user and host by default.

    Raises:
        InterruptedError: `stop` was set before a GPU was free.
    """
    if not gpus:
        yield None
        return
    place = folder or Path(tempfile.gettempdir()) / f"kdflow-gpus-{os.getuid()}"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    shares = math.ceil(parallel / len(gpus))
    while True:
        for share in range(shares):
            for name in gpus:
                with (place / f"{name.replace('/', '_')}.{share}").open("a") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    yield name
                    return
        if stop.is_set():
            raise InterruptedError("stopped while waiting for a GPU")
        time.sleep(_TICK)
