"""What `dvc.yaml` and `general.dvc.yaml` are compared with: which code a stage runs, which settings it reads."""

import ast
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.import_graph import ROOT, closure, has_code

NO_DEPENDENCY = {
    "kdcore/__init__.py": "the version number",
    "kdcore/environment.py": "telemetry and chatter",
    "kdcore/errors.py": "wording of messages",
    "kdcore/layout.py": "where files lie; a moved file shows as a missing out or dependency",
    "kdcore/lineage.py": "tags of runs, and the hash that DVC gives a folder; nothing is decided by them",
    "kdcore/progress.py": "what a person sees while waiting",
    "kdcore/scratch.py": "where unfinished work waits",
    "kdcore/tracking.py": "MLflow logging; nothing is decided by reading it back",
    "kdcore/tracking_store.py": "MLflow logging",
    "kdcore/training/display.py": "what a person sees while waiting",
    "kdcore/training/interruption.py": "when a signal stops a training, which then resumes to the same bytes",
    "kdcore/training/journal.py": "the log of metrics, which is no out",
}
"""Files that stages import and that change no out, each with the reason."""


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of mappings."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def method_files(package: str) -> list[Path]:
    """The methods of `methods` or `general`."""
    return sorted(f for f in (ROOT / "kdcore" / package).glob("*.py") if f.stem != "__init__")


def needed_code(file: Path, package: str | None = None) -> set[str]:
    """What a stage's file can import. With a `package` it loads one of its methods by name: that method's own file, and
    what any method may import."""
    free = frozenset(ROOT / name for name in NO_DEPENDENCY)
    files = set(closure(file, stop_at=free))
    if package:
        methods = method_files(package)
        for method in methods:
            files |= closure(method, stop_at=free) - {method}
        files -= set(methods)
    names = {str(f.relative_to(ROOT)) for f in files if has_code(f)}
    return names | ({f"kdcore/{package}/${{item.method}}.py"} if package else set())


def listed_code(stage: dict[str, Any]) -> set[str]:
    """What a stage names of the checkout among its dependencies."""
    return {d.removeprefix("${code}/") for d in stage["deps"] if d.startswith("${code}/")}


def settings_read(file: Path) -> set[str]:
    """Attribute chains on a name `study`, e.g. `pair.max_length` or `teacher_training`."""
    text = ast.unparse(ast.parse(file.read_text(encoding="utf-8")))
    return set(re.findall(r"(?<![\w.])(?:self\.)?study\.([a-z_]+(?:\.[a-z_]+)*)", text)) - {"study", "Study"}
