"""How much longer a flow takes."""

import pytest

from tasks.expectation import in_words, seconds_left


def test_stages_take_as_long_as_those_of_their_dataset_else_of_their_kind() -> None:
    took = {"distill@rte-finetune": 10.0, "distill@qqp-finetune": 100.0}
    assert seconds_left(took, {}, ["distill@rte-pkd"], 1) == (10, ())
    assert seconds_left(took, {}, ["distill@new-pkd"], 1) == (55, ())
    assert seconds_left(took, {}, ["distill@rte-pkd", "distill@qqp-pkd"], 1) == (110, ())


def test_what_runs_has_a_part_behind_it_and_never_less_than_nothing_before_it() -> None:
    took = {"teacher@a": 60.0}
    assert seconds_left(took, {"teacher@b": 20.0}, [], 2) == (40, ())
    assert seconds_left(took, {"teacher@b": 90.0}, ["teacher@c"], 2) == (60, ())


def test_stages_at_a_time_share_the_work_but_none_gets_shorter() -> None:
    took = {"evaluate@a-finetune": 30.0}
    assert seconds_left(took, {}, [f"evaluate@a-m{n}" for n in range(4)], 2) == (60, ())
    assert seconds_left(took, {}, ["evaluate@a-m"], 4) == (30, ())


def test_kinds_that_were_not_seen_are_named() -> None:
    assert seconds_left({"prepare@a": 3.0}, {}, ["prepare@b", "teacher@a", "teacher@b", "report"], 1) == (
        3, ("teacher", "report"))
    assert seconds_left({"prepare@a": 3.0}, {}, ["teacher@a", "report"], 1) == (None, ("teacher", "report"))


@pytest.mark.parametrize(("seconds", "unknown", "words"), [
    (0, (), "under a minute"), (29, (), "under a minute"), (31, (), "1 min"), (3540, (), "59 min"),
    (3599, (), "1 h 00 min"), (None, ("teacher", "report"), "not known, teacher, report have no times yet"),
    (12_000, ("analyse", "report"), "3 h 20 min, without analyse, report, which have no times yet")])
def test_durations_in_words(seconds: float | None, unknown: tuple[str, ...], words: str) -> None:
    assert in_words(seconds, unknown) == words
