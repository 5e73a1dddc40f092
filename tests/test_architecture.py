"""What `test_imports.py` leaves open: who may know what in detail, and what starting up may load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.import_graph import PACKAGES, ROOT, imported_names

FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
CORE = {"errors", "strict", "config", "method_config", "features", "losses", "mapping", "objective", "projection"}
MAY_IMPORT = {
    "errors": set(),
    "strict": {"errors"},
    "grid": {"errors"},
    "data_config": {"errors", "strict"},
    "method_config": {"strict"},
    "pair_config": {"strict"},
    "config": {"errors", "strict", "grid", "data_config", "method_config", "pair_config"},
    "features": {"errors"},
    "losses": {"config", "errors", "features"},
    "mapping": {"config", "errors", "features"},
    "objective": {"config", "errors", "features", "losses", "mapping"},
    "projection": CORE - {"projection"},
    "token_losses": CORE,
    "selection": CORE,
    "knowledge": CORE | {"token_losses", "selection"},
    "intermediate": CORE | {"token_losses"},
    "composition": CORE | {"token_losses", "selection", "knowledge"},
    "negatives": CORE,
    "memory_bank": CORE,
    "contrastive": CORE | {"memory_bank"},
    "knowledge_types": CORE | {"methods"},
    "choice": CORE | {"knowledge_types", "methods"},
    "selector": set(),
    "selector_training": {"errors", "method_config", "objective", "selector"},
    "method_files": {"errors", "method_config", "strict"},
    "methods": CORE | {"method_files", "token_losses", "selection", "knowledge", "composition", "negatives",
                       "contrastive", "intermediate", "knowledge_types", "choice", "selector", "selector_training"},
    "mlm_losses": CORE | {"token_losses"},
    "general": CORE | {"method_files", "token_losses", "mlm_losses", "intermediate"},
}
"""Parts of kdcore that are pure computation, and all that they may know of kdcore."""

NEUTRAL = {
    "AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoTokenizer",
    "PreTrainedModel", "PreTrainedTokenizerBase", "PretrainedConfig", "Trainer", "PrinterCallback", "TrainerCallback",
    "TrainerControl", "TrainerState", "TrainingArguments", "get_scheduler", "trainer_callback",
}
"""Names of transformers that say nothing of an architecture; all others stay inside kdcore/models."""

HEAVY = ("torch", "prefect", "mlflow", "dvc", "datasets", "transformers", "evaluate", "pyarrow", "sklearn", "scipy",
         "matplotlib")


def part(file: Path) -> str:
    """`losses` for kdcore/losses.py, `methods` for kdcore/methods/rail_kd_l.py."""
    return file.relative_to(ROOT / "kdcore").parts[0].removesuffix(".py")


def identity(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", [f for f in FILES if f.is_relative_to(ROOT / "kdcore") and part(f) in MAY_IMPORT],
                         ids=identity)
def test_computation_knows_only_what_lies_below_it(file: Path) -> None:
    known = {name.split(".")[1] for name in imported_names(file) if name.startswith("kdcore.")}
    assert known - {part(file)} <= MAY_IMPORT[part(file)]


@pytest.mark.parametrize("file", [file for package in ("methods", "general")
                                  for file in sorted((ROOT / "kdcore" / package).glob("[!_]*.py"))], ids=identity)
def test_methods_do_not_know_each_other(file: Path) -> None:
    """The stage of a method depends on its own file: nothing in another method's file may change it."""
    assert not [name for name in imported_names(file) if name.startswith(("kdcore.methods", "kdcore.general"))]


@pytest.mark.parametrize("file", [f for f in FILES if not f.is_relative_to(ROOT / "kdcore" / "models")], ids=identity)
def test_only_models_knows_architectures(file: Path) -> None:
    foreign = {name for name in imported_names(file) if name.startswith("transformers.")}
    assert not {name for name in foreign if name.split(".")[-1] not in NEUTRAL}


@pytest.mark.parametrize("file", FILES, ids=identity)
def test_keyword_arguments_are_not_passed_through(file: Path) -> None:
    """A misspelt argument would be swallowed. An override may hand on to `super()` what its base takes."""
    passed_on = [f"line {call.lineno}" for function in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
                 if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.args.kwarg
                 for call in ast.walk(function) if isinstance(call, ast.Call)
                 for keyword in call.keywords
                 if keyword.arg is None and ast.unparse(keyword.value) == function.args.kwarg.arg
                 and not ast.unparse(call.func).startswith("super().")]
    assert not passed_on


@pytest.mark.parametrize("entry", ["kdcore", "kdcore.config", "kdcore.layout", "kdcore.methods", "kdcore.general",
                                   "kdcore.cli"])
def test_start_up_is_light(entry: str) -> None:
    code = f"import sys, {entry}; print(*[name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.strip() == ""
