"""Records of runs in Prefect and MLflow: close those of dead processes, and say where to look at them."""

import logging
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from kdcore import tracking_store
from kdcore.errors import UserError
from tasks.addresses import mlflow_url

log = logging.getLogger(__name__)

UNFINISHED = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
FINISHED = [StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED]


def close(flow_run: str) -> bool:
    """Mark a dead flow's run Crashed where it says that it still runs; returns whether it did.

    A run that this server does not know is no error: the flow may have had another server.
    """
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(flow_run))
        except ObjectNotFound:
            return False
        if run.state is not None and run.state.is_final():
            return False
        client.set_flow_run_state(run.id, Crashed(message="its process ended without saying how; seen by the next "
                                                          "flow on this study"), force=True)
        return True


def close_tasks_of_ended_flows() -> int:
    """Mark task runs Crashed whose flow run has ended while they say that they still run; returns how many.

    A killed flow cannot end its task runs, and the automation that finds it knows only flow runs.
    """
    with get_client(sync_client=True) as client:
        left = client.read_task_runs(
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=FINISHED))),
            task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=UNFINISHED))))
        for task_run in left:
            client.set_task_run_state(task_run.id, Crashed(message="its flow run has ended"), force=True)
    return len(left)


def close_runs_of_pool(pool: str, message: str) -> int:
    """For after a pool's last worker: mark the flow runs that it was running Crashed; returns how many."""
    with get_client(sync_client=True) as client:
        running = client.read_flow_runs(
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(
                any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]))))
        for run in running:
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
    close_tasks_of_ended_flows()
    return len(running)


def mlflow_links(study: str, parent_run: str | None) -> list[str]:
    """Markdown links to a study's experiment and to this flow's run, under the address where MLflow is served.

    Empty without tracking, and where MLflow is gone by now: links are no reason to call a run failed. The address is
    that of `make up` when nothing is served now.
    """
    if parent_run is None:
        return []
    try:
        client = tracking_store.connect()
    except UserError as error:
        log.warning("no links to MLflow: %s", error)
        return []
    experiment = client.get_run(parent_run).info.experiment_id
    runs = f"experiments/{experiment}/runs"
    return [f"[{told}]({tracking_store.page(mlflow_url(), place)})" for told, place in (
        ("this flow's run, with one run per stage and seed", f"{runs}/{parent_run}"), (f"all runs of {study}", runs),
        ("registered models", "models"))]


