"""Negatives: the right pools, uniform, distinct, and the same however a batch is cut."""

import itertools
import random
from collections import Counter

import pytest
import torch
from torch import Tensor

from kdcore.errors import UserError
from kdcore.negatives import Negatives

LABELS = torch.tensor([2, 0, 1, 2, 2, 0, 1, 2, 0, 2, 2, 0])  # 4 of 0, 2 of 1, 6 of 2
MANY = torch.arange(3000) % 3
EVERYONE = torch.arange(12)


def pool_of(example: int, source: str, labels: Tensor = LABELS) -> set[int]:
    return {other for other in range(len(labels)) if other != example
            and (source == "any" or (labels[other] == labels[example]).item() is (source == "same"))}


@pytest.mark.parametrize("source", ["different", "any", "same"])
@pytest.mark.parametrize("labels", [LABELS, torch.arange(12) // 6, torch.tensor([7, 7, 7, -3, -3, -3])], ids=str)
def test_every_member_of_the_pool_and_nobody_else(source: str, labels: Tensor) -> None:
    draw, ids = Negatives(labels, 1, source, seed=1), torch.arange(len(labels))
    drawn = torch.cat([draw(ids, step) for step in range(120)], dim=1)
    assert [set(row) for row in drawn.tolist()] == [pool_of(i, source, labels) for i in ids.tolist()]


@pytest.mark.parametrize(("count", "source", "repeats"), [
    (5, "different", False), (6, "different", True), (10, "any", False), (11, "any", True), (1, "same", True)])
def test_with_replacement_only_if_the_smallest_pool_is_too_small(count: int, source: str, repeats: bool) -> None:
    """Of another label there are 8, 10 and 6: up to five are drawn without replacement."""
    draw = Negatives(LABELS, count, source, seed=1)
    rows = [row for step in range(50) for row in draw(EVERYONE, step).tolist()]
    assert {len(row) for row in rows} == {count}
    assert draw.replacement is repeats
    assert any(len(set(row)) < count for row in rows) is (repeats and count > 1)


@pytest.mark.parametrize(("few", "many", "count"), [(1000, 2000, 100), (300, 2700, 299), (300, 2700, 60), (6, 6, 5)])
def test_distinct_and_of_another_label(few: int, many: int, count: int) -> None:
    """Pools much larger than the draw, hardly larger, and both in one batch."""
    labels = torch.arange(few + many) // few > 0
    draw, ids = Negatives(labels.long(), count, "different", seed=2), torch.arange(0, few + many, max(1, few // 10))
    for step in range(5):
        negatives = draw(ids, step)
        assert (labels[negatives] != labels[ids].unsqueeze(1)).all()
        assert all(len(set(row)) == count for row in negatives.tolist())


@pytest.mark.parametrize(("labels", "negatives", "steps"),
                         [(LABELS, 2, 400), (MANY, 3, 40), (torch.arange(400) % 2, 60, 3)])
def test_uniform(labels: Tensor, negatives: int, steps: int) -> None:
    """Chi-square of how often each member of a pool is drawn: within five deviations of its mean."""
    draw, alike = Negatives(labels, negatives, "different", seed=5), torch.nonzero(labels == labels[1]).flatten()
    drawn = torch.cat([draw(alike, step) for step in range(steps)]).flatten()
    pool = torch.nonzero(labels != labels[1]).flatten()
    counts = torch.bincount(drawn, minlength=len(labels))[pool].double()
    expected = len(drawn) / len(pool)
    assert expected > 30
    # Without replacement the counts vary less than independent ones, by 1 - negatives / pool.
    statistic = ((counts - expected).square() / expected).sum() / (1 - negatives / len(pool))
    degrees = len(pool) - 1
    assert abs(statistic - degrees) < 5 * (2 * degrees) ** 0.5


def test_all_subsets_are_equally_likely() -> None:
    """Two of a pool of six, in either way of drawing: 15 pairs."""
    draws = Negatives(LABELS, 2, "different", seed=3)
    by_repeats = Negatives(LABELS, 2, "different", seed=3)
    by_repeats.all_large = True  # draws more than are wanted and keeps the first distinct ones
    for draw in (draws, by_repeats):
        alike = torch.nonzero(LABELS[0] == LABELS).flatten()
        pairs = Counter(tuple(sorted(pair)) for step in range(1000) for pair in draw(alike, step).tolist())
        assert set(pairs) == set(itertools.combinations(sorted(pool_of(0, "different")), 2))
        deviation = (6000 / 15 * 14 / 15) ** 0.5
        assert all(abs(count - 6000 / 15) < 4.5 * deviation for count in pairs.values())


def test_a_draw_depends_on_seed_step_and_example_only() -> None:
    draw = Negatives(MANY, 20, "different", seed=7)
    ids = torch.tensor([5, 900, 17, 2999])
    together = draw(ids, 3)
    torch.manual_seed(1)
    draw(torch.arange(40), 4)
    before = torch.get_rng_state()
    assert torch.equal(Negatives(MANY, 20, "different", seed=7)(ids.flip(0), 3).flip(0), together)
    assert torch.equal(torch.cat([draw(one, 3) for one in ids.split(1)]), together)
    assert torch.equal(torch.get_rng_state(), before)
    others = [draw(ids, 2), draw(ids, 4), Negatives(MANY, 20, "different", seed=8)(ids, 3),
              Negatives(MANY, 20, "different", seed=8)(ids, 2)]
    assert all(not torch.equal(other, together) for other in others)
    # Examples of one label have one pool, and do not draw the same from it.
    assert len({tuple(sorted(row)) for row in draw(torch.arange(0, 90, 3), 3).tolist()}) == 30


def test_a_draw_is_stable_over_versions() -> None:
    """A run is repeated from its seed years later: these negatives must not change."""
    draw = Negatives(MANY, 3, "different", seed=1)
    assert draw(torch.tensor([0, 1]), 0).tolist() == [[980, 1117, 2716], [1992, 1850, 999]]


def test_by_hand() -> None:
    """The same with a loop over examples and whole numbers of any size: splitmix64 from a key per example."""
    def mixed(word: int) -> int:
        word %= 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    step_start = random.Random("7 negatives 31").getrandbits(63)
    expected = []
    for example in range(0, 3000, 500):
        pool = [other for label in range(3) for other in range(3000) if MANY[other] == label != MANY[example]]
        words = (mixed(mixed(step_start + example) + k * 0x9E3779B97F4A7C15) for k in itertools.count(1))
        chosen: list[int] = []
        while len(chosen) < 40:
            other = pool[next(words) % 2**63 % len(pool)]
            chosen += [other] if other not in chosen else []
        expected.append(chosen)
    assert Negatives(MANY, 40, "different", seed=7)(torch.arange(0, 3000, 500), 31).tolist() == expected


@pytest.mark.parametrize("source", ["different", "any", "same"])
def test_what_has_no_label_is_a_negative_of_any_alone_and_has_everyone(source: str) -> None:
    labels = torch.where(EVERYONE % 4 == 1, -1, LABELS)  # 3 without; 3 of 0, 2 of 1, 4 of 2
    draw = Negatives(labels, 1, source, seed=1)
    drawn = torch.cat([draw(EVERYONE, step) for step in range(200)], dim=1)
    labelled = {example for example in range(12) if labels[example] >= 0}
    for example, found in enumerate(drawn.tolist()):
        everyone = source == "any" or example not in labelled
        assert set(found) == (set(range(12)) - {example} if everyone else pool_of(example, source, labels) & labelled)


def test_without_any_label_everyone_is_a_negative() -> None:
    draw = Negatives(torch.full((4,), -1), 2, "different", seed=1)
    drawn = torch.cat([draw(torch.arange(4), step) for step in range(40)], dim=1)
    assert [set(row) for row in drawn.tolist()] == [{0, 1, 2, 3} - {i} for i in range(4)]


def test_no_negatives_are_wanted() -> None:
    assert Negatives(torch.zeros(3, dtype=torch.int64), 0, "different", seed=1)(torch.tensor([0, 2]), 0).shape == (2, 0)


@pytest.mark.parametrize(
    ("labels", "source", "message"),
    [
        ([4, 4, 4], "different", r"another label.*example 0 \(label 4\) there are none; draw them from `any`"),
        ([0, 0, 1], "same", r"the same label.*example 2 \(label 1\) .* draw them from `different` or `any`"),
        ([0], "any", "training needs two examples"),
    ],
)
def test_empty_pools_are_refused(labels: list[int], source: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Negatives(torch.tensor(labels), 2, source, seed=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("id_", [-1, 12, 10**9])
def test_ids_out_of_range(id_: int) -> None:
    with pytest.raises(IndexError):
        Negatives(LABELS, 2, "different", seed=1)(torch.tensor([0, id_]), 0)


def test_nothing_of_it_is_in_a_checkpoint() -> None:
    assert not Negatives(MANY, 3, "different", seed=1).state_dict()
