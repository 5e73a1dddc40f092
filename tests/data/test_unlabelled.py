"""Rows without labels: where they come from, where they stand, what is said of them, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kdcore.data.answers import Answers
from kdcore.data.batching import Examples
from kdcore.data.checks import Rows
from kdcore.data.parts import Part
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from tests.data.studies import DATA, make, prepare_study

MORE = "data/more.csv"
TEXTS: dict[str, str | bytes] = {MORE: "text\nsome film\nanother film\na third plot\n"}
ROWS = 40
MANY: dict[str, str | bytes] = {
    "data/train.csv": "text,label\n" + "".join(f"film number {i},{'pos' if i % 3 else 'neg'}\n" for i in range(ROWS))}


def study(folder: Path, teacher: Path, unlabelled: Any, files: dict[str, str | bytes] | None = None,
          **data: Any) -> Path:
    """The small study with rows without labels."""
    return make(folder, teacher, DATA | {"unlabelled": unlabelled} | data, files=TEXTS | (files or {}))


def column(prepared: Prepared, name: str, split: str = "train") -> list[Any]:
    return prepared.table(split).column(name).to_pylist()


def test_rows_of_a_file_stand_behind_the_labelled_ones(tmp_path: Path, teacher: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    prepared = prepare_study(study(tmp_path / "with", teacher, MORE))
    alone = prepare_study(make(tmp_path / "without", teacher))
    train = prepared.split("train")
    assert (train.rows, train.labelled, train.unlabelled) == (7, 4, 3)
    assert column(prepared, "text") == [*column(alone, "text"), "some film", "another film", "a third plot"]
    assert column(prepared, "label") == [*column(alone, "label"), -1, -1, -1]
    assert column(prepared, "source_id") == ["0", "1", "2", "3", None, None, None]
    assert column(prepared, "id") == list(range(7))
    assert len(prepared.tokens("train", "student")) == 7
    assert train.note == "then 3 rows without labels, of data/more.csv"
    assert prepared.split("validation") == alone.split("validation")
    assert ("mine/train: 7 rows (3 of them, 43%, without labels), train, from data/train.csv "
            "(then 3 rows without labels, of data/more.csv)") in capsys.readouterr().out


@pytest.mark.parametrize(("name", "content"), [
    ("data/more.jsonl", '{"text": "some film", "label": "whatever"}\n{"text": "another film", "label": null}\n'),
    ("data/more.tsv", "label\ttext\n7\tsome film\n\tanother film\n")])
def test_labels_of_the_file_are_ignored_and_that_is_said(tmp_path: Path, teacher: Path, name: str,
                                                         content: str) -> None:
    prepared = prepare_study(study(tmp_path, teacher, name, {name: content}))
    assert column(prepared, "label")[4:] == [-1, -1]
    assert prepared.split("train").note == (
        f"then 2 rows without labels, of {name}, whose column 'label' is ignored")


def test_columns_of_other_names_and_a_part_of_the_file(tmp_path: Path, teacher: Path) -> None:
    files: dict[str, str | bytes] = {
        "data/pairs.csv": "one,two,id\n" + "".join(f"film {i},plot {i},{i}\n" for i in range(30)),
        "data/train.csv": "text,other,label\na,b,pos\nc,d,neg\n", "data/validation.csv": "text,other,label\ne,f,pos\n"}
    wanted = {"file": "data/pairs.csv", "text": "one", "text_pair": "two", "rows": 6}
    studies = [study(tmp_path / name, teacher, wanted, files, text_pair="other", seed=seed)
               for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    one, same, other = [column(prepare_study(made), "text_pair")[2:] for made in studies]
    assert one == same != other
    assert len(set(one)) == 6
    assert one == sorted(one, key=lambda text: int(text.split()[1]))
    assert prepare_study(studies[0]).split("train").note.endswith("of data/pairs.csv, drawn with seed 0")


def test_further_rows_of_the_split_itself(tmp_path: Path, teacher: Path) -> None:
    """The labelled rows are those that train without them, and the others are none of these."""
    prepared = prepare_study(study(tmp_path / "with", teacher, 25, MANY, train_rows=10))
    alone = prepare_study(make(tmp_path / "without", teacher, DATA | {"train_rows": 10}, files=MANY))
    train = prepared.split("train")
    assert (train.labelled, train.unlabelled) == (10, 25)
    for name in ("text", "label", "source_id"):
        assert column(prepared, name)[:10] == column(alone, name)
    assert column(prepared, "label")[10:] == [-1] * 25
    ids = column(prepared, "source_id")
    assert len(set(ids)) == 35
    assert column(prepared, "text") == [f"film number {number}" for number in ids]
    assert ids[10:] == sorted(ids[10:], key=int)
    assert train.note == ("10 of 40 rows, drawn with seed 0; then 25 rows without labels, of data/train.csv, "
                          "beyond train_rows, their labels left out, drawn with seed 0")
    everything = prepare_study(study(tmp_path / "all", teacher, 30, MANY, train_rows=10))
    assert len(set(column(everything, "source_id"))) == 40


def test_scores_are_missing_as_nan(tmp_path: Path, teacher: Path) -> None:
    files: dict[str, str | bytes] = {f"data/{name}.csv": "text,label\na,1\nb,2.5\n" for name in ("train", "validation")}
    data = {"files": DATA["files"], "unlabelled": MORE}
    prepared = prepare_study(make(tmp_path, teacher, data, files=files | TEXTS))
    labels = prepared.labels("train").numpy()
    assert labels[:2].tolist() == [1, 2.5]
    assert np.isnan(labels[2:]).all()
    assert prepared.split("train").unlabelled == 3


def test_held_out_rows_all_have_labels(tmp_path: Path, teacher: Path) -> None:
    prepared = prepare_study(study(tmp_path, teacher, 15, MANY, train_rows=20, selection="held_out",
                                   held_out_share=0.4))
    train, held_out = prepared.split("train"), prepared.split("held_out")
    assert (train.labelled + held_out.rows, train.unlabelled, held_out.unlabelled) == (20, 15, 0)
    assert min(column(prepared, "label", "held_out")) >= 0


def test_texts_that_also_evaluate_are_counted(tmp_path: Path, teacher: Path) -> None:
    files: dict[str, str | bytes] = {MORE: "text\nFine  film\nthe film was good\nnew\n"}
    prepared = prepare_study(study(tmp_path, teacher, MORE, files))
    assert prepared.info.warnings == (
        "train: 1 of 4 rows have a text that is also in unlabelled",
        "validation: 1 of 2 rows have a text that is also in unlabelled")


def test_only_labelled_examples_are_a_split_without_them(tmp_path: Path, teacher: Path) -> None:
    prepared = prepare_study(study(tmp_path / "with", teacher, MORE))
    alone = Examples(prepare_study(make(tmp_path / "without", teacher)), "train", teacher_inputs=False)
    examples = Examples(prepared, "train", teacher_inputs=False, only_labelled=True)
    assert len(examples) == len(alone) == 4
    assert examples.lengths.tolist() == alone.lengths.tolist()
    assert examples.labels.tolist() == alone.labels.tolist()
    assert len(Examples(prepared, "train", teacher_inputs=True)) == 7


def test_equal_bytes_for_equal_rows(tmp_path: Path, teacher: Path) -> None:
    one, other = (prepare_study(study(tmp_path / name, teacher, MORE)) for name in ("a", "b"))
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != prepare_study(make(tmp_path / "c", teacher)).fingerprint


WRONG: tuple[tuple[Any, dict[str, Any], str], ...] = (
    ("data/none.csv", {}, "datasets.mine.data.unlabelled = 'data/none.csv' does not exist"),
    ("/elsewhere/more.csv", {}, "is not inside the study's data/ folder"),
    ({"file": MORE, "text": "txt"}, {}, "data/more.csv has no column 'txt'; did you mean 'text'"),
    ({"file": MORE, "rows": 4}, {}, "unlabelled.rows = 4 is more than the 3 rows of data/more.csv; lower it or remove"),
    ({"file": MORE, "txt": "x"}, {}, "did you mean 'text'"),
    ({"file": MORE, "text_pair": "text"}, {}, "unlabelled.text_pair = 'text', but rows of mine are single texts"),
    ("", {}, "unlabelled = '' is not inside the study's data/ folder"), (".", {}, "write data/FILE, so that"),
    (25, {}, "unlabelled = 25 takes rows of the training split beyond train_rows, which is not set; set"),
    (3, {"train_rows": 2}, "unlabelled = 3 is more than the 2 rows of data/train.csv beyond train_rows = 2; lower one"),
    (1, {"train_rows": 4}, "unlabelled = 1 is more than the 0 rows"),
    (0, {}, "greater than or equal to 1"), (True, {}, "valid"), (2.5, {}, "valid"),
    ({"text": "text"}, {}, "names no `file`"), ({"rows": 2, "text": "text"}, {}, "names no `file`"),
)


@pytest.mark.parametrize(("unlabelled", "data", "says"), WRONG, ids=[str(case[:2]) for case in WRONG])
def test_mistakes_are_one_line(tmp_path: Path, teacher: Path, unlabelled: Any, data: dict[str, Any],
                               says: str) -> None:
    with pytest.raises(UserError) as caught:
        prepare_study(study(tmp_path, teacher, unlabelled, **data))
    assert says in str(caught.value)
    assert "unlabelled" in str(caught.value) or "data/more.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "says"), [
    ("text\ngood\n\"\"\n", "data/more.csv, line 3: 'text' is empty"), ("text\n", "data/more.csv has no rows"),
    ("words\ngood\n", "has no column 'text'")])
def test_texts_are_checked_like_any(tmp_path: Path, teacher: Path, content: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        prepare_study(study(tmp_path, teacher, MORE, {MORE: content}))


def test_no_split_may_have_their_name(tmp_path: Path, teacher: Path) -> None:
    with pytest.raises(UserError, match=r"ood\.unlabelled is also the name of another split"):
        prepare_study(study(tmp_path, teacher, MORE, ood={"unlabelled": {"file": "data/validation.csv"}}))


# Answers of a teacher that is only files


def answered(folder: Path, model: Path, unlabelled: Any, files: dict[str, str], rows: dict[str, list[int]],
             tables: dict[str, str | bytes], **data: Any) -> Path:
    """A study whose teacher's answer to the row with id i is i / 100 for `pos`, by file."""
    written = {name: "id,probability:neg,probability:pos\n" + "".join(
        f"{i},{1 - i / 100},{i / 100}\n" for i in ids) for name, ids in rows.items()}
    declared = DATA | {"unlabelled": unlabelled, "teacher_files": files} | data
    return make(folder, "files", declared, files=TEXTS | tables | written, pair={"student": {"source": str(model)}})


def positive(prepared: Prepared) -> list[float]:
    """What the teacher says of `pos` for each training row, in hundredths."""
    answers = Answers.find(prepared.folder)
    assert answers is not None
    return (100 * answers.logits("train").softmax(dim=1)[:, 1]).round().tolist()


def test_a_file_of_its_own_answers_the_rows_of_a_file(tmp_path: Path, teacher: Path) -> None:
    files = {"train": "data/a.csv", "unlabelled": "data/b.csv"}
    made = answered(tmp_path, teacher, MORE, files, {"data/a.csv": [3, 2, 1, 0], "data/b.csv": [1, 0, 2]}, {})
    prepared = prepare_study(made)
    assert positive(prepared) == [0, 1, 2, 3, 0, 1, 2]
    answers = Answers.find(prepared.folder)
    assert answers is not None
    assert list(answers.sources) == ["train"]
    assert answers.sources["train"].file == "data/a.csv, data/b.csv"
    assert answers.sources["train"].holds == "probabilities"
    assert len(answers.sources["train"].sha256.split(", ")) == 2


def test_ids_of_the_file_find_their_answers(tmp_path: Path, teacher: Path) -> None:
    files, texts = {"train": "data/a.csv", "unlabelled": "data/b.csv"}, {MORE: "id,text\n50,x\n70,y\n60,z\n"}
    rows = {"data/a.csv": list(range(4)), "data/b.csv": [50, 60, 70]}
    prepared = prepare_study(answered(tmp_path, teacher, MORE, files, rows, texts))  # type: ignore[arg-type]
    assert positive(prepared) == [0, 1, 2, 3, 50, 70, 60]


def test_ids_are_those_of_the_file_whatever_is_drawn(tmp_path: Path, teacher: Path) -> None:
    """A teacher that answered the whole file serves any part of it; unknown ids are told."""
    texts: dict[str, str | bytes] = {MORE: "text\n" + "".join(f"plot {i}\n" for i in range(ROWS))}
    files, few, whole = {"train": "data/a.csv", "unlabelled": "data/b.csv"}, [0, 1, 2, 3], list(range(ROWS))
    wanted = {"file": MORE, "rows": 6}
    prepared = prepare_study(answered(tmp_path / "all", teacher, wanted, files,
                                      {"data/a.csv": few, "data/b.csv": whole}, texts))
    drawn = [int(text.split()[1]) for text in column(prepared, "text")[4:]]
    assert len(drawn) == 6
    assert positive(prepared)[4:] == drawn
    with pytest.raises(UserError, match=r"id '40' is that of no row \(1 such ids in the file\)"):
        prepare_study(answered(tmp_path / "one", teacher, wanted, files,
                               {"data/a.csv": few, "data/b.csv": [*whole, ROWS]}, texts))


def test_the_training_splits_file_answers_its_further_rows(tmp_path: Path, teacher: Path) -> None:
    made = answered(tmp_path, teacher, 20, {"train": "data/a.csv"}, {"data/a.csv": list(range(ROWS))}, MANY,
                    train_rows=10)
    prepared = prepare_study(made)
    assert positive(prepared) == [float(number) for number in column(prepared, "source_id")]


def test_rows_without_an_answer_are_refused(tmp_path: Path, teacher: Path) -> None:
    with pytest.raises(UserError, match="teacher_files has no entry `unlabelled`, but students learn from"):
        prepare_study(answered(tmp_path / "a", teacher, MORE, {"train": "data/a.csv"}, {"data/a.csv": [0, 1, 2, 3]},
                               {}))
    with pytest.raises(UserError, match="has no answer for 1 of 3 rows of unlabelled, with the ids '2'"):
        prepare_study(answered(tmp_path / "b", teacher, MORE, {"train": "data/a.csv", "unlabelled": "data/b.csv"},
                               {"data/a.csv": [0, 1, 2, 3], "data/b.csv": [0, 1]}, {}))
    alone = column(prepare_study(make(tmp_path / "c", teacher, DATA | {"train_rows": 10}, files=MANY)), "source_id")
    with pytest.raises(UserError, match="has no answer for 30 of 30 rows of unlabelled"):
        prepare_study(answered(tmp_path / "d", teacher, 30, {"train": "data/a.csv"},
                               {"data/a.csv": [int(number) for number in alone]}, MANY, train_rows=10))


# Part.join


def test_joining_keeps_labelled_rows_first_in_their_order() -> None:
    def table(texts: str, labels: list[int], **more: list[str]) -> pa.Table:
        return pa.table({"text": pa.array(list(texts), pa.large_string()), "label": pa.array(labels, pa.int64())} | {
            name: pa.array(values, pa.large_string()) for name, values in more.items()})

    part = Part("train", "train", Rows(table("ab", [0, 1]), hidden=False), "here", ("n", "p"), notes=("all",))
    joined = part.join(table("cde", [-1, 1, -1]), "and three").join(table("fg", [0, -1], source_id=["7", "8"]), "two")
    found = joined.rows.table.to_pydict()
    assert "".join(found["text"]) == "abdfceg"
    assert found["label"] == [0, 1, 1, 0, -1, -1, -1]
    assert found["source_id"] == ["0", "1", None, "7", None, None, "8"]
    assert joined.info(16).unlabelled == 3
    assert joined.info(16).note == "all; and three; two"
    assert part.info(16).unlabelled == 0
