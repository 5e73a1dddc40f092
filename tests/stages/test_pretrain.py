"""Stages `teacher`, `pretrain` and `report` of a general study: what comes out, chains, interruptions, refusals."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from kdcore import general_config, general_students, scratch, strict
from kdcore.errors import UserError
from kdcore.general_config import GeneralStudy
from kdcore.layout import Layout
from kdcore.models.files import weights_fingerprint
from kdcore.models.loading import dims, load_described, load_encoder
from kdcore.stages import general_report, general_teacher, pretrain
from tests.mlflow_store import Store
from tests.stages.small_general_study import TRAINING, general_study, student, with_corpus

pytest_plugins = ("tests.mlflow_store",)

ROOT = Path(__file__).resolve().parents[2]
STUDENTS = {
    "small": student("minilm"),
    "assistant": student("minilm", model={"width": 16}),
    "smaller": student("minilm", "assistant", {"depth": 2}, training={"steps": 3}),
    "words": student("mlm_kd"),
    "taken": student("tinybert", model={"layers": "even", "depth": 2}, options={"masked": True}),
}


def files(folder: Path) -> dict[str, str]:
    """Hash of every file below a folder, by name."""
    return {str(path.relative_to(folder)): scratch.hash_files([path], folder) for path in sorted(folder.rglob("*"))
            if path.is_file()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[GeneralStudy, Layout]:
    """A study with all its students."""
    study, layout = general_study(tmp_path_factory.mktemp("general"), students=STUDENTS)
    with_corpus(study, layout)
    for name in STUDENTS:
        pretrain.run(study, layout, name)
    return study, layout


def record(layout: Layout, name: str) -> dict[str, Any]:
    return json.loads((layout.general_student(name) / "training.json").read_text(encoding="utf-8"))


def test_the_teacher_is_copied_as_it_is(done: tuple[GeneralStudy, Layout]) -> None:
    _, layout = done
    assert files(layout.general_teacher) == files(layout.study / "pretrained")


def test_students_are_plain_encoders(done: tuple[GeneralStudy, Layout]) -> None:
    _, layout = done
    for name in STUDENTS:
        folder = layout.general_student(name)
        auto = AutoModelForMaskedLM if name == "words" else AutoModel
        _, found = auto.from_pretrained(folder, output_loading_info=True)
        assert not found["missing_keys"]
        assert not found["unexpected_keys"]
        AutoTokenizer.from_pretrained(folder)
        assert not list(layout.scratch.glob(f"pretrain-{name}*"))
    assert dims(load_encoder(str(layout.general_student("assistant")))).width == 16


def test_the_record_says_how_it_came_about(done: tuple[GeneralStudy, Layout]) -> None:
    _, layout = done
    small, smaller, words = (record(layout, name) for name in ("small", "smaller", "words"))
    assert small["init"] == "2 random bert layers of width 32, 4 heads (seed 0)"
    assert small["method"]["name"] == "minilm"
    assert small["teacher"] == weights_fingerprint(layout.general_teacher)
    assert small["assistants"] == []
    assert "masking" not in small
    assert words["masking"]["mask_share"] == 0.15
    assert smaller["assistants"] == ["assistant"]
    assert smaller["teacher"] == weights_fingerprint(layout.general_student("assistant"))
    assert small["corpus"]["fingerprint"] == words["corpus"]["fingerprint"]
    assert [point["step"] for point in small["curve"]] == [1, 2, 3, 4, 5, 6]
    assert record(layout, "smaller")["curve"][-1]["step"] == 3
    assert small["tokens"] > 0
    assert record(layout, "taken")["init"] == "layers 2, 4 of the teacher (4 layers)"
    assert record(layout, "taken")["method"]["masked"]
    assert "masking" in record(layout, "taken")
    measured = json.loads((layout.measured / "pretrain@small.json").read_text(encoding="utf-8"))
    assert measured["tokens"] == small["tokens"]
    assert str(layout.study) not in (layout.general_student("small") / "training.json").read_text(encoding="utf-8")


def test_a_general_student_becomes_a_classifier(done: tuple[GeneralStudy, Layout]) -> None:
    _, layout = done
    for name in ("small", "words"):
        folder = layout.general_student(name)
        model, _ = load_described(str(folder), weights_fingerprint(folder), ("no", "yes"), seed=0)
        own = load_encoder(str(folder)).state_dict()
        kept = {key: value for key, value in model.base_model.state_dict().items() if not key.startswith("pooler")}
        assert all(torch.equal(value, own[key]) for key, value in kept.items())


def test_pretrain_says_how_to_use_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, layout = general_study(tmp_path)
    with_corpus(study, layout)
    pretrain.run(study, layout, "small")
    folder = layout.general_student("small")
    said = f"student: {{source: {folder}, revision: {weights_fingerprint(folder)}}}"
    assert said in capsys.readouterr().out


def test_mlflow_has_a_run_per_student_with_the_curve_of_every_term(store: Store) -> None:
    study, layout = general_study(store.study, training=TRAINING | {"steps": 3})
    with_corpus(study, layout)
    (store.study / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  corpus:\n    cmd: x\n    outs: [{path: artifacts/corpus, md5: abc.dir}]\n")
    pretrain.run(study, layout, "small")
    (run,) = store.runs()
    assert (run.info.run_name, run.info.status) == ("pretrain small minilm seed 0", "FINISHED")
    tags = run.data.tags
    assert tags["mlflow.source.name"] == "kdflow pretrain small"
    assert tags["kdflow.student"] == "small"
    assert tags["dvc.corpus"] == "abc.dir"
    assert tags["kdflow.general.teacher"] == weights_fingerprint(layout.general_teacher)
    assert {"loss", "loss/attention", "loss/value_relation", "learning_rate"} <= run.data.metrics.keys()
    assert run.data.params["training.steps"] == "3"


def test_equal_inputs_give_equal_bytes(done: tuple[GeneralStudy, Layout]) -> None:
    study, layout = done
    before = files(layout.general_student("words"))
    pretrain.run(study, layout, "words")
    assert files(layout.general_student("words")) == before


def test_report(done: tuple[GeneralStudy, Layout], capsys: pytest.CaptureFixture[str]) -> None:
    study, layout = done
    general_report.run(study, layout)
    first = files(layout.report)
    assert set(first) == {"report.md", "students.csv", "curves.csv", "curves.png"}
    general_report.run(study, layout)
    assert files(layout.report) == first
    assert "smaller" in capsys.readouterr().out
    with (layout.report / "students.csv").open(encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows["smaller"]["teacher"] == "assistant"
    assert int(rows["small"]["parameters"]) == sum(
        p.numel() for p in load_encoder(str(layout.general_student("small"))).parameters())
    with (layout.report / "curves.csv").open(encoding="utf-8") as file:
        points = [row for row in csv.DictReader(file) if row["student"] == "small"]
    assert {row["term"] for row in points} == set(record(layout, "small")["history"][0]["parts"])
    text = (layout.report / "report.md").read_text(encoding="utf-8")
    assert "![losses of each student](curves.png)" in text
    assert "- words: 2 random bert layers" in text


def test_a_missing_student_is_named(tmp_path: Path) -> None:
    study, layout = general_study(tmp_path)
    with pytest.raises(UserError, match="run `kdflow pretrain small` first"):
        general_report.run(study, layout)


def test_what_lacks(tmp_path: Path) -> None:
    study, layout = general_study(tmp_path, students={"a": student("minilm"), "b": student("minilm", "a")})
    with pytest.raises(UserError, match="run `kdflow general-teacher` first"):
        pretrain.run(study, layout, "a")
    general_teacher.run(study, layout)
    with pytest.raises(UserError, match="run `kdflow corpus` first"):
        pretrain.run(study, layout, "a")
    with pytest.raises(UserError, match="run `kdflow pretrain a` first"):
        pretrain.run(study, layout, "b")
    with pytest.raises(UserError, match="student 'c' is not declared"):
        pretrain.run(study, layout, "c")


class TestChecksBeforeTraining:
    """By configurations alone."""

    @staticmethod
    def check(tmp_path: Path, head: bool = True, **students: dict[str, Any]) -> list[str]:
        study, layout = general_study(tmp_path, head, students=students)
        general_teacher.run(study, layout)
        return general_students.check(study, layout.general_teacher)

    def test_embeddings_that_are_frozen_should_be_the_teachers(self, tmp_path: Path) -> None:
        progressive = {"options": {"schedule": "progressive"}}
        (warning,) = self.check(tmp_path, deep=student("mobilebert", model={"depth": 4}, **progressive),
                                taught=student("mobilebert", model={"depth": 4, "embeddings": True}, **progressive),
                                joint=student("mobilebert", model={"depth": 4}, options={"schedule": "joint"}))
        assert warning.startswith("students.deep: its method freezes the embeddings")
        assert "`model: {embeddings: true}`" in warning

    def test_minilm_recommends_an_assistant(self, tmp_path: Path) -> None:
        """Half the layers and half the width: with an assistant that is explicit, nothing is said."""
        tiny = {"depth": 2, "width": 16}
        (warning,) = self.check(tmp_path, tiny=student("minilm", model=tiny))
        assert warning == ("students.tiny: 2 layers of width 16 are at most half of the teacher's 4 x 32 in both, "
                           "where MiniLM puts an assistant between them; add a student with `model: {width: 16}` of "
                           "that teacher and name it as this one's `teacher`")
        assert not self.check(tmp_path, assistant=student("minilm", model={"width": 16}),
                              tiny=student("minilm", "assistant", tiny))
        assert not self.check(tmp_path, tiny=student("mlm_kd", model=tiny), half=student("minilm", model={"depth": 2}))

    def test_a_teacher_without_a_language_model(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"no masked-language-model head.* by the method `mlm` of a general study"):
            self.check(tmp_path, head=False, words=student("mlm_kd"))
        assert not self.check(tmp_path, head=False, base=student("mlm", model={"layers": "first", "depth": 4}),
                              words=student("mlm_kd", "base"))

    def test_an_assistant_without_a_language_model(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"students.b: mlm_kd reads .* teacher a, whose method minilm trains"):
            self.check(tmp_path, a=student("minilm"), b=student("mlm_kd", "a"))

    def test_sizes_that_do_not_fit(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"methods.minilm: .*heads"):
            self.check(tmp_path, a=student("minilm", model={"depth": 2, "heads": 2}))
        with pytest.raises(UserError, match=r"students.a.model: a width of 30 cannot be cut into 4 heads"):
            self.check(tmp_path, a=student("minilm", model={"width": 30}))


def test_a_student_of_an_encoder_without_head_learns_words(tmp_path: Path) -> None:
    """Which is how `mlm_kd` gets a teacher from an embedding model."""
    study, layout = general_study(tmp_path, head=False, students={
        "base": student("mlm", model={"layers": "first", "depth": 4}), "words": student("mlm_kd", "base")})
    with_corpus(study, layout)
    pretrain.run(study, layout, "base")
    pretrain.run(study, layout, "words")
    assert record(layout, "words")["assistants"] == ["base"]


RUN = """
import json, sys
from pathlib import Path
from kdcore import general_config, strict
from kdcore.layout import Layout
from kdcore.stages import pretrain
from kdcore.training import trainer
trainer.SAVE_SECONDS, trainer.SAVING_SHARE = 0.0, 1e9
study = strict.parse(general_config.GeneralStudy, json.loads(sys.argv[1]), "params.yaml")
pretrain.run(study, Layout(Path(sys.argv[2])), "words")
"""


@pytest.mark.slow
def test_killed_at_any_step_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """kill -9 of a real process, twice, at steps that nobody chose."""
    study, layout = general_study(tmp_path, students={"words": student("distilbert")},
                                  training=TRAINING | {"steps": 40})
    with_corpus(study, layout)
    pretrain.run(study, layout, "words")
    straight = files(layout.general_student("words"))
    (layout.general_student("words") / "training.json").unlink()
    settings = json.dumps(study.model_dump(mode="json", exclude_unset=True))
    command = [sys.executable, "-c", RUN, settings, str(layout.study)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    seen: list[int] = []
    for _ in range(2):
        said = (tmp_path / "said.txt").open("w+", encoding="utf-8")
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)
        while process.poll() is None:
            found = [int(path.name.removeprefix("checkpoint-")) for path in layout.scratch.rglob("checkpoint-*")]
            if found and max(found) >= max(seen, default=0) + 5:
                process.send_signal(signal.SIGKILL)
                process.wait()
                seen.append(max(found))
                break
            time.sleep(0.02)
        else:
            said.seek(0)
            raise AssertionError(f"it ended with {process.returncode} before it was killed: {said.read()}")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "resumes after step" in done.stderr
    assert files(layout.general_student("words")) == straight


@pytest.mark.parametrize(("section", "value", "message"), [
    ("students", {"a": student("minilm", "b")}, r"students.a.teacher = 'b' is neither `teacher` nor a student"),
    ("students", {"a": student("minlm")}, r"students.a.method = 'minlm' has no entry .* did you mean 'minilm'"),
    ("students", {"a": student("minilm", "b"), "b": student("minilm", "a")}, "students teach each other in a circle"),
    ("students", {"teacher": student("minilm")}, "students.teacher is no name for a student"),
    ("students", {"a": student("minilm", training={"patience": 2})}, "students.a stops early"),
    ("students", {"a": student("minilm", training={"epoch": 2})}, r"students.a.training: unknown key `epoch`"),
    ("students", {"a": student("minilm", model={"layers": "even"})}, "`layers: even` needs `depth`"),
    ("students", {"a": student("minilm", model={"layers": [1, 2], "width": 16})}, "`layers` of the teacher have its"),
    ("training", {"teacher_precison": "fp32"}, "unknown key `training.teacher_precison`; did you mean 'teacher_pre"),
])
def test_mistakes_in_params(tmp_path: Path, section: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        general_study(tmp_path, **{section: value})


def test_other_studies_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("code: .\nstudy: {}\n", encoding="utf-8")
    with pytest.raises(UserError, match="is no general study: it has no section `corpus`"):
        general_config.load(tmp_path / "params.yaml")
    assert strict.read_yaml(tmp_path / "params.yaml")["code"] == "."
