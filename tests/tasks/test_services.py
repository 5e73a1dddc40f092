"""What `make up` sets up, without starting it: settings, automation, addresses, and who may be ended."""

import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading

import pytest
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.schemas.automations import Posture
from ruamel.yaml import YAML

from kdcore import tracking_store
from kdcore.errors import UserError
from kdcore.layout import ROOT
from tasks import addresses, deploy, services
from tasks.processes import alive, identity
from tests.flows.checkout import free_port


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Services that keep their notes elsewhere."""
    monkeypatch.setattr(services, "FOLDER", tmp_path)
    monkeypatch.setattr(services, "STATE", tmp_path / "services.json")
    monkeypatch.setattr(services, "SETTINGS", tmp_path / "prefect.toml")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def commands(folder, monkeypatch):
    """What is started, as words; a process that sleeps stands for each, and nothing else is run."""
    started, processes, popen = [], [], subprocess.Popen

    def start(command, **options):
        started.append(command[2:])
        processes.append(popen(["sleep", "600"], start_new_session=options["start_new_session"]))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(services, "_run", lambda *command: None)
    yield started
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def stranger():
    """A server that is none of ours."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def noted(folder) -> dict[str, str]:
    """The processes that `down` would end, by name."""
    state = folder / "services.json"
    return {name: entry["process"] for name, entry in json.loads(state.read_text()).items()} if state.exists() else {}


def answers_once_started(monkeypatch):
    asked = []
    monkeypatch.setattr(services, "answers", lambda url: url in asked or asked.append(url))


def test_a_zombie_is_declared_after_three_missed_beats_not_one():
    beat = int(services._prefect_settings()["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])
    trigger = deploy.automation().trigger
    assert trigger.within.total_seconds() >= 3 * beat
    assert trigger.posture == Posture.Proactive
    assert "prefect.flow-run.heartbeat" in trigger.expect & trigger.after


@pytest.mark.parametrize("state", ["Completed", "Failed", "Busy", "Refused", "Cancelled", "Crashed"])
def test_every_end_of_a_flow_ends_the_wait_for_a_beat(state):
    assert f"prefect.flow-run.{state}" in deploy.automation().trigger.expect


def test_no_schedule_is_active_unasked():
    content = YAML(typ="safe").load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    schedules = [each for deployment in content["deployments"] for each in deployment.get("schedules", ())]
    assert schedules
    assert all(CronSchedule(cron=each["cron"], timezone=each["timezone"]) and each["active"] is False
               for each in schedules)


def test_prefect_commands_in_the_checkout_find_the_server(folder):
    services._write_settings()
    code = "from prefect.settings import get_current_settings as s; print(s().api.url, s().home)"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    said = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [addresses.prefect_api(), str(folder / "prefect")]


def test_down_never_ends_a_process_that_only_has_the_same_number(folder):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        entry = {"process": f"{stranger.pid}:1.00", "url": "", "log": ""}
        (folder / "services.json").write_text(json.dumps({"worker": entry}))
        assert services.down() == 0
        assert identity(stranger.pid) is not None
        assert not (folder / "services.json").exists()
    finally:
        stranger.kill()
        stranger.wait()


def test_a_port_in_use_by_somebody_else_is_refused(folder, monkeypatch, stranger):
    monkeypatch.setenv(addresses.PREFECT_PORT, str(stranger.server_port))
    with pytest.raises(UserError, match=r"in use by a process that `make up` did not start; .*KDFLOW_PREFECT_PORT"):
        services.up()


@pytest.mark.parametrize("what", ["the address is taken", "no store"])
def test_what_was_started_before_something_failed_can_be_stopped(folder, commands, monkeypatch, what):
    def setup():
        if what == "no store":
            raise UserError("no store")

    monkeypatch.setattr(tracking_store, "setup", setup)
    monkeypatch.setattr(services, "answers", lambda url: what != "no store" and url.startswith(addresses.mlflow_url()))
    with pytest.raises(UserError, match=r"no store|in use by a process .*KDFLOW_MLFLOW_PORT"):
        services.up()
    assert list(noted(folder)) == ["prefect"]
    process = noted(folder)["prefect"]
    assert alive(process)
    assert services.down() == 0
    assert not alive(process)


def test_up_goes_on_where_it_failed(folder, commands, monkeypatch):
    def setup():
        raise UserError("no store")

    answers_once_started(monkeypatch)
    monkeypatch.setattr(tracking_store, "setup", setup)
    with pytest.raises(UserError, match="no store"):
        services.up()
    before = noted(folder)
    monkeypatch.setattr(tracking_store, "setup", lambda: "1")
    assert services.up() == 0
    assert noted(folder)["prefect"] == before["prefect"]
    assert [command[:2] for command in commands] == [["prefect", "server"], ["mlflow", "server"], ["prefect", "worker"]]
    assert services.status() == 0


def test_mlflow_elsewhere_is_used_and_none_is_started(folder, commands, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.com/")
    monkeypatch.setattr(tracking_store, "connect", lambda: None)
    answers_once_started(monkeypatch)
    assert services.up() == 0
    assert [command[:2] for command in commands] == [["prefect", "server"], ["prefect", "worker"]]
    assert "MLflow   https://mlflow.example.com/#/experiments" in capsys.readouterr().out
    assert services.status() == 0
    assert "mlflow   https://mlflow.example.com (as MLFLOW_TRACKING_URI says)" in capsys.readouterr().out


def test_mlflow_elsewhere_that_does_not_answer_is_told_before_anything_is_started(folder, commands, monkeypatch):
    def connect():
        raise UserError("MLflow at http://127.0.0.1:5000 does not answer")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    monkeypatch.setattr(tracking_store, "connect", connect)
    with pytest.raises(UserError, match="does not answer"):
        services.up()
    assert not commands
    assert not noted(folder)


def test_the_answer_of_another_server_is_not_that_of_ours(folder, stranger):
    log = folder / "prefect.log"
    log.write_text("address already in use\n")
    dead = services.Service("1:0.00", f"http://127.0.0.1:{stranger.server_port}", str(log))
    with pytest.raises(UserError, match=r"prefect does not answer at .*; address already in use; log: "):
        services._wait("prefect", dead)


def test_up_and_down_wait_for_each_other(folder):
    other = threading.Thread(target=services.down)
    with services._alone():
        other.start()
        other.join(0.3)
        assert other.is_alive()
    other.join(20)
    assert not other.is_alive()


def test_down_ends_a_server_that_does_not_answer(folder, commands, monkeypatch, capsys):
    def refuse(*command):
        raise UserError("tasks.deploy did not end within 60 s")

    services._start({}, "prefect", ["prefect", "server"], "", "", {})
    services._write_settings()
    process = noted(folder)["prefect"]
    monkeypatch.setattr(services, "_run", refuse)
    assert services.down() == 0
    assert not alive(process)
    assert not services.STATE.exists()
    assert not services.SETTINGS.exists()
    assert "may stay Running in Prefect's records: tasks.deploy did not end" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "said"), [
    ("import os; os.kill(os.getpid(), 9)", "failed with exit code -9: it printed nothing"),
    ("import sys; print('warning', file=sys.stderr); print('│ no such pool │\\n╰───╯'); sys.exit(1)",
     "failed with exit code 1: │ no such pool │"),
    ("import time; time.sleep(60)", "did not end within 1 s"),
], ids=["killed", "in a frame", "too long"])
def test_a_command_that_fails_is_told_by_its_last_words(code, said):
    with pytest.raises(UserError, match=f"{said}$"):
        services._run([sys.executable, "-c", code], os.environ, 1.0 if "sleep" in code else None)


def test_deployments_that_prefect_refuses_are_told_by_prefect_alone(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tasks.deploy"])
    monkeypatch.setattr(deploy, "get_client", lambda sync_client: contextlib.nullcontext())
    monkeypatch.setattr(deploy, "_pool", lambda client: None)
    monkeypatch.setattr(deploy, "_automation", lambda client: None)
    monkeypatch.setattr(subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 1))
    with pytest.raises(SystemExit) as end:
        deploy.main()
    assert end.value.code == 1


def test_a_proxy_is_not_asked_for_servers_of_this_machine(monkeypatch, stranger):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{stranger.server_port}")  # one that answers whatever is asked
    assert services.answers("http://kdflow.example.com/health")
    assert not services.answers(f"http://127.0.0.1:{free_port()}/health")
    assert not services.answers(f"http://localhost:{free_port()}/health")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")  # one that is gone
    assert services.answers(f"http://127.0.0.1:{stranger.server_port}/health")


@pytest.mark.parametrize("given", ["0", "x", "70000"])
def test_a_port_that_is_none_is_refused(monkeypatch, given):
    monkeypatch.setenv(addresses.MLFLOW_PORT, given)
    with pytest.raises(UserError, match=f"KDFLOW_MLFLOW_PORT = '{given}' is no port"):
        addresses.mlflow_url()


def test_servers_listen_on_this_machine_only():
    assert addresses.prefect_url().startswith("http://127.0.0.1:")
    assert addresses.mlflow_url().startswith("http://127.0.0.1:")


def test_status_of_nothing(folder, capsys):
    assert services.status() == 3
    assert capsys.readouterr().out.count("not running") == 3
