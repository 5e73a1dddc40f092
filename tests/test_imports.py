"""Who may import whom, walked over the sources; and what every project import is declared as."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.import_graph import PACKAGES, ROOT, closure, imported_names

FILES = sorted(f for package in PACKAGES for f in (ROOT / package).rglob("*.py"))
CORE = [f for f in FILES if f.is_relative_to(ROOT / "kdcore")]
ENTRY = ROOT / "kdcore" / "cli.py"
"""The command line: the only file of kdcore that may reach up, to answer `status` and `doctor`."""
MLFLOW = {"tracking.py", "tracking_store.py", "registry.py", "lineage.py", "served_model.py"}


def _id(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _roots(file: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_names(file)}


def _imports(file: Path, *modules: str) -> set[str]:
    return {n for n in imported_names(file) for m in modules if n == m or n.startswith(f"{m}.")}


@pytest.mark.parametrize("file", CORE, ids=_id)
def test_the_library_knows_neither_tasks_flows_prefect_nor_dvc(file):
    allowed = {"tasks"} if file == ENTRY else set()
    assert not (_roots(file) & {"tasks", "flows", "prefect", "dvc"}) - allowed


@pytest.mark.parametrize("file", [f for f in FILES if f.parts[-2] == "tasks"], ids=_id)
def test_tasks_do_not_import_flows(file):
    assert "flows" not in _roots(file)


@pytest.mark.parametrize("file", CORE, ids=_id)
def test_mlflow_stays_in_tracking_and_registry(file):
    assert "mlflow" not in _roots(file) or file.name in MLFLOW


@pytest.mark.parametrize("file", [f for f in CORE if f.parent.name == "methods"], ids=_id)
def test_methods_see_no_models_store_training_or_data(file):
    assert not _imports(file, "kdcore.models", "kdcore.store", "kdcore.training", "kdcore.data", "kdcore.stages",
                        "transformers")


@pytest.mark.parametrize(("name", "above"), [
    ("config", ("losses", "mapping", "objective", "methods", "models", "data", "store", "training")),
    ("features", ("losses", "mapping", "objective", "methods", "models", "data", "store", "training")),
    ("losses", ("objective", "methods", "models", "data", "store", "training")),
    ("mapping", ("objective", "methods", "models", "data", "store", "training")),
    ("objective", ("methods", "models", "data", "store", "training")),
])
def test_layers_of_the_library(name, above):
    reached = {f.relative_to(ROOT / "kdcore").parts[0].removesuffix(".py") for f in closure(ROOT / f"kdcore/{name}.py")}
    assert not reached & set(above)


@pytest.mark.parametrize("file", [f for f in CORE if f.parent.name != "stages" and f != ENTRY], ids=_id)
def test_only_the_command_line_imports_stages(file):
    assert not _imports(file, "kdcore.stages")


@pytest.mark.parametrize("file", FILES, ids=_id)
def test_house_rules_that_a_machine_can_see(file):
    text = file.read_text(encoding="utf-8")
    assert "from __future__ import annotations" not in text, "jaxtyping reads annotations at run time"
    assert not re.search(r"""["']commit["']|dvc commit""", text), "dvc commit records whatever lies on disk"
    assert "trust_remote_code=True" not in text
    assert "torch.load(" not in text or "weights_only=True" in text, "unpickling runs code"
    limit = 150 if file.parent.name == "methods" else 400
    lines = text.count("\n")
    assert lines <= limit, f"{lines} lines, more than {limit}: one purpose a file"
    if text.strip():
        assert text.lstrip().startswith('"""'), "a module says what it is and why"


def test_no_utils():
    assert not [f for f in FILES if f.stem in ("utils", "util", "helpers", "common", "misc")]


def test_every_imported_package_is_declared():
    """In pyproject.toml and requirements.in; nothing works by the luck of somebody else's dependency."""
    distributions = {"ruamel": "ruamel.yaml", "sklearn": "scikit-learn"}
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
