"""Masking on the fly: counts, places, replacements, weights, and that cutting a step changes nothing."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from kdcore.data.corpus import Corpus
from kdcore.data.masking import Masker, masked_counts
from kdcore.errors import UserError
from kdcore.general_config import Masking
from kdcore.strict import parse
from tests.corpora import tiny_corpus
from tests.tiny import FAMILIES, tiny_tokenizer


class Place(NamedTuple):
    """As `kdcore.training.data.Share` has it."""

    first: int = 0
    epoch: int = 0
    step: int = 0


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """200 rows of 3 to 24 tokens in 13 shards."""
    return tiny_corpus(tmp_path_factory.mktemp("corpus"), rows=200)


def masked(corpus: Corpus, masker: Masker, rows: list[int], whole: list[int] | None = None, place: Place | None = None):
    """Inputs before and after, and what was masked, of `rows` in a step of the rows `whole`."""
    inputs = corpus.tokens(torch.tensor(rows))
    kept = inputs["input_ids"].clone()
    after, what = masker(inputs, place or Place(), corpus.lengths[rows if whole is None else whole])
    assert torch.equal(inputs["input_ids"], kept), "what came in stays as it is"
    return kept, after, what


def test_counts_are_a_function_of_the_length() -> None:
    assert masked_counts(np.array([1, 2, 3, 9, 10, 11, 100, 126]), 0.15).tolist() == [1, 1, 1, 1, 2, 2, 15, 19]
    assert masked_counts(np.array([4]), 0.9).tolist() == [4]


def test_positions_and_targets(corpus: Corpus) -> None:
    masker, rows = Masker.of(corpus, Masking(), seed=1), list(range(0, 200, 3))
    before, after, what = masked(corpus, masker, rows)
    counts = masker.counts(corpus.lengths[rows])
    real = torch.arange(what.positions.shape[1]) < torch.tensor(counts)[:, None]
    assert torch.equal(what.targets != -100, real)
    assert (what.positions[~real] == 0).all()
    for row, count in enumerate(counts):
        places = what.positions[row, :count]
        assert places.tolist() == sorted(set(places.tolist())), "in order, none twice"
        assert torch.equal(what.targets[row, :count], before[row, places])
        assert places.min() >= 1
        assert places.max() < corpus.lengths[rows[row]] - 1, "neither special tokens nor padding"
        untouched = torch.ones(before.shape[1], dtype=torch.bool)
        untouched[places] = False
        assert torch.equal(after["input_ids"][row][untouched], before[row][untouched])
    assert torch.equal(after["masked_positions"], what.positions)
    assert torch.equal(after["attention_mask"], corpus.tokens(torch.tensor(rows))["attention_mask"])


def test_eighty_ten_ten(corpus: Corpus) -> None:
    masker, rows = Masker.of(corpus, Masking(), seed=1), list(range(200))
    fates = {"mask": 0, "same": 0, "other": 0}
    for step in range(100):
        before, after, what = masked(corpus, masker, rows, place=Place(step=step))
        chosen = what.targets != -100
        new, old = after["input_ids"].gather(1, what.positions)[chosen], what.targets[chosen]
        fates["mask"] += int((new == 4).sum())
        fates["same"] += int((new == old).sum())
        fates["other"] += int(((new != 4) & (new != old)).sum())
        assert not set(new.tolist()) & {0, 1, 2, 3}, "a random token is no special one"
    total = sum(fates.values())
    assert fates["mask"] / total == pytest.approx(0.8, abs=0.01)
    assert fates["same"] / total == pytest.approx(0.1, abs=0.01)
    everything = Masker.of(corpus, Masking(mask_token=0.0, random_token=0.0), seed=1)
    before, after, _ = masked(corpus, everything, rows)
    assert torch.equal(after["input_ids"], before)


def test_every_token_of_a_row_is_drawn_alike(corpus: Corpus) -> None:
    """Uniform: over many steps each of the text tokens of a row is masked as often as the others."""
    row = int(np.argmax(corpus.lengths))
    length, masker = int(corpus.lengths[row]), Masker.of(corpus, Masking(), seed=0)
    hits = np.zeros(length)
    for step in range(1200):
        hits[masked(corpus, masker, [row], place=Place(step=step))[2].positions[0].numpy()] += 1
    expected = 1200 * int(masker.counts(corpus.lengths[[row]])[0]) / (length - 2)
    assert hits[0] == hits[-1] == 0
    assert np.abs(hits[1:-1] - expected).max() < 5 * expected**0.5


@pytest.mark.parametrize("pieces", [2, 3, 8])
@pytest.mark.parametrize("weighting", ["uniform", "frequency"])
def test_cutting_a_step_changes_nothing(corpus: Corpus, pieces: int, weighting: str) -> None:
    """Micro-batches, padded less far than the whole, get the very same tokens masked in the same way."""
    masker = Masker.of(corpus, Masking(weighting=weighting), seed=7)
    whole = np.random.default_rng(0).permutation(200)[:50].tolist()
    place = Place(epoch=2, step=5)
    _, after, what = masked(corpus, masker, whole, place=place)
    first = 0
    for part in np.array_split(whole, pieces):
        _, own, mine = masked(corpus, masker, part.tolist(), whole, place._replace(first=first))
        span = slice(first, first + len(part))
        width, targets = own["input_ids"].shape[1], mine.targets.shape[1]
        assert torch.equal(own["input_ids"], after["input_ids"][span, :width])
        assert torch.equal(mine.positions, what.positions[span, :targets])
        assert torch.equal(mine.targets, what.targets[span, :targets])
        first += len(part)


def test_draws_differ_by_seed_epoch_and_step(corpus: Corpus) -> None:
    rows = list(range(64))
    seen = set()
    for seed, epoch, step in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0)]:
        masker = Masker.of(corpus, Masking(), seed)
        one, two = (masked(corpus, masker, rows, place=Place(0, epoch, step))[2].positions for _ in range(2))
        assert torch.equal(one, two)
        seen.add(one.numpy().tobytes())
    assert len(seen) == 5


def test_frequency_prefers_rare_tokens(corpus: Corpus) -> None:
    """Two tokens in a row of 1 masked each time: the odds are those of the weights, count^-0.7."""
    masker = Masker.of(corpus, Masking(weighting="frequency"), seed=0)
    counts = corpus.counts()
    row = next(i for i in range(200) if corpus.lengths[i] == 4 and len(set(_text(corpus, i))) == 2)
    tokens = _text(corpus, row)
    weights = np.maximum(counts[tokens], 1.0) ** -0.7
    hits = sum(masked(corpus, masker, [row], place=Place(step=step))[2].positions[0, 0].item() == 1
               for step in range(1500))
    assert hits / 1500 == pytest.approx(weights[0] / weights.sum(), abs=0.05)


def _text(corpus: Corpus, row: int) -> list[int]:
    return corpus.tokens(torch.tensor([row]))["input_ids"][0, 1:-1].tolist()


def test_counts_of_the_vocabulary_are_those_of_the_rows(corpus: Corpus) -> None:
    everything = corpus.tokens(torch.arange(200))
    real = everything["input_ids"][everything["attention_mask"] == 1]
    assert np.array_equal(corpus.counts(), np.bincount(real.numpy(), minlength=len(tiny_tokenizer("bert"))))


def test_unknown_tokens_come_last(tmp_path: Path) -> None:
    """A row of one word among unknown ones: the word is masked; a row of unknown ones alone masks one of these."""
    from tests.corpora import make_corpus
    from tests.tiny import save_tiny

    corpus = make_corpus(tmp_path, save_tiny(tmp_path / "teacher"),
                         {"data/a.txt": "\u4e2d \u4e2d film \u4e2d\n\n\u4e2d \u4e2d"}, packing="rows")
    masker = Masker.of(corpus, Masking(), seed=0)
    for step in range(50):
        _, _, what = masked(corpus, masker, [0, 1], place=Place(step=step))
        assert what.positions[0].tolist() == [3]
        assert what.targets[1].tolist() == [1]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_special_token_is_masked_in_any_family(tmp_path: Path, family: str) -> None:
    corpus, tokenizer = tiny_corpus(tmp_path, family, rows=60), tiny_tokenizer(family)
    masker = Masker.of(corpus, Masking(mask_share=0.99), seed=0)
    before, after, what = masked(corpus, masker, list(range(60)))
    special = torch.isin(before, torch.tensor(tokenizer.all_special_ids))
    assert torch.equal(after["input_ids"][special], before[special])
    assert (what.targets[what.targets != -100] >= 0).all()
    assert int((what.targets != -100).sum()) == (corpus.lengths - 2).sum()
    assert (after["input_ids"] == tokenizer.mask_token_id).any()


def test_a_tokenizer_without_mask_token_is_refused(corpus: Corpus) -> None:
    from dataclasses import replace

    vocabulary = replace(corpus.info.vocabulary, mask_id=None)
    without = Corpus(corpus.folder, replace(corpus.info, vocabulary=vocabulary))
    with pytest.raises(UserError, match=r"tokenizer has no\s+mask token; name a teacher") as error:
        Masker.of(without, Masking(), seed=0)
    assert "\n" not in str(error.value)


def test_an_exponent_without_frequencies_is_refused() -> None:
    with pytest.raises(UserError, match=r"masking\.smoothing goes with `weighting: frequency`"):
        parse(Masking, {"smoothing": 0.5}, "masking")
    assert parse(Masking, {"smoothing": 0.5, "weighting": "frequency"}, "masking").smoothing == 0.5
