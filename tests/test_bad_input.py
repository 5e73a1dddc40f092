"""Mistakes in settings, on the command line and in the state of a study: exit code 2, one line, the remedy.

All through the real entry point. Mistakes in data files and model folders are tested where these are read.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.command import Outcome, kdflow

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def default(repository) -> str:
    return (repository / "params.yaml").read_text(encoding="utf-8")


@pytest.fixture
def study(tmp_path, default) -> Path:
    """A study folder with the default settings and nothing done."""
    (tmp_path / "params.yaml").write_text(default, encoding="utf-8")
    (tmp_path / "data").mkdir()
    return tmp_path


def _edit(study: Path, change: Edit) -> None:
    path = study / "params.yaml"
    content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    change(content)
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(content, file)


def _refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2 and exactly one line of stderr that holds every word."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("kdflow: ")
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    for word in words:
        assert word in outcome.err, f"{word!r} is not in {outcome.err!r}"


def _set(dotted: str, value: Any) -> Edit:
    def change(content: dict[str, Any]) -> None:
        *path, last = dotted.split(".")
        for part in path:
            content = content[part]
        content[last] = value

    return change


def _drop(name: str) -> Edit:
    return lambda content: content.pop(name)


SETTINGS: dict[str, tuple[Edit, tuple[str, ...]]] = {
    "unknown section": (_set("trainig", {}), ("`trainig`", "'training'")),
    "unknown key, two levels down": (_set("pair.teacher.sorce", "x"), ("pair.teacher.sorce", "'source'")),
    "missing section": (_drop("pair"), ("`pair` is missing",)),
    "missing teacher": (_set("pair", {"max_length": 64}), ("`pair.teacher` is missing",)),
    "section is a list": (_set("training", [1]), ("training",)),
    "dataset without an entry": (_set("study.datasets", ["moveis"]), ("'moveis'", "'movies'")),
    "method without an entry": (_set("study.methods", ["vanila_kd"]), ("'vanila_kd'", "'vanilla_kd'")),
    "no dataset": (_set("study.datasets", []), ("study.datasets", "at least 1")),
    "no method": (_set("study.methods", []), ("study.methods", "at least 1")),
    "no seed": (_set("study.seeds", []), ("study.seeds", "at least 1")),
    "seed twice": (_set("study.seeds", [3, 3]), ("seeds names 3 twice",)),
    "method twice": (_set("study.methods", ["finetune", "finetune"]), ("methods names 'finetune' twice",)),
    "seed below 0": (_set("study.seeds", [1, -1]), ("study.seeds", "greater than or equal to 0")),
    "seed that NumPy has not": (_set("training.teacher.seed", 2**32), ("training.teacher.seed", "less than")),
    "a member's seed below 0": (_set("pair.teacher.seeds", [-3]), ("pair.teacher.seeds", "greater than or equal")),
    "seed is no number": (_set("study.seeds", ["one"]), ("study.seeds", "'one'", "integer")),
    "negative learning rate": (_set("training.student.learning_rate", -1e-5), ("learning_rate", "-1e-05")),
    "endless training": (_set("training.student.epochs", float("inf")), ("epochs", "inf", "finite")),
    "learning rate is not a number": (_set("training.teacher.learning_rate", float("nan")), ("learning_rate", "nan")),
    "no epoch": (_set("training.teacher.epochs", 0), ("training.teacher.epochs", "greater than 0")),
    "accumulation does not divide": (_set("training.student.accumulation", 5), ("accumulation 5", "batch_size 32")),
    "batch size in words": (_set("training.student.batch_size", "many"), ("batch_size", "'many'", "integer")),
    "unknown precision": (_set("training.student.precision", "fp8"), ("precision", "'fp8'", "bf16")),
    "patience of zero": (_set("training.student.patience", 0), ("patience", "greater than or equal to 1")),
    "override of an unknown key": (_set("datasets.movies.teacher", {"epoch": 3}),
                                   ("datasets.movies.teacher", "`epoch`", "'epochs'")),
    "override out of range": (_set("datasets.movies.student", {"batch_size": 0}),
                              ("datasets.movies.student", "batch_size", "0")),
    "unknown data key": (_set("datasets.movies.data.train_row", 10), ("train_row", "'train_rows'")),
    "selection on the test split": (_set("datasets.movies.data.selection", "test"),
                                    ("selection", "'test'", "held_out")),
    "most of train held out": (_set("datasets.movies.data.held_out_share", 0.9), ("held_out_share", "0.9", "0.5")),
    "no teacher": (_set("pair.teacher", {}), ("pair.teacher names no model", "`source: files`")),
    "source and members": (_set("pair.teacher.members", [{"source": "a"}]), ("`source` and `members`",)),
    "members and seeds": (_set("pair.teacher", {"members": [{"source": "a"}], "seeds": [1]}), ("its own `seed`",)),
    "the same teacher twice": (_set("pair.teacher", {"members": 2 * [{"source": "a", "seed": 3}]}),
                               ("'a' with seed 3 twice", "differ in source, revision or seed")),
    "a seed twice": (_set("pair.teacher.seeds", [2, 2]), ("with seed 2 twice",)),
    "weights for others": (_set("pair.teacher", {"source": "a", "seeds": [1, 2], "weights": [1, 2, 3]}),
                           ("3 weights for 2 models",)),
    "weights without several": (_set("pair.teacher.weights", [1, 1]), ("2 weights for 1 models",)),
    "weight of nothing": (_set("pair.teacher", {"source": "a", "seeds": [1, 2], "weights": [1, 0]}),
                          ("pair.teacher.weights.1 = 0", "greater than 0")),
    "average of something else": (_set("pair.teacher.average", "probs"), ("'probs'", "'logits' or 'probabilities'")),
    "a member's key misspelt": (_set("pair.teacher", {"members": [{"source": "a", "sed": 1}]}), ("sed", "'seed'")),
    "files with seeds": (_set("pair.teacher", {"source": "files", "seeds": [1]}), ("no revision and no seeds",)),
    "files that are not named": (_set("pair.teacher.source", "files"),
                                 ("datasets.movies.data.teacher_files is missing", "{train: data/teacher.parquet}")),
    "files that do not answer train": (_set("datasets.movies.data.teacher_files", {"validation": "data/a.csv"}),
                                       ("datasets.movies.data.teacher_files names no file for `train`",)),
    "a student of the layers of files": (
        lambda content: (_set("pair.student", {"source": "teacher"})(content),
                         _set("datasets.movies.data.teacher_files", {"train": "data/a.csv"})(content)),
        ("the teacher of movies is only files", "name a model as pair.student.source")),
    "layers by rule without depth": (_set("pair.student", {"layers": "even"}), ("`depth`", "`layers: first`")),
    "depth without a rule": (_set("pair.student", {"depth": 3}), ("`depth`", "`layers: first`")),
    "unknown layer rule": (_set("pair.student", {"layers": "odd", "depth": 3}),
                           ("pair.student.layers = 'odd'", "even")),
    "layers as words": (_set("pair.student.layers", [2, "four"]), ("pair.student.layers.1 = 'four'", "integer")),
    "shortest texts": (_set("pair.max_length", 2), ("pair.max_length", "greater than or equal to 4")),
    "stored token states": (_set("features.kinds", ["hidden"]), ("features.kinds", "'hidden'", "mean")),
    "store in bytes": (_set("features.dtype", "int8"), ("features.dtype", "'int8'", "float16")),
    "gate misspelt": (_set("gate", {"allow_week": True}), ("gate.allow_week", "'allow_weak'")),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name, study):
    change, words = SETTINGS[name]
    _edit(study, change)
    _refused(kdflow("report", "--study", str(study), cwd=study), *words)


def test_a_dataset_without_a_teacher_blocks_itself_alone(study):
    """It is declared, but none of study.datasets."""
    answered = {"data": {"teacher_files": {"train": "data/teacher.csv"}}, "teacher": {}, "student": {}}
    _edit(study, _set("pair.teacher.source", "files"))
    _edit(study, lambda content: content["datasets"].update(rte=content["datasets"]["movies"], movies=answered))
    _refused(kdflow("report", cwd=study), "kdflow evaluate")
    for arguments in (("prepare", "rte"), ("teacher", "rte"), ("grid", "rte", "finetune")):
        _refused(kdflow(*arguments, cwd=study), "params.yaml: ", "datasets.rte.data.teacher_files is missing")


FILES: dict[str, tuple[bytes | None, tuple[str, ...]]] = {
    "no file": (None, ("params.yaml does not exist", "--study")),
    "empty file": (b"", ("params.yaml", "expected sections")),
    "a list": (b"- a\n- b\n", ("holds list", "expected sections")),
    "not YAML": (b"study:\n  datasets: [movies\npair: {}\n", ("line 3", "not valid YAML")),
    "not UTF-8": (b"# caf\xe9\n", ("not UTF-8", "byte 5", "save it as UTF-8")),
    "a key twice": (b"code: .\ncode: .\n", ("line 2", "code")),
}


@pytest.mark.parametrize("name", FILES)
def test_settings_file(name, study):
    content, words = FILES[name]
    if content is None:
        (study / "params.yaml").unlink()
    else:
        (study / "params.yaml").write_bytes(content)
    _refused(kdflow("report", cwd=study), *words)


COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown command": (("distil", "movies"), ("'distil'", "'distill'")),
    "unknown command like no other": (("xyzzy",), ("'xyzzy'", "prepare, teacher")),
    "no dataset": (("prepare",), ("DATASET", "kdflow prepare --help")),
    "no method": (("distill", "movies"), ("METHOD", "kdflow distill --help")),
    "too many": (("prepare", "movies", "rte"), ("rte", "kdflow prepare --help")),
    "unknown option": (("prepare", "movies", "--stduy", "x"), ("--stduy", "--study")),
    "option without value": (("report", "--study"), ("--study", "requires an argument")),
    "unknown dataset": (("prepare", "movie"), ("'movie'", "'movies'")),
    "unknown dataset like no other": (("teacher", "rte"), ("'rte'", "known: movies")),
    "unknown method": (("distill", "movies", "rail_kd_x"), ("'rail_kd_x'", "'rail_kd_c'")),
    "unknown method to evaluate": (("evaluate", "movies", "finetun"), ("'finetun'", "'finetune'")),
    "study is no folder": (("report", "--study", "studies/nope"), ("studies/nope", "params.yaml")),
    "study to examine is no folder": (("doctor", "--study", "studies/nope"), ("studies/nope", "params.yaml")),
    "study to tell of is no folder": (("status", "--study", "params.yaml"), ("--study params.yaml", "no folder")),
    "a study in a study": (("init", "."), ("already is a study", "another folder")),
    "method without seed to register": (("register", "movies", "finetune"), ("method and its seed", "give both")),
    "seed that is no number": (("register", "movies", "finetune", "--seed", "one"), ("--seed", "valid integer")),
    "student that was not trained": (("register", "movies", "finetune", "--seed", "1"), ("seed-1", "dvc repro")),
    "unknown dataset to export": (("export", "movie"), ("'movie'", "'movies'")),
    "seed of no method to export": (("export", "movies", "--seed", "1"), ("--seed 1 of which method", "METHOD")),
    "method of a registered student": (("export", "kdflow-demo-movies", "finetune"), ("leave out METHOD",)),
    "int8 may gain": (("export", "movies", "--tolerance", "-1"), ("--tolerance", "equal to 0")),
    "student to export that was not trained": (("export", "movies", "finetune", "--seed", "1"),
                                               ("seed-1", "dvc repro")),
    "study without settings": (("report", "--study", "data"), ("data/params.yaml does not exist",)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line(name, study):
    arguments, words = COMMANDS[name]
    _refused(kdflow(*arguments, cwd=study), *words)


def test_a_method_that_is_declared_but_does_not_exist(study):
    _edit(study, _set("methods.vanilla_k", {}))
    _refused(kdflow("distill", "movies", "vanilla_k", cwd=study), "methods.vanilla_k:", "'vanilla_kd'")


STATES: dict[str, tuple[Edit, tuple[str, ...], tuple[str, ...]]] = {
    "teacher before prepare": (lambda _: None, ("teacher", "movies"), ("kdflow prepare movies",)),
    "features before prepare": (lambda _: None, ("features", "movies"), ("kdflow prepare movies",)),
    "distill before prepare": (lambda _: None, ("distill", "movies", "finetune"), ("kdflow prepare movies",)),
    "evaluate before prepare": (lambda _: None, ("evaluate", "movies", "teacher"), ("kdflow prepare movies",)),
    "report of nothing": (lambda _: None, ("report",), ("kdflow evaluate",)),
    "teacher in a package that nobody knows": (
        _set("pair.teacher.source", "package:all-MiniLM-L6"), ("prepare", "movies"),
        ("'all-MiniLM-L6'", "'all-MiniLM-L6-v2'")),
    "teacher in a folder that is not there": (
        _set("pair.teacher.source", "./models/bert"), ("prepare", "movies"), ("'./models/bert'", "no folder")),
    "source that is neither": (
        _set("pair.teacher.source", "bert base"), ("prepare", "movies"), ("'bert base'", "hub id")),
    "method's key misspelt": (
        _set("methods.rail_kd_l", {"widht": 64}), ("distill", "movies", "rail_kd_l"),
        ("methods.rail_kd_l", "`widht`", "'width'")),
    "method's value out of range": (
        _set("methods.vanilla_kd", {"alpha": 2}), ("distill", "movies", "vanilla_kd"),
        ("methods.vanilla_kd", "alpha", "2")),
}


@pytest.mark.parametrize("name", STATES)
def test_state_of_the_study(name, study):
    change, arguments, words = STATES[name]
    _edit(study, change)
    _refused(kdflow(*arguments, cwd=study), *words)


@pytest.mark.parametrize("value", ["nyu-mll/glue", "=x", "a=b,c"])
def test_where_sources_lie_is_malformed(value, study, monkeypatch):
    monkeypatch.setenv("KDFLOW_SOURCES", value)
    _refused(kdflow("prepare", "movies", cwd=study), "KDFLOW_SOURCES", "source=folder")


def test_the_console_script_says_the_same(study):
    """Once as a process of its own: nothing but the line, no warning of a library, no traceback."""
    done = subprocess.run([sys.executable, "-m", "kdcore.cli", "distill", "movies", "finetune"], cwd=study, text=True,
                          capture_output=True, check=False)
    _refused(Outcome(done.returncode, done.stdout, done.stderr), "kdflow prepare movies")
