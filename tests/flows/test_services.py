"""A real server, worker and MLflow in a copy of the checkout: deployments end as they should, kills leave no run
RUNNING, and `down` leaves no process."""

import json
import os
import signal
import time
import urllib.request

import psutil
import pytest

from tasks import services
from tasks.owner import holder
from tasks.processes import alive, end_session, session_members, with_environment
from tasks.stage import OWNER
from tests.flows.checkout import Checkout
from tests.tasks.test_stage import wait_for
from tests.toy import Toy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class House(Checkout):
    """A checkout whose services are up."""

    def services(self) -> dict:
        return json.loads((self.folder / ".kdflow/services.json").read_text())

    def pid(self, name: str) -> int:
        return int(self.services()[name]["process"].partition(":")[0])

    def post(self, path: str, content: dict) -> list:
        url = f"http://127.0.0.1:{self.environment['KDFLOW_PREFECT_PORT']}/api{path}"
        request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def unfinished(self, kind: str) -> list[str]:
        return [f"{run['name']} {run['state']['name']}" for run in self.post(f"/{kind}/filter", {})
                if run["state"]["type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")]

    def deploy(self, toy: Toy, *options: str) -> tuple[int, str]:
        """Run the deployment on a toy study as a user would: from the checkout, with no address given."""
        return self.run("prefect", "deployment", "run", "distill/demo", "--param", f"study={toy.folder}",
                        "--param", "parallel=2", *options)


@pytest.fixture(scope="session")
def house(tmp_path_factory):
    found = House(tmp_path_factory.mktemp("house") / "kdflow")
    code, said = found.run("tasks.services", "up", seconds=400)
    assert code == 0, said
    pids = [found.pid(name) for name in found.services()]
    yield found
    code, said = found.run("tasks.services", "down")
    assert code == 0, said
    assert not [member for pid in pids for member in session_members(pid)]
    assert not (found.folder / "prefect.toml").exists()


@pytest.fixture
def small(small):
    """What a test that failed left running on it would go on beside the tests after it."""
    yield small
    small.behave()
    found = holder(small.folder / ".kdflow/flow")
    if found is not None and alive(found.process):
        os.kill(int(found.process.partition(":")[0]), signal.SIGTERM)
        wait_for(lambda: not alive(found.process), seconds=60)


def test_up_can_be_repeated_and_changes_nothing(house):
    before = house.services()
    code, said = house.run("tasks.services", "up")
    assert code == 0, said
    assert house.services() == before
    assert len(house.post("/automations/filter", {})) == 1
    deployed = house.post("/deployments/filter", {})
    assert [schedule["active"] for each in deployed for schedule in each["schedules"]] == [False]
    assert {d["name"] for d in deployed} == {
        "demo", "general", "glue-all", "grid", "glue-cpu", "rail-bert12", "rail-roberta24", "rail-roberta12"}


def test_mlflow_is_few_processes(house):
    assert len(session_members(house.pid("mlflow"))) <= 3


def test_a_deployment_completes_quietly_and_the_second_run_does_nothing(house, small):
    code, said = house.deploy(small, "--watch")
    assert code == 0, said
    assert len(said.splitlines()) < 60
    names = {run["name"] for run in house.post("/task_runs/filter", {})}
    assert set(small.starts()) <= names
    assert {a["key"] for a in house.post("/artifacts/filter", {})} >= {"small-stages"}
    code, _ = house.deploy(small, "--watch")
    assert code == 0
    assert all(count == 1 for count in small.starts().values())


def test_a_failed_stage_ends_the_deployment_failed(house, toy):
    toy.behave(fail=("teacher@b",))
    code, _ = house.deploy(toy, "--watch")
    assert code == 1
    run = house.post("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]
    assert run["state"]["name"] == "Failed"
    assert run["state"]["message"].startswith("teacher@b failed: teacher@b was told to fail; log: ")
    assert "teacher@b blocks " in run["state"]["message"]
    assert toy.starts()["evaluate@a-vanilla_kd"] == 1
    assert not house.unfinished("task_runs")


def test_two_flows_at_once_the_second_is_told(house, small):
    small.behave(seconds=20)
    first = house.start("flows.distill", "--study", str(small.folder))
    try:
        wait_for(small.starts, seconds=60)
        code, said = house.run("flows.distill", "--study", str(small.folder))
        assert code == 75
        assert f"another flow runs study small: PID {first.pid} on" in said
        code, _ = house.deploy(small, "--watch")
        assert code == 1
        state = house.post("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]["state"]
        assert (state["name"], f"PID {first.pid}" in state["message"]) == ("Busy", True)
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)


def test_a_run_that_is_cancelled_on_its_page_takes_its_stages_with_it_and_the_next_goes_on(house, small):
    code, said = house.deploy(small)
    assert code == 0, said
    small.behave(seconds=200)
    wait_for(small.starts, seconds=60)
    owner = json.loads((small.folder / ".kdflow/flow").read_text())["process"]
    run = house.post("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]
    house.post(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    wait_for(lambda: not house.unfinished("flow_runs"), seconds=90)
    wait_for(lambda: not with_environment(OWNER, owner), seconds=15)
    (run,) = house.post("/flow_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert run["state"]["name"] == "Cancelled"
    small.behave()
    code, said = house.deploy(small, "--watch")
    assert code == 0, said
    assert not house.unfinished("task_runs")


def test_kill_9_of_the_flow_is_seen_at_once_and_the_next_goes_on(house, small):
    code, said = house.deploy(small)
    assert code == 0, said
    wait_for(small.starts, seconds=60)
    small.behave(seconds=60)
    wait_for(lambda: len(small.starts()) >= 2, seconds=60)
    session = os.getsid(int(small.start_lines()[-1][1]))
    owner = json.loads((small.folder / ".kdflow/flow").read_text())
    os.kill(int(owner["process"].partition(":")[0]), signal.SIGKILL)
    wait_for(lambda: not session_members(session), seconds=15)
    wait_for(lambda: not house.unfinished("flow_runs"), seconds=60)
    begun = dict(small.starts())
    small.behave()
    code, said = house.deploy(small, "--watch")
    assert code == 0, said
    assert not house.unfinished("task_runs")
    again = [stage for stage, count in small.starts().items() if count > 1]
    assert again == [list(begun)[-1]]


def test_kill_9_of_worker_and_flow_leaves_no_run_running(house, small):
    small.behave(seconds=200)
    code, said = house.deploy(small)
    assert code == 0, said
    wait_for(small.starts, seconds=60)
    flow = json.loads((small.folder / ".kdflow/flow").read_text())["process"].partition(":")[0]
    worker = house.pid("worker")
    try:
        os.kill(worker, signal.SIGKILL)
        os.kill(int(flow), signal.SIGKILL)
        begin = time.monotonic()
        wait_for(lambda: not house.unfinished("flow_runs"), seconds=3 * services.BEAT + 60)
        assert time.monotonic() - begin > services.BEAT  # it was the automation, which must not be hasty
    finally:
        end_session(worker)
        code, said = house.run("tasks.services", "up")  # all tests share it
    assert code == 0, said
    assert house.pid("worker") != worker
    small.behave()
    code, said = house.deploy(small, "--watch")
    assert code == 0, said
    assert not house.unfinished("task_runs")


def test_a_finished_run_stays_completed(house, small):
    """A late beat must not make a Completed run Crashed."""
    code, _ = house.deploy(small, "--watch")
    assert code == 0
    time.sleep(3 * services.BEAT + 10)
    run = house.post("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]
    assert run["state"]["name"] == "Completed"


def test_services_listen_on_loopback_only(house):
    ports = {int(house.environment[name]) for name in ("KDFLOW_PREFECT_PORT", "KDFLOW_MLFLOW_PORT")}
    listening = {(c.laddr.ip, c.laddr.port) for c in psutil.net_connections("tcp")
                 if c.status == psutil.CONN_LISTEN and c.laddr.port in ports}
    assert listening == {("127.0.0.1", port) for port in ports}
