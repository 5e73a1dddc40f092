"""A general study as one flow: teacher, corpus, a student after the other as they teach each other, report.

    python -m flows.pretrain --study studies/general-cpu     # with the server of `make up`, else with one of its own
    prefect deployment run pretrain/general --watch           # through a worker

Parameters only select; what to do stands in the study's `params.yaml`, what is done in its `dvc.lock`. A flow after
`dvc repro`, or the other way round, finds nothing to do.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State

from kdcore import general_config
from kdcore.layout import Layout
from tasks import addresses, plan
from tasks.chain import Chain, Outcome
from tasks.flow import arguments, bring_up_to_date, from_shell, run_name
from tasks.plan import Plan, stage_name
from tasks.stage import Order


@flow(name="pretrain", flow_run_name=run_name, persist_result=False,
      validate_parameters=True, log_prints=False)
def pretrain(study: str = "studies/general-cpu", profile: str | None = None, students: list[str] | None = None,
             parallel: int | None = None, force: bool = False) -> State[None]:
    """Bring a general study up to date.

    Args:
        study: its folder, seen from the checkout, e.g. `studies/general-cpu`.
        profile: a file of `profiles/` in it, without ending, e.g. `smoke`; None runs the study itself.
        students: only these, with the assistants that teach them.
        parallel: stages at a time; None means one per GPU, or two that share the CPU's cores.
        force: run the selected stages although nothing changed.
    """
    return bring_up_to_date(study, profile, parallel, lambda folder: plan.make_general(folder, students, force),
                            _chain, lambda *_: [])


def _chain(todo: Plan, order: Order) -> Outcome:
    """The stages in the order of the story; each starts as soon as what DVC's graph says it needs is done."""
    chain = Chain(todo, order)
    chain.add("teacher")
    chain.add("corpus")
    for student in todo.students:
        chain.add(stage_name("pretrain", student))
    chain.add("report")
    for stage in todo.stale:  # what a study's own pipeline has besides
        chain.add(stage)
    return chain.finish()


def main(given: Sequence[str] | None = None) -> int:
    """Run the flow from a shell; see `from_shell` for exit codes."""
    parser = arguments("pretrain", "Bring a general study up to date: run what is stale, print the students.")
    parser.add_argument("--students", nargs="+", metavar="STUDENT", help="only these, with their assistants")
    parser.add_argument("--force", action="store_true", help="run although nothing changed")
    options = parser.parse_args(given)
    return from_shell(
        "pretrain", options, lambda folder: plan.make_general(folder, options.students),
        lambda: pretrain(options.study, options.profile, options.students, options.parallel, options.force,
                         return_state=True), _conclude)


def _conclude(folder: Path, todo: Plan | None) -> None:
    """Print the students and where to look."""
    layout = Layout(folder)
    if (layout.report / "students.csv").is_file():
        from kdcore.stages import general_report

        general_report.show_table(general_config.load(layout.params), layout)
        print(f"\nReport: {layout.report / 'report.md'}")
    print(f"Runs: `make up` serves Prefect at {addresses.prefect_url()} and MLflow at {addresses.mlflow_url()}")


if __name__ == "__main__":
    # Prefect ends the flow first and then gives the signal back; leaving the ordinary way stops its temporary server.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
