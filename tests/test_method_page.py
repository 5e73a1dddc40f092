"""Pages of methods say what their files say."""

import re
from pathlib import Path

import pytest

from kdcore import general, method_page, methods
from kdcore.errors import UserError
from tests.command import kdflow


def test_every_method_is_listed_with_its_first_sentence() -> None:
    told = method_page.overview()
    for name in (*methods.names(), *general.names()):
        assert re.search(rf"^  {name} +\S.+\.$", told, re.MULTILINE), name


@pytest.mark.parametrize("name", methods.names())
def test_a_page_has_the_docstring_and_every_key(name: str) -> None:
    module = methods.load(name)
    page = method_page.page(module)
    assert f"# {name}\n" in page
    assert Path(module.__file__).read_text(encoding="utf-8").splitlines()[0].removeprefix('"""') in page
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(module.Config.model_fields)


def test_keys_come_with_defaults_values_and_what_stands_under_them() -> None:
    page = method_page.pages("rail_kd_l")
    assert "| `width` | 128 | whole number ≥ 1 | Of the space in which the layers are compared. |" in page
    assert "| `label_weight` | 1/3 | number ≥ 0 | lambda1 |" in page
    assert "| `projection` | shared | `shared`, `per_layer` | One map per side for all slots, or one per" in page
    assert "| `student_layers` | none |  | The student layers to teach, 1..m; None takes all but the last. |" in page


def test_what_a_method_inherits_is_told_too() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", method_page.pages("ksm"), re.MULTILINE)
    assert dict(rows)["reward_steps"]


def test_a_name_of_two_methods_gives_both_pages() -> None:
    page = method_page.pages("tinybert")
    assert "`kdcore/methods/tinybert.py`. " in page
    assert "`kdcore/general/tinybert.py`. " in page


def test_unknown_names_get_near_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="method 'rail_kd' does not exist; did you mean"):
        method_page.pages("rail_kd")


def test_the_command(tmp_path: Path) -> None:
    assert "vanilla_kd" in kdflow("explain", cwd=tmp_path).out
    assert kdflow("explain", "finetune", cwd=tmp_path).out.startswith("# finetune\n")
    assert kdflow("explain", "finetun", cwd=tmp_path).code == 2
