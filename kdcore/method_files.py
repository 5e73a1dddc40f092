"""Methods are the files of a folder: found by name, imported when asked for, configured by their own `Config`."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kdcore.config import MethodConfig
from kdcore.errors import UserError, did_you_mean
from kdcore.strict import parse


@dataclass(frozen=True)
class MethodFiles:
    """The methods of one package. Listing their names imports neither torch nor a method."""

    package: str
    folder: Path

    def names(self) -> tuple[str, ...]:
        """The methods, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.py") if path.stem != "__init__"))

    def load(self, name: str) -> ModuleType:
        """The module of a method, with `Config` and `phases`; raises UserError with near names."""
        if name not in self.names():
            raise UserError(f"method {name!r} does not exist; {did_you_mean(name, self.names())}")
        return importlib.import_module(f"{self.package}.{name}")

    def configure(self, name: str, settings: dict[str, Any]) -> MethodConfig:
        """The method's `Config` from the values in `params.yaml`.

        Raises:
            UserError: unknown method, unknown key (with the nearest known one), or a value that does not fit.
        """
        config: type[MethodConfig] = self.load(name).Config
        return parse(config, settings, f"methods.{name}")


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
