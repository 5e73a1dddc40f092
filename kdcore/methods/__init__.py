"""Distillation methods, one file each; the file's name is the method's name.

A method file holds `class Config(MethodConfig)` and `phases(config, setting)`. Nothing is registered:
a file in this folder is a method. Listing the names imports neither torch nor a method.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from kdcore.config import MethodConfig
from kdcore.errors import UserError, did_you_mean
from kdcore.strict import parse


def names() -> tuple[str, ...]:
    """The methods, sorted."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__"))


def load(name: str) -> ModuleType:
    """The module of a method, with `Config` and `phases`; raises UserError with near names."""
    if name not in names():
        raise UserError(f"method {name!r} does not exist; {did_you_mean(name, names())}")
    return importlib.import_module(f"{__name__}.{name}")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Puts `methods.NAME: ` before the UserError of a method's `phases`, unless the method names itself in it.

    What methods share, such as layer mappings, does not know for which of them it works.
    """
    try:
        yield
    except UserError as error:
        if str(error).startswith(f"methods.{name}"):
            raise
        raise UserError(f"methods.{name}: {error}") from None


def configure(name: str, settings: dict[str, Any]) -> MethodConfig:
    """The method's `Config` from the values in `params.yaml`.

    Raises:
        UserError: unknown method, unknown key (with the nearest known one), or a value that does not fit.
    """
    config: type[MethodConfig] = load(name).Config
    return parse(config, settings, f"methods.{name}")
