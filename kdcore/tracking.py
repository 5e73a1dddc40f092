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
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kdcore import tracking_store
from kdcore.layout import Layout
from kdcore.lineage import locked_outputs, revision
from kdcore.tracking_store import setup, study_name

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["Run", "end_parent", "flatten", "setup", "start_parent", "study_name"]

T = TypeVar("T")
log = logging.getLogger(__name__)

BATCH_SECONDS = 2.0
"""Metrics wait at most this long before they are sent together."""
CLOSE_SECONDS = 30.0
"""How long the end of a run waits for a slow store before it gives up on what is left."""
RETRY_SECONDS = 5.0
CLOSE_ATTEMPTS = 3
GIVE_UP_OPENING = 3
"""After so many failures without a run, nobody waits for its id any more."""
KEPT_POINTS = 100_000
"""Metric points kept while the store does not answer; the oldest go first, and are counted."""
PREPARED = "dvc.prepared"
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
              tags: Mapping[str, str] | None = None, student: str | None = None,
              method_file: str | None = None) -> Self:
        """Begin a run and return at once; the store is contacted in the background.

        Args:
            kind: the stage, e.g. `distill`.
            params: nested settings; flattened to `training.epochs` and the like. Only what we chose ourselves.
            tags: further tags, e.g. the checkpoint's hash.
            student: of a general study, in place of a dataset.
            method_file: what `method`, its name in the study, is; None where they are the same.
        """
        if not enabled():
            return cls(None)
        what = {"kind": kind, "study": study_name(layout.study), "student": student, "dataset": dataset,
                "method": method, "method_file": method_file or method, "seed": None if seed is None else str(seed)}
        worker = _Worker(_Record(layout.study.resolve(), {k: v for k, v in what.items() if v is not None},
                                 flatten(params or {}), dict(tags or {})))
        worker.attempt(tracking_store.load)
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
        """Record metrics of a step; returns at once. Non-finite values become the tag `nonfinite.NAME`."""
        if self._worker:
            self._worker.points.add(step, metrics)

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


def start_parent(study: Path, name: str, tags: Mapping[str, str] | None = None) -> str | None:
    """Open the run that groups those of one flow run; hand its id to the stages as `KDFLOW_PARENT_RUN`.

    End it with `end_parent`. A flow that dies leaves it to the next start, which marks it KILLED.
    None, after a warning, when tracking is off or fails.
    """
    if not enabled():
        return None
    return _tried("open a parent run", lambda: tracking_store.create_parent(study_name(study), name, dict(tags or {})))


def end_parent(run: str | None, status: str) -> None:
    """End a parent run as `FINISHED`, `FAILED` or `KILLED`; warns when the store fails."""
    if run is not None:
        _tried("end the parent run", lambda: tracking_store.connect().set_terminated(run, status))


def _tried(what: str, step: Callable[[], T]) -> T | None:
    try:
        return step()
    except Exception as error:  # the work must go on, whatever the tracker raises
        log.warning("could not %s in MLflow at %s: %s", what, tracking_store.uri(), error)
        return None


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
        parts = [self.what["kind"]] + [self.what[k] for k in ("student", "dataset", "method") if k in self.what]
        return " ".join(parts) + (f" seed {self.what['seed']}" if "seed" in self.what else "")

    def all_tags(self) -> dict[str, str]:
        code = revision(self.study)
        tags = {f"kdflow.{name}": value for name, value in self.what.items()}
        tags |= {tracking_store.HOST: socket.gethostname(), tracking_store.PROCESS: tracking_store.own_process(),
                 tracking_store.NAME: self.name}
        words = ("kind", "student") if "student" in self.what else ("kind", "dataset", "method")
        source = " ".join(["kdflow", *(self.what[k] for k in words if k in self.what)])
        tags |= {"mlflow.source.name": source, "mlflow.source.type": "LOCAL"}
        if code.commit:
            tags |= {"mlflow.source.git.commit": code.commit, "kdflow.revision": str(code)}
        return tags | self._inputs() | {_key(name): value[:_LONGEST_VALUE] for name, value in self.tags.items()}

    def _inputs(self) -> dict[str, str]:
        """DVC hashes of what earlier stages gave this dataset or student, under `dvc.NAME`."""
        outputs, dataset = locked_outputs(self.study), self.what.get("dataset")
        places = {folder: f"artifacts/{folder}/{dataset}" for folder in ("prepared", "teacher")}
        places |= {folder: f"artifacts/knowledge/{dataset}/{folder}" for folder in ("features", "selector")}
        if "student" in self.what:
            places = {"corpus": "artifacts/corpus"}
        return {f"dvc.{folder}": outputs[path] for folder, path in places.items()
                if folder != self.what["kind"] and path in outputs}


class _Points:
    """Metrics on their way: points (name, value, timestamp in ms, step), and what was not finite."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, float, int, int]] = deque()
        self._nonfinite: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()
        self.lost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        with self._lock:
            for name, value in metrics.items():
                number = float(value)
                if math.isfinite(number):
                    self._waiting.append((_key(name), number, now, step))
                else:
                    first, times = self._nonfinite.get(name, (f"{number} at step {step}", 0))
                    self._nonfinite[name] = first, times + 1
            self._drop_oldest()

    def take(self, most: int) -> list[tuple[str, float, int, int]]:
        with self._lock:
            return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def give_back(self, points: list[tuple[str, float, int, int]]) -> None:
        with self._lock:
            self._waiting.extendleft(reversed(points))
            self._drop_oldest()

    def tags(self) -> dict[str, str]:
        with self._lock:
            return {f"nonfinite.{_key(name)}"[:250]: first if times == 1 else f"{first}, {times} times in all"
                    for name, (first, times) in self._nonfinite.items()}

    def _drop_oldest(self) -> None:
        while len(self._waiting) > KEPT_POINTS:
            self._waiting.popleft()
            self.lost += 1


class _Worker(threading.Thread):
    """The only one that talks to MLflow for a run."""

    def __init__(self, record: _Record) -> None:
        super().__init__(name=f"tracking {record.name}", daemon=True)
        self.points = _Points()
        self.failures = 0
        self._record = record
        self._calls: queue.Queue[Callable[[MlflowClient, str], Any]] = queue.Queue()
        self._sent_tags: dict[str, str] = {}
        self._known = threading.Event()
        self._closing = threading.Event()
        self._client: MlflowClient | None = None
        self._run: str | None = None
        self._parent: str | None = None
        self._prepared: str | None = None
        self._settings_sent = False
        self._ended = False
        self._status = "FINISHED"

    def run_id(self) -> str | None:
        self._known.wait(CLOSE_SECONDS)
        return self._run

    def call(self, what: "Callable[[MlflowClient, str], Any]") -> None:
        self._calls.put(what)

    def finish(self, status: str) -> None:
        """Send what is left and end the run, within `CLOSE_SECONDS`."""
        self._status = status
        self._closing.set()
        self.join(CLOSE_SECONDS)
        missing = len(self.points) + self.points.lost
        if missing or not self._ended:
            log.warning("MLflow run %s is incomplete: %d calls failed, %d metric values are missing%s; "
                        "the local metrics have them all", self._record.name, self.failures, missing,
                        "" if self._ended else ", no end")

    def run(self) -> None:
        while not self._closing.is_set():
            ok = self.attempt(self._open) and self.attempt(self._send)
            self._closing.wait(BATCH_SECONDS if ok else RETRY_SECONDS)
        for _ in range(CLOSE_ATTEMPTS):
            if self.attempt(self._open) and self.attempt(self._send) and self.attempt(self._end):
                break
            time.sleep(0.5)
        self._known.set()

    def attempt(self, step: Callable[[], None]) -> bool:
        """Do something with MLflow; whatever goes wrong is counted, and told the first time."""
        try:
            step()
        except Exception as error:  # the work must go on, whatever the tracker raises
            self.failures += 1
            if self.failures == 1:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                log.warning("MLflow at %s fails: %s. The work goes on; metrics are kept locally", tracking_store.uri(),
                            reason)
            if self.failures >= GIVE_UP_OPENING and self._run is None:
                self._known.set()
            return False
        return True

    def _open(self) -> None:
        """Create the run and send its settings, once."""
        from mlflow.entities import Param

        if self._client is None:
            self._client = tracking_store.connect()
        if self._run is None:
            self._run = self._create(self._client)
            self._known.set()
        if not self._settings_sent:
            params = [Param(name, value) for name, value in self._record.params.items()]
            for start in range(0, len(params), 100):  # MLflow's limit for one call
                self._client.log_batch(self._run, params=params[start:start + 100])
            if self._prepared:
                used = tracking_store.dataset_input(self._record.what["dataset"], self._prepared)
                self._client.log_inputs(self._run, [used])
            self._settings_sent = True

    def _create(self, client: "MlflowClient") -> str:
        study = self._record.what["study"]
        experiment = tracking_store.experiment(client, study)
        tracking_store.close_orphans(client, experiment)
        tags = self._record.all_tags()
        self._parent = tracking_store.parent_of_this_process(client, experiment, study)
        if self._parent:
            tags[tracking_store.PARENT] = self._parent
        self._prepared = tags.get(PREPARED)
        return client.create_run(experiment, tags=tags, run_name=self._record.name).info.run_id

    def _send(self) -> None:
        from mlflow.entities import Metric, RunTag

        assert self._client is not None
        assert self._run is not None
        while True:
            batch = self.points.take(800)  # MLflow takes 1000 values of all kinds in one call
            tags = {k: v for k, v in self.points.tags().items() if self._sent_tags.get(k) != v}
            if not batch and not tags:
                break
            part = dict(list(tags.items())[:100])
            try:
                self._client.log_batch(self._run, metrics=[Metric(*point) for point in batch],
                                       tags=[RunTag(*tag) for tag in part.items()])
            except Exception:
                self.points.give_back(batch)
                raise
            self._sent_tags |= part
        while not self._calls.empty():
            self._calls.get()(self._client, self._run)

    def _end(self) -> None:
        assert self._client is not None
        assert self._run is not None
        self._client.set_terminated(self._run, self._status)
        self._ended = True
        if self._parent:
            tracking_store.end_with_last_child(self._client, self._parent)
