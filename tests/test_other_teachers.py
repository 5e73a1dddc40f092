"""Teachers that are no single model, as a user has them: by the example script and `dvc repro`, in whole studies."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kdcore import study
from kdcore.data.answers import Answers
from kdcore.layout import ROOT, Layout
from tests.data import studies
from tests.stages.test_other_teachers import rows
from tests.tiny import save_tiny

SCRIPT = ROOT / "examples" / "tfidf_teacher.py"
TABLES = {"train": rows(240, 0), "validation": rows(80, 1), "test": rows(80, 2)}
NAMED = {"train": "data/teacher.jsonl", "validation": "data/teacher-dev.parquet"}


def make(folder: Path, teacher: dict[str, Any], data: dict[str, Any]) -> Layout:
    """A study of a tiny pair, outside git, with a DVC cache of its own."""
    model = save_tiny(folder / "model", layers=2)
    (folder / "data").mkdir()
    for name, table in TABLES.items():
        (folder / "data" / f"{name}.csv").write_text(table)
    training = {"epochs": 2, "learning_rate": 1e-3, "precision": "fp32"}
    return study.initialise(folder, {
        "code": ".", "study": {"datasets": ["mine"], "methods": ["finetune", "vanilla_kd"], "seeds": [1]},
        "pair": {"teacher": teacher or {"source": str(model)}, "student": {"source": str(model)}, "max_length": 32},
        "training": {"teacher": training, "student": training},
        "datasets": {"mine": {"data": {"files": {name: f"data/{name}.csv" for name in TABLES}, "labels": ["neg", "pos"]}
                              | data, "teacher": {}, "student": {}}},
        "methods": {"finetune": {}, "vanilla_kd": {}}, "features": {}, "gate": {"allow_weak": True},
        "evaluation": {"latency": False}, "analysis": {}}, cache=folder / "cache", git=False)


def run(folder: Path, *words: str) -> str:
    """A command that must succeed, in a study's folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([sys.executable, *words], cwd=folder, text=True, capture_output=True, check=False,
                          env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return done.stdout


def changed(layout: Layout) -> set[str]:
    """What of the study itself DVC sees changed; code may be edited while tests run."""
    stages = json.loads(run(layout.study, "-m", "dvc", "status", "--json"))
    return {path for changes in stages.values() for change in changes if isinstance(change, dict)
            for paths in change.values() for path in paths if "/kdcore/" not in path}


@pytest.fixture(scope="module")
def filed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Layout, str]:
    """A study whose teacher the example script wrote, and what the script said."""
    layout = make(tmp_path_factory.mktemp("filed"), {"source": "files"}, {"teacher_files": NAMED, "train_rows": 200})
    return layout, run(layout.study, str(SCRIPT), "mine")


def test_the_script_answers_every_row_out_of_fold(filed: tuple[Layout, str]) -> None:
    layout, said = filed
    train = pd.read_json(layout.study / NAMED["train"], lines=True)
    dev = pd.read_parquet(layout.study / NAMED["validation"])
    assert (len(train), len(dev)) == (200, 80)
    assert list(train.columns) == list(dev.columns) == ["id", "probability:neg", "probability:pos"]
    assert np.allclose(train["probability:neg"] + train["probability:pos"], 1)
    assert train["id"].nunique() == 200
    raw = [line.rpartition(",")[2] == "pos" for line in TABLES["train"].splitlines()[1:]]
    right = float(np.mean((train["probability:pos"] > 0.5) == np.array(raw)[train["id"].astype(int)]))
    assert f"{100 * right:.1f} out of fold" in said
    seen = float(said.partition(" out of fold, ")[2].split()[0])
    assert 60 < 100 * right < seen, "a model that has seen the rows says what their labels are"


@pytest.mark.parametrize(("data", "unlabelled"), [
    ({"unlabelled": "data/more.csv"}, {"m0": 1, "m1": 0, "m2": 1}),
    ({"unlabelled": 30, "train_rows": 60}, None),
])
def test_the_script_answers_rows_without_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any],
                                                unlabelled: dict[str, int] | None) -> None:
    """Tables with tabs, which preparation takes; what has no label is no class to learn."""
    files = {"train": "data/t.tsv", "validation": "data/v.tsv"} | ({"unlabelled": "data/u.TSV"} if unlabelled else {})
    content = "id,text,label\n" + "".join(
        f"r{i},film {i} was {'good' if i % 2 else 'bad'},{'pos' if i % 2 else 'neg'}\n" for i in range(100))
    folder = studies.make(tmp_path / "study", "files", studies.DATA | {"teacher_files": files} | data, files={
        "data/train.csv": content, "data/validation.csv": content,
        "data/more.csv": "id,text\nm0,a film was good\nm1,a film was bad\nm2,that was good\n"},
        pair={"student": {"source": str(save_tiny(tmp_path / "model", layers=2))}})
    spec = importlib.util.spec_from_file_location("tfidf_teacher", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "mine", "--study", str(folder)])
    script.main()
    prepared = studies.prepare_study(folder)
    answers = Answers.find(prepared.folder)
    assert answers is not None
    train = prepared.table("train")
    good = ["good" in text for text in train.column("text").to_pylist()]
    assert answers.logits("train").argmax(dim=1).tolist() == good
    assert len(good) == (103 if unlabelled else 90)
    if unlabelled:
        table = pd.read_csv(folder / files["unlabelled"], sep="\t")
        assert dict(zip(table["id"], (table["probability:pos"] > 0.5).astype(int), strict=True)) == unlabelled


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_student_of_a_file_by_dvc(filed: tuple[Layout, str]) -> None:
    layout, said = filed
    run(layout.study, "-m", "dvc", "repro")
    metrics = json.loads((layout.evaluation("mine", "teacher") / "metrics.json").read_text())["teacher"]
    assert f"{100 * metrics['train']['accuracy']:.1f} out of fold" in said, "each row has its own answer"
    assert set(metrics) == {"train", "validation"}
    student = json.loads((layout.student("mine", "vanilla_kd") / "seed-1" / "training.json").read_text())
    assert student["taught_by"].startswith("answers in data/teacher.jsonl (probabilities)")
    assert "| teacher | " in (layout.report / "report.md").read_text()
    assert changed(layout) == set()
    with (layout.study / NAMED["train"]).open("a") as file:
        file.write("\n")
    assert changed(layout) == {"data"}, "DVC sees that the file changed"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_student_of_two_seeds_by_dvc(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "pretrained", layers=2)
    layout = make(tmp_path / "study", {"source": str(model), "seeds": [1, 2], "average": "probabilities"}, {})
    out = run(layout.study, "-m", "dvc", "repro")
    assert "Running stage 'teacher@mine'" in out
    assert sorted(path.name for path in layout.teacher("mine").iterdir()) == [
        "average.json", "member-1", "member-2", "training.json"]
    text = (layout.report / "report.md").read_text()
    assert "Teacher: the average of the probabilities of 2 teachers" in text
    assert "test acc" in text
    assert changed(layout) == set()
