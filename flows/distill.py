"""The study as one flow: prepare, teacher, features, distill, evaluate, analyse, report, register.

    python -m flows.distill --study studies/glue-cpu        # with the server of `make up`, else with one of its own
    prefect deployment run distill/glue-cpu --watch          # through a worker

Parameters only select; what to do stands in the study's `params.yaml`, what is done in its `dvc.lock`. A flow after
`dvc repro`, or the other way round, finds nothing to do.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prefect import flow, get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from kdcore import config, tracking
from kdcore import study as studies
from kdcore.environment import prepare_environment
from kdcore.errors import BusyError, UserError
from kdcore.layout import Layout
from tasks import addresses, artifacts, owner, plan, register, runs, server, slots
from tasks.chain import Chain, Outcome
from tasks.plan import Plan, kind, stage_name
from tasks.stage import Order

BUSY, REFUSED = "Busy", "Refused"
"""Names of Failed states: another flow has the study; the user's mistake."""


def _run_name() -> str:
    """`demo`, `glue-all`, `glue-all.smoke`: a study's name is its folder's."""
    given = runtime.flow_run.parameters
    name = tracking.study_name(studies.locate(given["study"]))
    return f"{name}.{given['profile']}" if given["profile"] else name


@flow(name="distill", flow_run_name=_run_name, persist_result=False,
      validate_parameters=True, log_prints=False)
def distill(study: str = ".", profile: str | None = None, datasets: list[str] | None = None,
            methods: list[str] | None = None, parallel: int | None = None, force: bool = False) -> State[None]:
    """Bring a study up to date and register its best students.

    Args:
        study: its folder, seen from the checkout, e.g. `studies/glue-cpu`.
        profile: a file of `profiles/` in it, without ending, e.g. `smoke`; None runs the study itself.
        datasets: only these of the study's datasets.
        methods: only these of the study's methods. Seeds cannot be chosen: they live inside a stage.
        parallel: stages at a time; None means one per GPU, or two that share the CPU's cores.
        force: run the selected stages although nothing changed.
    """
    log = get_run_logger()
    try:
        folder = studies.materialise(studies.find(study), profile)
        with owner.claim(folder) as claim:
            claim.record(str(runtime.flow_run.id))
            if claim.previous and claim.previous.flow_run and runs.close(claim.previous.flow_run):
                log.warning(f"closed the run of a flow that was killed (PID {claim.previous.process.split(':')[0]})")
            runs.close_tasks_of_ended_flows()
            todo = plan.make(folder, datasets, methods, force)
            for note in todo.notes:
                log.warning(note)
            return _run(folder, todo, Order(study=str(folder), parallel=_parallel(parallel),
                                            gpus=tuple(slots.visible_gpus()), owner=claim.process))
    except BusyError as error:
        return Failed(name=BUSY, message=str(error))
    except UserError as error:
        return Failed(name=REFUSED, message=str(error))


def _run(folder: Path, todo: Plan, order: Order) -> State[None]:
    log, name = get_run_logger(), tracking.study_name(folder)
    log.info(_intention(todo, order.parallel))
    parent = tracking.start_parent(folder, f"flow {runtime.flow_run.name}") if todo.stale else None
    ended = "KILLED"
    try:
        outcome = _chain(todo, replace(order, parent_run=parent))
        registered = _register(folder, todo, outcome, parent)
        ended = "FAILED" if outcome.failed else "FINISHED"
        artifacts.publish(folder, name, outcome, registered, parent)
    finally:
        tracking.end_parent(parent, ended)
    for stage, why in outcome.left_out.items():
        log.warning(f"{stage} was left out: it {why}")
    return Failed(message=outcome.message) if outcome.failed else Completed(message=outcome.message)


def _chain(todo: Plan, order: Order) -> Outcome:
    """The stages in the order of the story; each starts as soon as what DVC's graph says it needs is done."""
    chain = Chain(todo, order)
    for dataset in todo.datasets:
        chain.add(stage_name("prepare", dataset))
        chain.add(stage_name("teacher", dataset))
        chain.add(stage_name("features", dataset))
        chain.add(stage_name("evaluate-teacher", dataset))
        for method in todo.methods:
            chain.add(stage_name("distill", dataset, method))
            chain.add(stage_name("evaluate", dataset, method))
        chain.add(stage_name("analyse", dataset))
    chain.add("report")
    for stage in todo.stale:  # what a study's own pipeline has besides
        chain.add(stage)
    return chain.finish()


def _register(folder: Path, todo: Plan, outcome: Outcome, parent: str | None) -> list[str]:
    """Register the best student of each dataset of which every method is evaluated; a failure counts as a stage's."""
    if not tracking.enabled():
        return []
    told = []
    for dataset in todo.datasets:
        if open_stages(todo, outcome, dataset):
            get_run_logger().info(f"{dataset} is not registered: {', '.join(open_stages(todo, outcome, dataset)[:3])} "
                                  "not current")
            continue
        state = register.register(str(folder), dataset, parent, return_state=True)
        if state.is_completed():
            told.append(str(state.result()))
        else:
            outcome.failed[f"register@{dataset}"] = state.message or f"register@{dataset} failed"
    return told


def open_stages(todo: Plan, outcome: Outcome, dataset: str) -> list[str]:
    """Stages of a dataset that registering waits for and that are not current after the run."""
    wanted = (set(todo.stale) | todo.stays_stale) - set(outcome.done)
    return [stage for stage in todo.needs
            if stage in wanted and kind(stage) not in ("analyse", "report")
            and f"{stage.partition('@')[2]}-".startswith(f"{dataset}-")]


def _intention(todo: Plan, parallel: int) -> str:
    if not todo.stale:
        return f"nothing to do: {len(todo.needs) - len(todo.stays_stale)} of {len(todo.needs)} stages are current"
    first = ", ".join(f"{stage} ({why})" for stage, why in list(todo.stale.items())[:3])
    return (f"{len(todo.stale)} of {len(todo.needs)} stages to do, {parallel} at a time: {first}"
            + (" ..." if len(todo.stale) > 3 else ""))


def _parallel(given: int | None) -> int:
    if given is not None and given < 1:
        raise UserError(f"parallel = {given}: expected 1 or more; leave it out for one per GPU, or two on a CPU")
    # Small models gain little from a second thread: two stages of one thread each are done sooner than one of two.
    return given or len(slots.visible_gpus()) or min(2, slots.cores())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the flow from a shell. Exit codes: 0 done, 1 a stage failed, 2 the user's mistake, 75 the study is busy."""
    prepare_environment()
    options = _options(arguments)
    try:
        folder = studies.materialise(studies.find(options.study), options.profile)
        if not options.force and not owner.left_dead(folder):
            with owner.claim(folder):
                todo = plan.make(folder, options.datasets, options.methods)
                if not todo.stale:
                    for note in todo.notes:
                        print(note)
                    print(_intention(todo, 1))
                    return _conclude(folder, todo)
        with server.reachable():
            state = distill(options.study, options.profile, options.datasets, options.methods, options.parallel,
                            options.force, return_state=True)
        if not state.is_completed():
            print(f"distill: {state.message}", file=sys.stderr)
            return {BUSY: BusyError.exit_code, REFUSED: UserError.exit_code}.get(state.name or "", 1)
        return _conclude(folder, None)
    except UserError as error:
        print(f"distill: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("distill: interrupted; the same command goes on from there", file=sys.stderr)
        return 130


def _conclude(folder: Path, todo: Plan | None) -> int:
    """Print the results and where to look. With a plan (of nothing to do), also look after the registry."""
    if todo is not None and tracking.enabled():
        for dataset in todo.datasets:
            if not open_stages(todo, Outcome(), dataset):
                print(register.best_student(folder, dataset)[0])
    layout = Layout(folder)
    if (layout.report / "results.json").is_file():
        from kdcore.stages import report

        report.show_tables(config.load(layout.params), layout)
        print(f"\nReport: {layout.report / 'report.md'}")
    print("Runs and models: `make up` serves Prefect at "
          f"{addresses.prefect_url()} and MLflow at {addresses.mlflow_url()}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flows.distill", description=(
        "Bring a study up to date: run what is stale, register its best students, print the results."))
    parser.add_argument("--study", default=".", help="its folder (default: the checkout's own)")
    parser.add_argument("--profile", help="a file of its profiles/, without ending")
    parser.add_argument("--datasets", nargs="+", metavar="DATASET", help="only these")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="only these")
    parser.add_argument("--parallel", type=int, help="stages at a time (default: one per GPU, else 2)")
    parser.add_argument("--force", action="store_true", help="run although nothing changed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # Prefect ends the flow first and then gives the signal back; leaving the ordinary way stops its temporary server.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
