"""Contrastive losses: golden vectors, hand values, limits, and the modules' state."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kdcore.contrastive import InfoNce, TwoSidedNce, info_nce, log_normaliser, nce, scores
from kdcore.losses import unit
from tests.test_losses import VALUE, vectors


def module(data: dict[str, Tensor], kind: type[InfoNce] | type[TwoSidedNce]) -> InfoNce | TwoSidedNce:
    """With the golden banks."""
    result = kind(10, 5, float(data["in.tau"]), 4, torch.Generator()).double()
    for name, bank in (("bank", "teacher"), ("teacher_bank", "teacher"), ("student_bank", "student")):
        if hasattr(result, name):
            getattr(result, name).rows.copy_(data[f"in.bank_{bank}"])
    return result


def loss(data: dict[str, Tensor], contrast: InfoNce | TwoSidedNce, rows: slice = slice(None), step: int = 0) -> Tensor:
    return contrast(*(data[name][rows] for name in ("out.z_student", "out.z_teacher", "in.batch_ids",
                                                    "in.negative_ids")), step)


# Golden vectors


def test_info_nce_golden(golden: Path) -> None:
    data = vectors(golden, "06_codir")
    contrast = module(data, InfoNce)
    torch.testing.assert_close(loss(data, contrast).mean(), data["out.infonce"], **VALUE)
    contrast.update(float(data["in.momentum"]))
    torch.testing.assert_close(contrast.bank.rows, data["out.bank_teacher_after"], **VALUE)


def test_two_sided_golden(golden: Path) -> None:
    """Z is that of the first step, and the loss is taken with the banks as they were before it."""
    data = vectors(golden, "06_codir")
    first = module(data, TwoSidedNce)
    loss(data, first, slice(2))
    loss(data, first, slice(2, None))  # in two micro-batches
    first.update(float(data["in.momentum"]))
    for place, side in enumerate(("student", "teacher")):
        torch.testing.assert_close(first.log_z[place].exp(), data[f"out.nce_Z_{side}"], rtol=1e-13, atol=0)
        torch.testing.assert_close(getattr(first, f"{side}_bank").rows, data[f"out.bank_{side}_after"], **VALUE)
    later = module(data, TwoSidedNce)
    later.log_z.copy_(first.log_z)
    torch.testing.assert_close(loss(data, later, step=1).mean(), data["out.nce_two_sided"], **VALUE)


# Hand values


def test_info_nce_by_hand() -> None:
    query, positive = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8]])
    negatives = torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]])
    found = scores(query, positive, negatives, tau=0.5)
    torch.testing.assert_close(found, torch.tensor([[1.2, 0.0, -2.0]]))
    hand = -math.log(math.exp(1.2) / (math.exp(1.2) + 1 + math.exp(-2)))
    torch.testing.assert_close(info_nce(found), torch.tensor([hand]))


def test_nce_by_hand() -> None:
    """Two negatives of eight examples, Z = 4."""
    found = torch.tensor([[1.2, 0.0, -2.0]]).double()
    share = 2 / 8
    p = [math.exp(score) / 4 for score in (1.2, 0.0, -2.0)]
    hand = -math.log(p[0] / (p[0] + share + 1e-7)) - sum(math.log(share / (q + share + 1e-7)) for q in p[1:])
    torch.testing.assert_close(nce(found, torch.tensor([math.log(4)]).double(), 8), torch.tensor([hand]).double())
    mean = sum(map(math.exp, (1.2, 0.0, -2.0))) / 3
    torch.testing.assert_close(log_normaliser(found, 8), torch.tensor([math.log(8 * mean)]).double())


def test_without_negatives() -> None:
    """Nothing to be told apart from: the paper's loss is 0 exactly, the other as good as."""
    found = scores(torch.randn(3, 4), torch.randn(3, 4), torch.zeros(3, 0, 4), tau=0.07)
    assert found.shape == (3, 1)
    assert torch.equal(info_nce(found), torch.zeros(3))
    assert nce(found, log_normaliser(found, 50), 50).abs().max() < 1e-4


@pytest.mark.parametrize("tau", [1e-3, 1e-2, 1.0])
def test_small_tau_stays_finite(tau: float) -> None:
    """exp(1 / 0.001) is no number in float32 or float64."""
    query = unit(torch.randn(4, 8)).requires_grad_()
    found = scores(query, query.detach(), unit(torch.randn(4, 5, 8)), tau)
    total = info_nce(found).sum() + nce(found, log_normaliser(found.detach(), 90), 90).sum()
    total.backward()
    assert total.isfinite()
    assert query.grad.isfinite().all()


def test_range_of_info_nce() -> None:
    """Between 0 and log(1 + K exp(2 / tau)); log(1 + K) where all scores are equal."""
    same = torch.zeros(2, 101)
    torch.testing.assert_close(info_nce(same), torch.full((2,), math.log(101)))
    worst = torch.cat([torch.full((1, 1), -1 / 0.5), torch.full((1, 100), 1 / 0.5)], dim=1)
    torch.testing.assert_close(info_nce(worst), torch.tensor([math.log(1 + 100 * math.exp(4))]))


def test_order_of_negatives_does_not_matter() -> None:
    found = torch.randn(3, 9).double()
    shuffled = torch.cat([found[:, :1], found[:, 1:].flip(1)], dim=1)
    torch.testing.assert_close(info_nce(found), info_nce(shuffled))
    log_z = log_normaliser(found, 40)
    torch.testing.assert_close(nce(found, log_z, 40), nce(shuffled, log_z, 40))


# State


def test_gradient_reaches_student_and_teacher_map_but_not_the_banks() -> None:
    for kind in (InfoNce, TwoSidedNce):
        contrast = kind(6, 3, 0.1, 2, torch.Generator().manual_seed(1))
        student, teacher = (unit(torch.randn(2, 3)).requires_grad_() for _ in range(2))
        ids, negatives = torch.tensor([0, 1]), torch.tensor([[2, 3], [4, 5]])
        contrast(student, teacher, ids, negatives, 0).sum().backward()
        assert student.grad.abs().sum() > 0
        assert teacher.grad.abs().sum() > 0
        assert list(contrast.parameters()) == []


def test_z_is_fixed_by_the_first_applied_step_and_nobody_depends_on_the_company() -> None:
    torch.manual_seed(3)
    contrast = TwoSidedNce(6, 3, 0.1, 3, torch.Generator().manual_seed(1)).double()
    student, teacher = (unit(torch.randn(3, 3).double()) for _ in range(2))
    ids, negatives = torch.tensor([0, 1, 2]), torch.tensor([[3, 4], [4, 5], [3, 5]])
    for step in (0, 1):  # before and after Z is known
        together = contrast(student, teacher, ids, negatives, step)
        alone = [contrast(student[i:i + 1], teacher[i:i + 1], ids[i:i + 1], negatives[i:i + 1], 10 + step)
                 for i in range(3)]
        torch.testing.assert_close(together, torch.cat(alone))
        contrast(student, teacher, ids, negatives, 20 + step)
        contrast.update(0.5)
        assert contrast.log_z.isfinite().all()
        if step == 0:
            known = contrast.log_z.clone()
        assert torch.equal(contrast.log_z, known)
    fresh = TwoSidedNce(6, 3, 0.1, 3, torch.Generator().manual_seed(2)).double()
    fresh.load_state_dict(contrast.state_dict())
    assert torch.equal(fresh(student, teacher, ids, negatives, 2), contrast(student, teacher, ids, negatives, 2))


def test_padding_of_ranks_does_not_count_in_z(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that repeats its last row must not give it more weight than a rank that is full."""
    def z(step_examples: int) -> Tensor:
        torch.manual_seed(4)
        contrast = TwoSidedNce(6, 3, 0.1, step_examples, torch.Generator().manual_seed(1)).double()
        student, teacher = (unit(torch.randn(2, 3).double()) for _ in range(2))
        contrast(student, teacher, torch.tensor([0, 1]), torch.tensor([[3, 4], [4, 5]]), 0)
        contrast.update(0.5)
        return torch.cat([contrast.log_z, contrast.teacher_bank.rows.flatten(), contrast.student_bank.rows.flatten()])

    alone = z(2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(torch.distributed, "all_gather", lambda parts, part: parts[0].copy_(part))
    torch.testing.assert_close(z(5), alone)
