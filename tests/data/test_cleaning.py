"""Cleaning of documents: characters, whitespace, length, duplicates in bounded memory."""

import sys

import numpy as np
import pytest

from kdcore.data.cleaning import Cleaner, Seen


@pytest.mark.parametrize(("raw", "clean"), [
    ("a  b\t c", "a b c"),
    ("one\r\n\r\n  two\u2028three ", "one\ntwo\nthree"),
    ("e\u0301", "\u00e9"),
    ("so\u00adft\u200b hy\x00phen\ufffd \ufeff", "soft hyphen"),
    ("non\u00a0breaking", "non breaking"),
    ("half \ud83d a pair", "half a pair"),
    ("\u0646\u200c\u0647 \U0001f469\u200d\U0001f4bb", "\u0646\u200c\u0647 \U0001f469\u200d\U0001f4bb"),
])
def test_characters_and_whitespace(raw: str, clean: str) -> None:
    assert Cleaner()([raw]) == [clean]
    assert Cleaner()([clean]) == [clean], "cleaning twice changes nothing"


def test_each_step_can_be_left_out() -> None:
    raw = "e\u0301 \x07  x"
    assert Cleaner(unicode=None)([raw]) == ["e\u0301 x"]
    assert Cleaner(control_characters=False)([raw]) == ["\u00e9 \x07 x"]
    assert Cleaner(whitespace=False)([raw]) == ["\u00e9   x"]
    assert Cleaner(unicode="NFKC")(["\ufb01ne \u2460"]) == ["fine 1"]


def test_short_documents_and_duplicates_are_counted() -> None:
    cleaner = Cleaner(min_characters=3)
    assert cleaner(["abc", "ab", " \n", "abc ", "abd"]) == ["abc", "abd"]
    assert cleaner(["abd", "abe", ""]) == ["abe"], "across chunks"
    assert cleaner.dropped == {"short": 3, "duplicates": 2}
    assert Cleaner(duplicates=False)(["x", "x"]) == ["x", "x"]
    blank = Cleaner(whitespace=False)
    assert blank(["  ", "\n"]) == [], "blank documents are short even where whitespace stays"


def test_seen_equals_a_set_while_it_has_room() -> None:
    draws = np.random.default_rng(0)
    seen, met = Seen(10_000), set()
    for _ in range(60):
        hashes = draws.integers(2000, size=draws.integers(1, 150)).astype(np.uint64)
        expected = [not (value in met or met.add(value)) for value in hashes.tolist()]
        assert seen.first_times(hashes).tolist() == expected


def test_seen_forgets_the_oldest_and_stays_small() -> None:
    seen = Seen(1000)
    for start in range(0, 50_000, 50):
        assert seen.first_times(np.arange(start, start + 50, dtype=np.uint64)).all()
        assert sum(map(len, seen._runs)) <= 1000
        assert len(seen._runs) < 40
    assert not seen.first_times(np.arange(49_900, 50_000, dtype=np.uint64)).any(), "the newest are known"
    assert seen.first_times(np.arange(100, dtype=np.uint64)).all(), "the oldest are forgotten"
    assert sum(sys.getsizeof(run) for run in seen._runs) < 20_000
