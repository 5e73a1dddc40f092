"""Two machines that share a folder as DVC remote: what one has done, the other need not do again."""

import shutil
from pathlib import Path

import pytest

from tests.toy import Toy

TRACKED = ("params.yaml", "dvc.yaml", "dvc.lock", "data", "work.py", "behaviour.json", ".dvc/config")
"""What git would carry from one clone to the other."""


def _clone(toy: Toy, folder: Path) -> Toy:
    other = Toy(folder)
    for name in TRACKED:
        source, target = toy.folder / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copy(source, target)
    return other


def _succeeds(toy: Toy, *arguments: str) -> str:
    done = toy.dvc(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_pushed_study_is_pulled_whole_and_nothing_is_left_to_run(tmp_path):
    first = Toy(tmp_path / "first", datasets=("a",), methods=("finetune", "rail"))
    _succeeds(first, "remote", "add", "-d", "store", str(tmp_path / "store"))
    _succeeds(first, "repro")
    assert len(first.starts()) == 10
    _succeeds(first, "push", "--run-cache")

    second = _clone(first, tmp_path / "second")
    _succeeds(second, "pull", "--run-cache")
    assert "up to date" in _succeeds(second, "status")
    _succeeds(second, "repro")
    assert not second.starts()
    for path in sorted((first.folder / "artifacts").rglob("*.txt")):
        assert path.read_text() == (second.folder / path.relative_to(first.folder)).read_text()


@pytest.mark.slow
def test_without_dvc_lock_the_run_cache_of_the_remote_gives_everything_back(tmp_path):
    """As after a lost `dvc.lock`, or for a colleague who set the same numbers on his own."""
    first = Toy(tmp_path / "first", datasets=("a",), methods=("finetune",))
    _succeeds(first, "remote", "add", "-d", "store", str(tmp_path / "store"))
    _succeeds(first, "repro")
    _succeeds(first, "push", "--run-cache")
    second = _clone(first, tmp_path / "second")
    (second.folder / "dvc.lock").unlink()
    _succeeds(second, "fetch", "--run-cache")
    _succeeds(second, "repro", "--pull")
    assert not second.starts()


@pytest.mark.slow
def test_machines_that_did_a_dataset_each_leave_only_the_report_to_a_third(tmp_path):
    """As docs/scaling.md has it."""
    whole = Toy(tmp_path / "whole", methods=("finetune",))
    _succeeds(whole, "remote", "add", "-d", "store", str(tmp_path / "store"))
    for dataset in whole.params["study"]["datasets"]:
        machine = _clone(whole, tmp_path / dataset)
        _succeeds(machine, "repro", f"evaluate@{dataset}-finetune", f"evaluate-teacher@{dataset}", f"analyse@{dataset}")
        _succeeds(machine, "push", "--run-cache")
    third = _clone(whole, tmp_path / "third")
    _succeeds(third, "fetch", "--run-cache")
    _succeeds(third, "repro", "--pull")
    assert set(third.starts()) == {"report"}
    assert "up to date" in _succeeds(third, "status")
