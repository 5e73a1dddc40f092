"""The study as one flow: prepare, teacher, features, selector, distill, evaluate, analyse, report, register.

    python -m flows.distill --study studies/glue-cpu        # with the server of `make up`, else with one of its own
    prefect deployment run distill/glue-cpu --watch          # through a worker

Parameters only select; what to do stands in the study's `params.yaml`, what is done in its `dvc.lock`. A flow after
`dvc repro`, or the other way round, finds nothing to do.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State

from kdcore import config, latest_report, tracking
from kdcore.errors import UserError
from kdcore.layout import Layout
from tasks import addresses, plan, register
from tasks.chain import Chain, Outcome
from tasks.flow import arguments, bring_up_to_date, from_shell, run_name
from tasks.plan import Plan, kind, stage_name
from tasks.stage import Order


@flow(name="distill", flow_run_name=run_name, persist_result=False,
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
    return bring_up_to_date(study, profile, parallel, lambda folder: plan.make(folder, datasets, methods, force),
                            _chain, _register)


def _chain(todo: Plan, order: Order) -> Outcome:
    """The stages in the order of the story; each starts as soon as what DVC's graph says it needs is done."""
    chain = Chain(todo, order)
    for method in todo.methods:
        chain.add(stage_name("method", method=method))
    for dataset in todo.datasets:
        chain.add(stage_name("prepare", dataset))
        chain.add(stage_name("teacher", dataset))
        chain.add(stage_name("features", dataset))
        chain.add(stage_name("selector", dataset))  # where the study asks for one
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


def main(given: Sequence[str] | None = None) -> int:
    """Run the flow from a shell; see `from_shell` for exit codes."""
    parser = arguments("distill", "Bring a study up to date: run what is stale, register its best students, print "
                                  "the results.")
    parser.add_argument("--datasets", nargs="+", metavar="DATASET", help="only these")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="only these")
    parser.add_argument("--force", action="store_true", help="run although nothing changed")
    options = parser.parse_args(given)
    return from_shell(
        "distill", options, lambda folder: plan.make(folder, options.datasets, options.methods),
        lambda: distill(options.study, options.profile, options.datasets, options.methods, options.parallel,
                        options.force, return_state=True), _conclude)


def _conclude(folder: Path, todo: Plan | None) -> None:
    """Print the results and where to look. With a plan (of nothing to do), also look after the registry."""
    if todo is not None and tracking.enabled():
        for dataset in todo.datasets:
            if not open_stages(todo, Outcome(), dataset):
                print(register.best_student(folder, dataset)[0])
    layout = Layout(folder)
    if (layout.report / "results.json").is_file():
        from kdcore.stages import report

        try:
            report.show_tables(config.load(layout.params), layout)
        except UserError as error:  # a run of some methods or datasets leaves others as they were
            print(f"No tables: {error}")
        print(f"\nReport: {latest_report.folder(layout) / report.PAGE}")
    print("Runs and models: `make up` serves Prefect at "
          f"{addresses.prefect_url()} and MLflow at {addresses.mlflow_url()}")


if __name__ == "__main__":
    # Prefect ends the flow first and then gives the signal back; leaving the ordinary way stops its temporary server.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
