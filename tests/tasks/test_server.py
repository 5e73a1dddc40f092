"""Which Prefect server a flow talks to."""

import subprocess
import sys

import pytest
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings, temporary_settings

from kdcore.errors import BusyError, UserError
from tasks import server, services
from tasks.processes import alive

HOLD = ("import sys, time, pathlib; from tasks import server; server.HOME = pathlib.Path(sys.argv[1])\n"
        "with server.reachable(): print('held', flush=True); time.sleep(60)")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A checkout without services, in which no server is set."""
    monkeypatch.setattr(server, "HOME", tmp_path / "prefect")
    monkeypatch.setattr(services, "STATE", tmp_path / "services.json")
    monkeypatch.setenv(server.OWNER, "")
    with temporary_settings(restore_defaults={"api.url"}):
        yield tmp_path / "prefect"
    SubprocessASGIServer().stop()  # else the next test's would be this one


def test_a_server_that_is_set_but_gone_is_refused(home):
    with temporary_settings({"api.url": "http://127.0.0.1:9/api"}), \
            pytest.raises(UserError, match=r"127\.0\.0\.1:9/api does not answer; start it"), server.reachable():
        pass


def test_a_running_server_of_make_up_is_used(home, monkeypatch):
    monkeypatch.setattr(services, "prefect_api", lambda: "http://127.0.0.1:4299/api")
    with server.reachable() as where:
        assert where == get_current_settings().api.url == "http://127.0.0.1:4299/api"


def test_a_temporary_server_keeps_its_records_in_the_checkout(home):
    with server.reachable():
        assert get_current_settings().home == home
        assert str(home) in get_current_settings().server.database.connection_url.get_secret_value()
        assert not get_current_settings().server.analytics_enabled


def test_two_temporary_servers_never_share_a_database(home):
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(home)], stdout=subprocess.PIPE, cwd=home.parent)
    try:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match=r"runs with a temporary server; .*`make up`") as error, server.reachable():
            pass
        assert error.value.exit_code == 75
    finally:
        other.kill()
        other.wait()
    flow, left = (home / "temporary.lock").read_text().split()
    assert flow.startswith(f"{other.pid}:")
    assert alive(left), "it has a session of its own"
    with server.reachable():
        assert not alive(left)


def test_a_temporary_server_that_does_not_start_is_one_line(monkeypatch):
    def fail(self: SubprocessASGIServer, timeout: int) -> None:
        raise RuntimeError("Timed out while attempting to connect to ephemeral Prefect API server.")

    monkeypatch.setattr(SubprocessASGIServer, "start", fail)
    with pytest.raises(UserError, match=r"temporary server does not start: Timed out .* Start one with `make up`"):
        server._start_apart()
