"""Register the best student of each dataset in MLflow: a task, not a stage, since the run cache would skip it.

Idempotent: keyed by the hash of the checkpoint, so bytes that the registry has are not registered again.
"""

import os
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Failed

from kdcore import config
from kdcore.errors import UserError
from kdcore.layout import Layout


def best_student(study: Path, dataset: str) -> tuple[str, bool]:
    """Register the best student of a dataset unless its bytes are; returns what to tell, and whether it was new.

    Raises:
        UserError: there is no student to register, or MLflow does not answer.
        mlflow.exceptions.MlflowException: the registry refuses.
    """
    from kdcore.registry import register_best

    registered, why = register_best(config.load(study / "params.yaml"), Layout(study), dataset)
    if registered.new:
        return f"registered {registered.name} version {registered.version} ({registered.uri}): {why}", True
    return f"{registered.name} version {registered.version} ({registered.uri}) is registered already", False


@task(name="register", task_run_name="register@{dataset}", cache_policy=NO_CACHE, persist_result=False)
def register(study: str, dataset: str, parent_run: str | None = None) -> str | State[str]:
    """Register the best student of a dataset; a study that cannot be registered fails this task only."""
    if parent_run:
        os.environ["KDFLOW_PARENT_RUN"] = parent_run  # where MLflow files the run; this process serves one flow run
    try:
        told, _ = best_student(Path(study), dataset)
    except UserError as error:
        return Failed(message=f"register@{dataset} failed: {error}")
    get_run_logger().info(told)
    return told
