"""What each rank computes: new orders each epoch, the same for all ranks, every row once (lessons A81, A82)."""

import numpy as np
import pytest
import torch

from kdcore.data.batching import Examples, LengthGroupedBatches
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.training.batches import Share, ShareOfExamples, Shares, loader

LENGTHS = np.random.default_rng(0).integers(3, 60, 103)


def _shares(epoch: int, rank: int = 0, world: int = 1, accumulation: int = 1, seed: int = 1) -> list[Share]:
    shares = Shares(LengthGroupedBatches(LENGTHS, 16, seed, accumulation * world), rank, world)
    shares.set_epoch(epoch)
    result = list(shares)
    assert len(result) == len(shares)
    return result


def test_epochs_differ_and_repeat() -> None:
    assert _shares(0) != _shares(1)
    assert _shares(0) == _shares(0)
    assert _shares(0) != _shares(0, seed=2)


@pytest.mark.parametrize(("world", "accumulation"), [(2, 1), (3, 2), (1, 4)])
def test_ranks_partition_every_step(world: int, accumulation: int) -> None:
    """Whoever computes them, a step has the same rows and knows how many they are."""
    whole = _shares(3)
    ranks = [_shares(3, rank, world, accumulation) for rank in range(world)]
    assert {len(shares) for shares in ranks} == {len(whole) * accumulation}
    for step, (rows, examples) in enumerate(whole):
        parts = [share for shares in ranks for share in shares[step * accumulation:(step + 1) * accumulation]]
        assert sorted(row for part in parts for row in part.rows) == sorted(rows)
        assert {part.step_examples for part in parts} == {len(rows)} == {examples}
    assert sorted(row for rows, _ in whole for row in rows) == list(range(103))


def test_too_many_pieces() -> None:
    with pytest.raises(UserError, match="cannot be cut into 20 pieces"):
        _shares(0, world=20)


def test_the_loader_draws_on_no_global_generator(prepared: Prepared) -> None:
    """Dropout does: a draw per epoch by the loader would make a resumed epoch differ."""
    examples = Examples(prepared, "train", teacher_inputs=False)
    batches = loader(ShareOfExamples(examples), Shares(LengthGroupedBatches(examples.lengths, 16, 1)))
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    ids = [batch["ids"] for batch in batches]
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.cat(ids).sort().values.tolist() == list(range(90))
