"""A loss or gradient that is not finite changes nothing, is counted, and ends the training when it stays (A75)."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from tests.training.doubles import bad_gradient, poison, watched
from tests.training.problem import run, same_weights, steps, tiny_student


def test_the_step_is_skipped_and_counted(prepared: Prepared, folder: Path) -> None:
    phases = watched(interfere=poison(2, 3, 8))
    result = run(prepared, folder, phases=phases)
    assert result.record["skipped_steps"] == 3
    assert [entry["skipped_steps"] for entry in result.record["history"]] == [2, 1]
    assert [line["step"] for line in steps(folder)] == [1, 2, 5, 6, 7, 8, 10, 11, 12]
    assert [p.step for p in phases[0].objective.stepped] == [0, 1, 4, 5, 6, 7, 9, 10, 11]
    assert all(torch.isfinite(value).all() for value in result.student.state_dict().values())
    assert result.record["history"][0]["loss"] == pytest.approx(  # over the steps that count
        sum(line["loss"] for line in steps(folder)[:4]) / 4)


@pytest.mark.parametrize("interfere", [poison(0), bad_gradient])
def test_weights_do_not_move(prepared: Prepared, folder: Path, interfere: object) -> None:
    """One step in all, and that is bad: not even weight decay touches the student."""
    phases = watched(interfere=interfere)
    before = phases[0].objective.bridge.weight.clone()
    result = run(prepared, folder, phases=phases, epochs=1 / 6, warmup_share=0.0, weight_decay=0.1)
    assert result.record["skipped_steps"] == 1
    assert same_weights(result.student, tiny_student(prepared))
    assert torch.equal(before, phases[0].objective.bridge.weight)


def test_five_in_a_row_name_the_term(prepared: Prepared, folder: Path) -> None:
    with pytest.raises(UserError, match=r"toy: bridge and loss not finite in 5 steps in a row \(until step 7 of 12"):
        run(prepared, folder, phases=watched(interfere=poison(*range(2, 12))))


def test_four_in_a_row_are_forgiven(prepared: Prepared, folder: Path) -> None:
    result = run(prepared, folder, phases=watched(interfere=poison(1, 2, 3, 4, 6, 7, 8, 9)))
    assert result.record["skipped_steps"] == 8


def test_a_bad_gradient_has_its_own_name(prepared: Prepared, folder: Path) -> None:
    with pytest.raises(UserError, match="gradient not finite in 5 steps in a row"):
        run(prepared, folder, phases=watched(interfere=bad_gradient))


@pytest.mark.usefixtures("saves_always")
def test_the_count_survives_a_resume(prepared: Prepared, folder: Path) -> None:
    """Three bad steps before the crash and two after it make five."""
    def crash_later(now: int, part: Tensor) -> Tensor:
        if now == 3:
            raise KeyError
        return poison(0, 1, 2)(now, part)

    with pytest.raises(KeyError):
        run(prepared, folder, phases=watched(interfere=crash_later))
    with pytest.raises(UserError, match="5 steps in a row"):
        run(prepared, folder, phases=watched(interfere=poison(3, 4)))
