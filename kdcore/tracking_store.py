"""Where MLflow keeps its records, and who owns them: store, experiments, parent runs, orphans.

The store is `mlflow.db` and `mlartifacts/` in the checkout, or `MLFLOW_TRACKING_URI`. MLflow's own first use is
racy (two processes migrate one SQLite file twice; the loser of `set_experiment` logs into Default), so everything
that creates something does it under a file lock and hands on ids.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from kdcore import layout
from kdcore.errors import UserError

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput
    from mlflow.entities import Run as MlflowRun
    from mlflow.tracking import MlflowClient

HOST = "kdflow.host"
PROCESS = "kdflow.process"
KIND = "kdflow.kind"
STUDY = "kdflow.study"
PARENT = "mlflow.parentRunId"
NAME = "mlflow.runName"
NOTE = "mlflow.note.content"
"""The description that MLflow's page shows, Markdown; a paragraph is one line there."""
CLOSED = "kdflow.closed"
_EXPERIMENT_TOLD = (
    "Runs of the study `{study}`. A run with others below it is one run of the flow, of `dvc repro` or of a search. "
    "Below it: `teacher` and `distill` with losses and scores by step, one run per seed, `evaluate` with the metrics "
    "of the finished model, `report` with the whole report among its artifacts, `register` with the student that was "
    "registered.")
PARENT_TOLD = "The runs below it are the stages that it ran, one run per seed where a stage trains several."
_CLOCK_SLACK = 5.0
"""Seconds by which two readings of a process's start time may differ when the clock is adjusted."""


def uri() -> str:
    """The tracking URI. Relative SQLite paths are taken from the checkout, whatever the current folder is."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    prefix = "sqlite:///"
    if not given:
        return f"{prefix}{layout.ROOT.resolve() / 'mlflow.db'}"
    if given.startswith(prefix) and given[len(prefix):] and not given.startswith(prefix + "/"):
        return f"{prefix}{layout.ROOT.resolve() / given[len(prefix):]}"
    return given


def page(address: str, place: str) -> str:
    """A page of MLflow at `address`, in its view for trained models: by itself it shows traces of language models."""
    return f"{address.rstrip('/')}/#/{place}?workflowType=machine_learning"


def experiment_name(study: str) -> str:
    """The experiment that holds the runs of a study."""
    return f"kdflow/{study}"


def study_name(study: Path) -> str:
    """The name of a study: its folder's, and `demo` for the checkout itself; a trial has that of the searched one."""
    folder = study.resolve()
    return "demo" if folder == layout.ROOT.resolve() else layout.searched_by(folder.name)


def connect() -> "MlflowClient":
    """A client of the store, which is created first if need be; safe in many processes at once.

    Raises:
        UserError: nothing answers there.
    """
    load()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    address = uri()
    with lock("store"):
        client = MlflowClient(tracking_uri=address, registry_uri=address)
        try:
            client.search_experiments(max_results=1)
        except MlflowException as error:
            why = str(error).partition("\n")[0]
            raise UserError(f"MLflow at {address} does not answer ({why}); start it, or unset MLFLOW_TRACKING_URI"
                            ) from error
    return client


def experiment(client: "MlflowClient", study: str) -> str:
    """The id of a study's experiment, created on first use; safe in many processes at once."""
    from mlflow.exceptions import MlflowException

    name = experiment_name(study)
    with lock("experiment"):
        found = client.get_experiment_by_name(name)
        if found is None:
            place = None
            if uri().startswith("sqlite:"):
                place = (layout.ROOT.resolve() / "mlartifacts" / study).as_uri()
            try:
                return client.create_experiment(name, artifact_location=place,
                                                tags={NOTE: _EXPERIMENT_TOLD.format(study=study)})
            except MlflowException:  # another host was faster, on a store that hosts share
                found = client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return found.experiment_id


def setup(study: str = "demo") -> str:
    """Create the store and a study's experiment, close what dead processes left running; return the experiment's id."""
    client = connect()
    experiment_id = experiment(client, study)
    close_orphans(client, experiment_id)
    return experiment_id


def dataset_input(name: str, dvc_hash: str, source: str = "{}", profile: str | None = None) -> "DatasetInput":
    """A prepared dataset as the input of a run, with its DVC hash as digest.

    `source` and `profile` are JSON texts: where the splits come from, and their sizes.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    digest = dvc_hash.removesuffix(".dir")  # MLflow takes 36 characters
    return DatasetInput(Dataset(name, digest, "dvc", source, profile=profile),
                        [InputTag("mlflow.data.context", "prepared")])


@contextmanager
def lock(name: str) -> Iterator[None]:
    """One process of this checkout at a time; the lock goes with the process that holds it."""
    from filelock import FileLock

    folder = layout.ROOT / ".kdflow" / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"mlflow-{name}.lock"):
        yield


def own_process() -> str:
    """This process as a tag: its id and start time, which together are never used again."""
    return _identity(psutil.Process())


def process_is_alive(tag: str) -> bool:
    """Whether the process that wrote the tag still runs on this host."""
    pid, _, started = tag.partition(":")
    try:
        process = psutil.Process(int(pid))
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - float(started)) < _CLOCK_SLACK
    except (psutil.NoSuchProcess, ValueError):
        return False


def orphans(client: "MlflowClient", experiment_id: str) -> "list[MlflowRun]":
    """Runs of this host that say RUNNING although their process is gone."""
    running = client.search_runs(
        [experiment_id], f"attributes.status = 'RUNNING' and tags.`{HOST}` = '{socket.gethostname()}'")
    return [run for run in running if not process_is_alive(run.data.tags.get(PROCESS, ""))]


def close_orphans(client: "MlflowClient", experiment_id: str) -> int:
    """Mark this host's abandoned runs KILLED; return how many."""
    found = orphans(client, experiment_id)
    for run in found:
        client.set_tag(run.info.run_id, CLOSED, "its process ended without saying how")
        client.set_terminated(run.info.run_id, "KILLED")
    return len(found)


def create_parent(study: str, name: str, tags: dict[str, str]) -> str:
    """Open a run that groups those of one flow run; whoever calls ends it."""
    client = connect()
    experiment_id = experiment(client, study)
    close_orphans(client, experiment_id)
    return _create_parent(client, experiment_id, study, name, own_process(), tags)


def parent_of_this_process(client: "MlflowClient", experiment_id: str, study: str) -> str | None:
    """The run that groups this process's run: the flow's, else that of the `dvc repro` above us, else None.

    A `dvc repro` knows nothing of MLflow, so its first stage creates the parent, tagged with the process of DVC.
    """
    given = os.environ.get("KDFLOW_PARENT_RUN")
    if given:
        return given
    repro = _repro_above()
    if repro is None:
        return None
    with lock("parent"):
        found = client.search_runs([experiment_id], f"tags.`{PROCESS}` = '{_identity(repro)}' and "
                                   f"tags.`{HOST}` = '{socket.gethostname()}' and tags.`{KIND}` = 'repro'")
        if found:
            client.update_run(found[0].info.run_id, status="RUNNING")
            return found[0].info.run_id
        return _create_parent(client, experiment_id, study, "dvc repro", _identity(repro), {KIND: "repro"})


def end_with_last_child(client: "MlflowClient", parent: str) -> None:
    """End the parent of a `dvc repro` as its children ended; the next stage of the same process reopens it.

    DVC itself would never end it. A flow's parent is the flow's to end.
    """
    run = client.get_run(parent)
    if run.data.tags.get(KIND) != "repro":
        return
    children = client.search_runs([run.info.experiment_id], f"tags.`{PARENT}` = '{parent}'")
    states = {child.info.status for child in children}
    worst = next((state for state in ("RUNNING", "FAILED", "KILLED") if state in states), "FINISHED")
    if worst != "RUNNING":
        client.set_terminated(parent, worst)


def _create_parent(client: "MlflowClient", experiment_id: str, study: str, name: str, process: str,
                   tags: dict[str, str]) -> str:
    own = {KIND: "flow", STUDY: study, HOST: socket.gethostname(), PROCESS: process, NAME: name, NOTE: PARENT_TOLD}
    return client.create_run(experiment_id, tags=own | tags, run_name=name).info.run_id


def _repro_above() -> psutil.Process | None:
    for process in psutil.Process().parents():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        names = [Path(word).name for word in words[:4]]
        if "dvc" in names and ("repro" in words or ("exp" in words and "run" in words)):
            return process
    return None


def _identity(process: psutil.Process) -> str:
    return f"{process.pid}:{process.create_time():.2f}"


def load() -> None:
    """Import MLflow: without telemetry, long waits for a server that is gone, or tracebacks in the log.

    To be called in the main thread: imports that two threads do at once can see half-made modules.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store
    import mlflow.tracking  # noqa: F401

    # After the import, which sets the level of its logger.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # It prints a traceback for every failed statement; whoever called reports the failure.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
