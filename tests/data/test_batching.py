"""Batches: which rows, in which order, with how much padding, and what a batch holds."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from kdcore.data.batching import Examples, LengthGroupedBatches, collate, padding_share, sorted_batches
from kdcore.data.tokenise import tokenise
from kdcore.data.tokens import TokenTable
from kdcore.errors import UserError
from kdcore.models.loading import load_tokenizer
from tests.data.studies import make, prepare_study

LENGTHS = np.random.default_rng(0).lognormal(3, 0.7, 5000).astype(int) + 3
"""Skewed, as sentence lengths are."""


def table(lengths: list[int], pad_id: int = 9) -> TokenTable:
    """Row i holds the tokens 100 i, 100 i + 1, ..., its last one in segment 1."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.concatenate([100 * row + np.arange(length) for row, length in enumerate(lengths)])
    types = np.zeros(len(values), np.int8)
    types[offsets[1:] - 1] = 1
    return TokenTable(values.astype(np.int32), types, offsets, pad_id)


def test_padding_of_known_rows() -> None:
    batch = table([2, 4, 1]).pad(torch.tensor([2, 1]))
    assert batch["input_ids"].tolist() == [[200, 9, 9, 9], [100, 101, 102, 103]]
    assert batch["attention_mask"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert {values.dtype for values in batch.values()} == {torch.int64}


def test_padding_up_to_a_multiple_of_the_last_row() -> None:
    """The gather must not run past the end of the flat values."""
    batch = table([2, 4, 5]).pad(torch.tensor([2]), multiple_of=8)
    assert batch["input_ids"].tolist() == [[200, 201, 202, 203, 204, 9, 9, 9]]


def test_token_file_round_trip_and_equal_bytes(tmp_path: Path) -> None:
    table([2, 4, 1]).save(tmp_path / "a.arrow")
    table([2, 4, 1]).save(tmp_path / "b.arrow")
    assert (tmp_path / "a.arrow").read_bytes() == (tmp_path / "b.arrow").read_bytes()
    read = TokenTable.open(tmp_path / "a.arrow")
    assert read.lengths.tolist() == [2, 4, 1]
    assert read.pad_id == 9
    assert read.pad(torch.tensor([0, 1, 2]))["input_ids"].tolist() == table([2, 4, 1]).pad(
        torch.tensor([0, 1, 2]))["input_ids"].tolist()


@pytest.mark.parametrize("damage", ["cut", "other", "gone"])
def test_damaged_token_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "train.arrow"
    table([2, 4, 1]).save(path)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-40] if damage == "cut" else b"no arrow")
    with pytest.raises(UserError, match=r"train\.arrow.*kdflow prepare"):
        TokenTable.open(path)


def test_every_row_once_in_batches_of_like_size() -> None:
    batches = list(LengthGroupedBatches(LENGTHS, 32, seed=1))
    assert sorted(row for rows in batches for row in rows) == list(range(len(LENGTHS)))
    assert len(batches) == -(-len(LENGTHS) // 32) == len(LengthGroupedBatches(LENGTHS, 32, seed=1))
    assert {len(rows) for rows in batches} <= {31, 32}


def test_rows_that_are_left_out() -> None:
    out = [0, 7, 4999]
    batches = list(LengthGroupedBatches(LENGTHS, 32, seed=1, left_out=out))
    assert sorted(row for batch in batches for row in batch) == [row for row in range(5000) if row not in out]
    assert {len(batch) for batch in batches} == {31, 32}


def test_little_padding_where_a_plain_shuffle_has_much() -> None:
    shuffled = np.array_split(np.random.default_rng(1).permutation(len(LENGTHS)), 157)
    assert padding_share(LENGTHS, shuffled) > 0.4
    assert padding_share(LENGTHS, list(LengthGroupedBatches(LENGTHS, 32, seed=1))) < 0.1


def test_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = LengthGroupedBatches(LENGTHS, 32, seed)
        batches.set_epoch(epoch)
        return list(batches)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    # Seed and epoch are not mixed up with each other, and the global generators play no part.
    assert order(1, 2) != order(2, 1)
    torch.manual_seed(5)
    np.random.seed(5)
    assert order(-1, 3) == order(-1, 3)


def test_batches_are_not_sorted_by_length() -> None:
    means = [LENGTHS[rows].mean() for rows in LengthGroupedBatches(LENGTHS, 32, seed=1)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


@pytest.mark.parametrize(("pieces", "sizes"), [(2, {4}), (3, {3, 2})])
def test_pieces_cut_the_same_batches(pieces: int, sizes: set[int]) -> None:
    """A step has the same rows whether it is one batch of 8, 4+4 or 3+3+2."""
    whole = list(LengthGroupedBatches(LENGTHS[:64], 8, seed=3))
    cut = list(LengthGroupedBatches(LENGTHS[:64], 8, seed=3, pieces=pieces))
    assert len(cut) == pieces * len(whole)
    assert {len(rows) for rows in cut} == sizes
    joined = [list(itertools.chain(*cut[start:start + pieces])) for start in range(0, len(cut), pieces)]
    assert joined == whole


def test_ranks_partition_the_rows() -> None:
    """Two ranks that take turns at the pieces: together everything, nothing twice, equally many batches."""
    pieces = list(LengthGroupedBatches(LENGTHS[:333], 16, seed=3, pieces=2))
    ranks = [[row for rows in pieces[rank::2] for row in rows] for rank in (0, 1)]
    assert set(ranks[0]) | set(ranks[1]) == set(range(333))
    assert not set(ranks[0]) & set(ranks[1])
    assert len(pieces[0::2]) == len(pieces[1::2])


def test_more_pieces_than_rows_are_refused() -> None:
    with pytest.raises(UserError, match="lower `accumulation`"):
        LengthGroupedBatches(LENGTHS[:10], 4, seed=0, pieces=4)


def test_sorted_batches_begin_with_the_longest() -> None:
    batches = sorted_batches(np.array([3, 9, 5, 7, 1]), 2)
    assert batches == [[1, 3], [2, 0], [4]]


def test_a_loader_yields_finished_batches(tmp_path: Path, teacher: Path) -> None:
    prepared = prepare_study(make(tmp_path, teacher))
    examples = Examples(prepared, "train", teacher_inputs=True)
    loader = DataLoader(examples, batch_sampler=LengthGroupedBatches(examples.lengths, 2, seed=0), collate_fn=collate)
    seen = []
    for batch in loader:
        assert batch["teacher"] is batch["student"]
        assert batch["student"]["input_ids"].shape == batch["student"]["attention_mask"].shape
        assert batch["labels"].tolist() == [[1, 0, 1, 0][row] for row in batch["ids"]]
        seen += batch["ids"].tolist()
    assert sorted(seen) == [0, 1, 2, 3]
    assert "teacher" not in Examples(prepared, "train", teacher_inputs=False)[0]


def test_each_model_gets_its_own_tokens(tmp_path: Path, teacher: Path, roberta: Path) -> None:
    prepared = prepare_study(make(tmp_path, teacher, pair={"student": {"source": str(roberta)}}))
    batch = Examples(prepared, "train", teacher_inputs=True).__getitems__([0, 2])
    assert not prepared.same_tokenizer
    assert batch["teacher"]["input_ids"].tolist() != batch["student"]["input_ids"].tolist()
    assert batch["student"]["input_ids"].shape[0] == batch["teacher"]["input_ids"].shape[0] == 2


@pytest.mark.parametrize("config", ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"])
def test_padding_on_glue_by_word_counts(shared: Path, config: str) -> None:
    """Under 10 % at batch 32 on the real sets; words and punctuation stand for tokens."""
    import pyarrow.parquet as pq

    table = pq.read_table(next((shared / "data" / "glue" / config).glob("train-*.parquet")))
    texts = [column.to_pylist() for name, column in zip(table.column_names, table.columns, strict=True)
             if name not in ("label", "idx", "source")]
    words = [2 + len(row) + sum(len(text.split()) for text in row) for row in zip(*texts, strict=True)]
    lengths = np.minimum(words, 128)
    for epoch in (0, 1):
        batches = list(LengthGroupedBatches(lengths, 32, seed=1, epoch=epoch))
        assert padding_share(lengths, batches) < 0.1


@pytest.mark.parametrize("config", ["mrpc", "rte", "wnli"])
def test_padding_on_glue_by_real_tokens(shared: Path, config: str) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(next((shared / "data" / "glue" / config).glob("train-*.parquet")))
    pairs = table.select(["sentence1", "sentence2"]).rename_columns(["text", "text_pair"])
    tokenizer = load_tokenizer(str(shared / "models" / "paraphrase-minilm-3x384"))
    done = []
    lengths = tokenise(pairs, tokenizer, 128, done.append).lengths
    assert sum(done) == len(lengths) == table.num_rows
    assert padding_share(lengths, list(LengthGroupedBatches(lengths, 32, seed=1))) < 0.08
