"""Which project files a project file imports, read from the source, nothing executed."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kdcore", "tasks", "flows")


@cache
def imported_names(file: Path) -> frozenset[str]:
    """Dotted names that a file imports anywhere, also inside functions; `from a import b` gives `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import of {node.module}; the project imports by full name"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def file_of(module: str) -> Path | None:
    """The project file of a dotted name, None for anything else."""
    if module.split(".")[0] not in PACKAGES:
        return None
    path = ROOT.joinpath(*module.split("."))
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)


def imported_files(file: Path) -> frozenset[Path]:
    """Project files that a file imports directly, packages' own `__init__` included."""
    names = {".".join(parts[:end]) for name in imported_names(file)
             for parts in [name.split(".")] for end in range(1, len(parts) + 1)}
    return frozenset(found for name in names if (found := file_of(name)) is not None and found != file)


def closure(start: Path, stop_at: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """All project files that running `start` can import, `start` included; files in `stop_at` are left out
    with whatever only they import."""
    found, todo = set(), [start]
    while todo:
        file = todo.pop()
        if file not in found:
            found.add(file)
            todo.extend(imported_files(file) - stop_at)
    return frozenset(found)


def has_code(file: Path) -> bool:
    """False for a file that holds at most a docstring."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in body)
