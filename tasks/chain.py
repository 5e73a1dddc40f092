"""Submit the stages of a plan: each as soon as what it needs is done, so many at a time, and go on past failures.

Prefect would start a task per stage at once and leave those behind a failed one PENDING with an opaque message; here
a stage that is blocked is never submitted, and the report says what blocks it.
"""

import threading
import time
from contextvars import Token
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from prefect import get_run_logger
from prefect.futures import PrefectFuture

from tasks.expectation import in_words, seconds_left
from tasks.plan import Plan
from tasks.slots import cores
from tasks.stage import STOP, Order, as_dictionary, run_stage

SHOWN = 8
"""So many blocked stages are named in a message; the table of the run's page names all."""


@dataclass
class Outcome:
    """How the stages of a flow went, by name. `failed` is in the order of failing, with messages."""

    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)
    """Stage -> the failed stage before it."""
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """What to tell: the first failed stage and why, what it blocked, what else failed; else what was done."""
        if not self.failed:
            ran = sum(result["outcome"] == "ran" for result in self.done.values())
            return f"{len(self.done)} stages brought up to date, {ran} of them by running their command"
        first, *others = self.failed
        text = self.failed[first]
        for failed in self.failed:
            behind = [stage for stage, by in self.blocked.items() if by == failed]
            if behind:
                more = f" and {len(behind) - SHOWN} more" if len(behind) > SHOWN else ""
                text += f"; {failed} blocks {', '.join(behind[:SHOWN])}{more}"
        if others:
            text += f"; also failed: {', '.join(others)}"
        return f"{text}; {len(self.done)} stages finished"


class Chain:
    """Collects stages with `add`, runs them in `finish`. `order` is completed per stage with its share of the CPU."""

    def __init__(self, plan: Plan, order: Order) -> None:
        self._plan = plan
        self._order = order
        self._waiting: list[str] = []
        self._stop = threading.Event()

    def add(self, stage: str) -> None:
        """Take a stage in, if it is stale."""
        if stage in self._plan.stale and stage not in self._waiting:
            self._waiting.append(stage)

    def finish(self) -> Outcome:
        """Run all that was added; returns when everything that can finish has.

        When interrupted, ends the running stages with all their processes first.
        """
        outcome = Outcome(left_out=dict(self._plan.left_out))
        running: dict[str, PrefectFuture[Any]] = {}
        finished: SimpleQueue[str] = SimpleQueue()
        token: Token[threading.Event] = STOP.set(self._stop)
        futures: dict[str, PrefectFuture[Any]] = {}
        begun: dict[str, float] = {}
        try:
            while self._waiting or running:
                self._block(outcome)
                for stage in self._ready(outcome)[: self._order.parallel - len(running)]:
                    self._waiting.remove(stage)
                    # All that it needs is done; naming it draws the arrows on the run's page.
                    above = [futures[need] for need in sorted(self._plan.needs[stage]) if need in futures]
                    future: PrefectFuture[Any] = run_stage.submit(
                        stage=stage, order=as_dictionary(self._complete(stage)), wait_for=above, return_state=False)
                    running[stage] = futures[stage] = future
                    begun[stage] = time.monotonic()
                    future.add_done_callback(partial(_tell, finished, stage))
                try:
                    stage = finished.get(timeout=1.0)  # returns to Python now and then, so that signals are seen
                except Empty:
                    continue
                self._note(stage, running.pop(stage), outcome)
                now = time.monotonic()
                self._tell_progress(outcome, {other: now - begun[other] for other in running})
        except BaseException:
            self._stop.set()
            for future in running.values():
                future.wait()
            raise
        finally:
            STOP.reset(token)
        return outcome

    def _complete(self, stage: str) -> Order:
        """With its share of the cores: by how many stages of its kind the study has, not by how many are stale, since
        the number of threads shows in the last bits of a result."""
        at_a_time = min(self._order.parallel, self._plan.width(stage))
        return replace(self._order, threads=max(1, cores() // at_a_time), force=self._plan.stale[stage] == "forced")

    def _ready(self, outcome: Outcome) -> list[str]:
        return [stage for stage in self._waiting
                if all(need in outcome.done or need not in self._plan.stale for need in self._plan.needs[stage])]

    def _block(self, outcome: Outcome) -> None:
        """Take out what can no longer run; repeated, since what comes after is blocked, too."""
        again = True
        while again:
            again = False
            for stage in list(self._waiting):
                for need in sorted(self._plan.needs[stage]):
                    by = need if need in outcome.failed else outcome.blocked.get(need)
                    if by is not None:
                        self._waiting.remove(stage)
                        outcome.blocked[stage] = by
                        again = True
                        break

    def _note(self, stage: str, future: PrefectFuture[Any], outcome: Outcome) -> None:
        future.wait()  # has ended; without this `state` asks the server, which may not know yet
        state = future.state
        if state.is_completed():
            outcome.done[stage] = state.result()
        else:
            text = state.message or f"{stage} ended {state.name}"
            outcome.failed[stage] = text.removeprefix("Task run encountered an exception StageBusy: ")

    def _tell_progress(self, outcome: Outcome, running: dict[str, float]) -> None:
        """A line for the log: an artifact of the flow run would make `--watch` print every change of it."""
        self._block(outcome)  # what cannot run takes no time
        if coming := len(running) + len(self._waiting):
            took = {stage: result["seconds"] for stage, result in outcome.done.items() if result["outcome"] == "ran"}
            left = in_words(*seconds_left(took, running, self._waiting, self._order.parallel))
            ended = len(outcome.done) + len(outcome.failed) + len(outcome.blocked)
            get_run_logger().info(f"{ended} of {ended + coming} stages ended; left: {left}")


def _tell(finished: SimpleQueue[str], stage: str, _: PrefectFuture[Any]) -> None:
    finished.put(stage)
