"""Methods are the files of a folder: found by name, imported when asked for, configured by their own `Config`."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kdcore.errors import UserError, did_you_mean
from kdcore.method_config import MethodConfig, MethodEntry
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

    def configure(self, name: str, settings: Mapping[str, Any]) -> MethodConfig:
        """The method's `Config` from the values in `params.yaml`.

        Raises:
            UserError: unknown method, unknown key (with the nearest known one), or a value that does not fit.
        """
        return self._parse(self.load(name), settings, name)

    def check_name(self, entry: MethodEntry) -> None:
        """Raises UserError where an entry of `methods` is no method, or has the name of another one."""
        names, place = self.names(), f"methods.{entry.name}"
        if entry.is_variant and entry.file not in names:
            raise UserError(f"{place}.method = {entry.file!r} is no method; {did_you_mean(entry.file, names)}")
        if entry.is_variant and entry.name in names:
            raise UserError(f"{place} says `method: {entry.file}`, but {entry.name} is a method itself; give the entry "
                            "another name")
        if entry.file not in names:
            raise UserError(f"{place}: there is no method of this name; name the entry like its method, or say in it "
                            f"which one it is, as `method: NAME`; {did_you_mean(entry.file, names)}")

    def of_entry(self, entry: MethodEntry) -> MethodConfig:
        """The `Config` of an entry of `methods`.

        Raises:
            UserError: as `check_name` and `configure`.
        """
        self.check_name(entry)
        return self._parse(self.load(entry.file), entry.options, entry.name)

    def trains_selectors(self, entry: MethodEntry, place: str) -> ModuleType:
        """The module of a method whose `learning(config, setting)` trains a selector of knowledge.

        Args:
            place: where in `params.yaml` the entry is named.

        Raises:
            UserError: it trains none; or as `of_entry`.
        """
        takes = self.of_entry(entry).ready_selector
        module = self.load(entry.file)
        if not hasattr(module, "learning"):
            raise UserError(f"{place} names {entry}, which trains no selector; name an entry that does, such as ksm")
        if takes is not None:
            raise UserError(f"{place} names {entry}, which takes the selector of {takes.source!r}; name an entry "
                            "without `selector`, which trains one")
        return module

    def _parse(self, module: ModuleType, settings: Mapping[str, Any], name: str) -> MethodConfig:
        config: type[MethodConfig] = module.Config
        return parse(config, dict(settings), f"methods.{name}")


@contextmanager
def naming(name: str, file: str | None = None) -> Iterator[None]:
    """Puts `methods.NAME: ` before the UserError of a method's `phases`, unless the method names itself in it.

    What methods share, such as layer mappings, does not know for which of them it works, and a method `file` does not
    know by which `name` a study calls it.
    """
    try:
        yield
    except UserError as error:
        itself, text = f"methods.{file or name}", str(error)
        if not text.startswith(itself):
            raise UserError(f"methods.{name}: {text}") from None
        raise UserError(f"methods.{name}{text.removeprefix(itself)}") from None
