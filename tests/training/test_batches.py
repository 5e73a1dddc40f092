"""What each rank computes: new orders each epoch, the same for all ranks, every row once (lessons A81, A82)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kdcore.data.batching import Examples, LengthGroupedBatches
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.features import Features
from kdcore.objective import Batch, Loss, Masked, Phase, Progress
from kdcore.training.batches import Parts, Shares, loader
from kdcore.training.data import Share
from tests.training.doubles import Watched
from tests.training.problem import run

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


class Rows(Watched):
    """Notes the rows of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[int]] = []

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        self.rows.append(batch.ids.tolist())
        return super().forward(student, teacher, batch, progress)


def test_a_training_draws_each_epoch_anew(prepared: Prepared, folder: Path) -> None:
    """The loop says which epoch it is (A81)."""
    objective = Rows()
    run(prepared, folder, phases=(Phase("toy", objective),), epochs=2)
    one, two = objective.rows[:6], objective.rows[6:]
    assert one != two
    for epoch in (one, two):
        assert sorted(row for rows in epoch for row in rows) == list(range(90))


@pytest.mark.parametrize(("world", "accumulation"), [(2, 1), (3, 2), (1, 4)])
def test_ranks_partition_every_step(world: int, accumulation: int) -> None:
    """Whoever computes them, a step has the same rows and knows how many they are."""
    whole = _shares(3)
    ranks = [_shares(3, rank, world, accumulation) for rank in range(world)]
    assert {len(shares) for shares in ranks} == {len(whole) * accumulation}
    for step, share in enumerate(whole):
        assert share == (share.rows, share.rows, 0, 3, step)
        parts = [part for shares in ranks for part in shares[step * accumulation:(step + 1) * accumulation]]
        assert sorted(row for part in parts for row in part.rows) == sorted(share.rows)
        for part in parts:
            assert part[1:] == (share.rows, part.first, 3, step)
            assert part.rows == share.rows[part.first:part.first + len(part.rows)]
    assert sorted(row for share in whole for row in share.rows) == list(range(103))


def test_too_many_pieces() -> None:
    with pytest.raises(UserError, match="cannot be cut into 20 pieces"):
        _shares(0, world=20)


def test_the_loader_draws_on_no_global_generator(prepared: Prepared) -> None:
    """Dropout does: a draw per epoch by the loader would make a resumed epoch differ."""
    examples = Examples(prepared, "train", teacher_inputs=False)
    batches = loader(Parts(examples), Shares(LengthGroupedBatches(examples.lengths, 16, 1)))
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    ids = [batch["ids"] for batch in batches]
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.cat(ids).sort().values.tolist() == list(range(90))


def test_every_part_knows_the_tokens_of_its_step(prepared: Prepared) -> None:
    rows = Examples(prepared, "train", teacher_inputs=False)
    lengths = prepared.tokens("train", "student").lengths
    for share in Shares(LengthGroupedBatches(rows.lengths, 16, 1, pieces=4), rank=1, world=2):
        batch = Parts(rows).__getitems__(share)
        assert batch["ids"].tolist() == share.rows
        assert batch["step"].lengths.tolist() == lengths[share.whole].tolist()
        own = batch["step"].lengths[share.first:share.first + len(share.rows)]
        assert own.tolist() == batch["student"]["attention_mask"].sum(dim=1).tolist()
        assert not batch["step"].masked.any()
        assert "masked" not in batch


def test_masked_tokens_reach_both_models(prepared: Prepared) -> None:
    class FirstToken:
        def counts(self, lengths: np.ndarray) -> np.ndarray:
            return np.ones_like(lengths)

        def __call__(self, inputs: Any, place: Share, lengths: np.ndarray) -> tuple[dict[str, torch.Tensor], Masked]:
            assert len(lengths) == len(place.whole)
            hidden = inputs["input_ids"].clone()
            hidden[:, 1] = place.first
            return inputs | {"input_ids": hidden}, Masked(torch.ones(len(hidden), 1, dtype=torch.int64),
                                                          inputs["input_ids"][:, 1:2])

    rows = Examples(prepared, "train", teacher_inputs=True)
    share = list(Shares(LengthGroupedBatches(rows.lengths, 16, 1, pieces=2)))[1]
    batch = Parts(rows, FirstToken()).__getitems__(share)
    assert batch["student"]["input_ids"][:, 1].tolist() == batch["teacher"]["input_ids"][:, 1].tolist() == [8] * 7
    assert batch["masked"]["targets"][:, 0].tolist() == rows.__getitems__(share.rows)["student"]["input_ids"][
        :, 1].tolist()
    assert batch["step"].masked.tolist() == [1] * 15
