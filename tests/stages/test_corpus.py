"""The stage `corpus` as a whole: what it writes, equal bytes, interruptions, limits, cleaning, refusals, real text."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from kdcore.data import corpus_building
from kdcore.data.corpus import Corpus
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.models.loading import load_tokenizer
from kdcore.stages import corpus as corpus_stage
from tests.corpora import make_corpus
from tests.import_graph import closure, has_code
from tests.tiny import POSITIONS, save_tiny, tiny_texts

PAGES = "\n\n".join(". ".join(text.capitalize() for text in tiny_texts(12, seed)) + "." for seed in range(30))
"""Thirty documents of twelve sentences."""


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT."""
    return save_tiny(tmp_path_factory.mktemp("teacher"), "bert")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_building, "CHUNK_DOCUMENTS", 4)


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def rows(corpus: Corpus) -> list[list[int]]:
    return [corpus.tokens(torch.tensor([row]))["input_ids"][0].tolist() for row in range(len(corpus))]


def test_files_on_disk(tmp_path: Path, teacher: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus = make_corpus(tmp_path, teacher, {"data/pages.txt": PAGES}, shard_rows=50)
    count = len(corpus.info.shards)
    assert count > 1
    assert set(hashes(corpus.folder)) == {
        "corpus.json", "counts.npy", *(f"rows-{number:05d}.arrow" for number in range(count))}
    assert [shard.rows for shard in corpus.info.shards[:-1]] == [50] * (count - 1)
    for shard in corpus.info.shards:
        assert shard.sha256 == hashes(corpus.folder)[shard.file]
    content = (corpus.folder / "corpus.json").read_text()
    assert str(tmp_path) not in content
    assert str(teacher) not in content
    told = json.loads(content)
    assert told["rows"] == len(corpus)
    assert told["tokens"] == corpus.lengths.sum()
    assert told["documents"] == told["sources"][0]["documents"] == 30
    assert told["sources"][0]["name"] == "data/pages.txt"
    assert not list((tmp_path / ".kdflow" / "scratch").iterdir())
    measured = json.loads((Layout(tmp_path).measured / "corpus.json").read_text())
    assert measured["tokens"] == told["tokens"]
    printed = capfd.readouterr()
    assert f"corpus: {len(corpus):,} rows, {told['tokens']:,} tokens in {count} shards from 30 documents" in printed.out
    assert "tokens/s" in printed.err


def test_equal_bytes_wherever_and_whenever(tmp_path: Path, teacher: Path) -> None:
    files = {"data/pages.txt": PAGES}
    first = hashes(make_corpus(tmp_path / "a", teacher, files, shard_rows=50).folder)
    assert first == hashes(make_corpus(tmp_path / "a", teacher, files, shard_rows=50).folder)
    assert first == hashes(make_corpus(tmp_path / "b" / "c", teacher, files, shard_rows=50).folder)
    moved = shutil.copytree(teacher, tmp_path / "moved")
    assert first == hashes(make_corpus(tmp_path / "d", moved, files, shard_rows=50).folder)
    assert first != hashes(make_corpus(tmp_path / "e", teacher, files, shard_rows=50, seed=1).folder)


def test_shards_hold_the_same_rows_however_long_they_are(tmp_path: Path, teacher: Path) -> None:
    files = {"data/pages.txt": PAGES}
    one, many = (make_corpus(tmp_path / str(size), teacher, files, shard_rows=size) for size in (10_000, 7))
    assert len(one.info.shards) == 1
    assert len(many.info.shards) == -(-len(one) // 7)
    assert rows(one) == rows(many)
    assert (one.counts() == many.counts()).all()


@pytest.mark.parametrize("settings", [
    {"pairs": True, "shard_rows": 20}, {"packing": "rows", "shard_rows": 3, "max_length": 10},
    {"shard_rows": 20, "max_rows": 70}, {"shard_rows": 20, "max_tokens": 1500}])
@pytest.mark.parametrize("dies_at", [0, 1, 2])
def test_a_killed_run_goes_on_at_its_last_shard(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch,
                                                settings: dict[str, Any], dies_at: int) -> None:
    """The same bytes as of an undisturbed run, and finished shards are not written again."""
    files: dict[str, str | bytes] = {"data/1.txt": PAGES, "data/2.txt": PAGES[:3000] + "\n\nx" + PAGES[3000:]}
    whole = hashes(make_corpus(tmp_path / "whole", teacher, files, **settings).folder)
    save, written = corpus_building._save, []

    def dying(*arguments: Any) -> Any:
        if len(written) == dies_at:
            raise KeyboardInterrupt
        written.append(arguments[1].name)
        return save(*arguments)

    monkeypatch.setattr(corpus_building, "_save", dying)
    with pytest.raises(KeyboardInterrupt):
        make_corpus(tmp_path / "killed", teacher, files, **settings)
    assert not Layout(tmp_path / "killed").corpus.exists()
    monkeypatch.setattr(corpus_building, "_save", lambda *given: (written.append(given[1].name), save(*given))[1])
    assert hashes(make_corpus(tmp_path / "killed", teacher, files, **settings).folder) == whole
    assert written == sorted(set(written)), "each shard is written once"


def test_nothing_is_resumed_under_other_settings_or_texts(tmp_path: Path, teacher: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    save, written = corpus_building._save, []

    def dying(*arguments: Any) -> Any:
        if written:
            raise KeyboardInterrupt
        written.append(1)
        return save(*arguments)

    files: dict[str, str | bytes] = {"data/pages.txt": PAGES}
    for changed, settings in (({}, {"seed": 1}), ({"data/pages.txt": "The film. " + PAGES}, {})):
        written.clear()
        with monkeypatch.context() as patch:
            patch.setattr(corpus_building, "_save", dying)
            with pytest.raises(KeyboardInterrupt):
                make_corpus(tmp_path / "a", teacher, files, shard_rows=20)
        again = make_corpus(tmp_path / "a", teacher, files | changed, shard_rows=20, **settings)
        fresh = make_corpus(tmp_path / "b", teacher, files | changed, shard_rows=20, **settings)
        assert hashes(again.folder) == hashes(fresh.folder)


def test_finished_shards_are_those_of_this_code(repository: Path) -> None:
    """Of the stage and of all files with data that it imports."""
    stage = repository / "kdcore" / "stages" / "corpus.py"
    needed = {file.relative_to(repository / "kdcore").as_posix() for file in closure(stage)
              if file.parent.name == "data" and has_code(file)}
    assert "data/packing.py" in needed
    assert {"stages/corpus.py", *needed} <= set(corpus_stage.CODE)


def test_a_corpus_that_is_there_is_replaced_at_once(tmp_path: Path, teacher: Path) -> None:
    make_corpus(tmp_path, teacher, {"data/pages.txt": PAGES}, shard_rows=20)
    corpus = make_corpus(tmp_path, teacher, {"data/pages.txt": "The film.\n\nA plot."})
    assert len(corpus.info.shards) == 1
    assert len(list(corpus.folder.glob("*.arrow"))) == 1


@pytest.mark.parametrize("shard_rows", [5, 1000])
def test_limits(tmp_path: Path, teacher: Path, shard_rows: int) -> None:
    """The first rows of the whole, as many as the limit lets in."""
    files: dict[str, str | bytes] = {"data/pages.txt": PAGES}
    whole = make_corpus(tmp_path, teacher, files)
    some = make_corpus(tmp_path, teacher, files, max_rows=33, shard_rows=shard_rows)
    assert rows(some) == rows(whole)[:33]
    some = make_corpus(tmp_path, teacher, files, max_tokens=400, shard_rows=shard_rows)
    assert rows(some) == rows(whole)[:len(some)]
    assert some.info.tokens <= 400 < some.info.tokens + whole.lengths[len(some)]
    exact = int(whole.lengths[:12].sum())
    assert len(make_corpus(tmp_path, teacher, files, max_tokens=exact, shard_rows=shard_rows)) == 12


def test_sources_one_after_another_with_counts_of_what_was_dropped(tmp_path: Path, teacher: Path) -> None:
    corpus = make_corpus(
        tmp_path, teacher, {"data/1.txt": "the film\n\nok\n\na dull plot", "data/2.csv": "text\nthe film\nthe  film\n",
                            "data/3.csv": "a,b\nthe actor was fine,he saw it\n"},
        sources=[{"files": ["data/1.txt"]}, {"files": ["data/2.csv"]}, {"files": ["data/3.csv"], "text": ["a", "b"]}],
        packing="rows", cleaning={"min_characters": 5}, max_length=8)
    tokenizer = load_tokenizer(str(teacher))
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in rows(corpus)] == [
        "the film", "a dull plot", "the actor was fine", "he saw it"]
    assert corpus.info.dropped == {"short": 1, "duplicates": 2, "tokens_cut_off": 0}
    assert [source["documents"] for source in corpus.info.sources] == [3, 2, 2]
    assert corpus.info.documents == 4


def test_texts_of_a_row_are_one_document_when_sentences_are_packed(tmp_path: Path, teacher: Path) -> None:
    corpus = make_corpus(tmp_path, teacher, {"data/a.csv": "a,b\nthe film,was good\n"}, short_sequences=0.0,
                         sources=[{"files": ["data/a.csv"], "text": ["a", "b"]}])
    assert load_tokenizer(str(teacher)).decode(rows(corpus)[0], skip_special_tokens=True) == "the film was good"


@pytest.mark.parametrize(("files", "settings", "message"), [
    ({"data/a.txt": "\n \n\u200b\n"}, {}, "the corpus is empty: of 1 documents in data/a.txt 1 are shorter"),
    ({"data/a.txt": "x"}, {"cleaning": {"min_characters": 9}}, "1 are shorter than corpus.cleaning.min_characters"),
    ({"data/a.txt": ""}, {}, "the corpus is empty: of 0 documents"),
    ({"data/a.txt": "the film"}, {"max_tokens": 3}, "its first row has more than corpus.max_tokens = 3 tokens; raise"),
    ({"data/a.txt": "x"}, {"max_length": POSITIONS + 1}, "65 is beyond the 64 tokens .* lower corpus.max_length"),
    ({"data/a.txt": "x"}, {"packing": "rows", "pairs": True}, "pairs goes with `packing: sentences`"),
    ({"data/a.txt": "x"}, {"pakcing": "rows"}, "unknown key `pakcing`; did you mean 'packing'"),
    ({"data/a.txt": b"x\n\xff"}, {"cleaning": {"unicode": None}}, "data/a.txt, line 2 is not UTF-8"),
])
def test_refusals_of_one_line(tmp_path: Path, teacher: Path, files: dict[str, str | bytes], settings: dict[str, Any],
                              message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        make_corpus(tmp_path, teacher, files, **settings)
    assert "\n" not in str(error.value)
    assert not Layout(tmp_path).corpus.exists()


def test_real_sentences(tmp_path: Path, shared: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SST-2 and MNLI from the hub's layout, each text a row; packed, no token is lost."""
    monkeypatch.setattr(corpus_building, "CHUNK_DOCUMENTS", 1000)
    monkeypatch.setenv("KDFLOW_SOURCES", f"nyu-mll/glue={shared / 'data' / 'glue'}")
    sources = [{"source": "nyu-mll/glue", "config": "sst2", "split": "validation", "text": ["sentence"]},
               {"source": "nyu-mll/glue", "config": "mnli", "split": "validation_matched",
                "text": ["premise", "hypothesis"]}]
    corpus = make_corpus(tmp_path, teacher, {}, sources=sources, packing="rows", max_length=64, max_rows=3000)
    sst2 = pq.read_table(shared / "data" / "glue" / "sst2" / "validation-00000-of-00001.parquet")["sentence"]
    tokenizer = load_tokenizer(str(teacher))
    expected = tokenizer([text.strip() for text in sst2.to_pylist()[:100]], truncation=True,
                         max_length=64)["input_ids"]
    assert rows(corpus)[:100] == expected
    assert corpus.info.sources[0]["documents"] == sst2.length()
    packed = make_corpus(tmp_path, teacher, {}, sources=sources, max_length=64, short_sequences=0.0, max_rows=3000)
    assert packed.lengths.max() <= 64
    text = [token for row in rows(packed)[:50] for token in row[1:-1]]
    whole = tokenizer([text.strip() for text in sst2.to_pylist()[:40]], add_special_tokens=False)["input_ids"]
    flat = [token for row in whole for token in row]
    assert text[:len(flat)] == flat[:len(text)]
