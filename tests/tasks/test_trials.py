"""The loop of a search, with stages that only pretend: what runs beside what, what is given up, and how it ends."""

import json
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from kdcore import config, strict, study, tracking, tracking_store
from kdcore.layout import ROOT, Layout
from kdcore.search import Rules, Search, searches
from tasks import stage, trials
from tasks.plan import Plan
from tasks.stage import STOP, Order, Stop
from tests.mlflow_store import Store, _empty_database, store

__all__ = ["_empty_database", "store"]

WRITTEN = strict.read_yaml(ROOT / "params.yaml")
DISTILL = "distill@movies-vanilla_kd"


class Started:
    """What Prefect gives for a submitted stage."""

    def __init__(self, future: "Future[State[Any]]") -> None:
        self._future = future

    def wait(self) -> None:
        self._future.exception()

    @property
    def state(self) -> State[Any]:
        return self._future.result()

    def add_done_callback(self, tell: Callable[["Started"], None]) -> None:
        self._future.add_done_callback(lambda _: tell(self))


class Stages:
    """In place of `run_stage`. A training has three evaluations of a hundredth of its temperature."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.at_a_time: dict[str, int] = {}
        self.orders: list[dict[str, Any]] = []
        self._pool = ThreadPoolExecutor(8)
        self._now: list[str] = []

    def with_options(self, task_run_name: str) -> "Stages":
        assert task_run_name.partition(": ")[2].startswith("temperature ")
        return self

    def submit(self, stage: str, order: dict[str, Any], return_state: bool) -> Started:
        assert not return_state
        self.orders.append(order)
        return Started(self._pool.submit(self._run, stage, Path(order["study"]), STOP.get()))

    def _run(self, stage: str, folder: Path, stop: Stop) -> State[Any]:
        self.ran.append((stage, folder.name))
        self._now.append(stage)
        self.at_a_time[stage] = max(self.at_a_time.get(stage, 0), self._now.count(stage))
        try:
            if stage != DISTILL:
                stop.wait(0.1)
                return Completed()
            return self._distill(folder, stop)
        finally:
            self._now.remove(stage)

    def _distill(self, folder: Path, stop: Stop) -> State[Any]:
        layout = Layout(folder)
        temperature = config.load(layout.params).method("vanilla_kd", "movies").options["temperature"]
        if temperature == 13:
            return Failed(message="it is too hot")
        layout.logs.mkdir(parents=True, exist_ok=True)
        for number in (1, 2, 3):
            with (layout.logs / f"{DISTILL}-seed-1.jsonl").open("a") as journal:
                print(json.dumps({"step": number, "dev/score": temperature / 100}), file=journal)
            if stop.wait(0.1):
                return Completed(name=Stop.NAME) if stop.given_up else Failed(message="stopped")
        place = layout.student("movies", "vanilla_kd") / "seed-1"
        place.mkdir(parents=True)
        (place / "training.json").write_text(json.dumps({"selected": {"score": temperature / 100}, "history": [
            {"development": {}}] * 3}))
        return Completed()


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    """Pretended stages; what has a record is current."""
    def plan(folder: Path, targets: list[str]) -> Plan:
        done = any(Layout(folder).student("movies", "vanilla_kd").rglob("training.json"))
        stale = {} if done else {"teacher@movies": "not run yet", DISTILL: "not run yet"}
        return Plan((), (), {}, stale, {}, frozenset(), ())

    made = Stages()
    monkeypatch.setattr(trials, "run_stage", made)
    monkeypatch.setattr(trials.plan, "make_towards", plan)
    monkeypatch.setattr(trials, "get_run_logger", lambda: logging.getLogger("search"))
    monkeypatch.setattr(trials, "TICK", 0.02)
    return made


def search(folder: Path, *temperatures: int) -> Search:
    if not (folder / "params.yaml").is_file():
        study.initialise(folder, WRITTEN | {"grid": {"methods.vanilla_kd.temperature": list(temperatures)}},
                         cache=folder.parent / "cache", git=False)
    (found,) = searches(folder, config.load(folder / "params.yaml"), Rules(1), ("movies",), ("vanilla_kd",), True)
    return found


def run(found: Search, parallel: int = 3, parent: str | None = None) -> trials.Trials:
    made = trials.Trials([found], Order(str(found.study), parallel=parallel, parent_run=parent))
    made.finish()
    return made


def states(found: Search) -> list[tuple[int, str]]:
    return [(tried.point["methods.vanilla_kd.temperature"], tried.state) for tried in found.tried()]


def test_trials_run_beside_one_another_but_what_they_share_is_made_once_at_a_time(stages, tmp_path):
    found = search(tmp_path / "mine", 1, 4, 2)
    assert run(found).failed == {}
    assert found.best().point == {"methods.vanilla_kd.temperature": 4}
    assert [tried.evaluations for tried in found.tried()] == [3, 3, 3]
    assert stages.at_a_time == {"teacher@movies": 1, DISTILL: stages.at_a_time[DISTILL]}
    assert stages.at_a_time[DISTILL] > 1
    assert len(stages.ran) == 6
    again = search(tmp_path / "mine")
    run(again)
    assert len(stages.ran) == 6
    assert again.best() == found.best()


def test_what_was_done_without_this_search_counts(stages, tmp_path):
    found = search(tmp_path / "mine", 1, 4)
    run(found)
    (Layout(found.study).search / "optuna.db").unlink()
    again = search(tmp_path / "mine")
    run(again)
    assert states(again) == [(1, "finished"), (4, "finished")]
    assert len(stages.ran) == 4


def test_a_trial_that_is_behind_is_given_up_and_one_that_fails_does_not_stop_the_others(stages, tmp_path, monkeypatch):
    found = search(tmp_path / "mine", 1, 13, 4)
    report = Search.report
    monkeypatch.setattr(Search, "report", lambda self, point, number, score: (
        report(self, point, number, score) or score < 0.02))
    assert run(found, parallel=1).failed == {"movies vanilla_kd, temperature 13": "it is too hot"}
    assert states(found) == [(1, "pruned"), (13, "failed"), (4, "finished")]
    assert found.tried()[0].score == 0.01


def test_an_interrupted_search_ends_its_stages_and_the_next_one_goes_on_with_them(stages, tmp_path, monkeypatch):
    found = search(tmp_path / "mine", 1, 4)
    with monkeypatch.context() as patch:
        patch.setattr(trials.Trials, "_watch", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(found, parallel=1)
    assert stages._now == []
    assert states(found) == []
    again = search(tmp_path / "mine")
    run(again, parallel=1)
    assert states(again) == [(1, "finished"), (4, "finished")]


def test_a_trial_is_a_run_below_that_of_the_search(stages, store: Store):
    store.study.rmdir()
    found = search(store.study, 1, 13)
    parent = tracking.start_parent(found.study, "search tiny", {tracking_store.KIND: "search"})
    run(found, parallel=1, parent=parent)
    tracking.end_parent(parent, "FINISHED")
    by_kind: dict[str, list[Any]] = {}
    for one in store.runs():
        by_kind.setdefault(one.data.tags[tracking_store.KIND], []).append(one)
    assert [one.info.run_id for one in by_kind["search"]] == [parent]
    assert [one.data.params["methods.vanilla_kd.temperature"] for one in by_kind["trial"]] == ["1", "13"]
    assert [one.info.status for one in by_kind["trial"]] == ["FINISHED", "FAILED"]
    assert {one.data.tags[tracking_store.PARENT] for one in by_kind["trial"]} == {parent}
    assert by_kind["trial"][0].data.metrics == {"dev/score": 0.01, "score": 0.01}
    assert {order["parent_run"] for order in stages.orders} == {one.info.run_id for one in by_kind["trial"]}


def test_a_stage_that_is_given_up_has_not_failed(monkeypatch):
    def stopped(*_: Any) -> None:
        raise InterruptedError("distill@a-b was stopped after 3 s")

    monkeypatch.setattr(stage, "run", stopped)
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("stage"))
    stop = Stop()
    token = STOP.set(stop)
    try:
        assert stage.run_stage.fn("distill@a-b", {"study": "."}).is_failed()
        stop.give_up()
        state = stage.run_stage.fn("distill@a-b", {"study": "."})
    finally:
        STOP.reset(token)
    assert (state.is_completed(), state.name, state.message) == (True, "Pruned", "distill@a-b was stopped after 3 s")
    assert stop.is_set()
