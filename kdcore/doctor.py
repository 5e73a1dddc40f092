"""Is everything in order? `kdflow doctor` looks at the machine, the tools' stores and a study, and says what to do.

It only looks: nothing is repaired, fetched or created.
"""

import configparser
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kdcore import config, general_config, layout, lineage, sources, strict
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
        if config.is_general(strict.read_yaml(study / "params.yaml")):
            yield from _general(study, general_config.load(study / "params.yaml"))
        else:
            yield from _study(study, config.load(study / "params.yaml"))
    except UserError as error:
        what, _, remedy = str(error).rpartition("; ")
        yield Finding("bad", what or remedy, remedy if what else "")
    for glance in (_dvc, _unfinished, _mlflow, _prefect):
        yield from glance(study)


def _python() -> Iterator[Finding]:
    yield Finding("ok", f"Python {platform.python_version()} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    lock = layout.ROOT / "requirements.lock"
    if not lock.is_file():
        yield Finding("note", f"no {lock}, so versions cannot be compared", "take it from the repository")
        return
    pinned = [line.split("==") for line in lock.read_text(encoding="utf-8").split()]
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


def _dvc(study: Path) -> Iterator[Finding]:
    if not (study / ".dvc").is_dir():
        yield Finding("bad", f"{study} is no DVC project", "`kdflow init DIR` makes a study with one")
        return
    cache = _cache(study)
    existing = next(place for place in (cache, *cache.parents) if place.exists())
    if not os.access(existing, os.W_OK):
        yield Finding("bad", f"the DVC cache {cache} cannot be written", "change its owner, or `dvc cache dir PATH`")
    elif existing.stat().st_dev != study.stat().st_dev:
        yield Finding("note", f"the DVC cache {cache} lies on another disk than {study}: outs are copied, not linked",
                      "move one of them: `dvc cache dir PATH` in the study")
    else:
        yield Finding("ok", f"DVC project, cache {cache}")


def _cache(study: Path) -> Path:
    """Where the study's DVC project keeps its files."""
    parser = configparser.ConfigParser()
    parser.read([study / ".dvc" / "config", study / ".dvc" / "config.local"], encoding="utf-8")
    place = parser.get("cache", "dir", fallback="cache")
    return (study.resolve() / ".dvc" / place).resolve()


def _general(study: Path, settings: general_config.GeneralStudy) -> Iterator[Finding]:
    from kdcore import general

    yield from _pipeline(study, "general.dvc.yaml")
    for name, student in settings.students.items():
        general.configure(student.method, settings.options(name))
    yield Finding("ok", f"params.yaml: students {', '.join(settings.students)}")
    yield _lock(study)
    yield _source(study, settings.teacher.source)


def _study(study: Path, settings: config.Study) -> Iterator[Finding]:
    yield from _pipeline(study, "dvc.yaml")
    yield from _settings(settings)
    yield from _methods(settings)
    yield _lock(study)
    named = {model.source for model in settings.pair.teacher.models} | {settings.pair.student.source} - {"teacher"}
    for source in sorted(named):
        yield _source(study, source)
    yield from _stores(study, settings)


def _pipeline(study: Path, name: str) -> Iterator[Finding]:
    if not (study / "dvc.yaml").exists():
        yield Finding("bad", f"{study / 'dvc.yaml'} does not exist", f"link it to the checkout's {name}")


def _settings(settings: config.Study) -> Iterator[Finding]:
    chosen = settings.study
    yield Finding("ok", f"params.yaml: {len(chosen.datasets)} datasets, {len(chosen.methods)} methods, "
                        f"{len(chosen.seeds)} seeds")


def _methods(settings: config.Study) -> Iterator[Finding]:
    from kdcore import methods

    entries = [settings.method(name) for name in settings.study.methods]
    for entry in entries:
        methods.of_entry(entry)
    yield Finding("ok", f"methods: {', '.join(map(str, entries))}")


def _lock(study: Path) -> Finding:
    return Finding("ok", f"dvc.lock: {len(lineage.read_lock(study))} stages done")


def _source(study: Path, source: str) -> Finding:
    if source.startswith("package:"):
        name = source.removeprefix("package:")
        known = sources.PACKAGES.get(name)
        here = known is not None and (layout.SOURCES / f"{name}-{known.version}").is_dir()
        return Finding("ok", f"{source} is {'here' if here else 'fetched when it is first used'}")
    with contextlib.chdir(study):  # from which relative folders are seen
        place = sources.locate(source)
    return Finding("ok", f"{source} is {place.place if place.is_local else 'a hub id'}")


def _stores(study: Path, settings: config.Study) -> Iterator[Finding]:
    own = Layout(study)
    made = [d for d in settings.study.datasets if (own.features(d) / "manifest.json").is_file()]
    if made:
        size = sum(f.stat().st_size for d in made for f in own.features(d).iterdir())
        yield Finding("ok", f"teacher features of {', '.join(made)}: {size / 1e6:,.0f} MB")
    coming = sum(_largest_store(own, settings, d) for d in settings.study.datasets if d not in made)
    if coming > shutil.disk_usage(study).free:
        yield Finding("bad", f"teacher features to come need up to {coming / 1e6:,.0f} MB, more than is free",
                      "free some, store fewer `features.kinds`, or use a 16-bit features.dtype")
    elif coming:
        yield Finding("ok", f"teacher features to come: at most {coming / 1e6:,.0f} MB")


def _largest_store(own: Layout, settings: config.Study, dataset: str) -> int:
    """Bytes if every layer is stored; 0 as long as rows or teacher are not known. Methods may need fewer layers."""
    try:
        splits = json.loads((own.prepared(dataset) / "dataset.json").read_text(encoding="utf-8"))["splits"]
        model = json.loads((own.teacher(dataset) / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:  # also of a teacher without layers, whose logits take next to nothing
        return 0
    rows = next(split["rows"] for split in splits if split["role"] == "train")
    layers = model.get("num_hidden_layers", model.get("n_layers", 0)) + 1
    width = model.get("hidden_size", model.get("dim", 0))
    numbers = {"logits": len(model.get("id2label", "x")), "cls": layers * width, "mean": layers * width}
    size = 4 if settings.features.dtype == "float32" else 2
    return rows * size * sum(numbers[kind] for kind in settings.features.kinds)


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
    try:
        client = tracking_store.connect()
        found = client.get_experiment_by_name(tracking_store.experiment_name(tracking_store.study_name(study)))
        stale = tracking_store.orphans(client, found.experiment_id) if found else []
    except Exception as error:  # a damaged database, a server that is gone, a wrong address: all are findings
        why = str(error.__cause__ or error).splitlines()[0]
        yield Finding("bad", f"MLflow store {address} does not answer: {why}",
                      "start it (`make up`), unset MLFLOW_TRACKING_URI, or move a damaged file away; training goes on "
                      "without it")
        return
    place = found.artifact_location if found else ""
    if place.startswith("file:") and layout.ROOT.resolve().as_uri() not in place:
        yield Finding("note", f"MLflow keeps this study's artifacts in {place}, which is not in {layout.ROOT}",
                      "the checkout was moved or copied; move it back to see older artifacts")
    else:
        yield Finding("ok", f"MLflow store {address}" + ("" if found else ", no run of this study yet"))
    if stale:
        yield Finding("note", f"{len(stale)} MLflow runs say RUNNING, but their processes are gone",
                      "the next start of the study closes them")


def _prefect(study: Path) -> Iterator[Finding]:
    given = os.environ.get("PREFECT_API_URL", "")
    address = given or f"http://127.0.0.1:{os.environ.get('KDFLOW_PREFECT_PORT', '4200')}/api"
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=3):
            yield Finding("ok", f"Prefect server {address}")
    except (OSError, ValueError) as error:
        if given:
            yield Finding("bad", f"Prefect server {address} does not answer: {error}",
                          "start it (`make up`), or unset PREFECT_API_URL")
        else:
            yield Finding("ok", "Prefect: no server, a flow starts one of its own; `make up` starts one that stays")
