"""What `make up` sets up in a fresh Prefect server: work pool, deployments, and the automation against zombies.

    python -m tasks.deploy                # with PREFECT_API_URL set; can be repeated
    python -m tasks.deploy --close-runs   # after the worker: what it was running is Crashed
"""

import os
import subprocess
import sys
from datetime import timedelta

from prefect.automations import Automation
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound

from kdcore.layout import ROOT
from tasks import runs, services

ZOMBIES = "kdflow: flow runs without a sign of life are Crashed"
WINDOW = 3 * services.BEAT
"""Seconds of silence that make a zombie; one late beat of a busy machine does not."""
_BEAT = "prefect.flow-run.heartbeat"
_ENDS = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed", "Cancelling",
                                                  "TimedOut", "Paused", "Suspended", "Busy", "Refused")}
"""Events that end the wait for a beat: state changes carry the state's name."""


def main() -> None:
    """Create what is missing; bring what exists up to date."""
    if "--close-runs" in sys.argv[1:]:
        runs.close_runs_of_pool(services.POOL, "its worker was stopped by `make down`")
        return
    with get_client(sync_client=True) as client:
        _pool(client)
        _automation(client)
    deployed = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"], cwd=ROOT, check=False,
        env=os.environ | {"KDFLOW_ROOT": str(ROOT.resolve()), "PREFECT_CLI_WRAP_LINES": "false"})
    if deployed.returncode:
        sys.exit(deployed.returncode)  # Prefect has said why; a traceback of ours would stand below it


def automation() -> Automation:
    """Marks a flow run Crashed when no beat and no end follows its last beat for `WINDOW` seconds."""
    return Automation(
        name=ZOMBIES,
        description="A worker or a flow that was killed cannot say so; its run would stay Running for ever.",
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            for_each={"prefect.resource.id"}, after={_BEAT}, expect={_BEAT} | _ENDS, posture=Posture.Proactive,
            threshold=1, within=timedelta(seconds=WINDOW)),
        actions=[ChangeFlowRunState(name=None, state=StateType.CRASHED, force=False,
                                    message=f"no sign of life for {WINDOW} seconds")])


def _pool(client: SyncPrefectClient) -> None:
    try:
        client.read_work_pool(services.POOL)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=services.POOL, type="process"))


def _automation(client: SyncPrefectClient) -> None:
    for old in client.read_automations_by_name(ZOMBIES):
        client.delete_automation(old.id)
    client.create_automation(AutomationCore.model_validate(automation().model_dump()))


if __name__ == "__main__":
    main()
