"""docs/general-methods.md says what the code does: defaults and examples are read from the page."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from kdcore import general, general_config
from tests.methods.test_documentation import shown


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "general-methods.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", general.names())
def test_defaults_are_those_of_the_code(page: str, name: str) -> None:
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, flags=re.M | re.S))
    assert name in sections, f"docs/general-methods.md needs a section `## {name}`"
    assert re.search(rf"^\| `{name}` \|", page.split("\n## ")[0], flags=re.M), f"the first table has no row for {name}"
    documented = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", sections[name], flags=re.M))
    for field, value in general.configure(name, {}):
        assert field in documented, f"docs/general-methods.md: the table of {name} has no row for `{field}`"
        assert documented[field] == shown(value), field


def test_every_documented_key_exists(page: str) -> None:
    fields = {field for name in general.names() for field in general.load(name).Config.model_fields}
    keys = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.M)) - set(general.names())
    assert keys <= fields


def test_examples_are_accepted(page: str) -> None:
    blocks = [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.S)]
    assert blocks
    for block in blocks:
        for name, settings in block["methods"].items():
            general.configure(name, settings)
        for student in block.get("students", {}).values():
            declared = general_config.Student.model_validate(student)
            general.configure(declared.method, block["methods"][declared.method] | declared.options)
        general_config.Masking.model_validate(block.get("masking", {}))
