"""Run the trials of a search: at most so many at a time, each stage by stage, and give up those that are pruned.

Whatever asks Optuna, DVC's graph or the journals happens in the flow's own thread; only stages run beside it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.futures import PrefectFuture

from kdcore import tracking, tracking_store
from kdcore.layout import Layout
from kdcore.search import Point, Search
from tasks import artifacts, plan, runs
from tasks.plan import kind, stage_name
from tasks.slots import cores
from tasks.stage import STOP, Order, Stop, as_dictionary, run_stage

OWN = ("method", "distill")
"""Stages that differ from trial to trial; what the others make comes from DVC's cache once one trial has made it."""
TICK = 1.0
"""Seconds between two looks at the journals."""


@dataclass
class Trial:
    """A trial under way: stages that are still to run, and the one that runs."""

    search: Search
    point: Point
    folder: Path
    stages: list[str]
    run: tracking.Run
    stop: Stop = field(default_factory=Stop)
    since: float = field(default_factory=time.time)
    future: PrefectFuture[Any] | None = None
    reported: int = 0

    @property
    def name(self) -> str:
        """What it is called in logs and on the flow run's page."""
        return f"{self.search.dataset} {self.search.method}, {self.search.told(self.point)}"


class Trials:
    """The trials of several searches. `finish` runs them; `failed` has a message per failed trial."""

    def __init__(self, searches: Sequence[Search], order: Order) -> None:
        self._searches = searches
        self._order = replace(order, threads=max(1, cores() // order.parallel))
        self._running: list[Trial] = []
        self._finished: SimpleQueue[Trial] = SimpleQueue()
        self._log = get_run_logger()
        self.failed: dict[str, str] = {}

    def finish(self) -> None:
        """Try what is to be tried; returns when nothing is left. When interrupted, ends the running stages first."""
        for search in self._searches:
            search.open()
            self._look_at_finished(search)
        try:
            while self._begin_trials():
                self._begin_stages()
                try:
                    self._after_stage(self._finished.get(timeout=TICK))
                except Empty:  # comes back to Python now and then, so that signals are seen
                    self._watch()
        except BaseException as error:
            for trial in self._running:
                trial.stop.set()
            for trial in self._running:
                if trial.future is not None:
                    trial.future.wait()
                trial.run.__exit__(type(error), error, error.__traceback__)
            raise

    def _look_at_finished(self, search: Search) -> None:
        """Trials of earlier searches count only while DVC says that they are current."""
        current = 0
        for tried in search.tried():
            if tried.state == "finished":
                if plan.make_towards(search.folder(tried.point), [_last(search)]).stale:
                    search.again(tried.point)
                else:
                    current += 1
        if current:
            self._log.info(f"{search.dataset} {search.method}: {current} of {len(search.points)} points were tried "
                           "before")

    def _begin_trials(self) -> bool:
        """Begin trials until enough run; returns whether any runs."""
        while len(self._running) < self._order.parallel:
            for search in self._searches:
                if (point := search.next()) is not None:
                    break
            else:
                break
            folder = search.folder(point)
            stages = list(plan.make_towards(folder, [_last(search)]).stale)
            if stages:
                self._running.append(Trial(search, point, folder, stages, self._record(search, point)))
            else:  # done before, by a search with other rules or by the study itself
                self._log.info(f"{search.dataset} {search.method}, {search.told(point)}: "
                               f"{100 * search.finish(point):.2f}, was done before")
        return bool(self._running)

    def _record(self, search: Search, point: Point) -> tracking.Run:
        """MLflow's run of a trial, whose stages have runs below it."""
        tags = {tracking_store.PARENT: self._order.parent_run} if self._order.parent_run else {}
        return tracking.Run.start("trial", Layout(search.study), search.dataset, search.method, search.rules.seed,
                                  dict(point), tags)

    def _begin_stages(self) -> None:
        for trial in self._running:
            if trial.future is not None or self._is_made_elsewhere(trial.stages[0]):
                continue
            order = replace(self._order, study=str(trial.folder), parent_run=trial.run.id)
            point = trial.search.told(trial.point).replace("{", "{{").replace("}", "}}")  # Prefect formats names
            named = run_stage.with_options(task_run_name=f"{trial.stages[0]}: {point}")
            token = STOP.set(trial.stop)
            trial.future = named.submit(stage=trial.stages[0], order=as_dictionary(order), return_state=False)
            STOP.reset(token)
            trial.future.add_done_callback(partial(_tell, self._finished, trial))

    def _is_made_elsewhere(self, stage: str) -> bool:
        """Whether another trial makes at this moment what this one can take from the cache in a moment."""
        return kind(stage) not in OWN and any(trial.future is not None and trial.stages[0] == stage
                                              for trial in self._running)

    def _after_stage(self, trial: Trial) -> None:
        assert trial.future is not None
        trial.future.wait()  # has ended; without this `state` asks the server, which may not know yet
        state, trial.future = trial.future.state, None
        if state.name == Stop.NAME:
            trial.search.prune(trial.point)
            trial.run.tag("kdflow.pruned", f"after evaluation {trial.reported}")
            self._end(trial, f"pruned after evaluation {trial.reported}")
        elif state.is_completed():
            trial.stages.pop(0)
            if not trial.stages:
                self._report(trial)
                score = trial.search.finish(trial.point)
                trial.run.log(trial.reported, {"score": score})
                self._end(trial, f"{100 * score:.2f}")
        else:
            why = (state.message or f"ended {state.name}").removeprefix("Task run encountered an exception StageBusy: ")
            self.failed[trial.name] = why
            trial.search.fail(trial.point, why)
            self._end(trial, why, RuntimeError(why))

    def _end(self, trial: Trial, told: str, error: Exception | None = None) -> None:
        self._log.info(f"{trial.name}: {told}")
        trial.run.__exit__(type(error) if error else None, error, None)
        self._running.remove(trial)

    def _watch(self) -> None:
        for trial in self._running:
            if trial.future is not None and not trial.stop.is_set() and self._report(trial):
                trial.stop.give_up()

    def _report(self, trial: Trial) -> bool:
        """Tell new evaluations; returns whether the trial is to be given up."""
        hopeless = False
        for number, score in enumerate(trial.search.evaluations(trial.folder, trial.since), 1):
            if number > trial.reported:
                trial.reported = number
                hopeless = trial.search.report(trial.point, number, score)
                trial.run.log(number, {"dev/score": score})
        return hopeless


def publish(name: str, rows: list[dict[str, Any]], parent_run: str | None) -> None:
    """Attach the trials of the search of a study to the flow run that this is called in."""
    key = artifacts.artifact_key(name)
    if rows:
        create_table_artifact(key=f"{key}-trials", table=rows, description=f"Trials of the search of {name}")
    if links := runs.mlflow_links(name, parent_run):
        create_markdown_artifact(key=f"{key}-search", markdown="\n".join(f"- {link}" for link in links),
                                 description=f"Where the runs of the search of {name} are")


def _last(search: Search) -> str:
    """The stage that a trial is run for: a student's record has its score on the split that selects."""
    return stage_name("distill", search.dataset, search.method)


def _tell(finished: SimpleQueue[Trial], trial: Trial, _: PrefectFuture[Any]) -> None:
    finished.put(trial)
