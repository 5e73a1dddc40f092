"""Data of the user's own, by declaration: formats, labels, pairs, scores, out-of-domain files, cut sizes."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kdcore.data.prepared import Prepared
from tests.data.studies import DATA, VALIDATION, make, prepare_study

ROWS = 200
MANY = "text,label\n" + "".join(f"the film {i} was {'good' if i % 2 else 'bad'},{'pos' if i % 2 else 'neg'}\n"
                                for i in range(ROWS))


def parquet(columns: dict[str, Any]) -> bytes:
    """A Parquet file in memory."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def texts(prepared: Prepared, split: str) -> list[str]:
    """The texts of a split in row order."""
    return prepared.table(split).column("text").to_pylist()


@pytest.mark.parametrize(("ending", "content"), [
    ("csv", 'text,label\n"fine, film",pos\r\n\r\n"two\nlines",neg\n'),
    ("csv", "\ufefftext,label\n\"fine, film\",1\n\"two\nlines\",0\n"),
    ("tsv", 'text\tlabel\nfine, film\tpos\n"two\nlines"\tneg\n'),
    ("jsonl", '{"text": "fine, film", "label": "pos", "tags": ["x", 1], "m": ["\\ud83d"], "meta": "a"}\n'
              '{"text": "two\\nlines", "label": "neg", "meta": 1}\n'),
    ("jsonl", '{"text": "fine, film", "label": "pos"}\n\n{"text": "two\\nlines", "label": "neg"}\n'),
    ("jsonl", '{"text": "fine, film", "label": 1}\n{"text": "two\\nlines", "label": 0}'),
    ("parquet", parquet({"text": ["fine, film", "two\nlines"], "label": ["pos", "neg"]})),
    ("parquet", parquet({"text": ["fine, film", "two\nlines"], "label": [1.0, 0.0]})),
    ("parquet", parquet({"text": pa.array(["fine, film", "two\nlines"]).dictionary_encode(), "label": [1, 0]})),
    ("parquet", parquet({"text": pa.array(["fine, film", "two\nlines"], pa.string_view()),
                         "label": pa.array(["pos", "neg"], pa.string_view()), "meta": [["x"], None]})),
])
def test_formats(tmp_path: Path, teacher: Path, ending: str, content: str | bytes) -> None:
    data = DATA | {"files": {"train": f"data/own.{ending}", "validation": "data/validation.csv"}}
    prepared = prepare_study(make(tmp_path, teacher, data, files={f"data/own.{ending}": content}))
    assert texts(prepared, "train") == ["fine, film", "two\nlines"]
    assert prepared.labels("train").tolist() == [1, 0]
    assert prepared.info.labels == ("neg", "pos")
    assert prepared.info.metrics == ("accuracy",)


def test_long_texts_and_tabs_in_quotes(tmp_path: Path, teacher: Path) -> None:
    data = DATA | {"files": {"train": "data/own.tsv", "validation": "data/own.csv"}}
    prepared = prepare_study(make(tmp_path, teacher, data, files={
        "data/own.tsv": 'text\tlabel\n"a\tb, ""c"""\tpos\nd\tneg\n',
        "data/own.csv": f'text,label\n{"x" * 200_000},pos\n"e\tf\ng",neg\n'}))
    assert texts(prepared, "train") == ['a\tb, "c"', "d"]
    assert texts(prepared, "validation") == ["x" * 200_000, "e\tf\ng"]


def test_names_that_are_numbers_are_names(tmp_path: Path, teacher: Path) -> None:
    """Classes called 1, 2, 3 or -1, 0, 1 are meant by name, in text and in numbers alike."""
    for place, (names, values) in enumerate([(["1", "2", "3"], "1,2,3"), (["-1", "0", "1"], "-1,0,1")]):
        lines = "".join(f"film {i},{value}\n" for i, value in enumerate(values.split(",")))
        prepared = prepare_study(make(tmp_path / str(place), teacher, DATA | {"labels": names}, files={
            "data/train.csv": "text,label\n" + lines, "data/validation.csv": "text,label\n" + lines}))
        assert prepared.labels("train").tolist() == [0, 1, 2]


def test_pairs_and_other_column_names(tmp_path: Path, teacher: Path) -> None:
    content = "a,b,gold\nthe film,was good,pos\nthe plot,was bad,neg\n"
    data = DATA | {"text": "a", "text_pair": "b", "label": "gold"}
    prepared = prepare_study(make(tmp_path, teacher, data,
                                  files={"data/train.csv": content, "data/validation.csv": content}))
    assert prepared.info.is_pair
    assert prepared.table("train").column_names == ["id", "text", "text_pair", "label"]
    tokens = prepared.tokens("train", "student")
    assert tokens.types.reshape(2, -1)[0].tolist() == [0, 0, 0, 0, 1, 1, 1]  # [CLS] the film [SEP] was good [SEP]


def test_large_whole_scores(tmp_path: Path, teacher: Path) -> None:
    """Beyond 2**53, where floats have gaps."""
    content = "".join(f'{{"text": "film {i}", "label": {2**60 + i}}}\n' for i in (1, 2**40))
    files: dict[str, str | bytes] = {f"data/{name}.jsonl": content for name in ("train", "validation")}
    data = {"files": {name: f"data/{name}.jsonl" for name in ("train", "validation")}}
    prepared = prepare_study(make(tmp_path, teacher, data, files=files))
    assert prepared.labels("train").tolist() == [2.0**60, 2.0**60 + 2**40]


def test_scores(tmp_path: Path, teacher: Path) -> None:
    files: dict[str, str | bytes] = {
        "data/train.csv": "text,label\nfine,0.5\ngood,5\nbad,-1\n",
        "data/validation.jsonl": '{"text": "a", "label": 2}\n{"text": "b", "label": 2.5}\n',
        "data/test.csv": "text\nfilm\nplot\n"}
    data = {"files": {"train": "data/train.csv", "validation": "data/validation.jsonl", "test": "data/test.csv"},
            "score_range": [-1, 5]}
    prepared = prepare_study(make(tmp_path, teacher, data, files=files))
    assert prepared.info.regression
    assert prepared.info.classes == 1
    assert prepared.info.score_range == (-1, 5)
    assert prepared.info.metrics == ("pearson", "spearman")
    assert prepared.labels("train").tolist() == [0.5, 5.0, -1.0]
    assert prepared.labels("test").isnan().all()
    assert prepared.info.splits["test"].hidden


@pytest.mark.parametrize(("content", "role"), [("text,label\na,pos\n", "report"), ("text,label\na,-1\n", "test"),
                                               ("text\na\n", "test")])
def test_a_test_file_reports_when_it_has_labels(tmp_path: Path, teacher: Path, content: str, role: str) -> None:
    data = DATA | {"files": DATA["files"] | {"test": "data/test.csv"}}
    split = prepare_study(make(tmp_path, teacher, data, files={"data/test.csv": content})).info.splits["test"]
    assert (split.role, split.hidden) == (role, role == "test")


def test_own_out_of_domain_files(tmp_path: Path, teacher: Path) -> None:
    """Its own columns and classes; three classes of the dataset become two by name."""
    rows = "text,label\nthe film was good,pos\na plot,neu\nbad actor,neg\n"
    data = DATA | {"labels": ["neg", "neu", "pos"], "ood": {
        "plain": {"file": "data/plain.csv"},
        "stars": {"file": "data/stars.csv", "text": "review", "label": "stars", "labels": ["high", "low"],
                  "label_map": {"pos": "high", "neg": "low", "neu": "low"}}}}
    prepared = prepare_study(make(tmp_path, teacher, data, files={
        "data/train.csv": rows, "data/validation.csv": rows, "data/plain.csv": rows,
        "data/stars.csv": "review,stars\ngreat,high\nawful,low\n"}))
    assert prepared.info.with_role("ood") == ("plain", "stars")
    stars = prepared.info.splits["stars"]
    assert stars.labels == ("high", "low")
    assert stars.label_map == {"neg": "low", "neu": "low", "pos": "high"}
    assert prepared.labels("stars").tolist() == [0, 1]
    assert prepared.info.splits["plain"].label_map == {"neg": "neg", "neu": "neu", "pos": "pos"}


def test_built_in_sets_take_own_out_of_domain_files(tmp_path: Path, teacher: Path, shared: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDFLOW_SOURCES", f"nyu-mll/glue={shared / 'data' / 'glue'}")
    data = {"train_rows": 50, "eval_rows": 10, "ood": {"mine": {"file": "data/mine.csv"}}}
    content = "sentence1,sentence2,label\na film,a plot,not_entailment\n"
    prepared = prepare_study(make(tmp_path, teacher, data, "rte", {"data/mine.csv": content}), "rte")
    assert prepared.labels("mine").tolist() == [1]


def test_overlap_and_missing_classes_are_warnings(tmp_path: Path, teacher: Path,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    """Counted without regard to case and white space, stored, and printed."""
    files: dict[str, str | bytes] = {"data/validation.csv": VALIDATION + "The  FILM was good,pos\n"}
    prepared = prepare_study(make(tmp_path, teacher, DATA | {"labels": ["neg", "pos", "mixed"]}, files=files))
    assert prepared.info.warnings == ("data/train.csv: no training row has label 'mixed'",
                                      "validation: 1 of 3 rows have a text that is also in train")
    assert "warning: mine: validation: 1 of 3 rows" in capsys.readouterr().err


def test_train_rows_are_a_seeded_part(tmp_path: Path, teacher: Path) -> None:
    parts = {}
    for name, data in {"a": {"seed": 0}, "b": {"seed": 0}, "c": {"seed": 1}}.items():
        study = make(tmp_path / name, teacher, DATA | data | {"train_rows": 50}, files={"data/train.csv": MANY})
        parts[name] = prepare_study(study)
    rows = texts(parts["a"], "train")
    assert rows == texts(parts["b"], "train") != texts(parts["c"], "train")
    assert len(set(rows)) == 50
    order = MANY.splitlines()[1:]
    positions = [next(i for i, line in enumerate(order) if line.startswith(text + ",")) for text in rows]
    assert positions == sorted(positions)
    assert parts["a"].info.splits["train"].note == "50 of 200 rows, drawn with seed 0"
    assert parts["a"].table("train").column("id").to_pylist() == list(range(50))
    assert parts["a"].table("train").column("source_id").to_pylist() == [str(place) for place in positions]


def test_held_out_rows_select_and_the_validation_split_reports(tmp_path: Path, teacher: Path) -> None:
    twice = MANY + MANY.partition("\n")[2]  # every text twice: both copies go the same way
    prepared = prepare_study(make(tmp_path, teacher, DATA | {"selection": "held_out"}, files={"data/train.csv": twice}))
    info = prepared.info
    assert (info.train, info.select) == ("train", "held_out")
    assert info.splits["validation"].role == "report"
    assert info.splits["train"].rows + info.splits["held_out"].rows == 2 * ROWS
    assert 0.03 < info.splits["held_out"].rows / (2 * ROWS) < 0.2
    assert not set(texts(prepared, "train")) & set(texts(prepared, "held_out"))


def test_without_a_validation_file(tmp_path: Path, teacher: Path) -> None:
    data = DATA | {"files": {"train": "data/train.csv"}, "selection": "held_out"}
    prepared = prepare_study(make(tmp_path, teacher, data, files={"data/train.csv": MANY}))
    assert list(prepared.info.splits) == ["train", "held_out"]


def test_eval_rows_cut_evaluation_only(tmp_path: Path, teacher: Path) -> None:
    files: dict[str, str | bytes] = {"data/train.csv": MANY, "data/validation.csv": MANY}
    prepared = prepare_study(make(tmp_path, teacher, DATA | {"eval_rows": 20}, files=files))
    assert prepared.info.splits["train"].rows == ROWS
    assert prepared.info.splits["validation"].rows == 20
    assert 0 < int(prepared.labels("validation").sum()) < 20
    assert prepared.info.splits["validation"].note == "20 of 200 rows, drawn with seed 0"
