"""What a study has to do: DVC's graph, and which of its stages are not current.

DVC alone decides both. A stage that is current but whose files are gone (a deleted student) is given its files back
from the cache here; what remains is stale, and so is everything after it.
"""

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdcore import config, general_config
from kdcore.errors import BusyError, UserError, did_you_mean
from kdcore.status import reason
from tasks import repair

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage


@dataclass(frozen=True)
class Plan:
    """The stages of a study and what to do with them.

    Attributes:
        datasets: the selected ones, in the study's order.
        methods: likewise.
        needs: for every stage of the study, the stages whose outs it reads.
        stale: the selected stages to run, each with the reason.
        left_out: selected stages that cannot become current because a stage that was not selected is stale.
        stays_stale: all stages that are not current and are not run either.
        notes: what was repaired or restored on the way.
        students: the selected ones of a general study, assistants before those whom they teach.
    """

    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    needs: Mapping[str, frozenset[str]]
    stale: Mapping[str, str]
    left_out: Mapping[str, str]
    stays_stale: frozenset[str]
    notes: tuple[str, ...]
    students: tuple[str, ...] = ()

    def width(self, stage: str) -> int:
        """How many stages of this kind the study has: they can run at a time."""
        return Counter(kind(name) for name in self.needs)[kind(stage)]


def kind(stage: str) -> str:
    """The name in `dvc.yaml` without its matrix part: `distill` of `distill@rte-finetune`."""
    return stage.partition("@")[0]


def stage_name(kind: str, dataset: str | None = None, method: str | None = None) -> str:
    """A stage's name as DVC's matrix makes it."""
    item = "-".join(part for part in (dataset, method) if part is not None)
    return f"{kind}@{item}" if item else kind


def make(study: Path, datasets: Sequence[str] | None = None, methods: Sequence[str] | None = None,
         force: bool = False) -> Plan:
    """Repair what a kill damaged, restore what is only missing, and tell what is stale.

    Args:
        study: its folder.
        datasets: run only these; None means all of `study.datasets`.
        methods: run only these; None means all of `study.methods`.
        force: take every selected stage for stale.

    Raises:
        UserError: unknown names, or files that DVC refuses.
        BusyError: a DVC command that somebody started by hand is running on this study.
    """
    settings = config.load(study / "params.yaml").study
    chosen_datasets, chosen_methods = chosen(settings, datasets, methods)
    found = _look(study, lambda needs: _selected(needs, settings, chosen_datasets, chosen_methods), force)
    return Plan(chosen_datasets, chosen_methods, *found)


def chosen(settings: config.Selection, datasets: Sequence[str] | None,
           methods: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The selected datasets and methods in the study's order; raises UserError for names that are not the study's."""
    return (_select("dataset", datasets, settings.datasets, "study.datasets"),
            _select("method", methods, settings.methods, "study.methods"))


def make_general(study: Path, students: Sequence[str] | None = None, force: bool = False) -> Plan:
    """As `make`, for a general study.

    Args:
        students: run only these and the assistants that teach them; None means all.
    """
    settings = general_config.load(study / "params.yaml")
    chosen = _select("student", students, tuple(settings.students), "students")
    ordered = tuple(dict.fromkeys(link for name in chosen for link in settings.chain(name)))
    excluded = {stage_name("pretrain", name) for name in settings.students if name not in ordered}
    found = _look(study, lambda needs: [name for name in _in_order(needs) if name not in excluded], force)
    return Plan((), (), *found, students=ordered)


def make_towards(study: Path, targets: Collection[str]) -> Plan:
    """As `make`, for these stages and all that they need; names that are no stages of the study are left out."""
    return Plan((), (), *_look(study, lambda needs: _with_upstream(needs, targets), force=False))


Selecting = Callable[[Mapping[str, frozenset[str]]], list[str]]
"""From DVC's graph to the stages that are to be brought up to date."""


def _look(study: Path, selecting: Selecting, force: bool) -> tuple[
        Mapping[str, frozenset[str]], dict[str, str], dict[str, str], frozenset[str], tuple[str, ...]]:
    """The graph and what is stale in it, as `Plan` wants it: `needs` to `notes`."""
    notes = [note for note in (repair.lock_file(study), repair.files_in_use(study)) if note]
    with _repo(study) as repo:
        needs = _graph(repo)
        changes = _changes(repo)
        if restored := _restore(repo, changes):
            notes.append(f"restored from the cache: {', '.join(restored)}")
            changes = _changes(repo)
    stale = _with_downstream({name: reason(found) for name, found in changes.items() if found}, needs)
    selected = selecting(needs)
    if force:
        stale = dict.fromkeys(selected, "forced") | stale
    left_out = _left_out(selected, stale, needs)
    run = {name: why for name, why in stale.items() if name in selected and name not in left_out}
    return needs, run, left_out, frozenset(stale) - frozenset(run), tuple(notes)


def _select(what: str, wanted: Sequence[str] | None, known: tuple[str, ...], where: str) -> tuple[str, ...]:
    if wanted is None:
        return known
    if not wanted:
        raise UserError(f"the selection of {what}s is empty; leave it out to run all")
    for name in wanted:
        if name not in known:
            raise UserError(f"{what} {name!r} is not in {where} of params.yaml; {did_you_mean(name, known)}")
    return tuple(name for name in known if name in wanted)


@contextlib.contextmanager
def _repo(study: Path) -> "Iterator[Repo]":
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.logger import setup
    from dvc.repo import Repo, lock_repo

    setup(level=logging.ERROR)
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    try:
        with Repo(str(study), _wait_for_lock=True) as repo, lock_repo(repo):
            yield repo
    except LockError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip().startswith("(PID")]
        raise BusyError(f"a DVC command works on {study.name} {' '.join(lines)}; wait for it, or stop it") from None
    except DvcException as error:
        raise UserError(f"DVC refuses study {study.name}: {' '.join(str(error).split())}") from error


def _graph(repo: "Repo") -> dict[str, frozenset[str]]:
    graph = repo.index.graph
    return {stage.name: frozenset(need.name for need in graph.successors(stage)) for stage in graph
            if getattr(stage, "name", None)}


def _stages(repo: "Repo") -> "list[Stage]":
    return [stage for stage in repo.index.stages if getattr(stage, "name", None)]


def _changes(repo: "Repo") -> dict[str, list[Any]]:
    """DVC's reasons why each stage is not current; empty for one that is."""
    changes: dict[str, list[Any]] = {}
    for stage in _stages(repo):
        if not any(out.hash_info for out in stage.outs):  # dvc.lock knows nothing of it
            changes[stage.name] = ["not run yet"]
            continue
        status = stage.status(check_updates=True)
        changes[stage.name] = next(iter(status.values()), [])
    return changes


def _restore(repo: "Repo", changes: Mapping[str, list[Any]]) -> list[str]:
    """Check out stages of which nothing but the files on disk is missing; returns those that came back whole."""
    from dvc.exceptions import CheckoutError

    restored = []
    for stage in _stages(repo):
        found = changes[stage.name]
        kept = all(out.hash_info and out.use_cache for out in stage.outs)
        if kept and _outs_are_missing(found) and _all_deleted(found):
            try:
                repo.checkout(targets=[stage.addressing])
            except CheckoutError:
                continue  # not in this cache: the stage stays stale
            restored.append(stage.name)
    return restored


def _outs_are_missing(changes: Sequence[Any]) -> bool:
    return any(isinstance(change, Mapping) and "changed outs" in change for change in changes)


def _all_deleted(changes: Sequence[Any]) -> bool:
    return all(isinstance(change, Mapping) and all(state == "deleted" for paths in change.values()
                                                   for state in paths.values()) for change in changes)


def _with_downstream(stale: dict[str, str], needs: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Add what comes after stale stages; in the order of the graph."""
    result: dict[str, str] = {}
    for name in _in_order(needs):
        above = sorted(need for need in needs[name] if need in result)
        if name in stale and not above:
            result[name] = stale[name]
        elif above:
            result[name] = f"after {above[0]}"
    return result


def _in_order(needs: Mapping[str, frozenset[str]]) -> list[str]:
    return list(TopologicalSorter(needs).static_order())


def _with_upstream(needs: Mapping[str, frozenset[str]], targets: Collection[str]) -> list[str]:
    """The targets and everything before them, in the order of the graph."""
    wanted: set[str] = set()
    for name in reversed(_in_order(needs)):
        if name in targets or name in wanted:
            wanted |= {name, *needs[name]}
    return [name for name in _in_order(needs) if name in wanted]


def _selected(needs: Mapping[str, frozenset[str]], settings: config.Selection, datasets: Collection[str],
              methods: Collection[str]) -> list[str]:
    """Every stage but those of datasets and methods that were not chosen."""
    excluded = {stage_name(kind, dataset)
                for kind in ("prepare", "teacher", "features", "selector", "evaluate-teacher", "analyse")
                for dataset in settings.datasets if dataset not in datasets}
    excluded |= {stage_name(kind, dataset, method) for kind in ("distill", "evaluate")
                 for dataset in settings.datasets for method in settings.methods
                 if dataset not in datasets or method not in methods}
    excluded |= {stage_name("method", method=method) for method in settings.methods if method not in methods}
    return [name for name in _in_order(needs) if name not in excluded]


def _left_out(selected: Sequence[str], stale: Mapping[str, str],
              needs: Mapping[str, frozenset[str]]) -> dict[str, str]:
    left_out: dict[str, str] = {}
    for name in selected:
        if name not in stale:
            continue
        missing = sorted(need for need in needs[name] if need in stale and (need not in selected or need in left_out))
        if missing:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            left_out[name] = f"needs {missing[0]}{others}, not selected"
    return left_out
