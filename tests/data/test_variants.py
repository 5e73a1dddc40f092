"""Drawing variants of a text, and the rows that variants of a pair make."""

import itertools

import numpy as np
import pytest

from kdcore.data.candidates import Slot
from kdcore.data.variants import Variant, draw, pieces, rows
from kdcore.data.word_prediction import Span

TEXT = "a good film, really"
GOOD = Slot(Span(2, 6), "masked_lm", ("bad", "fine", "good"))
FILM = Slot(Span(7, 11), "word_vectors", ("movies", "play"))
NONE = Slot(Span(13, 19), "none", ())


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_every_word_with_candidates_when_the_probability_is_one() -> None:
    """All combinations but the text itself, whose words stay as they are where "good" is drawn for good."""
    found = draw(TEXT, [GOOD, FILM, NONE], 200, 1.0, generator())
    assert {variant.text for variant in found} == {
        f"a {one} {two}, really" for one, two in itertools.product(GOOD.candidates, FILM.candidates)}
    assert len({variant.text for variant in found}) == len(found)
    kept = next(variant for variant in found if variant.text == "a good play, really")
    assert kept.replaced == ((FILM, "play"),)


def test_a_text_without_candidates_has_no_variants() -> None:
    assert draw(TEXT, [NONE], 30, 1.0, generator()) == draw(TEXT, [], 30, 1.0, generator()) == []
    assert draw(TEXT, [Slot(GOOD.span, "masked_lm", ("good",))], 30, 1.0, generator()) == []


def test_shares_of_words_and_of_candidates() -> None:
    """4,000 words, each replaced with probability 0.4 by one of 50 alike; the standard error is 0.008."""
    words = 200
    text = " ".join(["w"] * words)
    slots = [Slot(Span(2 * i, 2 * i + 1), "masked_lm", tuple(f"c{n}" for n in range(50))) for i in range(words)]
    found = draw(text, slots, 20, 0.4, generator())
    replaced = [word for variant in found for _, word in variant.replaced]
    assert len(found) == 20
    assert abs(len(replaced) / (20 * words) - 0.4) < 0.03
    counts = np.unique(replaced, return_counts=True)[1]
    assert len(counts) == 50
    assert counts.max() < 2.2 * counts.mean()


def test_a_generator_of_the_same_seed_draws_the_same() -> None:
    first, again, other = (draw(TEXT, [GOOD, FILM], 3, 0.7, generator(seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_pieces() -> None:
    replaced = ((GOOD, "fine"), (FILM, "play"))
    assert pieces(TEXT, replaced) == ["a ", "fine", " ", "play", ", really"]
    assert pieces(TEXT, ()) == [TEXT]


def variant(text: str) -> Variant:
    return Variant(text, ())


def test_pairs_by_hand() -> None:
    """Each text varies beside the other as it was; the released code takes the last variant of the first along."""
    found = [[variant("A1"), variant("A2")], [variant("B1"), variant("B2")]]
    assert [row.texts for row in rows(("A", "B"), found, public=False)] == [
        ("A1", "B"), ("A2", "B"), ("A", "B1"), ("A", "B2")]
    assert [row.texts for row in rows(("A", "B"), found, public=True)] == [
        ("A1", "B"), ("A2", "B"), ("A2", "B1"), ("A2", "B2")]
    assert [(row.place, row.variant.text) for row in rows(("A", "B"), found, public=True)] == [
        (0, "A1"), (0, "A2"), (1, "B1"), (1, "B2")]


@pytest.mark.parametrize("public", [False, True])
def test_where_only_the_second_text_varies(public: bool) -> None:
    assert [row.texts for row in rows(("A", "B"), [[], [variant("B1")]], public)] == [("A", "B1")]
    assert [row.texts for row in rows(("A",), [[variant("A1")]], public)] == [("A1",)]
