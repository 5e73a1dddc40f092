"""A store of its own for every test, and processes that use it."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kdcore import layout, tracking_store


@dataclass(frozen=True)
class Store:
    """A checkout folder with nothing but an MLflow store, and a study in it."""

    root: Path
    study: Path

    @property
    def layout(self) -> layout.Layout:
        return layout.Layout(self.study)

    @property
    def experiment(self) -> str:
        return tracking_store.experiment_name(tracking_store.study_name(self.study))

    def runs(self) -> list[Any]:
        """All runs, oldest first."""
        client = tracking_store.connect()
        everything = [e.experiment_id for e in client.search_experiments()]
        return client.search_runs(everything, order_by=["attributes.start_time ASC"])

    def environment(self) -> dict[str, str]:
        return os.environ | {"KDFLOW_ROOT": str(self.root), "KDFLOW_TRACKING": "on",
                             "PYTHONPATH": str(Path(__file__).resolve().parents[1])}

    def process(self, code: str, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        """A Python process of its own on this store; its current folder is the study."""
        return subprocess.Popen([sys.executable, "-c", code, *arguments], env=self.environment(), cwd=self.study,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


@pytest.fixture(scope="session")
def _empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes two seconds to create its tables; tests get copies."""
    root = tmp_path_factory.mktemp("template")
    before, layout.ROOT = layout.ROOT, root
    try:
        tracking_store.connect()
    finally:
        layout.ROOT = before
    return root / "mlflow.db"


def _store(root: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name in ("MLFLOW_TRACKING_URI", "KDFLOW_PARENT_RUN", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KDFLOW_TRACKING", "on")
    monkeypatch.setattr(layout, "ROOT", root)
    study = root / "studies" / "tiny"
    study.mkdir(parents=True)
    return Store(root, study)


@pytest.fixture
def fresh_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """No database yet."""
    return _store(tmp_path, monkeypatch)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _empty_database: Path) -> Store:
    """A database without runs."""
    shutil.copy(_empty_database, tmp_path / "mlflow.db")
    return _store(tmp_path, monkeypatch)
