"""The search of a study's grid as one flow: what all trials share, the trials, their table and a proposal.

    python -m flows.search --study studies/rail-bert12 --datasets cola --methods pkd     # all points, in order
    python -m flows.search --study studies/mine --sampler tpe --trials 20 --pruner median
    prefect deployment run search/grid --watch                                           # through a worker

Each method on each dataset is searched on its own, with one seed. `search/proposal.yaml` in the study's folder says
which point was best on the split that selects; `kdflow accept-search` writes it into `params.yaml`, and the flow of the
study runs its seeds there. A search that was killed goes on where it was.
"""

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prefect import flow, get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from kdcore import config, proposal, tracking, tracking_store
from kdcore import study as studies
from kdcore.layout import Layout
from kdcore.search import Rules, Search, searches
from tasks import addresses, plan
from tasks.chain import Chain
from tasks.flow import arguments, exit_code, holding, noted, run_name, run_to_end
from tasks.plan import stage_name
from tasks.stage import Order
from tasks.trials import Trials, publish

SHARED = ("prepare", "teacher", "features", "selector")
"""What trials take from the study, as far as the grid leaves it alone."""


@flow(name="search", flow_run_name=run_name, persist_result=False,
      validate_parameters=True, log_prints=False)
def search(study: str = ".", profile: str | None = None, datasets: list[str] | None = None,
           methods: list[str] | None = None, sampler: str = "grid", trials: int | None = None,
           pruner: str | None = None, seed: int | None = None, parallel: int | None = None) -> State[None]:
    """Try points of a study's grid, and propose the best.

    Args:
        study: its folder, seen from the checkout, e.g. `studies/rail-bert12`.
        profile: a file of `profiles/` in it, without ending, e.g. `smoke`; None searches the study itself.
        datasets: only these of the study's datasets.
        methods: only these of the study's methods.
        sampler: `grid` for all points in order, `random`, or `tpe`, which proposes by what it has seen.
        trials: at most so many points per method and dataset; None means all.
        pruner: `median` or `hyperband` give up trials that are behind after an epoch; None gives up none.
        seed: of the students; None means the first of `study.seeds`.
        parallel: trials at a time; None means one per GPU, or two that share the CPU's cores.
    """
    def work(folder: Path, order: Order) -> State[None]:
        return _search(folder, _chosen(folder, datasets, methods, sampler, trials, pruner, seed), order)

    return holding(study, profile, parallel, work)


def _chosen(folder: Path, datasets: Sequence[str] | None, methods: Sequence[str] | None, sampler: str,
            trials: int | None, pruner: str | None, seed: int | None) -> list[Search]:
    """The searches of methods on datasets; raises UserError for what does not fit."""
    settings = config.load(folder / "params.yaml")
    rules = Rules(settings.study.seeds[0] if seed is None else seed, sampler, trials, pruner)
    return searches(folder, settings, rules, *plan.chosen(settings.study, datasets, methods), named=methods is not None)


def _search(folder: Path, chosen: list[Search], order: Order) -> State[None]:
    todo = noted(plan.make_towards(folder, {stage_name(kind, one.dataset) for one in chosen for kind in SHARED}))
    get_run_logger().info(f"{sum(len(one.points) for one in chosen)} points of {len(chosen)} method(s) on datasets, "
                          f"{order.parallel} at a time; {len(todo.stale)} stages before them")
    parent = tracking.start_parent(folder, f"search {runtime.flow_run.name}", {tracking_store.KIND: "search"})
    order, ended = replace(order, parent_run=parent), "KILLED"
    run = Trials(chosen, order)
    try:
        shared = Chain(todo, order)
        for stage in todo.stale:
            shared.add(stage)
        outcome = shared.finish()
        if not outcome.failed:
            run.finish()
        ended = "FAILED" if outcome.failed or run.failed else "FINISHED"
    finally:
        tracking.end_parent(parent, ended)
    if outcome.failed:
        return Failed(message=outcome.message)
    proposal.write(folder, chosen)
    found = proposal.rows(chosen)
    publish(tracking.study_name(folder), found, parent)
    told = f"{len(found)} trials" + "".join(
        f", {count} {state}" for state in ("finished", "pruned", "failed")
        if (count := sum(row["state"] == state for row in found)))
    if run.failed:
        first = next(iter(run.failed))
        return Failed(message=f"{first}: {run.failed[first]}; {told}; the same command tries what failed again")
    return Completed(message=told)


def main(given: Sequence[str] | None = None) -> int:
    """Run the flow from a shell; see `exit_code` for exit codes."""
    parser = arguments("search", "Try the points of a study's grid with one seed, print them, and propose the best.",
                       "trials")
    parser.add_argument("--datasets", nargs="+", metavar="DATASET", help="only these")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="only these")
    parser.add_argument("--sampler", default="grid", help="grid (default: all points in order), random or tpe")
    parser.add_argument("--trials", type=int, help="at most so many points per method and dataset (default: all)")
    parser.add_argument("--pruner", help="median or hyperband: give up trials that are behind after an epoch")
    parser.add_argument("--seed", type=int, help="of the students (default: the first of study.seeds)")
    options = parser.parse_args(given)
    rules = options.sampler, options.trials, options.pruner, options.seed

    def work() -> int:
        folder = studies.materialise(studies.find(options.study), options.profile)
        chosen = _chosen(folder, options.datasets, options.methods, *rules)
        code = run_to_end("search", lambda: search(
            options.study, options.profile, options.datasets, options.methods, *rules, options.parallel,
            return_state=True))
        if code in (0, 1):
            _conclude(folder, chosen, options.study)
        return code

    return exit_code("search", work)


def _conclude(folder: Path, chosen: list[Search], study: str) -> None:
    """Print the trials, the proposal and what to do with it."""
    from rich.console import Console

    for one in chosen:
        one.read()  # another search may run by now
    if tried := proposal.rows(chosen):
        Console(width=None if sys.stdout.isatty() else 160).print(proposal.table(tried))
    place = Layout(folder).search / proposal.PROPOSAL
    if place.is_file():
        print(f"\nProposal: {place}\nWhen you have read it: kdflow accept-search --study {study}")
    print(f"Runs: `make up` serves Prefect at {addresses.prefect_url()} and MLflow at {addresses.mlflow_url()}")


if __name__ == "__main__":
    # Prefect ends the flow first and then gives the signal back; leaving the ordinary way stops its temporary server.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
