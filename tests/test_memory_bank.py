"""Memory bank: the update by hand, unit rows, ids, precision; and how a step's rows come together."""

import pytest
import torch
from torch.nn import functional as F

from kdcore.losses import unit
from kdcore.memory_bank import MemoryBank, StepRows


def bank_of(seed: int = 1, examples: int = 6, width: int = 3) -> MemoryBank:
    return MemoryBank(examples, width, torch.Generator().manual_seed(seed))


def test_update_by_hand() -> None:
    bank = bank_of(width=2)
    bank.rows.copy_(torch.tensor([[1.0, 0.0]]).repeat(6, 1))
    bank.update(torch.tensor([4, 1]), torch.tensor([[0.0, 1.0], [-0.6, 0.8]]), momentum=0.5)
    expected = torch.tensor([[1.0, 0.0]]).repeat(6, 1)
    expected[4] = torch.tensor([0.5**0.5, 0.5**0.5])
    expected[1] = torch.tensor([0.2, 0.4]) / 0.2**0.5
    torch.testing.assert_close(bank.rows, expected)
    bank.update(torch.tensor([0]), torch.tensor([[0.0, -1.0]]), momentum=0.0)
    torch.testing.assert_close(bank.rows[0], torch.tensor([0.0, -1.0]))


def test_rows_are_unit_vectors_from_the_start_and_stay_so() -> None:
    bank, generator = bank_of(examples=500, width=16), torch.Generator().manual_seed(2)
    assert bank.rows.std(dim=0).min() > 0.2  # in all directions
    assert bank.rows.mean(dim=0).abs().max() < 0.06
    for _ in range(20):
        ids = torch.randperm(500, generator=generator)[:100]
        bank.update(ids, unit(torch.randn(100, 16, generator=generator)), momentum=0.9)
        torch.testing.assert_close(bank.rows.norm(dim=1), torch.ones(500), rtol=0, atol=1e-6)


def test_an_id_that_comes_twice_with_one_vector_is_updated_once() -> None:
    once, twice = bank_of(), bank_of()
    vector = unit(torch.randn(1, 3))
    once.update(torch.tensor([2]), vector, momentum=0.5)
    twice.update(torch.tensor([2, 2, 2]), vector.repeat(3, 1), momentum=0.5)
    assert torch.equal(once.rows, twice.rows)


def test_rows_are_constants() -> None:
    bank, vectors = bank_of(), unit(torch.randn(2, 3)).requires_grad_()
    bank.update(torch.tensor([0, 1]), vectors, momentum=0.5)
    assert not bank.rows.requires_grad
    assert not bank(torch.tensor([[0, 1], [2, 3]])).requires_grad
    assert list(bank.parameters()) == []
    read = bank(torch.tensor([0]))
    bank.update(torch.tensor([0]), -vectors[:1], momentum=0.5)
    assert not torch.equal(read, bank(torch.tensor([0])))  # what was read before an update keeps its values


@pytest.mark.parametrize("id_", [-1, 6])
def test_ids_out_of_range(id_: int) -> None:
    with pytest.raises(IndexError):
        bank_of()(torch.tensor([id_]))
    with pytest.raises(IndexError):
        bank_of().update(torch.tensor([id_]), torch.ones(1, 3), momentum=0.5)


def test_state_is_in_checkpoints_and_depends_on_the_generator_alone() -> None:
    torch.manual_seed(1)
    one = bank_of()
    torch.manual_seed(2)
    same, other = bank_of(), bank_of(seed=2)
    assert torch.equal(one.rows, same.rows)
    assert not torch.equal(one.rows, other.rows)
    one.update(torch.tensor([0]), torch.ones(1, 3), momentum=0.5)
    same.load_state_dict(one.state_dict())
    assert torch.equal(one.rows, same.rows)


# Rows of a step


def test_micro_batches_of_a_step_come_together_without_gradient() -> None:
    rows = StepRows(4)
    first, second = torch.randn(2, 3, requires_grad=True), torch.randn(1, 3)
    rows.add(5, torch.tensor([7, 3]), first)
    rows.add(5, torch.tensor([1]), second)
    ids, vectors, once = rows.take()
    assert ids.tolist() == [7, 3, 1]
    assert torch.equal(vectors, torch.cat([first, second]))
    assert not vectors.requires_grad
    assert once.all()


def test_a_step_that_was_not_applied_is_forgotten() -> None:
    rows = StepRows(4)
    rows.add(5, torch.tensor([7, 3]), torch.full((2, 3), torch.nan))
    rows.add(6, torch.tensor([2]), torch.ones(1, 3))
    ids, vectors, _ = rows.take()
    assert ids.tolist() == [2]
    assert vectors.isfinite().all()
    rows.add(6, torch.tensor([1]), torch.ones(1, 3))  # what was taken is gone too
    assert rows.take()[0].tolist() == [1]


def test_ranks_exchange_equal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks with two and three examples of at most four; the other rank's share is what it would send."""
    shares: list[list[torch.Tensor]] = []

    def take(count: int, start: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = StepRows(4)
        rows.add(0, torch.arange(start, start + count), torch.arange(start, start + count).float().unsqueeze(1))
        return rows.take()

    def collect(parts: list[torch.Tensor], part: torch.Tensor) -> None:
        shares.append([part])
        parts[0].copy_(part)
        parts[1].copy_(part)

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather", collect)
    ids, vectors, once = take(2, 10)
    assert ids.tolist() == [10, 11, 11, 11] * 2
    assert vectors.flatten().tolist() == [10, 11, 11, 11] * 2
    assert once.tolist() == [True, True, False, False] * 2
    assert {len(share) for (share,) in shares} == {4}
    assert F.one_hot(take(4, 0)[0], 4).sum(dim=0).tolist() == [2, 2, 2, 2]
