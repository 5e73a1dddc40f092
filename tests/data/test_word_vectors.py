"""Reading vectors of words, and the nearest words by cosine."""

from pathlib import Path

import pytest
import torch

from kdcore.data import word_vectors
from kdcore.data.word_vectors import WordVectors
from kdcore.errors import UserError

CPU = torch.device("cpu")
LINES = "good 1 0 0\ngreat 0.9 0.1 0\nbad -1 0 0\nfine 2 0.5 0\nfilm 0 0 3\nnothing 0 0 0\n"


def read(tmp_path: Path, content: str | bytes, limit: int = 100) -> WordVectors:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return WordVectors.read(path, limit, CPU)


def test_words_and_vectors_of_length_one(tmp_path: Path) -> None:
    vectors = read(tmp_path, LINES)
    assert vectors.words == ("good", "great", "bad", "fine", "film", "nothing")
    assert torch.allclose(vectors.vectors.norm(dim=1), torch.tensor([1.0, 1, 1, 1, 1, 0]))
    assert torch.equal(vectors.vectors[4], torch.tensor([0.0, 0, 1]))


def test_the_nearest_by_cosine_without_the_word_itself(tmp_path: Path) -> None:
    """Cosines with good: great 0.99, fine 0.97, film and nothing 0, bad -1."""
    vectors = read(tmp_path, LINES)
    assert vectors.nearest(["good"], 1) == {"good": ("great",)}
    assert vectors.nearest(["good"], 2) == {"good": ("fine", "great")}, "in alphabetical order"
    assert "good" not in vectors.nearest(["good"], 100)["good"]
    assert len(vectors.nearest(["good"], 100)["good"]) == 5


def test_half_precision_around_changes_nothing(tmp_path: Path) -> None:
    """Cosines of 0.998 and 0.999 are one number in bfloat16."""
    draws = torch.randn(300, 8, generator=torch.Generator().manual_seed(0)) * 0.05 + 1
    vectors = read(tmp_path, "".join(f"w{i} {' '.join(map(str, row))}\n" for i, row in enumerate(draws.tolist())), 300)
    alone = vectors.nearest(vectors.words, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert vectors.nearest(vectors.words, 5) == alone


def test_unknown_words_have_none_and_case_is_looked_through(tmp_path: Path) -> None:
    vectors = read(tmp_path, LINES)
    assert vectors.nearest(["actor", "Good", "good"], 1) == {"Good": ("great",), "good": ("great",)}
    assert vectors.nearest(["actor"], 1) == vectors.nearest([], 1) == {}
    assert read(tmp_path, "one 1 2\n").nearest(["one"], 3) == {}


def test_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)).tolist()
    vectors = read(tmp_path, "".join(f"w{i} {' '.join(map(str, row))}\n" for i, row in enumerate(draws)))
    whole = vectors.nearest(vectors.words, 5)
    monkeypatch.setattr(word_vectors, "BLOCK", 3)
    assert vectors.nearest(vectors.words, 5) == whole
    cosines = torch.nn.functional.cosine_similarity(torch.tensor(draws[7]), torch.tensor(draws), dim=1)
    assert set(whole["w7"]) == {f"w{i}" for i in cosines.topk(6).indices.tolist()} - {"w7"}


@pytest.mark.parametrize("content", [f"6 3\n{LINES}", LINES.replace("\n", " \n"), LINES.replace("\n", "\r\n"),
                                     f"{LINES}good 0 1 0\n"], ids=["header", "spaces", "windows", "twice"])
def test_the_same_file_in_other_hands(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, content).fingerprint == read(tmp_path, LINES).fingerprint


def test_the_first_words_and_words_with_spaces(tmp_path: Path) -> None:
    assert read(tmp_path, LINES, limit=2).words == ("good", "great")
    assert read(tmp_path, "good 1 0\nto the left 0 1\n").words == ("good", "to the left")
    assert read(tmp_path, LINES, limit=2).fingerprint != read(tmp_path, LINES).fingerprint


@pytest.mark.parametrize(("content", "message"), [
    ("", "holds no words"),
    ("good 1 0\nbad\n", r"vectors\.txt, line 2 holds 1 fields, expected a word and 2 numbers"),
    ("good\n", "line 1 holds 1 fields, expected a word and its numbers"),
    ("good 1 0\nbad 1 x\n", "line 2: could not convert string to float: 'x'"),
    ("good 1 0\nbad 1 nan\n", "line 2 holds a number that is not finite"),
    (b"good 1 0\nna\xefve 0 1\n", r"is not UTF-8 \(byte 0xef\)"),
    (b"PK\x03\x04\xff", "unpack it if it is an archive"),
])
def test_what_is_wrong_with_a_file(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)
