"""docs/methods.md says what the code does: defaults and examples are read from the page."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from kdcore import methods


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "methods.md").read_text(encoding="utf-8")


def shown(value: object) -> str:
    """A default as the page writes it."""
    return {"None": "none", "True": "true", "False": "false", str(1 / 3): "1/3"}.get(str(value), str(value))


@pytest.mark.parametrize("name", methods.names())
def test_defaults_are_those_of_the_code(page: str, name: str) -> None:
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, flags=re.M | re.S))
    found = [text for title, text in sections.items() if name in title.split(" and ")]
    assert len(found) == 1, f"docs/methods.md needs one section `## {name}`, it has {len(found)}"
    documented = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", found[0], flags=re.M))
    for field, value in methods.configure(name, {}):
        assert field in documented, f"docs/methods.md: the table of {name} has no row for `{field}`"
        assert documented[field] == shown(value), field


def test_every_documented_key_exists(page: str) -> None:
    fields = {field for name in methods.names() for field in methods.load(name).Config.model_fields}
    keys = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.M)) - set(methods.names())
    assert keys <= fields


def test_examples_are_accepted(page: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    assert blocks
    for block in blocks:
        for name, settings in YAML(typ="safe").load(block)["methods"].items():
            methods.configure(name, settings)
