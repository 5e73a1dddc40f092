"""Fixtures: toy studies, fresh or finished. Imported by the `conftest.py` of the folders that use them."""

from pathlib import Path

import pytest

from tests.toy import Toy


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """A toy study of two datasets and two methods."""
    return Toy(tmp_path / "toy")


@pytest.fixture
def small(tmp_path: Path) -> Toy:
    """A toy study of one dataset and one method."""
    return Toy(tmp_path / "small", ("a",), ("finetune",))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A toy study in which everything is current; to be copied."""
    toy = Toy(tmp_path_factory.mktemp("finished") / "toy")
    done = toy.dvc("repro")
    assert done.returncode == 0, done.stderr
    toy.forget_starts()
    return toy


@pytest.fixture
def done(finished: Toy, tmp_path: Path) -> Toy:
    """A toy study of one's own in which everything is current."""
    return finished.copy(tmp_path / "toy")
