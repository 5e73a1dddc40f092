"""The stage `prepare` as a whole: what it writes, equal bytes, two tokenizers, interruptions, damage."""

import hashlib
import json
from pathlib import Path

import pytest

from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.stages import prepare
from tests.data.studies import DATA, TRAIN, make, prepare_study
from tests.tiny import POSITIONS, save_tiny

LONG = TRAIN + f"{' '.join(['film'] * 100)},pos\n"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT."""
    return save_tiny(tmp_path_factory.mktemp("teacher"), "bert")


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def test_equal_bytes_wherever_and_whenever(tmp_path: Path, teacher: Path) -> None:
    """Twice in one study, once in another: the same files, and the same fingerprint."""
    first = prepare_study(make(tmp_path / "a", teacher))
    before = hashes(first.folder)
    again = prepare_study(tmp_path / "a")
    other = prepare_study(make(tmp_path / "b" / "c", teacher))
    assert before == hashes(again.folder) == hashes(other.folder)
    assert first.fingerprint == again.fingerprint == other.fingerprint
    changed = prepare_study(make(tmp_path / "d", teacher, files={"data/train.csv": TRAIN.replace("dull", "dullx")}))
    assert changed.fingerprint != first.fingerprint


def test_files_on_disk(tmp_path: Path, teacher: Path) -> None:
    prepared = prepare_study(make(tmp_path, teacher))
    fingerprint = prepared.info.tokenizers["teacher"]
    assert set(hashes(prepared.folder)) == {
        "dataset.json", "train.parquet", "validation.parquet", f"tokens-{fingerprint}/train.arrow",
        f"tokens-{fingerprint}/validation.arrow"}
    content = (prepared.folder / "dataset.json").read_text()
    assert str(tmp_path) not in content
    assert str(teacher) not in content
    assert list(json.loads(content)) == sorted(json.loads(content))
    assert prepared.table("train").to_pylist()[1] == {"id": 1, "text": "a dull plot", "label": 0}
    assert not list((tmp_path / ".kdflow" / "scratch").iterdir())


def test_token_ids_are_those_of_the_tokenizer(tmp_path: Path, teacher: Path) -> None:
    from kdcore.models.loading import load_tokenizer

    prepared = prepare_study(make(tmp_path, teacher, files={"data/train.csv": LONG}))
    tokens = prepared.tokens("train", "teacher")
    expected = load_tokenizer(str(teacher))(prepared.table("train").column("text").to_pylist(), truncation=True,
                                            max_length=32)["input_ids"]
    assert [tokens.values[a:b].tolist() for a, b in zip(tokens.offsets, tokens.offsets[1:], strict=False)] == expected
    assert tokens.lengths.max() == 32


def test_an_equal_tokenizer_elsewhere_is_stored_once(tmp_path: Path, teacher: Path) -> None:
    twin = save_tiny(tmp_path / "twin", "bert", layers=1, seed=3)
    prepared = prepare_study(make(tmp_path / "study", teacher, pair={"student": {"source": str(twin)}}))
    assert prepared.same_tokenizer
    assert len(list(prepared.folder.glob("tokens-*"))) == 1


def test_another_tokenizer_gets_its_own_files(tmp_path: Path, teacher: Path) -> None:
    student = save_tiny(tmp_path / "roberta", "roberta")
    prepared = prepare_study(make(tmp_path / "study", teacher, pair={"student": {"source": str(student)}}))
    assert not prepared.same_tokenizer
    assert len(list(prepared.folder.glob("tokens-*"))) == 2
    assert prepared.tokens("train", "student").pad_id != prepared.tokens("train", "teacher").pad_id


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "mpnet", "xlm-roberta", "electra", "modernbert"])
def test_positions_bound_the_length(tmp_path: Path, family: str) -> None:
    """As many tokens as a model takes are fine, one more is refused before any work."""
    model = save_tiny(tmp_path / "model", family)
    files: dict[str, str | bytes] = {"data/train.csv": LONG}
    prepared = prepare_study(make(tmp_path / "a", model, files=files, pair={"max_length": POSITIONS}))
    assert prepared.tokens("train", "teacher").lengths.max() == POSITIONS
    with pytest.raises(UserError, match=f"max_length {POSITIONS + 1}"):
        prepare_study(make(tmp_path / "b", model, files=files, pair={"max_length": POSITIONS + 1}))


def test_the_student_bounds_the_length_too(tmp_path: Path, teacher: Path) -> None:
    from transformers import BertConfig

    student = save_tiny(tmp_path / "student", "bert")
    config = BertConfig.from_pretrained(student)
    config.max_position_embeddings = 16
    config.save_pretrained(student)
    with pytest.raises(UserError, match=r"max_length 32 .* the student"):
        prepare_study(make(tmp_path / "study", teacher, pair={"student": {"source": str(student)}}))


@pytest.mark.parametrize("moment", ["tokenise", "assemble"])
def test_an_interruption_leaves_the_old_result_or_nothing(tmp_path: Path, teacher: Path, moment: str,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    study = make(tmp_path, teacher)
    with monkeypatch.context() as patch:
        patch.setattr(prepare, moment, interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_study(study)
    assert not Layout(study).prepared("mine").exists()
    before = hashes(prepare_study(study).folder)
    monkeypatch.setattr(prepare, moment, interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare_study(study)
    assert hashes(Layout(study).prepared("mine")) == before


def test_remains_of_a_killed_run_are_replaced(tmp_path: Path, teacher: Path) -> None:
    study = make(tmp_path, teacher)
    remains = Layout(study).scratch / "prepare-mine" / "tokens-old"
    remains.mkdir(parents=True)
    (remains / "train.arrow").write_bytes(b"half")
    assert "tokens-old" not in str(hashes(prepare_study(study).folder))


def test_raw_files_are_untouched(tmp_path: Path, teacher: Path) -> None:
    study = make(tmp_path, teacher)
    before = hashes(study / "data")
    prepare_study(study)
    assert hashes(study / "data") == before


def test_loading_what_is_not_there_or_damaged(tmp_path: Path, teacher: Path) -> None:
    with pytest.raises(UserError, match="run `kdflow prepare mine` first"):
        Prepared.load(tmp_path / "mine")
    prepared = prepare_study(make(tmp_path, teacher))
    with pytest.raises(UserError, match="no split 'validaton'; did you mean 'validation'"):
        prepared.table("validaton")
    (prepared.folder / "train.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match=r"train\.parquet is damaged"):
        prepared.labels("train")
    (prepared.folder / "train.parquet").unlink()
    with pytest.raises(UserError, match=r"train\.parquet is missing"):
        prepared.labels("train")
    for content in ("{", "[]", '{"splits": []}'):
        (prepared.folder / "dataset.json").write_text(content)
        with pytest.raises(UserError, match=r"dataset\.json cannot be read"):
            Prepared.load(prepared.folder)


def test_an_undeclared_dataset(tmp_path: Path, teacher: Path) -> None:
    with pytest.raises(UserError, match="dataset 'mein' is not declared"):
        prepare_study(make(tmp_path, teacher, DATA), "mein")
