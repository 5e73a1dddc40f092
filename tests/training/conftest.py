"""Fixtures of the training tests."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdcore.data.prepared import Prepared
from kdcore.training import trainer
from tests.training.problem import write_prepared


@pytest.fixture(scope="session", autouse=True)
def _quick_collections() -> Iterator[None]:
    """transformers collects garbage at the start of each training: a second for all that the imports left alone."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Two classes, 90 training rows: six steps of 15 rows at a batch size of 16."""
    return write_prepared(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="session")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The same texts with scores to regress."""
    return write_prepared(tmp_path_factory.mktemp("scores"), regression=True)


@pytest.fixture
def saves_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every step."""
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "SAVING_SHARE", 1e9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a training keeps its checkpoints."""
    return tmp_path / "work"
