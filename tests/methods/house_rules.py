"""What the file of a method keeps, wherever methods lie."""

import ast
from pathlib import Path
from types import ModuleType

from kdcore.method_config import MethodConfig


def keeps_the_house_rules(module: ModuleType) -> None:
    """A `Config`, deviations in the docstring, less than 150 lines, no arguments in a heap."""
    assert issubclass(module.Config, MethodConfig)
    assert "Deviations" in module.__doc__
    text = Path(module.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    assert not [f for f in functions if f.args.kwarg], "an argument in **kwargs would be swallowed when misspelt"
