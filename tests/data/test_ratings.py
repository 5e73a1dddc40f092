"""The rated snippets behind `movies` and `movies_rating`."""

from pathlib import Path

import pytest

from kdcore import layout, sources
from kdcore.data import ratings
from kdcore.errors import UserError
from tests.data.studies import make, prepare_study

DOMAINS = ("movieReviewSnippets", "amazonReviewSnippets", "tweets", "nytEditorialSnippets")


@pytest.fixture
def snippets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the real one: 400 snippets per domain with ratings from -4 to 4."""
    folder = tmp_path / "snippets"
    folder.mkdir()
    for domain in DOMAINS:
        lines = [f"{i}\t{(i % 81 - 40) / 10}\tthe {domain} film {i} was Lucía's\r\n" for i in range(400)]
        (folder / f"{domain}_GroundTruth.txt").write_bytes("".join(lines).encode())
    monkeypatch.setenv("KDFLOW_SOURCES", f"package:hutto-icwsm-2014={folder}")
    return folder


def test_sign_of_the_rating_gives_the_class(snippets: Path, tmp_path: Path, teacher: Path) -> None:
    prepared = prepare_study(make(tmp_path / "study", teacher, {}, "movies"), "movies")
    assert prepared.info.labels == ("negative", "positive")
    assert [split.role for split in prepared.info.splits.values()] == ["train", "select", "report", "ood", "ood", "ood"]
    for split in prepared.info.splits:
        table = prepared.table(split)
        for row in table.to_pylist():
            rating = (int(row["source_id"]) % 81 - 40) / 10
            assert abs(rating) >= 0.5
            assert row["label"] == (rating > 0)
    assert "Lucía" in table.column("text")[0].as_py()


def test_ratings_stay_scores(snippets: Path, tmp_path: Path, teacher: Path) -> None:
    prepared = prepare_study(make(tmp_path / "study", teacher, {}, "movies_rating"), "movies_rating")
    assert prepared.info.regression
    assert prepared.info.score_range == (-4.0, 4.0)
    assert sum(prepared.info.splits[name].rows for name in ("train", "validation", "test")) == 400
    row = prepared.table("train").to_pylist()[0]
    assert row["label"] == pytest.approx((int(row["source_id"]) % 81 - 40) / 10)
    assert prepared.info.splits["amazon"].labels is None
    assert prepared.info.splits["amazon"].rows == 400


def test_both_datasets_and_every_margin_are_cut_alike(snippets: Path, tmp_path: Path, teacher: Path) -> None:
    def where(name: str, margin: float | None) -> dict[str, str]:
        study = make(tmp_path / f"{name}-{margin}", teacher, {} if margin is None else {"margin": margin}, name)
        prepared = prepare_study(study, name)
        return {text: split for split in ("train", "validation", "test")
                for text in prepared.table(split).column("text").to_pylist()}

    every = where("movies_rating", None)
    for margin in (0.0, 0.5, 2.0):
        some = where("movies", margin)
        assert len(some) < len(every)  # a rating of zero has no sign, so margin 0 drops it as well
        assert some.items() <= every.items()


def test_a_margin_that_leaves_nothing(snippets: Path) -> None:
    with pytest.raises(UserError, match="margin 5 leaves no snippet"):
        ratings.rows("package:hutto-icwsm-2014", "tweets", ("negative", "positive"), 5.0)


@pytest.mark.parametrize(("content", "says"), [
    (b"1\t0.5\ta\r\n2\tb\r\n", "line 2 is not id, rating and text"), (b"1\thigh\ta\r\n", "line 1 is not id"),
    (b"1\t0.5\tcaf\xe9\r\n", "line 1 is not UTF-8"), (b"1\t9.5\ta\r\n", "line 1: rating 9.5 is outside the range"),
    (b"1\t1\ta\r\n1\t2\tb\r\n", "line 2: idx '1' was already in line 1"),
])
def test_damaged_snippets(snippets: Path, content: bytes, says: str) -> None:
    (snippets / "tweets_GroundTruth.txt").write_bytes(content)
    with pytest.raises(UserError, match=says):
        ratings.rows("package:hutto-icwsm-2014", "tweets", None, None)


def test_a_missing_domain(snippets: Path) -> None:
    (snippets / "tweets_GroundTruth.txt").unlink()
    with pytest.raises(UserError, match=r"holds no tweets_GroundTruth\.txt"):
        ratings.rows("package:hutto-icwsm-2014", "tweets", None, None)


def test_the_real_snippets() -> None:
    """Numbers that the declaration of `movies` states."""
    package = sources.PACKAGES["hutto-icwsm-2014"]
    folder = layout.SOURCES / f"hutto-icwsm-2014-{package.version}"
    if not folder.is_dir():
        pytest.skip(f"{folder} was not fetched yet; `kdflow prepare movies` does it")
    shares, counts = {}, {}
    for domain in DOMAINS:
        rows, _ = ratings.rows(str(folder), domain, ("negative", "positive"), 0.5)
        labels = rows.table.column("label").to_numpy()
        counts[domain], shares[domain] = len(labels), round(100 * labels.mean(), 1)
        if domain == DOMAINS[0]:
            masks = ratings.cut(rows.table)
    assert counts == dict(zip(DOMAINS, (10072, 2985, 3432, 2970), strict=True))
    assert shares == dict(zip(DOMAINS, (49.6, 58.6, 68.3, 40.0), strict=True))
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {"train": 7482, "validation": 1027, "test": 1563}
    texts = ratings.rows(str(folder), DOMAINS[0], None, None)[0].table.column("text").to_pylist()
    assert len(texts) == 10605
    assert any("Sex and Lucía" in text for text in texts)
    assert not any("Ã" in text for text in texts)
