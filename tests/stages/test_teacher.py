"""The teacher stage: trains, refuses a teacher that is worth nothing, and loses no work over it (A26, A27)."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from kdcore import config
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.lineage import record_key
from kdcore.stages import teacher
from tests.stages.small_study import small_study
from tests.training import problem

STRICT = {"gate": {"allow_weak": False}}
HOPELESS = {"training": {"teacher": {"epochs": 0.1, "learning_rate": 1e-12, "precision": "fp32"}, "student": {}}}


def test_a_good_teacher_is_published(tmp_path: Path) -> None:
    """With a head that a few epochs cannot miss: friendly words decide the label."""
    training = {"epochs": 12, "batch_size": 16, "learning_rate": 3e-3, "precision": "fp32"}
    study, layout = small_study(tmp_path, rows=300, training={"teacher": training, "student": training}, **STRICT)
    teacher.run(study, layout, "toy")
    folder = layout.teacher("toy")
    record = json.loads((folder / "training.json").read_text())
    assert record["check"]["teacher"] > record["check"]["constant"]
    assert record["selected"]["score"] == max(entry["development"]["score"] for entry in record["history"])
    assert len(record["history"]) == 12
    assert record["init"].endswith("new head (seed 0)")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.id2label == {0: "negative", 1: "positive"}
    words = AutoTokenizer.from_pretrained(folder)(["a good film", "a dull film"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert model(**words).logits.argmax(dim=1).tolist() == [1, 0]
    measured = json.loads((layout.measured / "teacher@toy.json").read_text())["teacher"]
    assert measured["train_seconds"] > 0
    assert measured["of"] == record_key(json.loads((layout.teacher("toy") / "training.json").read_text()))
    assert len(measured["epoch_seconds"]) == 12
    assert not (layout.scratch / "teacher-toy").exists()
    assert (layout.logs / "teacher@toy.jsonl").is_file()


def test_a_weak_teacher_is_kept_but_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    study, layout = small_study(tmp_path, **HOPELESS, **STRICT)
    message = (r"teacher of toy scores 0\.\d+ \(accuracy\) on validation, no better than always answering \w+ "
               r"\(0\.5250\).*gate.allow_weak: true")
    with pytest.raises(UserError, match=message) as error:
        teacher.run(study, layout, "toy")
    assert "\n" not in str(error.value)
    assert not layout.teacher("toy").exists()
    monkeypatch.setattr(teacher, "train", lambda *args, **more: pytest.fail("trained again"))
    allowed = study.model_copy(update={"gate": config.TeacherGate(allow_weak=True)})
    teacher.run(allowed, layout, "toy")
    assert (layout.teacher("toy") / "model.safetensors").is_file()
    assert "warning: the teacher of toy scores" in capsys.readouterr().out


def test_other_settings_train_again(tmp_path: Path) -> None:
    study, layout = small_study(tmp_path, **HOPELESS, **STRICT)
    with pytest.raises(UserError):
        teacher.run(study, layout, "toy")
    (first,) = (layout.scratch / "teacher-toy").glob("teacher-*")
    changed = study.model_copy(update={"training": study.training.model_copy(update={
        "teacher": study.training.teacher.model_copy(update={"seed": 5})})})
    with pytest.raises(UserError):
        teacher.run(changed, layout, "toy")
    assert len(list((layout.scratch / "teacher-toy").glob("teacher-*"))) == 2
    assert json.loads((first / "finished" / "training.json").read_text())["seed"] == 0


@pytest.mark.parametrize(("check", "words"), [
    ({"teacher": -0.1, "constant": 0.0, "teacher_squared_error": 1.0, "constant_squared_error": 2.0}, "-0.1000"),
    ({"teacher": 0.0, "constant": 0.0, "teacher_squared_error": 1.0, "constant_squared_error": 2.0}, "0.0000"),
    ({"teacher": 0.9, "constant": 0.0, "teacher_squared_error": 2.0, "constant_squared_error": 2.0},
     "squared error of 2.000"),
])
def test_a_regression_must_correlate_and_beat_the_mean(check: dict[str, float], words: str, scores: Prepared) -> None:
    check |= {"split": "validation", "answer": "0.45"}
    with pytest.raises(UserError, match=words):
        teacher._refuse_weak(check, scores.info, allowed=False, remedy="")


def test_a_useful_regression_passes(scores: Prepared) -> None:
    teacher._refuse_weak({"teacher": 0.2, "constant": 0.0, "teacher_squared_error": 1.0, "constant_squared_error": 1.1,
                          "split": "validation", "answer": "0.45"}, scores.info, allowed=False, remedy="")


def test_regression_end_to_end(tmp_path: Path) -> None:
    study, layout = small_study(tmp_path, regression=True)
    teacher.run(study, layout, "toy")
    check = json.loads((layout.teacher("toy") / "training.json").read_text())["check"]
    labels = Prepared.load(layout.prepared("toy")).labels("validation")
    assert check["constant_squared_error"] == pytest.approx(labels.var(correction=0).item(), rel=1e-5)
    assert check["constant"] == 0.0
    assert AutoModelForSequenceClassification.from_pretrained(layout.teacher("toy")).config.num_labels == 1


def test_unprepared(tmp_path: Path) -> None:
    study, layout = small_study(tmp_path)
    (layout.prepared("toy") / "dataset.json").unlink()
    with pytest.raises(UserError, match="run `kdflow prepare toy` first"):
        teacher.run(study, layout, "toy")


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return problem.write_prepared(tmp_path_factory.mktemp("scores"), regression=True)
