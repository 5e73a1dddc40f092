"""The stage: says how much it will write, writes it once, resumes, and leaves times outside of its outs."""

import json
from pathlib import Path

import pytest
import torch

from kdcore import config, store_building, strict
from kdcore.errors import BusyError, UserError
from kdcore.features import LOGITS, FeatureKey
from kdcore.layout import Layout
from kdcore.scratch import claim
from kdcore.stages import features
from kdcore.store import FeatureStore
from kdcore.teacher import Teacher
from kdcore.training.precision import Precision
from tests.tiny import SENTIMENT, save_tiny, tiny_prepared

CPU = torch.device("cpu")


def settings(**stored) -> config.Study:
    return strict.parse(config.Study, {
        "code": ".", "study": {"datasets": ["toy"], "methods": ["finetune"], "seeds": [1]},
        "pair": {"teacher": {"source": "somewhere"}, "max_length": 24}, "training": {"teacher": {}, "student": {}},
        "methods": {"finetune": {}}, "datasets": {"toy": {"data": {}, "teacher": {}, "student": {}}},
        "features": {"batch_size": 8} | stored, "gate": {}, "evaluation": {}}, "params.yaml")


@pytest.fixture
def layout(tmp_path, monkeypatch) -> Layout:
    monkeypatch.setattr(features, "device", lambda: CPU)
    layout = Layout(tmp_path)
    tiny_prepared(layout.prepared("toy"))
    save_tiny(layout.teacher("toy"), layers=3, seed=1)
    return layout


def out(layout: Layout) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in layout.features("toy").iterdir()}


def test_it_stores_what_the_settings_name_and_says_how_much(layout, capsys):
    features.run(settings(), layout, "toy")
    said = capsys.readouterr().out
    assert "teacher features of toy: 40 rows x (logits 1 x 2, mean 3 x 32) in float16 = 0.0 MB" in said
    assert sorted(out(layout)) == ["logits.arrow", "manifest.json", "mean-01.arrow", "mean-02.arrow", "mean-03.arrow"]
    store = FeatureStore.open(layout.features("toy"))
    live = Teacher(layout.teacher("toy"), SENTIMENT, CPU, Precision("fp32", "cpu"))
    prepared = tiny_prepared(layout.prepared("toy"))
    rows = torch.arange(40)
    expected = live.compute(prepared.tokens("train", "teacher").pad(rows), frozenset(store.keys))
    for key, value in store.gather(rows, store.keys, CPU).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-3)


def test_two_runs_give_the_same_bytes_and_leave_no_scratch(layout):
    features.run(settings(), layout, "toy")
    first = out(layout)
    features.run(settings(), layout, "toy")
    assert out(layout) == first
    assert not list(layout.scratch.glob("features-*"))


def test_kinds_and_dtype_follow_the_settings(layout):
    features.run(settings(kinds=["cls"], dtype="bfloat16"), layout, "toy")
    store = FeatureStore.open(layout.features("toy"))
    assert store.keys == {FeatureKey("cls", layer) for layer in (1, 2, 3)}
    assert store.manifest.dtype == "bfloat16"


def test_times_lie_with_the_measurements(layout):
    features.run(settings(), layout, "toy")
    measured = json.loads((layout.measured / "features@toy.json").read_text())
    assert measured["rows"] == 40
    assert measured["bytes"] == 40 * (2 + 3 * 32) * 2
    assert measured["seconds"] > 0


def test_an_interrupted_run_goes_on(layout, monkeypatch):
    monkeypatch.setattr(store_building, "SECONDS_BETWEEN_NOTES", 0.0)
    features.run(settings(), layout, "toy")
    whole = out(layout)
    compute, calls = Teacher.compute, []

    def stops_at_the_fourth(self, inputs, keys):
        calls.append(len(inputs["input_ids"]))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return compute(self, inputs, keys)

    monkeypatch.setattr(Teacher, "compute", stops_at_the_fourth)
    for path in layout.features("toy").iterdir():
        path.unlink()
    with pytest.raises(KeyboardInterrupt):
        features.run(settings(), layout, "toy")
    calls[:] = [0] * 10
    features.run(settings(), layout, "toy")
    assert out(layout) == whole
    assert sum(calls) < 40
    assert json.loads((layout.measured / "features@toy.json").read_text())["rows"] == sum(calls)


def test_logs_get_a_line_now_and_then(layout, monkeypatch, capsys):
    monkeypatch.setattr("kdcore.progress.SECONDS_BETWEEN_LINES", 0.0)
    features.run(settings(), layout, "toy")
    assert "features toy: 8 of 40 rows" in capsys.readouterr().err


@pytest.mark.parametrize(("missing", "says"), [("prepared", "nothing prepared"), ("teacher", "kdflow teacher toy")])
def test_what_comes_before_must_be_there(layout, missing, says):
    folder: Path = getattr(layout, missing)("toy")
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(UserError, match=says):
        features.run(settings(), layout, "toy")


def test_a_teacher_of_other_classes_is_refused(layout):
    save_tiny(layout.teacher("toy"), layers=3, labels=("red", "green", "blue"))
    with pytest.raises(UserError, match="has 3 outputs"):
        features.run(settings(), layout, "toy")


def test_two_at_once_are_refused(layout):
    with claim(layout.scratch / "features-toy"), pytest.raises(BusyError, match="at the same work already"):
        features.run(settings(), layout, "toy")


def test_it_works_from_inside_the_study_folder(layout, monkeypatch):
    monkeypatch.chdir(layout.study)
    features.run(settings(), Layout(Path()), "toy")
    assert LOGITS in FeatureStore.open(layout.features("toy")).keys
