"""Records of runs in Prefect and MLflow: close those of dead processes, and say where to look at them."""

from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from kdcore import tracking_store

UNFINISHED = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def close(flow_run: str) -> bool:
    """Mark a dead flow's run, and its task runs, Crashed where they say that they still run.

    Returns whether there was any. A run that this server does not know is no error: the flow may have had another.
    """
    message = "its process ended without saying how; seen by the next flow on this study"
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(flow_run))
        except ObjectNotFound:
            return False
        left = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])),
            task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=UNFINISHED))))
        for task_run in left:
            client.set_task_run_state(task_run.id, Crashed(message=message), force=True)
        if run.state is not None and run.state.is_final():
            return bool(left)
        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
        return True


def mlflow_links(study: str, parent_run: str | None) -> list[str]:
    """Markdown links to a study's experiment and to this flow's run, under the address where MLflow is served.

    Empty without tracking. The address is that of `make up` when nothing is served now.
    """
    from tasks.addresses import mlflow_url

    if parent_run is None:
        return []
    client = tracking_store.connect()
    experiment = client.get_run(parent_run).info.experiment_id
    base = f"{mlflow_url()}/#/experiments/{experiment}"
    return [f"[this flow's run, with one run per stage and seed]({base}/runs/{parent_run})",
            f"[all runs of {study}]({base})",
            f"[registered models]({mlflow_url()}/#/models)"]


