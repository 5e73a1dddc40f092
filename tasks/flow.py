"""What the flows share: one at a time per study, what there is to do in a line, how a run ends, exit codes."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from kdcore import study as studies
from kdcore import tracking, tracking_store
from kdcore.environment import prepare_environment
from kdcore.errors import BusyError, UserError
from tasks import artifacts, owner, runs, server, slots
from tasks.chain import Outcome
from tasks.plan import Plan
from tasks.stage import Order

BUSY, REFUSED = "Busy", "Refused"
"""Names of Failed states: another flow has the study; the user's mistake."""


def run_name() -> str:
    """`demo`, `glue-all`, `glue-all.smoke`: a study's name is its folder's."""
    given = runtime.flow_run.parameters
    name = tracking.study_name(studies.locate(given["study"]))
    return f"{name}.{given['profile']}" if given["profile"] else name


def bring_up_to_date(study: str, profile: str | None, parallel: int | None, make: Callable[[Path], Plan],
                     chain: Callable[[Plan, Order], Outcome],
                     register: Callable[[Path, Plan, Outcome, str | None], list[str]]) -> State[None]:
    """The body of a flow: claim the study, plan, run the chain, register, publish what came of it.

    Args:
        make: plans for the study's folder.
        chain: runs the stages of a plan.
        register: gets folder, plan, outcome and MLflow's parent run, adds its failures to the outcome, and returns
            what to tell of what it registered.
    """
    def work(folder: Path, order: Order) -> State[None]:
        return _run(folder, noted(make(folder)), order, chain, register)

    return holding(study, profile, parallel, work)


def holding(study: str, profile: str | None, parallel: int | None,
            work: Callable[[Path, Order], State[None]]) -> State[None]:
    """Claim a study, clean up after a flow that was killed, and work in its folder; who has it, or a mistake of the
    user, becomes a state."""
    log = get_run_logger()
    try:
        folder = studies.materialise(studies.find(study), profile)
        with owner.claim(folder) as claim:
            claim.record(str(runtime.flow_run.id))
            if claim.previous and claim.previous.flow_run and runs.close(claim.previous.flow_run):
                log.warning(f"closed the run of a flow that was killed (PID {claim.previous.process.split(':')[0]})")
            runs.close_tasks_of_ended_flows()
            return work(folder, Order(study=str(folder), parallel=at_a_time(parallel),
                                      gpus=tuple(slots.visible_gpus()), owner=claim.process))
    except BusyError as error:
        return Failed(name=BUSY, message=str(error))
    except UserError as error:
        return Failed(name=REFUSED, message=str(error))


def noted(todo: Plan) -> Plan:
    """The plan, after its notes are in the log."""
    for note in todo.notes:
        get_run_logger().warning(note)
    return todo


def _run(folder: Path, todo: Plan, order: Order, chain: Callable[[Plan, Order], Outcome],
         register: Callable[[Path, Plan, Outcome, str | None], list[str]]) -> State[None]:
    log, name = get_run_logger(), tracking.study_name(folder)
    log.info(intention(todo, order.parallel))
    told = f"[This run of the flow in Prefect]({runtime.flow_run.ui_url}). {tracking_store.PARENT_TOLD}"
    parent = tracking.start_parent(folder, f"flow {runtime.flow_run.name}", {tracking_store.NOTE: told}) \
        if todo.stale else None
    ended = "KILLED"
    try:
        outcome = chain(todo, replace(order, parent_run=parent))
        registered = register(folder, todo, outcome, parent)
        ended = "FAILED" if outcome.failed else "FINISHED"
        artifacts.publish(folder, name, outcome, registered, parent)
    finally:
        tracking.end_parent(parent, ended)
    for stage, why in outcome.left_out.items():
        log.warning(f"{stage} was left out: it {why}")
    return Failed(message=outcome.message) if outcome.failed else Completed(message=outcome.message)


def intention(todo: Plan, parallel: int) -> str:
    """What a flow is going to do, in one line."""
    if not todo.stale:
        return f"nothing to do: {len(todo.needs) - len(todo.stays_stale)} of {len(todo.needs)} stages are current"
    first = ", ".join(f"{stage} ({why})" for stage, why in list(todo.stale.items())[:3])
    return (f"{len(todo.stale)} of {len(todo.needs)} stages to do, {parallel} at a time: {first}"
            + (" ..." if len(todo.stale) > 3 else ""))


def at_a_time(given: int | None) -> int:
    """How many stages run together; raises UserError for fewer than one."""
    if given is not None and given < 1:
        raise UserError(f"parallel = {given}: expected 1 or more; leave it out for one per GPU, or two on a CPU")
    # Small models gain little from a second thread: two stages of one thread each are done sooner than one of two.
    return given or len(slots.visible_gpus()) or min(2, slots.cores())


def from_shell(name: str, options: argparse.Namespace, make: Callable[[Path], Plan], start: Callable[[], State[Any]],
               conclude: Callable[[Path, Plan | None], None]) -> int:
    """Run a flow from a shell, or nothing when nothing is to be done.

    Args:
        options: those of `arguments`.
        start: runs the flow.
        conclude: prints the results of the study in a folder; with the plan where there was nothing to do.

    Returns:
        The exit code: see `exit_code`.
    """
    def work() -> int:
        folder = studies.materialise(studies.find(options.study), options.profile)
        if not options.force and not owner.left_dead(folder):
            with owner.claim(folder):
                todo = make(folder)
                for note in todo.notes:
                    print(note)
                if not todo.stale:
                    print(intention(todo, 1))
                    conclude(folder, todo)
                    return 0
        if code := run_to_end(name, start):
            return code
        conclude(folder, None)
        return 0

    return exit_code(name, work)


def run_to_end(name: str, start: Callable[[], State[Any]]) -> int:
    """Run a flow with a server, ours if there is none; says why it failed and returns the exit code."""
    with server.reachable():
        state = start()
    if state.is_completed():
        return 0
    print(f"{name}: {state.message}", file=sys.stderr)
    return {BUSY: BusyError.exit_code, REFUSED: UserError.exit_code}.get(state.name or "", 1)


def exit_code(name: str, work: Callable[[], int]) -> int:
    """Do what a shell asked for: 0 done, 1 a stage failed, 2 the user's mistake, 75 the study is busy, 130 interrupted.
    """
    prepare_environment()
    try:
        return work()
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command goes on from there", file=sys.stderr)
        return 130


def arguments(name: str, description: str, counted: str = "stages") -> argparse.ArgumentParser:
    """What every flow takes from a shell; `counted` are those of which `--parallel` run at a time."""
    parser = argparse.ArgumentParser(prog=f"python -m flows.{name}", description=description)
    parser.add_argument("--study", default=".", help="its folder (default: the checkout's own)")
    parser.add_argument("--profile", help="a file of its profiles/, without ending")
    parser.add_argument("--parallel", type=int, help=f"{counted} at a time (default: one per GPU, else 2)")
    return parser
