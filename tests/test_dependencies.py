"""Packages: what is imported is declared, what is declared is pinned; and what a machine sees of the house rules."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.import_graph import PACKAGES, ROOT, imported_names

FILES = sorted(f for package in PACKAGES for f in (ROOT / package).rglob("*.py"))
MLFLOW = {"tracking.py", "tracking_store.py", "registry.py", "promotion.py", "serving.py", "catalogue.py",
          "champions.py"}
"""The files of kdcore that may talk to MLflow: nothing is decided by reading it back elsewhere."""


def _id(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _roots(file: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_names(file)}


@pytest.mark.parametrize("file", [f for f in FILES if f.is_relative_to(ROOT / "kdcore")], ids=_id)
def test_mlflow_stays_in_tracking_and_registry(file):
    assert "mlflow" not in _roots(file) or file.name in MLFLOW


@pytest.mark.parametrize("file", FILES, ids=_id)
def test_nothing_dangerous_is_called(file):
    text = file.read_text(encoding="utf-8")
    commits = re.search(r"""dvc["'],\s*["']commit|dvc commit|repo\.commit""", text)
    assert not commits, "records whatever lies on disk, also what no stage made"
    assert "trust_remote_code=True" not in text
    assert "torch.load(" not in text or "weights_only=True" in text, "unpickling runs code"


@pytest.mark.parametrize("file", [f for f in FILES if f.parent.name == "methods"], ids=_id)
def test_method_files_are_short(file):
    assert file.read_text(encoding="utf-8").count("\n") <= 150


def test_every_imported_package_is_declared():
    """In pyproject.toml and requirements.in; nothing works by the luck of somebody else's dependency."""
    distributions = {"markdown": "Markdown", "ruamel": "ruamel.yaml", "sklearn": "scikit-learn"}
    imported = {root for f in FILES for root in _roots(f)} - set(sys.stdlib_module_names) - set(PACKAGES)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[<>=~\[ ]", entry)[0] for entry in project["dependencies"]}
    development = {re.split(r"[<>=~\[ ]", entry)[0] for entry in project["optional-dependencies"]["dev"]}
    wanted = {distributions.get(name, name) for name in imported}
    assert not wanted - declared, "missing in pyproject.toml"
    listed = {re.split(r"[<>=~\[ ]", line)[0] for line in (ROOT / "requirements.in").read_text().split()}
    assert listed == declared | development, "requirements.in and pyproject.toml differ"


def test_the_lock_pins_all_that_is_declared_and_names_no_machine():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._!-]+", line) for line in lines), "names, exact versions only"
    pinned = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1] for line in lines}
    declared = [re.split(r"[<>=~\[ ]", line)[0] for line in (ROOT / "requirements.in").read_text().split()]
    assert not {re.sub(r"[-_.]+", "-", name).lower() for name in declared} - pinned.keys()
    expected = {"torch": "2.13.0", "prefect": "3.9", "dvc": "3.67", "mlflow": "3.17", "transformers": "5.24",
                "datasets": "5.2", "evaluate": "0.4.6"}
    assert all(f"{pinned[name]}.".startswith(f"{version}.") for name, version in expected.items())
