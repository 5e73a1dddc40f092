"""Sources in the hub's layout: labels by name, replaced files, absent splits, offline."""

import hashlib
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kdcore.data import hub
from kdcore.errors import UserError
from tests.data.studies import make, prepare_study

NAMES = ("entailment", "not_entailment")
TEXTS = {"sentence1": ["the film was good", "a dull plot", "it was fine"], "sentence2": ["good film", "great", "fine"]}


def rte(folder: Path, names: tuple[str, ...] = NAMES, **splits: dict[str, list[Any]]) -> Path:
    """A folder in the layout of the hub's GLUE with an RTE of few rows."""
    default = TEXTS | {"label": [0, 1, 0], "idx": [0, 1, 2]}
    splits = {"train": default, "validation": default, "test": default | {"label": [-1, -1, -1]}} | splits
    features = datasets.Features({"sentence1": datasets.Value("string"), "sentence2": datasets.Value("string"),
                                  "label": datasets.ClassLabel(names=list(names)), "idx": datasets.Value("int64")})
    (folder / "rte").mkdir(parents=True, exist_ok=True)
    readme = ["---", "configs:", "- config_name: rte", "  data_files:"]
    for split, rows in splits.items():
        if rows:
            readme += [f"  - split: {split}", f"    path: rte/{split}-*.parquet"]
            pq.write_table(datasets.Dataset.from_dict(rows, features=features).data.table,
                           folder / "rte" / f"{split}-00000.parquet")
    (folder / "README.md").write_text("\n".join([*readme, "---", ""]))
    return folder


def rte_study(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch, glue: Path, **data: Any) -> Path:
    """A study of RTE whose source lies in `glue`."""
    monkeypatch.setenv("KDFLOW_SOURCES", f"nyu-mll/glue={glue}")
    return make(tmp_path / "study", teacher, data, "rte")


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    """The library's own cache would serve the old rows."""
    folder = rte(tmp_path / "glue")
    assert hub.read(str(folder), "rte", None)["train"].table.column("sentence1")[0].as_py() == "the film was good"
    rte(folder, train={"sentence1": ["new"], "sentence2": ["row"], "label": [1], "idx": [9]})
    assert hub.read(str(folder), "rte", None)["train"].table.to_pylist() == [
        {"sentence1": "new", "sentence2": "row", "label": 1, "idx": 9}]


def test_nothing_is_written_beside_the_raw_data(tmp_path: Path, teacher: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    def state(folder: Path) -> dict[str, tuple[str, int]]:
        return {str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
                for path in folder.rglob("*") if path.is_file()}

    glue = rte(tmp_path / "glue")
    before = state(glue)
    prepare_study(rte_study(tmp_path, teacher, monkeypatch, glue), "rte")
    assert state(glue) == before


def test_labels_go_by_name_not_by_number(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that numbers its classes the other way round gives the same prepared labels."""
    plain = prepare_study(rte_study(tmp_path / "a", teacher, monkeypatch, rte(tmp_path / "plain")), "rte")
    turned = TEXTS | {"label": [1, 0, 1], "idx": [0, 1, 2]}
    folder = rte(tmp_path / "turned", names=NAMES[::-1], train=turned, validation=turned)
    other = prepare_study(rte_study(tmp_path / "b", teacher, monkeypatch, folder), "rte")
    assert plain.labels("train").tolist() == other.labels("train").tolist() == [0, 1, 0]
    assert plain.info.labels == NAMES
    assert [NAMES[label] for label in plain.labels("train")] == ["entailment", "not_entailment", "entailment"]


def test_hidden_labels_stay_hidden(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_study(rte_study(tmp_path, teacher, monkeypatch, rte(tmp_path / "glue")), "rte")
    assert prepared.info.splits["test"].hidden
    assert prepared.labels("test").tolist() == [-1, -1, -1]
    assert prepared.table("test").column("source_id").to_pylist() == ["0", "1", "2"]


def test_an_absent_test_split_is_a_warning_an_absent_validation_an_error(
        tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_study(rte_study(tmp_path / "a", teacher, monkeypatch, rte(tmp_path / "glue", test={})), "rte")
    assert "test" not in prepared.info.splits
    assert any("no split 'test'" in warning for warning in prepared.info.warnings)
    study = rte_study(tmp_path / "b", teacher, monkeypatch, rte(tmp_path / "none", validation={}))
    with pytest.raises(UserError, match="nyu-mll/glue rte has no split 'validation'"):
        prepare_study(study, "rte")


def test_fewer_rows_than_official_are_noted(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_study(rte_study(tmp_path, teacher, monkeypatch, rte(tmp_path / "glue")), "rte")
    assert prepared.info.splits["validation"].note == "subset: 3 of the official 277 rows"


def test_hub_rows_that_are_wrong_are_named(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [0, -1], "idx": [0, 1]}
    study = rte_study(tmp_path, teacher, monkeypatch, rte(tmp_path / "glue", train=train))
    with pytest.raises(UserError, match="nyu-mll/glue rte train, row 2: label is hidden"):
        prepare_study(study, "rte")


def test_duplicate_ids_of_a_source_are_named_and_negative_ones_are_absent(
        tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"sentence1": ["a", "b", "it"], "sentence2": ["c", "d", "was"], "label": [0, 1, 1]}
    study = rte_study(tmp_path / "a", teacher, monkeypatch, rte(tmp_path / "glue", train=rows | {"idx": [-1, 5, -1]}))
    assert prepare_study(study, "rte").table("train").column("source_id").to_pylist() == [None, "5", None]
    study = rte_study(tmp_path / "b", teacher, monkeypatch, rte(tmp_path / "twice", train=rows | {"idx": [5, 3, 5]}))
    with pytest.raises(UserError, match="row 3: idx '5' was already in row 1"):
        prepare_study(study, "rte")


def test_a_hub_id_is_loaded_from_the_hub_at_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the library's own cache, which keys hub data by revision."""
    asked = []

    def load(*arguments: Any, **options: Any) -> datasets.DatasetDict:
        asked.append((arguments, options))
        return datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["a"]})})

    monkeypatch.setenv("KDFLOW_SOURCES", "")
    monkeypatch.setattr(datasets, "load_dataset", load)
    raw = hub.read("nyu-mll/glue", "rte", "abc")["train"]
    assert asked == [(("nyu-mll/glue", "rte"), {"revision": "abc"})]
    assert (raw.where, raw.table.to_pylist(), raw.row(0)) == (
        "nyu-mll/glue rte train", [{"text": "a"}], "nyu-mll/glue rte train, row 1")


def test_offline_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDFLOW_SOURCES", "")
    with pytest.raises(UserError, match=r"nyu-mll/glue \(rte\).*KDFLOW_SOURCES=nyu-mll/glue=FOLDER"):
        hub.read("nyu-mll/glue", "rte", None)


@pytest.mark.parametrize("damage", ["cut", "gone", "config"])
def test_a_damaged_folder_is_named(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = rte(tmp_path / "glue")
    path = folder / "rte" / "train-00000.parquet"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "gone":
        path.unlink()
    with pytest.raises(UserError, match=r"cannot read .*glue") as caught:
        hub.read(str(folder), "wnli" if damage == "config" else "rte", None)
    assert "\n" not in str(caught.value)
    assert {"cut": "train-00000.parquet", "gone": "rte/train-*.parquet", "config": "'rte'"}[damage] in str(caught.value)
    assert not caplog.records


def test_a_missing_partner_says_how_to_go_on(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch,
                                             shared: Path) -> None:
    glue = shared / "data" / "glue"
    monkeypatch.setenv("KDFLOW_SOURCES", f"nyu-mll/glue={glue}")
    study = make(tmp_path, teacher, {"train_rows": 100, "eval_rows": 20}, "mnli")
    with pytest.raises(UserError, match=r"scitail.*datasets\.mnli\.data\.ood_sets: \[\]"):
        prepare_study(study, "mnli")


def test_a_configuration_of_another_name(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch,
                                         shared: Path) -> None:
    """SciTail keeps its own two classes, and every class of MNLI knows which of them it counts as."""
    data = shared / "data"
    monkeypatch.setenv("KDFLOW_SOURCES", f"nyu-mll/glue={data / 'glue'},allenai/scitail={data / 'ood'}#scitail")
    prepared = prepare_study(make(tmp_path, teacher, {"train_rows": 100, "eval_rows": 20}, "mnli"), "mnli")
    scitail = prepared.info.splits["scitail"]
    assert scitail.labels == ("entailment", "neutral")
    assert scitail.label_map == {"entailment": "entailment", "neutral": "neutral", "contradiction": "neutral"}
    assert scitail.note == "20 of 2,126 rows, drawn with seed 0"
    assert prepared.info.select == "validation_matched"
    assert prepared.info.splits["validation_mismatched"].role == "report"
    assert "subset: 12,920 of the official 392,702 rows" in prepared.info.splits["train"].note


def test_imdb_has_a_limit_of_its_own_and_no_breaks(tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch,
                                                   shared: Path) -> None:
    data = shared / "data"
    monkeypatch.setenv("KDFLOW_SOURCES", f"nyu-mll/glue={data / 'glue'},stanfordnlp/imdb={data / 'ood'}#imdb")
    study = make(tmp_path, teacher, {"train_rows": 100, "eval_rows": 200}, "sst2")
    prepared = prepare_study(study, "sst2")
    imdb = prepared.info.splits["imdb"]
    assert imdb.max_length == 64  # 512, bounded by the tiny teacher's positions
    assert prepared.info.splits["train"].max_length == 32
    assert prepared.tokens("imdb", "student").lengths.max() == 64
    assert not any("<br" in text for text in prepared.table("imdb").column("text").to_pylist())
    # A drawn part, since the file is sorted by label.
    assert 60 < int(prepared.labels("imdb").sum()) < 140


def test_a_table_keeps_nothing_of_the_vanished_cache(tmp_path: Path) -> None:
    raw = hub.read(str(rte(tmp_path / "glue")), "rte", None)["train"]
    assert isinstance(raw.table, pa.Table)
    assert raw.table.column("sentence2").to_pylist() == ["good film", "great", "fine"]
    assert raw.class_names == {"label": NAMES}
