"""The flow of a general study: what it runs in which order, what it says, how it ends."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows import pretrain
from kdcore import general_config, strict, study
from kdcore.layout import ROOT, Layout
from kdcore.models.files import weights_fingerprint
from tasks import plan
from tests.flows.checkout import Checkout
from tests.stages.small_general_study import TRAINING, student
from tests.tiny import tiny_texts
from tests.training.corpus_problem import save_encoder

STUDENTS = {"assistant": student("minilm", model={"width": 16}), "smaller": student("minilm", "assistant"),
            "alone": student("tinybert")}
ALL = {"teacher", "corpus", "pretrain@assistant", "pretrain@smaller", "pretrain@alone", "report"}


def make(folder: Path, code: Path, students: dict[str, Any]) -> Layout:
    """A general study of a checkout."""
    params = {
        "code": ".", "corpus": {"sources": [{"files": ["data/pages.txt"]}], "max_length": 24}, "masking": {},
        "teacher": {"source": str(save_encoder(folder.parent / f"{folder.name}-teacher"))},
        "training": TRAINING | {"steps": 3}, "students": students, "methods": {"minilm": {}, "tinybert": {}}}
    layout = study.initialise(folder, params, code=code, cache=folder.parent / "cache", git=False)
    (folder / "data" / "pages.txt").write_text(
        "\n\n".join(". ".join(tiny_texts(6, seed)) + "." for seed in range(8)), encoding="utf-8")
    return layout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Nothing done yet."""
    return make(tmp_path_factory.mktemp("fresh") / "general", ROOT, STUDENTS)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout") / "kdflow")


@pytest.fixture(scope="module")
def layout(checkout: Checkout) -> Layout:
    return make(checkout.folder / "studies" / "general", checkout.folder, STUDENTS)


def test_the_pipeline_is_the_general_one(fresh: Layout) -> None:
    assert (fresh.study / "dvc.yaml").resolve() == ROOT / "general.dvc.yaml"
    assert general_config.load(fresh.params).students.keys() == STUDENTS.keys()


def test_assistants_come_before_those_whom_they_teach(fresh: Layout) -> None:
    todo = plan.make_general(fresh.study)
    order = list(todo.stale)
    assert set(order) == ALL
    for stage, needs in todo.needs.items():
        assert all(order.index(need) < order.index(stage) for need in needs)
    assert todo.needs["pretrain@smaller"] == {"corpus", "pretrain@assistant"}
    assert todo.needs["report"] == ALL - {"report", "corpus"}


def test_a_student_is_selected_with_its_assistants(fresh: Layout) -> None:
    todo = plan.make_general(fresh.study, ["smaller"])
    assert todo.students == ("assistant", "smaller")
    assert set(todo.stale) == {"teacher", "corpus", "pretrain@assistant", "pretrain@smaller"}
    assert todo.left_out == {"report": "needs pretrain@alone, not selected"}


@pytest.mark.parametrize(("arguments", "message"), [
    (["--study", "{study}", "--students", "smaler"], "student 'smaler' is not in students of params.yaml; did you"),
    (["--study", "{study}", "--profile", "smoke"], "general has no profile 'smoke'; .* holds none"),
    (["--study", "."], r"is no general study: it has no section `corpus`"),
])
def test_mistakes_are_one_line_and_exit_code_2(fresh: Layout, capsys: pytest.CaptureFixture[str], arguments: list[str],
                                               message: str) -> None:
    assert pretrain.main([argument.replace("{study}", str(fresh.study)) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said)


def test_commands_of_studies_refuse_a_general_one(fresh: Layout) -> None:
    from kdcore import config
    from kdcore.errors import UserError

    with pytest.raises(UserError, match=r"is a general study, .* `python -m flows.pretrain`"):
        config.load(fresh.params)


def test_a_profile_of_a_general_study(tmp_path: Path) -> None:
    layout = make(tmp_path / "general", ROOT, STUDENTS)
    (layout.study / "profiles").mkdir()
    (layout.study / "profiles" / "smoke.yaml").write_text("training: {steps: 1}\n", encoding="utf-8")
    small = study.materialise(layout.study, "smoke")
    assert small.name == "general.smoke"
    assert (small / "dvc.yaml").resolve() == ROOT / "general.dvc.yaml"
    assert general_config.load(small / "params.yaml").training.steps == 1


@pytest.mark.slow
class TestARealRun:
    """With a server of its own, through DVC, in a copy of the checkout."""

    def test_a_failing_student_blocks_whom_it_teaches_and_nobody_else(self, checkout: Checkout,
                                                                      layout: Layout) -> None:
        content = strict.read_yaml(layout.params)
        good = layout.params.read_text(encoding="utf-8")
        content["students"]["assistant"]["model"] = {"width": 30}
        layout.params.write_text(json.dumps(content), encoding="utf-8")
        code, said = checkout.run("flows.pretrain", "--study", str(layout.study), "--parallel", "1", seconds=400)
        assert code == 1, said
        last = [line for line in said.splitlines() if line.startswith("pretrain: ")][-1]
        assert last.startswith("pretrain: teacher failed: students.assistant.model: a width of 30 cannot be cut into 4")
        layout.params.write_text(good, encoding="utf-8")

    @pytest.mark.timeout(600)
    def test_it_does_all_and_then_nothing(self, checkout: Checkout, layout: Layout) -> None:
        code, said = checkout.run("flows.pretrain", "--study", str(layout.study), "--parallel", "1", seconds=600)
        assert code == 0, said
        small = layout.general_student("smaller")
        assert f"smaller: {{source: {small}, revision: {weights_fingerprint(small)}}}" in said
        assert (layout.report / "report.md").is_file()
        code, said = checkout.run("flows.pretrain", "--study", str(layout.study))
        assert code == 0
        assert "nothing to do: 6 of 6 stages are current" in said
        done = subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=layout.study, text=True, capture_output=True,
                              env=checkout.environment, check=False, timeout=200)
        assert done.returncode == 0, done.stderr
        assert "Running stage" not in done.stdout

    def test_a_changed_assistant_takes_its_students_along(self, checkout: Checkout, layout: Layout) -> None:
        content = strict.read_yaml(layout.params)
        content["students"]["assistant"]["training"] = {"steps": 2}
        layout.params.write_text(json.dumps(content), encoding="utf-8")
        before = weights_fingerprint(layout.general_student("smaller"))
        shutil.rmtree(layout.general_student("alone"))  # comes back from the cache
        code, said = checkout.run("flows.pretrain", "--study", str(layout.study), "--parallel", "1", seconds=400)
        assert code == 0, said
        assert "restored from the cache: pretrain@alone" in said
        assert weights_fingerprint(layout.general_student("smaller")) != before
