"""Is everything in order? `kdflow doctor` looks at the machine, the tools' stores and a study, and says what to do.

It only looks: nothing is repaired, fetched or created.
"""

import importlib.metadata
import os
import platform
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kdcore import config, layout, lineage, sources
from kdcore.errors import UserError
from kdcore.layout import Layout

Level = Literal["ok", "note", "bad"]
LEAST_FREE_GB = 5.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `remedy` says what to do when it is not `ok`."""

    level: Level
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5} {self.what}" + (f"\n      -> {self.remedy}" if self.remedy else "")


def examine(study: Path) -> Iterator[Finding]:
    """Look at everything, one after another; what stops a check is a finding too."""
    for check in (_python, _packages, _devices):
        yield from check()
    yield from _disk(study)
    try:
        settings = config.load(study / "params.yaml")
        yield from _settings(study, settings)
        for look in (_lock, _sources, _stores):
            yield from look(study, settings)
    except UserError as error:
        what, _, remedy = str(error).rpartition("; ")
        yield Finding("bad", what or remedy, remedy if what else "")
    for glance in (_unfinished, _mlflow, _prefect):
        yield from glance(study)


def _python() -> Iterator[Finding]:
    yield Finding("ok", f"Python {platform.python_version()} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    pinned = [line.split("==") for line in (layout.ROOT / "requirements.lock").read_text(encoding="utf-8").split()]
    missing, other = [], []
    for name, version in pinned:
        try:
            installed = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if installed != version:
            other.append(f"{name} {installed} (locked {version})")
    if missing:
        yield Finding("bad", f"not installed: {', '.join(missing)}", "run `make test`, which sets .venv up, and use it")
    if other:
        yield Finding("note", f"versions differ from requirements.lock: {', '.join(other)}",
                      "delete .venv and run make again, unless they are meant to")
    if not missing and not other:
        yield Finding("ok", f"{len(pinned)} packages as locked")


def _devices() -> Iterator[Finding]:
    import torch

    from kdcore.training.precision import native_bf16

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    kind = torch.device("cuda" if names else "cpu")
    quick = "bf16" if native_bf16(kind) else "fp32"
    yield Finding("ok", f"trains on {', '.join(names) or f'{os.cpu_count()} CPU cores'}, precision auto is {quick}")


def _disk(study: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(study).free / 1e9
    if free < LEAST_FREE_GB:
        yield Finding("bad", f"{free:.1f} GB free at {study}", "free some; `dvc gc --workspace` drops unused versions")
    else:
        yield Finding("ok", f"{free:.0f} GB free")
    cache = layout.ROOT / ".dvc" / "cache"
    if cache.is_dir() and cache.stat().st_dev != study.stat().st_dev:
        yield Finding("note", f"the DVC cache {cache} lies on another disk than {study}: outs are copied, not linked",
                      "move one of them: `dvc cache dir PATH` in the study")


def _settings(study: Path, settings: config.Study) -> Iterator[Finding]:
    if not (study / "dvc.yaml").exists():
        yield Finding("bad", f"{study / 'dvc.yaml'} does not exist", "link it to the checkout's dvc.yaml")
    chosen = settings.study
    yield Finding("ok", f"params.yaml: {len(chosen.datasets)} datasets, {len(chosen.methods)} methods, "
                        f"{len(chosen.seeds)} seeds")


def _lock(study: Path, settings: config.Study) -> Iterator[Finding]:
    yield Finding("ok", f"dvc.lock: {len(lineage.read_lock(study))} stages done")


def _sources(study: Path, settings: config.Study) -> Iterator[Finding]:
    named = {settings.pair.teacher.source, settings.pair.student.source} - {"teacher"}
    for source in sorted(named):
        if source.startswith("package:"):
            name = source.removeprefix("package:")
            known = sources.PACKAGES.get(name)
            here = known is not None and (layout.SOURCES / f"{name}-{known.version}").is_dir()
            yield Finding("ok", f"{source} is {'here' if here else 'fetched when it is first used'}")
        else:
            place = sources.locate(source)
            yield Finding("ok", f"{source} is {place.place if place.is_local else 'a hub id'}")


def _stores(study: Path, settings: config.Study) -> Iterator[Finding]:
    own = Layout(study)
    made = [d for d in settings.study.datasets if (own.features(d) / "manifest.json").is_file()]
    if made:
        size = sum(f.stat().st_size for d in made for f in own.features(d).iterdir())
        yield Finding("ok", f"teacher features of {', '.join(made)}: {size / 1e6:,.0f} MB")


def _unfinished(study: Path) -> Iterator[Finding]:
    scratch = Layout(study).scratch
    left = [p for p in scratch.iterdir() if p.is_dir()] if scratch.is_dir() else []
    if left:
        size = sum(f.stat().st_size for p in left for f in p.rglob("*") if f.is_file())
        yield Finding("note", f"{len(left)} unfinished trainings ({size / 1e6:,.0f} MB) in {scratch}",
                      "run the study: they go on where they were; or delete the folder when nothing runs")


def _mlflow(study: Path) -> Iterator[Finding]:
    from kdcore import tracking_store

    address = tracking_store.uri()
    if address.startswith("sqlite:///") and not Path(address.removeprefix("sqlite:///")).exists():
        yield Finding("ok", "MLflow store: made by the first run")
        return
    tracking_store.load()
    from mlflow.exceptions import MlflowException

    try:
        client = tracking_store.connect()
        found = client.get_experiment_by_name(tracking_store.experiment_name(tracking_store.study_name(study)))
        stale = tracking_store.orphans(client, found.experiment_id) if found else []
    except MlflowException as error:
        yield Finding("bad", f"MLflow store {address} does not answer: {str(error).splitlines()[0]}",
                      "start it (`make up`), or unset MLFLOW_TRACKING_URI; training goes on without it")
        return
    yield Finding("ok", f"MLflow store {address}")
    if stale:
        yield Finding("note", f"{len(stale)} MLflow runs say RUNNING, but their processes are gone",
                      "the next start of the study closes them")


def _prefect(study: Path) -> Iterator[Finding]:
    address = os.environ.get("PREFECT_API_URL", "")
    if not address:
        yield Finding("ok", "Prefect: no server set, a flow starts one of its own; `make up` starts one that stays")
        return
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=3):
            yield Finding("ok", f"Prefect server {address}")
    except (urllib.error.URLError, TimeoutError) as error:
        yield Finding("bad", f"Prefect server {address} does not answer: {error}",
                      "start it (`make up`), or unset PREFECT_API_URL")
