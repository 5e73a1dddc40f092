"""What `make up` sets up, without starting it: settings, automation, addresses, and who may be ended."""

import json
import os
import subprocess
import sys

import pytest
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.schemas.automations import Posture
from ruamel.yaml import YAML

from kdcore.errors import UserError
from kdcore.layout import ROOT
from tasks import addresses, deploy, services
from tasks.processes import identity


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Services that keep their notes elsewhere."""
    monkeypatch.setattr(services, "FOLDER", tmp_path)
    monkeypatch.setattr(services, "STATE", tmp_path / "services.json")
    monkeypatch.setattr(services, "SETTINGS", tmp_path / "prefect.toml")
    return tmp_path


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


def test_a_port_in_use_by_somebody_else_is_refused(folder, monkeypatch):
    import http.server
    import threading

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as strange:
        threading.Thread(target=strange.serve_forever, daemon=True).start()
        monkeypatch.setenv(addresses.PREFECT_PORT, str(strange.server_port))
        with pytest.raises(UserError, match=r"in use by a process that `make up` did not start; .*KDFLOW_PREFECT_PORT"):
            services.up()
        strange.shutdown()


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
