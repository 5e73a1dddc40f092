"""Sources of texts: files of every kind, folders, hub layout; replaced files; what is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kdcore.data import corpus_sources
from kdcore.data.corpus_sources import find
from kdcore.errors import UserError
from kdcore.general_config import CorpusSource
from kdcore.strict import parse


def texts(study: Path, **source: Any) -> list[list[str]]:
    return list(found(study, **source).rows())


def found(study: Path, **source: Any) -> corpus_sources.Origin:
    return find(study, parse(CorpusSource, source, "corpus.sources"), "corpus.sources[0]")


def put(study: Path, name: str, content: str | bytes) -> Path:
    path = study / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_text_files(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "\ufeffone\ntwo\n \nthree\n\n\nfour")
    assert texts(tmp_path, files=["data/a.txt"]) == [["one\ntwo\n"], ["three\n"], ["four"]]
    assert texts(tmp_path, files=["data/a.txt"], documents="line") == [["one\n"], ["two\n"], ["three\n"], ["four"]]


def test_a_text_file_without_empty_lines_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_sources, "LONGEST", 10)
    put(tmp_path, "a.txt", "12345\n" * 5)
    assert texts(tmp_path, files=["data/a.txt"]) == [["12345\n12345\n"], ["12345\n12345\n"], ["12345\n"]]


def test_tables_give_their_columns_in_order(tmp_path: Path) -> None:
    rows = [{"title": "T", "body": 'B, "q"\nline'}, {"title": "", "body": "C"}, {"title": None, "body": " "}]
    put(tmp_path, "a.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n\n")
    put(tmp_path, "a.csv", 'title,body\nT,"B, ""q""\nline"\n\n,C\n, \n')
    put(tmp_path, "a.tsv", 'body\ttitle\n"B, ""q""\nline"\tT\nC\t\n \t\n')
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "a.parquet")
    for ending in ("jsonl", "csv", "tsv", "parquet"):
        assert texts(tmp_path, files=[f"data/a.{ending}"], text=["title", "body"]) == [
            ["T", 'B, "q"\nline'], ["C"], []], ending
        assert texts(tmp_path, files=[f"data/a.{ending}"], text=["body"])[1] == ["C"]


def test_long_fields(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", f'text\n"{"x" * 300_000}"\n')
    assert len(texts(tmp_path, files=["data/a.csv"])[0][0]) == 300_000


def test_folders_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name, content in (("b.txt", "2"), ("a/z.txt", "1"), ("c.csv", "text\n3\n"), ("readme.md", "no")):
        put(elsewhere, name, content)
    inside = found(tmp_path, files=[str(elsewhere / "data")])
    assert list(inside.rows()) == [["1"], ["2"], ["3"]]
    put(tmp_path, "x/only.txt", "0")
    assert texts(tmp_path, files=["data/x", str(elsewhere / "data" / "b.txt")]) == [["0"], ["2"]]


def test_fingerprint_is_of_names_and_bytes_wherever_they_lie(tmp_path: Path) -> None:
    for name in ("one", "two"):
        put(tmp_path / name, "a.txt", "text")
    first, second = (found(tmp_path / name, files=["data/a.txt"]).fingerprint for name in ("one", "two"))
    assert first == second
    put(tmp_path / "two", "a.txt", "other")
    assert found(tmp_path / "two", files=["data/a.txt"]).fingerprint != first


@pytest.mark.parametrize(("files", "source", "message"), [
    ({}, {"files": ["data/none.txt"]}, "'data/none.txt', which does not exist in"),
    ({}, {"files": ["other/a.txt"]}, "'other/a.txt', which is not inside the study's data/ folder"),
    ({}, {"files": ["../data/a.txt"]}, "not inside the study's data/ folder"),
    ({}, {"files": [""]}, "not inside the study's data/ folder"),
    ({"x/readme.md": ""}, {"files": ["data/x"]}, "'data/x', a folder without files that end in .txt"),
    ({"a.pdf": ""}, {"files": ["data/a.pdf"]}, "ends in '.pdf'; expected one of"),
    ({"a.csv": "txt\nx\n"}, {"files": ["data/a.csv"]}, "data/a.csv has no column 'text' .*did you mean 'txt'"),
    ({"a.csv": ""}, {"files": ["data/a.csv"]}, "data/a.csv is empty; expected a header line"),
    ({"a.csv": "text\nx,y\n"}, {"files": ["data/a.csv"]}, "data/a.csv, line 2 has 2 fields, the header has 1"),
    ({"a.csv": 'text\n"x\n'}, {"files": ["data/a.csv"]}, "data/a.csv, line 2 is malformed"),
    ({"a.jsonl": '{"text": 3}'}, {"files": ["data/a.jsonl"]}, "line 1: column 'text' holds 3, expected texts"),
    ({"a.jsonl": '{"body": "x"}'}, {"files": ["data/a.jsonl"]}, "line 1 has no column 'text'"),
    ({"a.jsonl": "[1]"}, {"files": ["data/a.jsonl"]}, "line 1 holds list, expected an object"),
    ({"a.jsonl": "{"}, {"files": ["data/a.jsonl"]}, "line 1 is no JSON"),
    ({"a.jsonl": '{"text": ' + "[" * 100_000}, {"files": ["data/a.jsonl"]}, "line 1 is no JSON"),
    ({"a.tsv": 'text\tn\nx\t1\n"Good\t1\nmiddle\t2\nend"\t3\n'}, {"files": ["data/a.tsv"]},
     "data/a.tsv, line 3: a quote opens a field that holds tabs and line breaks, up to line 5"),
    ({"a.parquet": "x"}, {"files": ["data/a.parquet"]}, "data/a.parquet is no readable Parquet file"),
    ({"a.txt": b"good\n\nfa\xe7ade\n"}, {"files": ["data/a.txt"]}, r"data/a.txt, line 3 is not UTF-8 \(byte 0xe7\)"),
    ({"a.txt": "x".encode("utf-16")}, {"files": ["data/a.txt"]}, "data/a.txt is UTF-16; save it as UTF-8"),
])
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, files: dict[str, str | bytes], source: dict[str, Any],
                                           message: str) -> None:
    for name, content in files.items():
        put(tmp_path, name, content)
    with pytest.raises(UserError, match=message) as error:
        texts(tmp_path, **source)
    assert "\n" not in str(error.value)


def test_a_page_that_is_damaged_is_said_when_it_is_met(tmp_path: Path) -> None:
    """The end of the file, which is read first, is whole."""
    put(tmp_path, "a.parquet", "")
    path = tmp_path / "data" / "a.parquet"
    pq.write_table(pa.table({"text": [f"film number {i}" for i in range(5000)]}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[2000:4000] = b"\xff" * 2000
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"data/a.parquet is no readable Parquet file") as error:
        texts(tmp_path, files=["data/a.parquet"])
    assert "\n" not in str(error.value)


def test_texts_of_a_parquet_file_are_utf8(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", "")
    table = pa.table({"text": pa.array([b"caf\xe9"], pa.binary()).view(pa.string())})
    pq.write_table(table, tmp_path / "data" / "a.parquet")
    with pytest.raises(UserError, match=r"data/a.parquet is no readable Parquet file \(.*UTF8.*\); write it again"):
        texts(tmp_path, files=["data/a.parquet"])


@pytest.mark.parametrize(("source", "message"), [
    ({}, "has either `files` .* but this one has neither"),
    ({"files": ["data/a.txt"], "source": "wiki"}, "has both"),
    ({"files": ["data/a.txt"], "split": "train"}, "has `files` and `split`"),
    ({"files": ["data/a.txt"], "text": []}, "text"),
])
def test_an_entry_is_of_one_kind(source: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(CorpusSource, source, "corpus.sources")


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """A folder in the hub's layout with two configurations."""
    folder = tmp_path / "set"
    for config, split, rows in (("one", "train", ["a", None, "b"]), ("one", "test", ["c"]), ("two", "train", ["d"])):
        (folder / config).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"sentence": pa.array(rows, pa.string()), "label": range(len(rows))}),
                       folder / config / f"{split}.parquet")
    (folder / "README.md").write_text("""---
configs:
- config_name: one
  data_files:
  - {split: train, path: one/train.parquet}
  - {split: test, path: one/test.parquet}
- config_name: two
  data_files:
  - {split: train, path: two/train.parquet}
---
""")
    return folder


def test_a_local_set_in_the_hubs_layout(tmp_path: Path, layout: Path) -> None:
    source = {"source": str(layout), "config": "one", "text": ["sentence"]}
    assert texts(tmp_path, **source) == [["a"], [], ["b"]]
    assert texts(tmp_path, **source, split="test") == [["c"]]
    assert texts(tmp_path, **source | {"config": "two"}) == [["d"]]


def test_a_replaced_file_of_a_local_set_gives_its_new_texts(tmp_path: Path, layout: Path) -> None:
    source = {"source": str(layout), "config": "one", "text": ["sentence"]}
    before = found(tmp_path, **source)
    assert list(before.rows()) == [["a"], [], ["b"]]
    pq.write_table(pa.table({"sentence": ["new"], "label": [0]}), layout / "one" / "train.parquet")
    after = found(tmp_path, **source)
    assert list(after.rows()) == [["new"]]
    assert before.fingerprint != after.fingerprint
    assert found(tmp_path, **source, split="test").fingerprint not in (before.fingerprint, after.fingerprint)


@pytest.mark.parametrize(("change", "message"), [
    ({"text": ["sentenc"]}, "has no column 'sentenc' .*did you mean 'sentence'"),
    ({"text": ["label"]}, "column 'label' holds 0, expected texts"),
    ({"split": "trian"}, "has no split 'trian' .*did you mean 'train'"),
    ({"split": "other"}, r"has no split 'other' \(corpus\.sources\[0\]\.split\); known: test, train"),
    ({"config": "three"}, "cannot read .*three"),
    ({"source": "./nothing"}, "'./nothing' is no folder"),
])
def test_what_is_wrong_with_a_set_is_said_in_one_line(tmp_path: Path, layout: Path, change: dict[str, Any],
                                                      message: str) -> None:
    source = {"source": str(layout), "config": "one", "text": ["sentence"]} | change
    with pytest.raises(UserError, match=message) as error:
        texts(tmp_path, **source)
    assert "\n" not in str(error.value)


def test_a_damaged_file_of_a_local_set(tmp_path: Path, layout: Path) -> None:
    (layout / "one" / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"cannot read .*; correct the folder's files or the names$"):
        texts(tmp_path, source=str(layout), config="one", text=["sentence"])


def test_the_hub_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read owner/nothing .*check the names and the network"):
        texts(tmp_path, source="owner/nothing")
