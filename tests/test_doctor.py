"""`kdflow doctor` and `kdflow status`: every finding is true, and says what to do."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kdcore import doctor, layout, status, study, tracking_store
from kdcore.doctor import Finding
from kdcore.layout import Layout
from kdcore.status import tell
from tests import trained_study as toy
from tests.command import kdflow
from tests.mlflow_store import Store

pytest_plugins = ("tests.mlflow_store",)


@pytest.fixture
def made(store: Store, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A study of the toy dataset with everything that a study has, beside an empty MLflow store."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("KDFLOW_PREFECT_PORT", "9")  # nobody listens there
    (store.root / "requirements.lock").write_text("")
    settings = toy.settings().model_dump(mode="json")
    settings["pair"]["teacher"]["source"] = "package:all-MiniLM-L6-v2"
    return study.initialise(store.root / "studies" / "own", settings, code=repository,
                            cache=store.root / "cache", git=False)


def findings(where: Path) -> dict[str, list[str]]:
    """What the doctor says, by level."""
    found: dict[str, list[str]] = {"ok": [], "note": [], "bad": []}
    for finding in doctor.examine(where):
        found[finding.level].append(str(finding))
        assert finding.level == "ok" or finding.remedy, f"{finding.what} has no remedy"
    return found


def test_a_healthy_study_has_no_complaints(made: Layout) -> None:
    found = findings(made.study)
    assert (found["note"], found["bad"]) == ([], [])
    text = "\n".join(found["ok"])
    for word in ("Python 3", "GB free", "1 datasets, 2 methods, 2 seeds", "dvc.lock: 0 stages", "DVC project, cache",
                 "MLflow store sqlite", "no run of this study yet", "Prefect: no server"):
        assert word in text, word


def test_the_command_fails_when_something_is_wrong(made: Layout) -> None:
    assert kdflow("doctor", cwd=made.study).code == 0
    (made.study / "dvc.lock").write_text("")
    outcome = kdflow("doctor", cwd=made.study)
    assert outcome.code == 1
    assert "bad   " in outcome.out
    assert "-> restore it" in outcome.out or "restore it with" in outcome.out


def _damage(made: Layout, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = made.params.read_text()
    match name:
        case "setting":
            made.params.write_text(params.replace("max_length", "max_lenght"))
        case "method":
            made.params.write_text(params.replace("width: 8", "widht: 8"))
        case "lock":
            (made.study / "dvc.lock").write_text("stages: [")
        case "pipeline":
            (made.study / "dvc.yaml").unlink()
        case "project":
            shutil.rmtree(made.study / ".dvc")
        case "package":
            (layout.ROOT / "requirements.lock").write_text("no-such-package==1.0\n")
        case "disk":
            monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1e9))
        case "database":
            (layout.ROOT / "mlflow.db").write_text("no database")
        case "tracker":
            monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        case "prefect":
            monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        case "source":
            made.params.write_text(params.replace("package:all-MiniLM-L6-v2", "./no/such/folder"))


@pytest.mark.parametrize(("name", "said"), [
    ("setting", "unknown key `pair.max_lenght`"), ("method", "unknown key `widht`"), ("lock", "dvc.lock is damaged"),
    ("pipeline", "dvc.yaml does not exist"), ("project", "is no DVC project"),
    ("package", "not installed: no-such-package"), ("disk", "1.0 GB free"), ("database", "mlflow.db does not answer"),
    ("tracker", "http://127.0.0.1:9 does not answer"), ("prefect", "http://127.0.0.1:9/api does not answer"),
    ("source", "no/such/folder"),
])
def test_what_is_wrong_is_named_with_a_remedy(made: Layout, monkeypatch: pytest.MonkeyPatch, name: str,
                                              said: str) -> None:
    _damage(made, name, monkeypatch)
    bad = findings(made.study)["bad"]
    assert any(said in finding for finding in bad), bad


def test_a_folder_is_seen_from_the_study_and_not_from_where_the_doctor_is_called(
        made: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.study / "encoder").mkdir()
    made.params.write_text(made.params.read_text().replace("package:all-MiniLM-L6-v2", "./encoder"))
    monkeypatch.chdir(layout.ROOT)
    assert findings(made.study)["bad"] == []


def test_other_versions_than_locked_are_noted(made: Layout) -> None:
    (layout.ROOT / "requirements.lock").write_text("torch==1.0\n")
    assert any("torch" in note and "locked 1.0" in note for note in findings(made.study)["note"])
    (layout.ROOT / "requirements.lock").unlink()
    assert any("versions cannot be compared" in note for note in findings(made.study)["note"])


def test_stale_runs_and_moved_artifacts_are_noted(made: Layout) -> None:
    client = tracking_store.connect()
    experiment = client.create_experiment("kdflow/own", artifact_location="file:///moved/away")
    client.create_run(experiment, tags={"kdflow.host": socket.gethostname(), "kdflow.process": "1:1.0"})
    notes = findings(made.study)["note"]
    assert any("1 MLflow runs say RUNNING" in note for note in notes)
    assert any("file:///moved/away" in note for note in notes)


def test_a_store_that_would_not_fit_is_told_before_it_is_built(made: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    about = toy.info(True)
    about = replace(about, splits=about.splits | {"train": replace(about.splits["train"], rows=1_000_000)})
    made.prepared("toy").mkdir(parents=True)
    (made.prepared("toy") / "dataset.json").write_text(about.to_json())
    made.teacher("toy").mkdir(parents=True)
    (made.teacher("toy") / "config.json").write_text(
        json.dumps({"num_hidden_layers": 12, "hidden_size": 768, "id2label": {"0": "a", "1": "b"}}))
    size = 1_000_000 * 2 * (2 + 13 * 768)  # rows, bytes of a half, logits and the means of all layers
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1e12))
    assert any(f"at most {size / 1e6:,.0f} MB" in line for line in findings(made.study)["ok"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=6e9))
    assert any("more than is free" in finding for finding in findings(made.study)["bad"])


def test_a_finding_reads_as_one_line_and_a_remedy() -> None:
    assert str(Finding("bad", "no disk", "buy one")) == "bad   no disk\n      -> buy one"


Lines = Callable[[], list[str]]


@pytest.fixture
def lines(made: Layout, store: Store) -> Lines:
    return lambda: list(tell(made.study))


def test_status_names_selectors(made: Layout, lines: Lines) -> None:
    text = made.params.read_text()
    assert "\nselectors: {}\n" in text
    made.params.write_text(text.replace("\nselectors: {}\n", "\nselectors: {toy: {method: finetune}}\n"))
    assert lines()[1] == "selectors: toy by finetune"


def test_status_of_a_new_study(lines: Lines) -> None:
    told = lines()
    assert told[0] == "study own: datasets toy; methods finetune, rail_kd_l; seeds 1, 2"
    assert told[1] == "nothing runs"
    assert told[2] == "12 stage(s) are not current; `dvc repro` or the flow runs them:"
    assert any(line.startswith("  prepare@toy: ") for line in told)
    assert told[-1] == "toy: nothing evaluated yet"


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC finds nothing to do; asking the real one takes seconds."""
    monkeypatch.setattr(status, "_ask_dvc", lambda _: subprocess.Popen(
        ["echo", "{}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))


def test_status_tells_results(made: Layout, lines: Lines, current: None) -> None:
    for method in ("finetune", "rail_kd_l"):
        toy.write_study(made, method=method)
    assert lines()[2] == "all stages are current"
    assert lines()[-1] == ("toy (accuracy on validation, mean over seeds): teacher 90.0, finetune 81.0, "
                           "rail_kd_l 81.0")


def test_status_tells_who_runs_and_leaves_dvc_alone(made: Layout, lines: Lines, current: None) -> None:
    flow = made.study / ".kdflow" / "flow"
    flow.parent.mkdir()
    holder = {"process": tracking_store.own_process(), "since": "noon", "host": "here"}
    flow.write_text(json.dumps(holder))
    told = lines()
    assert told[1:3] == [f"runs: a flow, PID {os.getpid()} on here since noon",
                         "what is current is told when nothing runs"]
    flow.write_text(json.dumps(holder | {"process": f"{os.getpid()}:1.0"}))
    assert lines()[1] == (f"a flow was killed (PID {os.getpid()} on here since noon); the next one goes on where it "
                          "was")
    flow.write_text("")
    assert lines()[1] == "nothing runs"


def test_status_tells_the_stages_that_dvc_runs(made: Layout, lines: Lines) -> None:
    locks = made.study / ".dvc" / "tmp" / "rwlock"
    locks.parent.mkdir(parents=True, exist_ok=True)
    out = str(made.student("toy", "finetune").resolve())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    locks.write_text(json.dumps({"write": {out: {"pid": psutil.Process().pid, "cmd": "dvc repro"},
                                           "/elsewhere": {"pid": gone.pid, "cmd": "dvc repro"}}}))
    assert lines()[1] == f"runs: artifacts/student/toy/finetune, PID {os.getpid()} (dvc repro)"


def test_status_says_why_dvc_does_not_answer(made: Layout, lines: Lines) -> None:
    (made.study / "dvc.lock").write_text("stages: [")
    assert any(line.startswith("DVC does not answer: ") and line.endswith("`kdflow doctor` looks closer")
               for line in lines())


def test_the_status_command(made: Layout) -> None:
    outcome = kdflow("status", cwd=made.study)
    assert outcome.code == 0
    assert "study own" in outcome.out
    assert kdflow("status", cwd=made.study.parent).code == 2
