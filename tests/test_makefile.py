"""`make clean` deletes caches and unfinished work, and nothing that took time or was written by a user."""

import shutil
import subprocess
from pathlib import Path

import pytest

KEPT = {
    ".venv/lib/package/__pycache__/a.pyc", ".venv/installed-1", ".dvc/cache/files/md5/00/1", "artifacts/teacher/rte/a",
    "results/report/report.md", "results/measured/a.json", "results/bench.json", "data/mine.csv", "mlflow.db",
    "mlartifacts/1/a", ".kdflow/prefect/prefect.db", ".kdflow/sources/a", "kdcore/a.py", "studies/mine/params.yaml",
    "studies/mine/dvc.lock", "studies/mine/.dvc/cache/files/md5/00/1", "studies/mine/artifacts/student/rte/a",
    "studies/mine/results/report/report.md", "studies/mine/search/optuna.db"}
GONE = {
    ".pytest_cache/a", ".mypy_cache/a", ".ruff_cache/a", ".kdflow/scratch/distill-rte/lock", ".kdflow/kept/a",
    ".kdflow/logs/a.log", "studies/mine/.kdflow/scratch/a", "kdcore/__pycache__/a.pyc", "tests/a/__pycache__/a.pyc"}


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_clean(repository: Path, tmp_path: Path) -> None:
    given = {"Makefile", "requirements.lock", "pyproject.toml"}
    for name in given:
        shutil.copy(repository / name, tmp_path)
    for name in KEPT | GONE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == KEPT | given
