"""GLUE files: rows, header, label strings, order, and the zip's bytes."""

import hashlib
import zipfile

import pyarrow.parquet as pq
import pytest
import torch

from kdcore.data.specs import SPECS
from kdcore.errors import UserError
from kdcore.evaluation.submission import HEADER, TASKS, assemble, filler, task_file
from tests.evaluation.synthetic import split, write_prepared

ROWS = {"CoLA": 1063, "SST-2": 1821, "MRPC": 1725, "STS-B": 1379, "MNLI-m": 9796, "MNLI-mm": 9847, "QNLI": 5463,
        "QQP": 390965, "RTE": 3000, "WNLI": 146, "AX": 1104}


def one_hot(classes, count):
    return torch.nn.functional.one_hot(torch.tensor(classes), count).float()


def prepared_test(tmp_path, name, labels, rows, metrics=("accuracy",), **more):
    return write_prepared(tmp_path / name, labels, metrics, (split("test", "test", rows, labels, hidden=True),), **more)


def test_all_eleven_files_with_their_official_rows():
    assert {task.name.removesuffix(".tsv"): task.rows for task in TASKS.values()} == ROWS


@pytest.mark.parametrize("key", TASKS, ids="/".join)
def test_tables_agree_with_the_datasets_declared(key):
    """Rows and label names of every file are those of the dataset's specification."""
    name, split_name = key
    if name == "ax":
        pytest.skip("the diagnostic set is no dataset of its own")
    spec, task = SPECS[name], TASKS[key]
    assert task.rows == next(s.official_rows for s in spec.splits if s.name == split_name)
    assert (set(task.written) if task.written else None) == (set(spec.labels) if spec.labels else None)


@pytest.mark.parametrize(("folder", "key"), [
    (name, (name, "test")) for name in ("cola", "sst2", "mrpc", "stsb", "rte", "wnli", "qnli")])
def test_row_counts_equal_those_of_the_real_test_files(shared, folder, key):
    table = pq.read_table(shared / "data" / "glue" / folder / "test-00000-of-00001.parquet")
    assert table.num_rows == TASKS[key].rows
    assert table.column("idx").to_pylist() == list(range(table.num_rows))


def test_majorities_that_fill_are_those_of_the_real_development_sets(shared):
    for name, column in (("cola", 1), ("sst2", 1), ("mrpc", 1), ("wnli", 0), ("qnli", 1), ("rte", 0), ("qqp", 0)):
        labels = pq.read_table(shared / "data" / "glue" / name / "validation-00000-of-00001.parquet").column("label")
        assert max(set(labels.to_pylist()), key=labels.to_pylist().count) == column
        task = TASKS[name, "test"]
        assert task.filler == task.written[SPECS[name].labels[column]]
    scores = pq.read_table(shared / "data" / "glue" / "stsb" / "train-00000-of-00001.parquet").column("label")
    assert TASKS["stsb", "test"].filler == f"{scores.to_numpy().mean():.3f}"


def test_names_not_ids_are_written(tmp_path):
    """RTE's class 0 is entailment; WNLI's class 0 is not_entailment and is written 0."""
    answers = [0, 1] * 1500
    rte = prepared_test(tmp_path, "rte", ("entailment", "not_entailment"), 3000)
    assert task_file(rte, "test", one_hot(answers, 2)).startswith(HEADER + "0\tentailment\n1\tnot_entailment\n")
    wnli = prepared_test(tmp_path, "wnli", ("not_entailment", "entailment"), 146)
    assert task_file(wnli, "test", one_hot(answers[:146], 2)).startswith(HEADER + "0\t0\n1\t1\n")


def test_another_class_order_writes_the_same_file(tmp_path):
    plain = prepared_test(tmp_path, "rte", ("entailment", "not_entailment"), 3000)
    turned = prepared_test(tmp_path / "turned", "rte", ("not_entailment", "entailment"), 3000)
    answers = torch.randint(2, (3000,), generator=torch.Generator().manual_seed(0))
    assert task_file(plain, "test", one_hot(answers.tolist(), 2)) == task_file(
        turned, "test", one_hot((1 - answers).tolist(), 2))


def test_round_trip_from_ids_to_names_and_back(tmp_path):
    labels = ("entailment", "not_entailment")
    rte = prepared_test(tmp_path, "rte", labels, 3000)
    answers = torch.randint(2, (3000,), generator=torch.Generator().manual_seed(1)).tolist()
    lines = task_file(rte, "test", one_hot(answers, 2)).splitlines()[1:]
    assert [labels.index(line.split("\t")[1]) for line in lines] == answers


def test_scores_are_clipped_and_have_three_decimals(tmp_path):
    stsb = prepared_test(tmp_path, "stsb", None, 1379, ("pearson", "spearman"))
    logits = torch.full((1379, 1), 2.5)
    logits[:4, 0] = torch.tensor([-0.3, 5.7, 1.23456, 4.9996])
    lines = task_file(stsb, "test", logits).splitlines()[1:6]
    assert lines == ["0\t0.000", "1\t5.000", "2\t1.235", "3\t5.000", "4\t2.500"]


def test_line_ends_and_last_line(tmp_path):
    wnli = prepared_test(tmp_path, "wnli", ("not_entailment", "entailment"), 146)
    content = task_file(wnli, "test", one_hot([0] * 146, 2))
    assert content.count("\n") == 147
    assert content.endswith("145\t0\n")
    assert "\r" not in content


def test_a_part_of_the_test_set_is_refused(tmp_path):
    rte = prepared_test(tmp_path, "rte", ("entailment", "not_entailment"), 64)
    with pytest.raises(UserError, match=r"RTE.tsv needs all 3000 test rows of rte, got 64; remove eval_rows"):
        task_file(rte, "test", one_hot([0] * 64, 2))


def test_another_order_is_refused(tmp_path):
    ids = [str(i) for i in range(146)]
    ids[3], ids[4] = ids[4], ids[3]
    wnli = prepared_test(tmp_path, "wnli", ("not_entailment", "entailment"), 146, source_ids={"test": ids})
    with pytest.raises(UserError, match="row 3 has id 4; sort the split"):
        task_file(wnli, "test", one_hot([0] * 146, 2))


def test_other_labels_are_refused(tmp_path):
    wnli = prepared_test(tmp_path, "wnli", ("no", "yes"), 146)
    with pytest.raises(UserError, match="takes the labels not_entailment, entailment, but wnli has no, yes"):
        task_file(wnli, "test", one_hot([0] * 146, 2))


def test_a_score_where_classes_belong_is_refused(tmp_path):
    wnli = prepared_test(tmp_path, "wnli", None, 146, ("pearson",))
    with pytest.raises(UserError, match="different kinds"):
        task_file(wnli, "test", torch.ones(146, 1))


def test_a_split_without_a_place_is_refused(tmp_path):
    toy = write_prepared(tmp_path / "toy")
    with pytest.raises(UserError, match="toy/validation has no place in a GLUE submission"):
        task_file(toy, "validation", torch.ones(30, 2))


class TestZip:
    """Of all eleven files."""

    @pytest.fixture
    def files(self):
        return {"WNLI.tsv": HEADER + "".join(f"{i}\t1\n" for i in range(146))}

    def test_missing_files_are_filled_and_listed(self, files, tmp_path):
        filled = assemble(files, tmp_path / "all.zip")
        assert len(filled) == 10
        assert "WNLI.tsv" not in filled
        with zipfile.ZipFile(tmp_path / "all.zip") as archive:
            assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in ROWS)
            for name, rows in ROWS.items():
                content = archive.read(f"{name}.tsv").decode()
                assert content.startswith("index\tprediction\n")
                assert content.count("\n") == rows + 1
            assert archive.read("WNLI.tsv").decode() == files["WNLI.tsv"]
            assert archive.read("STS-B.tsv").decode().splitlines()[1] == "0\t2.701"

    def test_equal_contents_give_equal_bytes(self, files, tmp_path):
        assemble(files, tmp_path / "a.zip")
        assemble(files, tmp_path / "b.zip")
        digests = {hashlib.sha256((tmp_path / f"{name}.zip").read_bytes()).hexdigest() for name in "ab"}
        assert len(digests) == 1
        with zipfile.ZipFile(tmp_path / "a.zip") as archive:
            assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}

    def test_nothing_is_filled_when_all_are_there(self, tmp_path):
        assert assemble({task.name: filler(task) for task in TASKS.values()}, tmp_path / "all.zip") == ()

    def test_an_unknown_file_is_refused(self, tmp_path):
        with pytest.raises(UserError, match=r"SNLI.tsv is no file of a GLUE submission"):
            assemble({"SNLI.tsv": HEADER}, tmp_path / "all.zip")

    def test_another_number_of_rows_is_refused(self, tmp_path):
        with pytest.raises(UserError, match=r"WNLI.tsv has 1 rows, the submission needs 146"):
            assemble({"WNLI.tsv": HEADER + "0\t1\n"}, tmp_path / "all.zip")
