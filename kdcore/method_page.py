"""The page of a method, made of its file: what it is, where it deviates, its keys with defaults, values and meaning."""

import ast
import inspect
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from kdcore.errors import UserError, did_you_mean
from kdcore.method_config import MethodConfig

_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_SHOWN = {"None": "none", "True": "true", "False": "false", str(1 / 3): "1/3"}


def overview() -> str:
    """All methods, each with the first sentence of its file. Imports neither torch nor a method."""
    from kdcore import general, methods

    lines = []
    for title, package in (("Methods:", methods), ("General methods, from text without labels:", general)):
        width = max(map(len, package.names()))
        files = {name: Path(*package.__path__) / f"{name}.py" for name in package.names()}
        lines += [title, *(f"  {name:<{width}}  {_sentence(file)}" for name, file in files.items()), ""]
    return "\n".join([*lines, "`kdflow explain METHOD` tells all about one."])


def pages(name: str) -> str:
    """Markdown about the method of this name, and about the general one where there are both.

    Raises:
        UserError: there is none; with near names.
    """
    from kdcore import general, methods

    found = [page(package.load(name)) for package in (methods, general) if name in package.names()]
    if not found:
        known = dict.fromkeys((*methods.names(), *general.names()))
        raise UserError(f"method {name!r} does not exist; {did_you_mean(name, known)}")
    return "\n\n".join(found)


def page(method: ModuleType) -> str:
    """Markdown about one method."""
    config: type[MethodConfig] = method.Config
    meanings = _docstrings(config)
    rows = [f"| `{key}` | {_shown(field.get_default(call_default_factory=True))} | "
            f"{_values(field.annotation, field.metadata)} | {meanings.get(key, '')} |"
            for key, field in config.model_fields.items()]
    keys = ["| key | default | values | meaning |", "|---|---|---|---|", *rows] if rows else ["It has no keys."]
    file, about = method.__name__.replace(".", "/"), " ".join((config.__doc__ or "").split())
    told = _docstring(inspect.getsource(method))
    return "\n".join([f"# {Path(file).name}", "", told, "", f"`{file}.py`. {about}", "", *keys])


def _sentence(file: Path) -> str:
    return " ".join(_docstring(file.read_text(encoding="utf-8")).split("\n\n")[0].split())


def _docstring(source: str) -> str:
    return ast.get_docstring(ast.parse(source)) or ""


def _docstrings(config: type[MethodConfig]) -> dict[str, str]:
    """What stands under the fields of a class and of those that it inherits from, each in a line."""
    found = {}
    for cls in reversed(config.__mro__[: config.__mro__.index(MethodConfig)]):
        (tree,) = ast.parse(dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for field, after in zip(tree.body, tree.body[1:], strict=False):
            if (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)):
                found[field.target.id] = " ".join(str(after.value.value).split()).replace("|", "\\|")
    return found


def _shown(default: Any) -> str:
    return _SHOWN.get(str(default), str(default)).replace("|", "\\|")


def _values(annotation: Any, bounds: list[Any]) -> str:
    """What a key takes, as far as a few words say it: `soft`, `hard`; number ≥ 0."""
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{option}`" for option in get_args(annotation))
    options = [option for option in get_args(annotation) or (annotation,) if option is not type(None)]
    if len(options) != 1 or not isinstance(options[0], type) or options[0] not in _KINDS:
        return ""
    limits = [f"{sign} {getattr(bound, name):g}" for bound in bounds for name, sign in _BOUNDS.items()
              if getattr(bound, name, None) is not None]
    return f"{_KINDS[options[0]]} {', '.join(limits)}".strip()
