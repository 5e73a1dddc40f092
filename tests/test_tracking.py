"""Tracking records what happened, and never gets in the way of the work."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kdcore import layout, tracking, tracking_store
from kdcore.tracking import Run
from tests.mlflow_store import Store

pytest_plugins = ("tests.mlflow_store",)

TRAIN = """
import sys
from pathlib import Path
from kdcore.layout import Layout
from kdcore.tracking import Run
with Run.start("distill", Layout(Path(".")), "rte", "finetune", seed=int(sys.argv[1])) as run:
    run.log(1, {"loss": 0.5})
    print(run.id, flush=True)
    if len(sys.argv) > 2:
        import time
        time.sleep(float(sys.argv[2]))
"""


def test_off_costs_nothing() -> None:
    code = TRAIN + "assert run.id is None\nassert 'mlflow' not in sys.modules, 'imported for nothing'"
    done = subprocess.run([sys.executable, "-c", code, "1"], env=os.environ | {"KDFLOW_TRACKING": "off"}, check=False,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_the_first_process_of_a_distributed_run_records(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with Run.start("distill", store.layout, "rte") as run:
        assert run.id is None


def test_a_run_says_what_ran_and_how_it_went(store: Store) -> None:
    (store.study / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  prepare@rte:\n    cmd: x\n    outs:\n"
        "    - {path: artifacts/prepared/rte, md5: abc.dir}\n    - {path: artifacts/student/rte/m, md5: old.dir}\n")
    (store.study / "curve.txt").write_text("one")
    params = {"training": {"epochs": 3.0, "keep": "best"}, "layers": (1, 2), "revision": None, "ood": {}}
    with Run.start("distill", store.layout, "rte", "wide", 2, params, {"kdflow.teacher": "cafe"},
                   method_file="rail_kd_l") as run:
        for step in range(2500):
            run.log(step, {"loss": 1 / (step + 1), "rte/accuracy": 0.5})
        run.artifact(store.study / "curve.txt")
        run_id = run.id
    [recorded] = store.runs()
    assert recorded.info.run_id == run_id
    assert recorded.info.status == "FINISHED"
    assert recorded.info.run_name == "distill rte wide seed 2"
    assert recorded.data.params == {"training.epochs": "3.0", "training.keep": "best", "layers": "[1, 2]",
                                    "revision": "null", "ood": "{}"}
    tags = recorded.data.tags
    expected = {"kdflow.kind": "distill", "kdflow.study": "tiny", "kdflow.dataset": "rte", "kdflow.method": "wide",
                "kdflow.method_file": "rail_kd_l", "kdflow.seed": "2", "kdflow.teacher": "cafe",
                "dvc.prepared": "abc.dir"}
    assert expected.items() <= tags.items()
    assert tags["mlflow.source.name"] == "kdflow distill rte wide"
    [used] = recorded.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("rte", "abc")
    assert tags["kdflow.process"].startswith(f"{os.getpid()}:")
    client = tracking_store.connect()
    history = client.get_metric_history(run_id, "loss")
    assert [point.step for point in sorted(history, key=lambda p: p.step)] == list(range(2500))
    assert [file.path for file in client.list_artifacts(run_id)] == ["curve.txt"]
    assert client.get_experiment(recorded.info.experiment_id).name == "kdflow/tiny"
    assert run.failures == 0


def test_the_git_revision_is_recorded_with_its_dirt(store: Store) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=store.study,
                       check=True, capture_output=True)

    (store.study / "params.yaml").write_text("a: 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    revisions = []
    for change in (None, "dvc.lock", "params.yaml"):
        if change:
            (store.study / change).write_text("stages: {}\n")
        with Run.start("prepare", store.layout, "rte"):
            pass
        revisions.append(store.runs()[-1].data.tags["kdflow.revision"])
    assert len(revisions[0]) == 40
    assert revisions == [revisions[0], revisions[0], revisions[0] + "-dirty"]


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED"),
                                               (SystemExit, "KILLED")])
def test_what_ends_the_body_ends_the_run(store: Store, error: type[BaseException], status: str) -> None:
    def work() -> None:
        with Run.start("distill", store.layout, "rte") as run:
            run.log(0, {"loss": 1.0})
            raise error("the reason")

    with pytest.raises(error):
        work()
    [recorded] = store.runs()
    assert recorded.info.status == status
    assert recorded.data.metrics == {"loss": 1.0}
    assert recorded.data.tags["kdflow.error"] == f"{error.__name__}: the reason"


def test_non_finite_values_become_a_tag(store: Store) -> None:
    with Run.start("distill", store.layout, "rte") as run:
        for step in range(3):
            run.log(step, {"loss": float("nan"), "ok": 1.0, "grad": float("inf") if step == 1 else 0.0})
    [recorded] = store.runs()
    assert recorded.data.metrics == {"ok": 1.0, "grad": 0.0}
    assert recorded.data.tags["nonfinite.loss"] == "nan at step 0, 3 times in all"
    assert recorded.data.tags["nonfinite.grad"] == "inf at step 1"


def test_odd_long_and_many_settings_are_taken(store: Store) -> None:
    params = {f"p{i}": i for i in range(250)} | {"map": {"ü (x)/../y": "a" * 9000}}
    with Run.start("distill", store.layout, "rte", params=params) as run:
        run.log(0, {"loss (weird)//part": 1.0})
    [recorded] = store.runs()
    assert run.failures == 0
    assert len(recorded.data.params) == 251
    assert len(recorded.data.params["map.ü _x_/y"]) == 5000
    assert recorded.data.params["map.ü _x_/y"].endswith("a…")
    assert recorded.data.metrics == {"loss _weird_/part": 1.0}


class Broken:
    """A tracker that fails whatever one asks of it."""

    def __getattr__(self, name: str) -> object:
        raise ConnectionError(f"no {name} today")


@pytest.mark.parametrize("when", ["connecting", "every call"])
def test_a_broken_tracker_does_not_stop_the_work(
        store: Store, when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def connect() -> object:
        if when == "connecting":
            raise ConnectionError("nobody there\nand a traceback")
        return Broken()

    monkeypatch.setattr(tracking_store, "connect", connect)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", 0.05)
    start, steps = time.monotonic(), 0
    with Run.start("distill", store.layout, "rte", params={"a": 1}) as run:
        for step in range(100):
            run.log(step, {"loss": 1.0})
            steps += 1
        run.artifact(store.study)
        assert run.id is None
    assert steps == 100
    assert run.failures >= 2
    assert time.monotonic() - start < 5
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2, "told once when it fails, once at the end"
    assert "metrics are kept locally" in warnings[0]
    assert "100 metric values are missing" in warnings[1]
    assert tracking.start_parent(store.study, "flow") is None


def _refuse(root: Path, on: bool) -> None:
    with sqlite3.connect(root / "mlflow.db", timeout=10) as database:
        database.execute("CREATE TRIGGER refuse BEFORE INSERT ON metrics BEGIN SELECT RAISE(ABORT, 'read-only'); END"
                         if on else "DROP TRIGGER refuse")
    database.close()


def test_a_store_that_fails_for_a_while_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "BATCH_SECONDS", 0.05)
    monkeypatch.setattr(tracking, "RETRY_SECONDS", 0.05)
    with Run.start("distill", store.layout, "rte") as run:
        run.log(0, {"loss": 0.0})
        assert run.id
        _refuse(store.root, True)
        run.log(1, {"loss": 1.0})
        deadline = time.monotonic() + 10
        while not run.failures and time.monotonic() < deadline:
            time.sleep(0.02)
        assert run.failures
        _refuse(store.root, False)
        run.log(2, {"loss": 2.0})
    history = tracking_store.connect().get_metric_history(run.id, "loss")
    assert sorted((point.step, point.value) for point in history) == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert store.runs()[0].info.status == "FINISHED"


def test_a_locked_store_delays_the_end_by_little(
        store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A call that waited for the lock would take ten seconds or more, on a quick machine, too."""
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 1.0)
    lock = sqlite3.connect(store.root / "mlflow.db", isolation_level=None)
    with Run.start("distill", store.layout, "rte") as run:
        assert tracking_store.connect()
        run_id = run.id
        lock.execute("BEGIN EXCLUSIVE")
        start = time.monotonic()
        for step in range(1000):
            run.log(step, {"loss": 1.0})
        assert time.monotonic() - start < 5
    assert 0.9 < time.monotonic() - start < 9
    assert "incomplete" in caplog.text
    lock.execute("COMMIT")
    lock.close()
    deadline = time.monotonic() + 30  # the thread is still at it, and gets through once the lock is gone
    while tracking_store.connect().get_run(run_id).info.status == "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(tracking_store.connect().get_metric_history(run_id, "loss")) == 1000


def test_while_the_store_is_away_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "KEPT_POINTS", 10)
    points = tracking._Points()
    for step in range(15):
        points.add(step, {"loss": 1.0})
    assert (len(points), points.lost) == (10, 5)
    batch = points.take(4)
    assert [point[3] for point in batch] == [5, 6, 7, 8]
    points.give_back(batch)
    assert [point[3] for point in points.take(100)] == list(range(5, 15))


def test_tracking_draws_no_random_numbers(store: Store) -> None:
    random.seed(7)
    before = random.getstate()
    with Run.start("distill", store.layout, "rte") as run:
        assert run.id
    assert random.getstate() == before


def test_six_processes_start_at_once_on_nothing(fresh_store: Store) -> None:
    """MLflow alone loses runs to Default and runs its migrations twice here."""
    processes = [fresh_store.process(TRAIN, str(seed)) for seed in range(6)]
    results = [process.communicate(timeout=240) for process in processes]
    assert all(not error.strip() for _, error in results), results
    recorded = fresh_store.runs()
    assert sorted(run.info.run_id for run in recorded) == sorted(out.strip() for out, _ in results)
    assert {run.info.status for run in recorded} == {"FINISHED"}
    assert all(run.data.metrics == {"loss": 0.5} for run in recorded)
    client = tracking_store.connect()
    assert {client.get_experiment(run.info.experiment_id).name for run in recorded} == {fresh_store.experiment}


def test_the_runs_of_killed_processes_are_closed_at_the_next_start(store: Store) -> None:
    process = store.process(TRAIN, "1", "60")
    assert process.stdout is not None
    dead = process.stdout.readline().strip()
    client = tracking_store.connect()
    experiment = tracking_store.experiment(client, "tiny")
    assert tracking_store.orphans(client, experiment) == [], "it still runs"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert client.get_run(dead).info.status == "RUNNING"
    with Run.start("distill", store.layout, "rte", seed=2) as alive:
        assert alive.id
        assert client.get_run(dead).info.status == "KILLED"
        assert client.get_run(alive.id).info.status == "RUNNING"
    assert client.get_run(alive.id).info.status == "FINISHED"


def test_a_process_number_used_again_does_not_keep_a_run_alive() -> None:
    me = psutil.Process()
    assert tracking_store.process_is_alive(tracking_store.own_process())
    assert not tracking_store.process_is_alive(f"{me.pid}:{me.create_time() - 3600:.2f}")
    assert not tracking_store.process_is_alive("")


def test_runs_of_other_hosts_are_left_alone(store: Store) -> None:
    client = tracking_store.connect()
    experiment = tracking_store.experiment(client, "tiny")
    client.create_run(experiment, tags={"kdflow.host": "elsewhere", "kdflow.process": "1:1.0"})
    assert tracking_store.close_orphans(client, experiment) == 0


@pytest.mark.parametrize(("given", "expected"), [
    ("", "sqlite:///{root}/mlflow.db"), ("sqlite:///other.db", "sqlite:///{root}/other.db"),
    ("sqlite:////srv/x.db", "sqlite:////srv/x.db"), ("http://tracker:5000", "http://tracker:5000"),
    ("postgresql://u@h/d", "postgresql://u@h/d")])
def test_the_store_does_not_depend_on_the_current_folder(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: str) -> None:
    monkeypatch.setattr(layout, "ROOT", tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    found = set()
    for folder in (tmp_path, Path("/")):
        monkeypatch.chdir(folder)
        found.add(tracking_store.uri())
    assert found == {expected.format(root=tmp_path.resolve())}


def test_a_flow_groups_its_stages_and_ends_its_own_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tracking.start_parent(store.study, "busy-otter", {"prefect.flow_run": "123"})
    assert parent
    monkeypatch.setenv("KDFLOW_PARENT_RUN", parent)
    with Run.start("teacher", store.layout, "rte") as child:
        pass
    client = tracking_store.connect()
    assert client.get_run(child.id).data.tags["mlflow.parentRunId"] == parent
    assert client.get_run(parent).info.status == "RUNNING"
    tracking.end_parent(parent, "FAILED")
    assert client.get_run(parent).info.status == "FAILED"
    assert client.get_run(parent).data.tags["prefect.flow_run"] == "123"
    assert "The runs below it are the stages" in client.get_run(parent).data.tags["mlflow.note.content"]
    experiment = client.get_experiment(client.get_run(parent).info.experiment_id)
    assert "Runs of the study `tiny`." in experiment.tags["mlflow.note.content"], "a stranger reads it on its page"


@pytest.mark.slow
def test_one_dvc_repro_groups_its_stages(store: Store) -> None:
    """DVC is stood in for by a script of its name, which is all that tells it apart."""
    dvc = store.root / "dvc"
    dvc.write_text("import subprocess, sys\nfor seed in sys.argv[2]:\n"
                   f"    subprocess.run([sys.executable, '-c', {TRAIN!r}, seed], check=True)\n")
    for seeds in ("12", "3"):
        subprocess.run([sys.executable, str(dvc), "repro", seeds], cwd=store.study, env=store.environment(), check=True,
                       capture_output=True)
    runs = store.runs()
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert [run.info.run_name for run in parents] == ["dvc repro"] * 2
    assert {run.info.status for run in runs} == {"FINISHED"}
    groups = [sorted(run.data.tags["kdflow.seed"] for run in runs
                     if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id) for parent in parents]
    assert groups == [["1", "2"], ["3"]]


def test_the_parent_of_a_dvc_repro_ends_as_its_children_did(store: Store) -> None:
    client = tracking_store.connect()
    experiment = tracking_store.experiment(client, "tiny")
    parent = tracking_store._create_parent(client, experiment, "tiny", "dvc repro", "1:1.0", {"kdflow.kind": "repro"})
    states = []
    for end in ("FINISHED", "FAILED", "FINISHED"):
        client.update_run(parent, status="RUNNING")
        child = client.create_run(experiment, tags={"mlflow.parentRunId": parent}).info.run_id
        tracking_store.end_with_last_child(client, parent)
        assert client.get_run(parent).info.status == "RUNNING"
        client.set_terminated(child, end)
        tracking_store.end_with_last_child(client, parent)
        states.append(client.get_run(parent).info.status)
    assert states == ["FINISHED", "FAILED", "FAILED"]
