"""`kdflow export`: from a finished student to a folder that needs neither PyTorch nor transformers."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kdcore import registry
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.layout import ROOT, Layout
from kdcore.lineage import hash_folder
from kdcore.models.loading import load_finetuned
from kdcore.portable import parity, timing
from kdcore.stages import export as stage
from tests import trained_study as toy
from tests.mlflow_store import Store
from tests.tiny import tiny_prepared

pytest_plugins = ("tests.mlflow_store",)
FILES = {"model.onnx", "model-int8.onnx", "tokenizer.json", "config.json", "training.json", "export.json", "README.md"}


def finished(layout: Layout, labels: tuple[str, ...] | None = toy.LABELS) -> Prepared:
    """A study with students of BERT and data of pairs."""
    prepared = tiny_prepared(layout.prepared("toy"), labels=labels, pair=True)
    toy.write_study(layout, about=prepared.info, quality={"validation": 0.8})
    return prepared


def test_a_student_becomes_a_folder_that_stands_alone(store: Store, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    """Checked, timed, and used by the snippet of the documentation. Inside the study, as the command line does it."""
    prepared = finished(store.layout)
    monkeypatch.chdir(store.study)
    folder = stage.run(toy.settings(), Layout(Path()), "toy", "rail_kd_l", tolerance=100)
    assert folder == Path("artifacts/export/toy/rail_kd_l/seed-2"), "the method's best seed"
    assert {path.name for path in folder.iterdir()} == FILES
    record = json.loads((folder / "export.json").read_text())
    student = store.layout.student("toy", "rail_kd_l") / "seed-2"
    assert record["lineage"]["checkpoint"] == hash_folder(student)
    assert record["lineage"]["dvc.prepared"] == hash_folder(prepared.folder)
    assert record["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    forms = record["parity"]["forms"]
    assert list(forms) == ["int8", "onnx", "pytorch"]
    assert (forms["onnx"]["same"], forms["onnx"]["lost"]) == (1.0, 0.0)
    assert forms["onnx"]["difference"] < 1e-4 < forms["int8"]["difference"]
    for batch in ("batch_1", "batch_32"):
        assert all(0 < times["p50_ms"] <= times["p95_ms"] for times in record["latency"][batch].values())
    assert record["bytes"]["int8"] < record["bytes"]["onnx"]
    assert "Make it again" in (folder / "README.md").read_text()
    assert "same answer" in capsys.readouterr().out

    snippet = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), re.DOTALL)
    assert snippet is not None
    text = snippet[1].replace("artifacts/export/movies/rail_kd_l/seed-1", str(folder))
    code = "import sys\nfor name in ('torch', 'transformers', 'kdcore'):\n    sys.modules[name] = None\n" + text
    code += "\nprint(label, *answer('the film was good', 'a film'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    label, *probabilities = done.stdout.split()[-3:]
    assert label in toy.LABELS
    model = load_finetuned(student, toy.LABELS)
    from transformers import AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(student)("the film was good", "a film", return_tensors="pt")
    with torch.inference_mode():
        wanted = torch.softmax(model(**inputs).logits[0], dim=0)
    assert np.abs(np.array(probabilities, float) - wanted.numpy()).max() < 1e-4


@pytest.mark.slow
def test_a_registered_student_is_fetched_and_exported(store: Store) -> None:
    finished(store.layout)
    registered = registry.register(toy.settings(), store.layout, "toy", "rail_kd_l", 1)
    folder = stage.run_registered(store.layout, f"{registered.name}@champion", int8=False, folder=store.root / "out")
    assert {path.name for path in folder.iterdir()} == FILES - {"model-int8.onnx"}
    lineage = json.loads((folder / "export.json").read_text())["lineage"]
    assert (lineage["model"], lineage["version"], lineage["method"]) == (registered.name, "1", "rail_kd_l")
    other = Layout(store.root / "studies" / "other")
    with pytest.raises(UserError, match=r"came from the study 'tiny', not 'other'.*--study studies/tiny"):
        stage.run_registered(other, registered.name)
    shutil.rmtree(store.layout.prepared("toy"))
    tiny_prepared(store.layout.prepared("toy"), labels=toy.LABELS, pair=True, seed=5)
    with pytest.raises(UserError, match=r"is not what .* version 1 was trained on"):
        stage.run_registered(store.layout, registered.name)


def test_what_cannot_be_exported_is_refused(store: Store) -> None:
    finished(store.layout)
    with pytest.raises(UserError, match="has no student of seed 7"):
        stage.run(toy.settings(), store.layout, "toy", "rail_kd_l", 7)
    with pytest.raises(UserError, match="holds something other than an export"):
        stage.run(toy.settings(), store.layout, "toy", "rail_kd_l", 1, folder=store.study / "artifacts")


def record(relative: float = 0.0, lost: float = 0.0) -> dict:
    form = {"relative": 0.0, "difference": relative, "lost": 0.0}
    return {"parity": {"split": "validation", "forms": {"onnx": form | {"relative": relative},
                                                        "int8": form | {"lost": lost}}}}


@pytest.mark.parametrize(("given", "words"), [
    (record(relative=0.02), "the ONNX form is not the student: logits on validation differ by up to 0.02"),
    (record(relative=float("nan")), "the ONNX form is not the student: logits on validation differ by up to nan"),
    (record(lost=1.01), r"the int8 form loses 1.01 points on validation, more than the tolerated 1; nothing was")])
def test_a_form_that_answers_otherwise_is_refused(given: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        stage._check_parity(given, 1.0)
    stage._check_parity(record(relative=0.0005, lost=0.99), 1.0)
    stage._check_parity(record(lost=-3.0), 1.0)


def test_parity_compares_answers_and_metrics(tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path, rows=38)
    labels = prepared.labels("validation")
    right = torch.nn.functional.one_hot(labels).float() * 4
    other = right.clone()
    other[:2] = other[:2].flip(1)
    found = parity.compare({"pytorch": right, "int8": other}, "pytorch", prepared, "validation")
    assert found["pytorch"] == parity.Parity(found["pytorch"].metrics, 0.0, 0.0, 0.0, 1.0)
    assert found["int8"].difference == 4.0
    assert found["int8"].relative == 1.0
    assert found["int8"].same == pytest.approx(1 - 2 / len(labels))
    assert found["int8"].lost == pytest.approx(100 * 2 / len(labels))


def test_a_regression_has_scores_and_no_share_of_same_answers(tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path, labels=None)
    scores = prepared.labels("validation")[:, None]
    found = parity.compare({"pytorch": scores, "int8": scores * 2}, "pytorch", prepared, "validation")
    assert found["int8"].same is None
    assert found["int8"].lost == pytest.approx(0.0, abs=1e-6)


def test_another_tokenizer_than_the_preparations_is_noticed(tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path)
    tokens = {name: values.numpy() for name, values in prepared.tokens("validation", "student").pad(
        torch.tensor([3, 5])).items()}
    tokens["input_ids"] = tokens["input_ids"] + 1
    with pytest.raises(UserError, match=r"gives other input_ids than the preparation of x, in a batch with row 3"):
        parity._check_tokens(tokens, prepared.tokens("validation", "student").pad(torch.tensor([3, 5])), [3, 5], "x")


def test_forms_take_turns_on_the_same_batches(tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path)
    calls: list[tuple[str, tuple[int, ...], int]] = []

    def form(name: str):
        return lambda inputs: calls.append((name, inputs["input_ids"].shape, int(inputs["input_ids"].sum())))

    measured = timing.latency({"a": form("a"), "b": form("b")}, prepared, "validation")
    assert measured["batch_1"]["a"]["batches"] == 100
    assert measured["batch_32"]["b"]["batches"] == 30
    seen = {name: sorted(call[1:] for call in calls if call[0] == name) for name in ("a", "b")}
    assert seen["a"] == seen["b"]
    turns = [name for place, (name, *_) in enumerate(calls) if place == 0 or calls[place - 1][0] != name]
    assert len(turns) > 15
