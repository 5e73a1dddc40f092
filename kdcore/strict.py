"""Plain values to frozen, strict settings; the first one that does not fit becomes an error of one line."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML, YAMLError

from kdcore.errors import UserError, did_you_mean

T = TypeVar("T", bound=BaseModel)
Seed = Annotated[int, Field(ge=0, lt=2**31)]
"""Of random numbers; NumPy takes less than 2**32, and phases of a training count on from it."""


class Strict(BaseModel):
    """Base of all settings: no unknown keys, no changes after construction."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of sections, unchecked.

    Raises:
        UserError: the file is missing or is no YAML mapping.
    """
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run inside a study folder or name one with --study") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise UserError(f"{path}{line} is not valid YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {type(content).__name__}, expected sections such as `study:` and `pair:`")
    return content


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings are merged, lists and values replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse(model: type[T], content: dict[str, Any], where: str) -> T:
    """Build settings from plain values; the first problem becomes a UserError of one line."""
    try:
        return model.model_validate(content)
    except pydantic.ValidationError as error:
        raise UserError(f"{where}: {_first_problem(model, error)}") from None


def _first_problem(model: type[BaseModel], error: pydantic.ValidationError) -> str:
    problems = error.errors()
    # A setting that may be one thing or another has a problem for each, at `literal[...]`, `tuple[...]` below it: the
    # deepest one belongs to what was meant.
    setting = tuple(itertools.takewhile(lambda part: "[" not in str(part), problems[0]["loc"]))
    problem = max((p for p in problems if p["loc"][:len(setting)] == setting), key=lambda p: len(p["loc"]))
    place = ".".join(str(part) for part in problem["loc"] if "[" not in str(part))
    if problem["type"] == "extra_forbidden":
        name = str(problem["loc"][-1])
        known = _fields_at(model, problem["loc"][:-1])
        return f"unknown key `{place}`; {did_you_mean(name, known)}" if known else f"unknown key `{place}`"
    if problem["type"] == "missing":
        return f"`{place}` is missing"
    text = problem["msg"].removeprefix("Value error, ")
    return f"{place} = {problem['input']!r}: {text}" if place and problem["type"] != "value_error" else text


def _fields_at(annotation: Any, place: tuple[int | str, ...]) -> list[str]:
    """Names of the fields of the settings at a place; empty where no settings are."""
    for part in place:
        if get_origin(annotation) in (dict, tuple):
            annotation = get_args(annotation)[1 if get_origin(annotation) is dict else 0]
        else:
            field = _fields_of(annotation).get(str(part))
            annotation = field.annotation if field else None
    return list(_fields_of(annotation))


def _fields_of(annotation: Any) -> dict[str, FieldInfo]:
    """The fields of a settings class, also of an optional one."""
    classes = (a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel))
    return next((c.model_fields for c in classes), {})
