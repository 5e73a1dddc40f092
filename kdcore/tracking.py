"""Runs in MLflow: what trained, with which settings, and how it went.

Nothing is decided by reading this back, so nothing here may delay or stop the work: a thread of its own talks to
MLflow, failures are counted and told once, and `KDFLOW_TRACKING=off` does not even import it.

    with Run.start("distill", layout, "rte", "rail_kd_l", seed=1, params=settings) as run:
        run.log(step, {"loss": 0.3})
"""

import json
import logging
import math
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kdcore import tracking_store
from kdcore.layout import Layout
from kdcore.lineage import locked_outputs, revision
from kdcore.tracking_store import end_parent, setup, start_parent, study_name

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["Run", "end_parent", "flatten", "setup", "start_parent", "study_name"]

log = logging.getLogger(__name__)

BATCH_SECONDS = 2.0
"""Metrics wait at most this long before they are sent together."""
CLOSE_SECONDS = 30.0
"""How long the end of a run waits for a slow store before it gives up on what is left."""
RETRY_SECONDS = 5.0
KEPT_POINTS = 20_000
"""Metric points kept while the store does not answer; the oldest go first, and are counted."""
_LONGEST_VALUE = 5000  # MLflow refuses parameters above 6000 and tags above 8000 characters


def enabled() -> bool:
    """Whether runs are recorded: not with `KDFLOW_TRACKING=off`, and only by the first process of a distributed one."""
    return os.environ.get("KDFLOW_TRACKING", "on") != "off" and os.environ.get("RANK", "0") == "0"


class Run:
    """One run: of a stage, or of one seed in it. A context manager; made by `Run.start`.

    Ends FINISHED, FAILED when the body raises, KILLED when it is interrupted.
    """

    def __init__(self, worker: "_Worker | None") -> None:
        self._worker = worker

    @classmethod
    def start(cls, kind: str, layout: Layout, dataset: str | None = None, method: str | None = None,
              seed: int | None = None, params: Mapping[str, Any] | None = None,
              tags: Mapping[str, str] | None = None) -> Self:
        """Begin a run and return at once; the store is contacted in the background.

        Args:
            kind: the stage, e.g. `distill`.
            params: nested settings; flattened to `training.epochs` and the like. Only what we chose ourselves.
            tags: further tags, e.g. the checkpoint's hash.
        """
        if not enabled():
            return cls(None)
        what = {"kind": kind, "study": study_name(layout.study), "dataset": dataset, "method": method,
                "seed": None if seed is None else str(seed)}
        worker = _Worker(_Record(layout.study.resolve(), {k: v for k, v in what.items() if v is not None},
                                 flatten(params or {}), dict(tags or {})))
        worker.start()
        return cls(worker)

    @property
    def id(self) -> str | None:
        """The run's id in MLflow; waits for it up to `CLOSE_SECONDS`. None when tracking is off or fails."""
        return self._worker.run_id() if self._worker else None

    @property
    def failures(self) -> int:
        """How many calls to the tracker failed."""
        return self._worker.failures if self._worker else 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step; returns at once, never raises. Non-finite values become the tag `nonfinite.NAME`."""
        if self._worker:
            self._worker.metrics(step, metrics)

    def artifact(self, path: Path) -> None:
        """Attach a file, or a folder with all in it; copied in the background, so leave it in place until the end."""
        if self._worker:
            self._worker.call(lambda client, run: (client.log_artifacts if path.is_dir() else client.log_artifact)(
                run, str(path), *([path.name] if path.is_dir() else [])))

    def tag(self, name: str, value: str) -> None:
        """Set a tag."""
        if self._worker:
            self._worker.call(lambda client, run: client.set_tag(run, _key(name), value[:_LONGEST_VALUE]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._worker is None:
            return
        if error is None:
            status = "FINISHED"
        else:
            status = "FAILED" if isinstance(error, Exception) else "KILLED"
            self.tag("kdflow.error", f"{type(error).__name__}: {error}")
        self._worker.finish(status)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as MLflow parameters: dotted names, text values, long ones cut with an ellipsis."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            flat[_key(f"{prefix}{name}")] = text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE - 1] + "…"
    return flat


def _key(name: str) -> str:
    """A name that MLflow takes: letters, digits and `_-. :/`, no path tricks, at most 250 characters."""
    clean = re.sub(r"[^\w\-. :/]", "_", name)
    return "/".join(part for part in clean.split("/") if part not in ("", ".", ".."))[:250] or "_"


@dataclass(frozen=True)
class _Record:
    """What is known of a run when it starts."""

    study: Path
    what: dict[str, str]
    params: dict[str, str]
    tags: dict[str, str]

    @property
    def name(self) -> str:
        parts = [self.what["kind"]] + [self.what[k] for k in ("dataset", "method") if k in self.what]
        return " ".join(parts) + (f" seed {self.what['seed']}" if "seed" in self.what else "")

    def all_tags(self) -> dict[str, str]:
        code = revision(self.study)
        tags = {f"kdflow.{name}": value for name, value in self.what.items()}
        tags |= {tracking_store.HOST: socket.gethostname(), tracking_store.PROCESS: tracking_store.own_process(),
                 tracking_store.NAME: self.name}
        if code.commit:
            tags |= {"mlflow.source.git.commit": code.commit, "kdflow.revision": str(code)}
        return tags | self._inputs() | {_key(name): value[:_LONGEST_VALUE] for name, value in self.tags.items()}

    def _inputs(self) -> dict[str, str]:
        """DVC hashes of what this dataset's earlier stages gave, under `dvc.NAME`."""
        outputs, dataset = locked_outputs(self.study), self.what.get("dataset")
        return {f"dvc.{folder}": outputs[path] for folder in ("prepared", "teacher", "features")
                if folder != self.what["kind"] and (path := f"artifacts/{folder}/{dataset}") in outputs}


@dataclass
class _Points:
    """Metrics not yet sent: (name, value, timestamp in ms, step)."""

    waiting: list[tuple[str, float, int, int]] = field(default_factory=list)
    nonfinite: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, step: int, metrics: Mapping[str, float]) -> int:
        """Take in a step's metrics; returns how many old points had to go."""
        now = int(time.time() * 1000)
        with self.lock:
            for name, value in metrics.items():
                number = float(value)
                if math.isfinite(number):
                    self.waiting.append((_key(name), number, now, step))
                else:
                    self.nonfinite.setdefault(f"nonfinite.{_key(name)}"[:250], f"{number} at step {step}")
            lost = max(0, len(self.waiting) - KEPT_POINTS)
            del self.waiting[:lost]
        return lost


class _Worker(threading.Thread):
    """The only one that talks to MLflow for a run."""

    def __init__(self, record: _Record) -> None:
        super().__init__(name=f"tracking {record.name}", daemon=True)
        self.failures = 0
        self.lost = 0
        self._record = record
        self._points = _Points()
        self._calls: queue.Queue[Callable[["MlflowClient", str], Any]] = queue.Queue()
        self._sent_tags: set[str] = set()
        self._known = threading.Event()
        self._closing = threading.Event()
        self._client: MlflowClient | None = None
        self._run: str | None = None
        self._parent: str | None = None
        self._status = "FINISHED"

    def run_id(self) -> str | None:
        self._known.wait(CLOSE_SECONDS)
        return self._run

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lost += self._points.add(step, metrics)

    def call(self, what: Callable[["MlflowClient", str], Any]) -> None:
        self._calls.put(what)

    def finish(self, status: str) -> None:
        """Send what is left and end the run, within `CLOSE_SECONDS`."""
        self._status = status
        self._closing.set()
        self.join(CLOSE_SECONDS)
        left = len(self._points.waiting) + self.lost
        if self.is_alive() or left or self.failures:
            log.warning("MLflow run %s is incomplete: %d failed calls, %d metric points missing; the local "
                        "metrics are complete", self._record.name, self.failures, left)

    def run(self) -> None:
        while not self._closing.is_set():
            ok = self._attempt(self._open) and self._attempt(self._send)
            self._closing.wait(BATCH_SECONDS if ok else RETRY_SECONDS)
        self._attempt(self._open)
        if self._client is not None:
            self._attempt(self._send)
            self._attempt(self._end)
        self._known.set()

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:  # whatever the tracker does, the training goes on
            self.failures += 1
            if self.failures == 1:
                log.warning("MLflow at %s does not work: %s. The work goes on, metrics are kept locally",
                            tracking_store.uri(), str(error).splitlines()[0] if str(error) else type(error).__name__)
            return False
        return True

    def _open(self) -> None:
        """Create the run, once."""
        if self._run is not None:
            return
        self._client = client = tracking_store.connect()
        study = self._record.what["study"]
        experiment = tracking_store.experiment(client, study)
        tracking_store.close_orphans(client, experiment)
        tags = self._record.all_tags()
        self._parent = tracking_store.parent_of_this_process(client, experiment, study)
        if self._parent:
            tags[tracking_store.PARENT] = self._parent
        self._run = client.create_run(experiment, tags=tags, run_name=self._record.name).info.run_id
        self._known.set()
        from mlflow.entities import Param

        params = [Param(name, value) for name, value in self._record.params.items()]
        for start in range(0, len(params), 100):
            client.log_batch(self._run, params=params[start:start + 100])

    def _send(self) -> None:
        from mlflow.entities import Metric, RunTag

        assert self._client is not None and self._run is not None
        while True:
            with self._points.lock:
                batch = self._points.waiting[:1000]
                tags = {k: v for k, v in self._points.nonfinite.items() if k not in self._sent_tags}
            if not batch and not tags:
                break
            self._client.log_batch(self._run, metrics=[Metric(*point) for point in batch],
                                   tags=[RunTag(*tag) for tag in list(tags.items())[:100]])
            self._sent_tags |= set(list(tags)[:100])
            with self._points.lock:
                sent = set(batch)
                self._points.waiting = [point for point in self._points.waiting if point not in sent]
        while not self._calls.empty():
            self._calls.get()(self._client, self._run)

    def _end(self) -> None:
        assert self._client is not None and self._run is not None
        self._client.set_terminated(self._run, self._status)
        if self._parent and tracking_store.ends_with_its_children(self._client, self._parent):
            self._client.set_terminated(self._parent, self._status)
