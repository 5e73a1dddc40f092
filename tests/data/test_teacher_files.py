"""Answers of a teacher that is only files: rows found by id whatever is drawn, columns by name, numbers checked."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from kdcore.data.answers import Answers
from kdcore.data.prepared import Prepared
from kdcore.data.teacher_files import FLOOR
from kdcore.lineage import hash_folder
from tests.command import kdflow
from tests.data.studies import DATA, TRAIN, VALIDATION, make, prepare_study

FILE = "data/teacher.jsonl"
POSITIVE = [0.8, 0.1, 0.6, 0.3]
GOOD = tuple({"id": i, "probability:neg": round(1 - p, 1), "probability:pos": p} for i, p in enumerate(POSITIVE))
"""Answers to the four rows of TRAIN."""
SCORES: dict[str, str | bytes] = {f"data/{name}.csv": "text,label\na,1\nb,2\n" for name in ("train", "validation")}


def lines(*rows: Any) -> str:
    """JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def study(folder: Path, model: Path, content: str | bytes, file: str = FILE, data: dict[str, Any] | None = None,
          files: dict[str, str | bytes] | None = None, more: dict[str, str] | None = None) -> Path:
    """A study whose teacher is a file; its student is a tiny model."""
    declared = (DATA if data is None else data) | {"teacher_files": {"train": file} | (more or {})}
    return make(folder, "files", declared, files={file: content} | (files or {}),
                pair={"student": {"source": str(model)}})


def found(prepared: Prepared) -> Answers:
    """What lies in the prepared data."""
    there = Answers.find(prepared.folder)
    assert there is not None
    return there


def answers(prepared: Prepared, split: str = "train") -> torch.Tensor:
    """The logits of a split."""
    return found(prepared).logits(split)


def csv(rows: Any) -> str:
    """The same as CSV."""
    return ",".join(rows[0]) + "\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows)


def parquet(rows: Any) -> bytes:
    """The same as Parquet."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


@pytest.mark.parametrize(("file", "content"), [
    ("data/teacher.jsonl", lines(*GOOD)),
    ("data/teacher.jsonl", lines(*({"idx": str(row["id"]), "probabilities": {
        "pos": row["probability:pos"], "neg": row["probability:neg"]}, "why": ["as", row["id"]]} for row in GOOD))),
    ("data/teacher.csv", csv(GOOD)),
    ("data/teacher.parquet", parquet(reversed(GOOD))),
    ("data/teacher.parquet", parquet([{"label": "?", **{name: row[name] for name in reversed(row)}} for row in GOOD])),
])
def test_formats_and_orders(tmp_path: Path, teacher: Path, file: str, content: str | bytes) -> None:
    """By id and by name: neither the order of rows nor that of columns counts (A35, A50, A55)."""
    prepared = prepare_study(study(tmp_path, teacher, content, file))
    logits = answers(prepared)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.softmax(dim=1)[:, 1], torch.tensor(POSITIVE))
    torch.testing.assert_close(logits.exp().sum(dim=1), torch.ones(4))  # log-probabilities


def test_logits_stay_as_they_are(tmp_path: Path, teacher: Path) -> None:
    rows = [{"id": i, "logit:pos": 2.5 * i, "logit:neg": -1.0} for i in range(4)]
    assert answers(prepare_study(study(tmp_path, teacher, lines(*rows)))).tolist() == [
        [-1.0, 0.0], [-1.0, 2.5], [-1.0, 5.0], [-1.0, 7.5]]
    nested = [{"id": i, "logits": {"pos": 2.5 * i, "neg": -1}} for i in range(4)]
    assert answers(prepare_study(study(tmp_path / "nested", teacher, lines(*nested)))).tolist()[3] == [-1.0, 7.5]


def test_certain_answers_stay_finite(tmp_path: Path, teacher: Path) -> None:
    """One-hot answers of a large language model: softmax gives them back, and no logit is infinite."""
    rows = [{"id": i, "probabilities": {"pos": int(i % 2), "neg": 1 - i % 2}} for i in range(4)]
    logits = answers(prepare_study(study(tmp_path, teacher, lines(*rows))))
    assert logits[0].tolist() == [0.0, pytest.approx(np.log(FLOOR))]
    assert logits.softmax(dim=1)[1].tolist() == pytest.approx([0, 1], abs=2 * FLOOR)


def test_rounded_probabilities_are_divided_by_their_sum(tmp_path: Path, teacher: Path) -> None:
    rows = [{"id": i, "probability:neg": 0.33, "probability:pos": 0.66} for i in range(4)]
    logits = answers(prepare_study(study(tmp_path, teacher, lines(*rows))))
    torch.testing.assert_close(logits.exp()[:, 1], torch.full((4,), 2 / 3))


def test_scores(tmp_path: Path, teacher: Path) -> None:
    data = {"files": DATA["files"]}
    prepared = prepare_study(study(tmp_path, teacher, "id,score\n1,-7.5\n0,2\n", "data/teacher.csv", data, SCORES))
    assert answers(prepared).tolist() == [[2.0], [-7.5]]


ROWS = 60
MANY = "text,label\n" + "".join(f"the film {i} was {'good' if i % 2 else 'bad'},{'pos' if i % 2 else 'neg'}\n"
                                for i in range(ROWS))


def tell(number: int) -> dict[str, float]:
    """An answer that tells which row it is for."""
    return {"logit:neg": 0.0, "logit:pos": float(number)}


def numbers_in_texts(prepared: Prepared, split: str) -> list[float]:
    """Which raw rows a split holds."""
    return [float(text.split()[2]) for text in prepared.table(split).column("text").to_pylist()]


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("cut", [{"train_rows": 25, "seed": 3}, {"selection": "held_out", "held_out_share": 0.3},
                                 {"selection": "held_out", "train_rows": 40}, {}])
def test_ids_are_those_of_the_raw_data(tmp_path: Path, teacher: Path, with_ids: bool, cut: dict[str, Any]) -> None:
    """Whatever rows are drawn or held out, each gets its own answer; also where the raw ids are no row numbers."""
    train = MANY
    if with_ids:
        head, *rows = MANY.splitlines()
        train = f"{head},id\n" + "".join(f"{row},r{place}\n" for place, row in enumerate(rows))
    content = lines(*({"id": f"r{i}" if with_ids else i, **tell(i)} for i in reversed(range(ROWS))))
    prepared = prepare_study(study(tmp_path, teacher, content, data=DATA | cut, files={"data/train.csv": train}))
    assert answers(prepared)[:, 1].tolist() == numbers_in_texts(prepared, "train")
    if "selection" in cut:
        assert answers(prepared, "held_out")[:, 1].tolist() == numbers_in_texts(prepared, "held_out")
    if "train_rows" in cut and "selection" not in cut:
        assert len(answers(prepared)) == 25


def test_only_the_rows_that_train_need_answers(tmp_path: Path, teacher: Path) -> None:
    """A language model may be asked about the drawn rows alone; held-out rows without answers are not evaluated."""
    data = DATA | {"selection": "held_out", "train_rows": 40}
    drawn = prepare_study(make(tmp_path / "drawn", teacher, data, files={"data/train.csv": MANY}))
    wanted = [int(number) for number in numbers_in_texts(drawn, "train")]
    prepared = prepare_study(study(tmp_path / "answered", teacher, lines(*({"id": i, **tell(i)} for i in wanted)),
                                   data=data, files={"data/train.csv": MANY}))
    assert answers(prepared)[:, 1].tolist() == wanted
    assert set(found(prepared).sources) == {"train"}


def test_other_splits_have_files_of_their_own(tmp_path: Path, teacher: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    more = {"validation": "data/dev.csv", "twitter": "data/ood.csv"}
    data = DATA | {"ood": {"twitter": {"file": "data/tweets.csv"}}}
    prepared = prepare_study(study(tmp_path, teacher, lines(*GOOD), data=data, more=more, files={
        "data/dev.csv": "id,logit:pos,logit:neg\n1,1,0\n0,5,0\n", "data/tweets.csv": VALIDATION,
        "data/ood.csv": "id,logit:pos,logit:neg\n1,1,0\n0,5,0\n"}))
    assert answers(prepared, "validation").tolist() == [[0, 5], [0, 1]]
    there = found(prepared)
    assert list(there.sources) == ["train", "validation", "twitter"]
    assert there.sources["train"].holds == "probabilities"
    assert there.description == ("answers in data/teacher.jsonl (probabilities), data/dev.csv (logits), data/ood.csv "
                                 "(logits)")
    assert "mine/train: the teacher's answers are the probabilities in data/teacher.jsonl" in capsys.readouterr().out


def test_one_file_answers_splits_whose_ids_differ(tmp_path: Path, teacher: Path) -> None:
    """As those of the rated snippets do, whose splits are cut from one file."""
    files = {f"data/{name}.csv": "text,label,id\n" + "".join(f"{line},{name}{place}\n" for place, line in enumerate(
        content.splitlines()[1:])) for name, content in (("train", TRAIN), ("validation", VALIDATION))}
    ids = [f"train{i}" for i in range(4)] + [f"validation{i}" for i in range(2)]
    rows = [{"id": name, **tell(place)} for place, name in enumerate(ids)]
    prepared = prepare_study(study(tmp_path, teacher, lines(*rows), files=dict(files), more={"validation": FILE}))
    assert answers(prepared)[:, 1].tolist() == [0, 1, 2, 3]
    assert answers(prepared, "validation")[:, 1].tolist() == [4, 5]
    assert found(prepared).description == "answers in data/teacher.jsonl (logits)"


def test_rows_are_the_same_with_and_without_a_teachers_file(tmp_path: Path, teacher: Path) -> None:
    plain = prepare_study(make(tmp_path / "plain", teacher))
    filed = prepare_study(study(tmp_path / "filed", teacher, lines(*GOOD)))
    (filed.folder / "answers").rename(tmp_path / "answers")
    assert hash_folder(plain.folder) == hash_folder(filed.folder)
    assert filed.info.tokenizers["teacher"] == filed.info.tokenizers["student"]


def test_equal_answers_give_equal_bytes_and_others_others(tmp_path: Path, teacher: Path) -> None:
    one, same, other = (prepare_study(study(tmp_path / str(place), teacher, lines(*rows))) for place, rows in enumerate(
        [GOOD, GOOD, (*GOOD[:3], GOOD[3] | {"probability:neg": 0.6, "probability:pos": 0.4})]))
    assert one.fingerprint == same.fingerprint != other.fingerprint


def changed(place: int, **values: Any) -> str:
    """The good answers with one row changed; None drops a value."""
    rows = [dict(row) for row in GOOD]
    rows[place] = {name: value for name, value in (rows[place] | values).items() if value != "drop"}
    return lines(*rows)


def renamed(**names: str) -> str:
    """The good answers with other column names."""
    return lines(*({names.get(name.replace(":", "_"), name): value for name, value in row.items()} for row in GOOD))


BAD: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "a row without an answer": (lines(*GOOD[:3]), ("no answer for 1 of 4 rows of train", "ids '3'")),
    "rows without answers": (lines(GOOD[1]), ("no answer for 3 of 4 rows", "'0', '2', '3'")),
    "ids counted from 1": (lines(*(row | {"id": row["id"] + 1} for row in GOOD)),
                           ("teacher.jsonl, line 4", "id '4' is that of no row (1 such ids", "counted from 0")),
    "an id twice": (changed(3, id=1), ("line 4", "id '1' was already in line 2", "unique")),
    "an id missing": (changed(2, id="drop"), ("line 3", "id is None", "expected the id of a row")),
    "a negative id": (changed(2, id=-1), ("line 3", "id is -1")),
    "no id column": (renamed(id="number"), ("no column 'id'", "known: number")),
    "a label of none": (renamed(probability_pos="probability:positive"),
                        ("'probability:positive' is of no label", "did you mean 'pos'")),
    "a label missing": (lines(*({"id": row["id"], "probability:pos": 1.0} for row in GOOD)),
                        ("no column 'probability:neg'", "neg, pos")),
    "a label in another case": (renamed(probability_pos="probability:Pos"), ("'probability:Pos'", "mean 'pos'")),
    "columns without prefix": (renamed(probability_pos="pos", probability_neg="neg"),
                               ("no answers (columns id, neg, pos)", "'probability:neg' or 'logit:neg'")),
    "both kinds": (renamed(probability_pos="logit:pos"), ("both probabilities and logits",)),
    "a probability above 1": (changed(1, **{"probability:neg": 1.3}), ("line 2", "probability:neg 1.3", "0 to 1")),
    "a negative probability": (changed(1, **{"probability:neg": -0.1}), ("line 2", "probability:neg -0.1")),
    "probabilities in percent": (changed(0, **{"probability:neg": 20, "probability:pos": 80}),
                                 ("line 1", "probability:neg 20", "0 to 1")),
    "a sum that is not 1": (changed(2, **{"probability:neg": 0.1}), ("line 3", "sum to 0.7", "expected 1")),
    "a value missing": (changed(2, **{"probability:neg": None}), ("line 3", "probability:neg is missing")),
    "a value that is text": (changed(2, **{"probability:neg": "high"}), ("line 3", "'high'")),
    "truth values": (lines(*(row | {"probability:neg": True, "probability:pos": False} for row in GOOD)),
                     ("line 1", "True", "expected a number")),
    "not a number": (changed(1, **{"probability:neg": float("nan")}), ("line 2", "nan is not finite")),
    "infinite": (lines(*({"id": i, "logit:neg": 0.0, "logit:pos": float("inf") if i == 2 else 1.0} for i in range(4))),
                 ("line 3", "logit:pos inf is not finite")),
    "beyond single precision": (lines(*({"id": i, "logit:neg": 0.0, "logit:pos": 1e39 if i == 2 else 1.0}
                                        for i in range(4))), ("line 3: 1e+39 is beyond the largest number",)),
    "a class twice": (lines(*(row | {"probabilities": {"neg": 0.5, "pos": 0.5}} for row in GOOD)),
                      ("has 'probability:neg' twice", "a column and in 'probabilities'")),
    "nothing": ("", ("teacher.jsonl is empty",)),
    "probabilities called logits": (renamed(probability_pos="logit:pos", probability_neg="logit:neg"),
                                    ("hold probabilities", "'probability:neg'")),
    "no JSON": ("id: 3\n", ("line 1 is no JSON",)),
    "no object": ("[1, 0.5]\n", ("line 1 holds list",)),
    "a label missing in a row": (lines(*({"id": i, "probabilities": {"pos": 1.0} | ({"neg": 0.0} if i else {})}
                                         for i in range(4))), ("line 1", "probability:neg is missing")),
    "another label in a row": (lines(*({"id": i, "probabilities": {"pos": 1.0, "neg": 0.0, **({} if i else {"ned": 0})}}
                                       for i in range(4))), ("'probability:ned' is of no label", "did you mean 'neg'")),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_answers_are_one_line(case: str, tmp_path: Path, teacher: Path) -> None:
    content, says = BAD[case]
    refused(study(tmp_path, teacher, content), *says)


def refused(folder: Path, *says: str) -> None:
    """Preparing exits with code 2 and one line that holds all of it."""
    outcome = kdflow("prepare", "mine", cwd=folder)
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1, outcome.err
    for words in says:
        assert words in outcome.err, f"{words!r} is not in {outcome.err!r}"
    assert not (folder / "artifacts" / "prepared" / "mine").exists()


@pytest.mark.parametrize(("data", "says"), [
    ({"teacher_files": {"train": "data/none.csv"}}, ("teacher_files.train = 'data/none.csv' does not exist",)),
    ({"teacher_files": {"train": "other/t.csv"}}, ("'other/t.csv' is not inside the study's data/",)),
    ({"teacher_files": {"train": FILE, "dev": FILE}}, ("teacher_files.dev names a split that mine does not have",
                                                       "known: train, validation")),
    ({"teacher_files": {"train": FILE, "held_out": FILE}}, ("teacher_files.held_out names a split",)),
    ({"teacher_files": {"validation": FILE}}, ("teacher_files names no file for `train`",)),
    ({"teacher_files": {"train": FILE, "validation": FILE}}, ("is named for train and validation",
                                                              "the same ids (e.g. '0')", "a file of its own")),
    ({"teacher_files": {"train": FILE, "validation": "data/3.csv"}}, ("3.csv, line 4: id '2' is that of no row",)),
])
def test_wrong_declarations_are_one_line(data: dict[str, Any], says: tuple[str, ...], tmp_path: Path,
                                         teacher: Path) -> None:
    three = "id,logit:neg,logit:pos\n0,1,2\n1,2,3\n2,1,2\n"
    files: dict[str, str | bytes] = {FILE: lines(*GOOD), "data/3.csv": three}
    refused(make(tmp_path, "files", DATA | data, files=files, pair={"student": {"source": str(teacher)}}), *says)


def test_rows_without_an_id_cannot_be_answered(tmp_path: Path, teacher: Path) -> None:
    train = "text,label,id\n" + "".join(f"{row},{'' if place == 2 else place}\n"
                                        for place, row in enumerate(TRAIN.splitlines()[1:]))
    content = lines(*(row for row in GOOD if row["id"] != 2))
    refused(study(tmp_path, teacher, content, files={"data/train.csv": train}), "1 rows of data/train.csv have no id")


def test_scores_need_a_score(tmp_path: Path, teacher: Path) -> None:
    refused(study(tmp_path, teacher, "id,scores\n0,1\n1,2\n", "data/teacher.csv", {"files": DATA["files"]}, SCORES),
            "no column 'score'", "did you mean 'scores'")


def test_a_table_without_rows_answers_nothing(tmp_path: Path, teacher: Path) -> None:
    refused(study(tmp_path, teacher, "id,probability:neg,probability:pos\n", "data/teacher.csv"), "csv has no rows",
            "one for each row of train")


@pytest.mark.slow
def test_answers_to_a_part_of_glue(tmp_path: Path, teacher: Path, shared: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """MRPC's idx has gaps: the file names rows by it, and a drawn part gets its own answers."""
    monkeypatch.setenv("KDFLOW_SOURCES", f"nyu-mll/glue={shared / 'data' / 'glue'}")
    whole = prepare_study(make(tmp_path / "whole", teacher, {"ood_sets": []}, "mrpc"), "mrpc")
    ids = whole.table("train").column("source_id").to_pylist()
    assert ids != [str(i) for i in range(len(ids))]
    content = parquet([{"idx": int(i), "logit:equivalent": float(i), "logit:not_equivalent": 0.0} for i in ids])
    data = {"train_rows": 100, "ood_sets": [], "teacher_files": {"train": "data/t.parquet"}}
    part = prepare_study(make(tmp_path / "part", "files", data, "mrpc", {"data/t.parquet": content},
                              {"student": {"source": str(teacher)}}), "mrpc")
    assert answers(part)[:, 1].tolist() == [float(i) for i in part.table("train").column("source_id").to_pylist()]
