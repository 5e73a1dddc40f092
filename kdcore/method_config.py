"""The section `methods` of `params.yaml`: what an entry names, and the base of the hyper-parameters of method files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import model_validator

from kdcore.strict import Strict

METHOD = "method"
"""The key of an entry of `methods` that says which method file it is; without it the entry's name does."""

DATASETS, STUDENT = "datasets", "student"
"""The key of an entry of `methods` for what differs on single datasets: hyper-parameters, and under `student` settings
of the training."""


class SelectorSource(Strict):
    """A selector of knowledge that has learned: `study`, the dataset's own of this study, or a folder, another study's
    `artifacts/knowledge/DATASET/selector`. A name alone is the source.

    `revision` is its fingerprint, 16 hex digits, which is checked.
    """

    source: str
    revision: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value


class MethodConfig(Strict):
    """Base of the `Config` of a method file: hyper-parameters with the paper's defaults."""

    @property
    def ready_selector(self) -> SelectorSource | None:
        """Where the selector lies that the method takes as it is; None for a method that takes none."""
        return None


@dataclass(frozen=True)
class MethodEntry:
    """An entry of `methods`: its `name` in the study, the method `file` that it is, and the `options` written there."""

    name: str
    file: str
    options: Mapping[str, Any]

    @property
    def is_variant(self) -> bool:
        """True where the entry's name is not the method's."""
        return self.name != self.file

    @property
    def borrowed(self) -> tuple["MethodEntry", ...]:
        """The entries of other methods whose objectives this one chooses from (`kdcore.choice`), by their place."""
        written = self.options.get("knowledge")
        return tuple(MethodEntry(f"{self.name}.knowledge.{name}", str(entry.get(METHOD, name)), entry)
                     for name, entry in (written.items() if isinstance(written, Mapping) else ())
                     if isinstance(entry, Mapping))

    @property
    def files(self) -> tuple[str, ...]:
        """The method files whose code it runs."""
        return tuple(sorted({self.file, *(entry.file for entry in self.borrowed)}))

    def __str__(self) -> str:
        return f"{self.name} ({self.file})" if self.is_variant else self.name

    def told(self) -> str:
        """Markdown: `ksm_hard` is `ksm` with actions hard."""
        options = ", ".join(f"{key} {value}".replace("'", "") for key, value in self.options.items())
        return f"`{self.name}` is `{self.file}`" + (f" with {options}" if options else "")
