"""Masked language modelling without a teacher."""

import math

import torch

from kdcore.features import MASKED_LOGITS, Features
from kdcore.objective import Masked
from tests.general.golden import EQUAL, loss_of, objective_of
from tests.general.toys import corpus, phases_of


def test_by_hand_however_the_step_is_cut() -> None:
    """Three words of two rows among four: each of 1/4, but one of 5/8."""
    logits = torch.zeros(4, 2, 4, dtype=torch.float64)
    logits[0, 1, 2] = math.log(5)
    targets = torch.tensor([[0, 2], [3, -100], [-100, -100], [-100, -100]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]])
    masked, student = Masked(torch.zeros_like(targets), targets), Features({MASKED_LOGITS: logits}, mask)
    for cut in ((4,), (1, 3), (1, 1, 2)):
        loss = loss_of(objective_of("mlm", EQUAL), student, Features({}, mask), cut, masked)
        torch.testing.assert_close(loss.total.mean().item(), (2 * math.log(4) + math.log(8 / 5)) / 3)
        assert loss.total.tolist()[2:] == [0, 0]


def test_it_needs_no_teacher_and_minds_no_vocabulary() -> None:
    setting = corpus(EQUAL.teacher, EQUAL.student)
    (phase,) = phases_of("mlm", setting)
    assert not phase.objective.needs.teacher
    assert phase.objective.masks_tokens
    assert not list(phase.objective.parameters())
