"""Methods by the names that a study gives them: what an entry of `methods` may say, and what it may not."""

from pathlib import Path
from typing import Any

import pytest

from kdcore import config, methods, strict
from kdcore.errors import UserError
from kdcore.layout import ROOT
from kdcore.method_config import MethodEntry
from tests.command import kdflow


def study(entries: dict[str, Any]) -> config.Study:
    """The default study with other methods."""
    content = strict.read_yaml(ROOT / "params.yaml")
    return strict.parse(config.Study, content | {"methods": entries, "study": content["study"] | {
        "methods": list(entries)}}, "params.yaml")


def test_an_entry_is_the_method_of_its_name_or_the_one_that_it_names():
    declared = study({"ksm": {}, "ksm_hard": {"method": "ksm", "actions": "hard"}})
    plain, variant = declared.method("ksm"), declared.method("ksm_hard")
    assert plain == MethodEntry("ksm", "ksm", {})
    assert variant == MethodEntry("ksm_hard", "ksm", {"actions": "hard"})
    assert (plain.is_variant, variant.is_variant) == (False, True)
    assert (str(plain), str(variant)) == ("ksm", "ksm_hard (ksm)")
    assert methods.of_entry(plain) == methods.configure("ksm", {})
    assert methods.of_entry(variant) == methods.configure("ksm", {"actions": "hard"})


def test_an_entry_may_say_what_its_name_says():
    entry = study({"pkd": {"method": "pkd", "beta": 10}}).method("pkd")
    assert not entry.is_variant
    assert methods.of_entry(entry).beta == 10


def test_what_an_entry_says_reads_as_a_sentence():
    assert MethodEntry("two", "knowledge_mix", {"types": ["response", "finetune"], "selection": "fixed"}
                              ).told() == "`two` is `knowledge_mix` with types [response, finetune], selection fixed"
    assert MethodEntry("plain", "ksm", {}).told() == "`plain` is `ksm`"


@pytest.mark.parametrize(("name", "written", "message"), [
    ("ksm_hard", {"method": "kms"}, r"^methods.ksm_hard.method = 'kms' is no method; did you mean 'ksm'\?$"),
    ("ksm_hard", {"actions": "hard"}, r"^methods.ksm_hard: there is no method of this name; name the entry like its "
                                      r"method, or say in it which one it is, as `method: NAME`; did you mean 'ksm'\?"),
    ("pkd", {"method": "ksm"}, "^methods.pkd says `method: ksm`, but pkd is a method itself; give the entry another"),
    ("ksm_hard", {"method": "ksm", "action": "hard"}, r"^methods.ksm_hard: unknown key `action`; did you mean 'act"),
])
def test_an_entry_that_does_not_fit_is_one_line(name, written, message):
    entry = study({name: written}).method(name)
    with pytest.raises(UserError, match=message):
        methods.of_entry(entry)


@pytest.mark.parametrize(("entries", "message"), [
    ({"ksm": {"method": 3}}, r"methods.ksm.method = 3, expected the name of a method file"),
    ({"ksm-hard": {"method": "ksm"}}, r"methods names 'ksm-hard'; a name there is letters, digits and _"),
    ({"teacher": {"method": "ksm"}}, r"methods names 'teacher'; .* and not `teacher`"),
])
def test_names_that_would_not_do_in_stages_and_folders_are_refused(entries, message):
    with pytest.raises(UserError, match=message):
        study(entries)


def test_a_grid_varies_a_variant_by_its_own_name():
    content = strict.read_yaml(ROOT / "params.yaml")
    content["methods"] |= {"cool": {"method": "vanilla_kd"}, "warm": {"method": "vanilla_kd", "temperature": 4}}
    content["grid"] = {"methods.warm.temperature": [2, 8]}
    settings = strict.parse(config.Study, content, "params.yaml")
    assert settings.points("movies", "cool") == ({},)
    points = settings.points("movies", "warm")
    assert [methods.of_entry(settings.at(point).method("warm")).temperature for point in points] == [2, 8]


@pytest.mark.parametrize(("told", "expected"), [
    ("a student of 1 layer", "methods.warm: a student of 1 layer"),
    ("methods.pkd: layers", "methods.warm: layers"), ("methods.pkd.mapping pairs", "methods.warm.mapping pairs")])
def test_mistakes_are_told_by_the_name_in_the_study(told, expected):
    with pytest.raises(UserError) as caught, methods.naming("warm", "pkd"):
        raise UserError(told)
    assert str(caught.value) == expected


def test_the_command_line_checks_every_entry(tmp_path: Path):
    text = (ROOT / "params.yaml").read_text().replace("  finetune: {}\n", "  finetune: {}\n  mine: {}\n", 1)
    (tmp_path / "params.yaml").write_text(text)
    done = kdflow("distill", "movies", "mine", cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith("kdflow: methods.mine: there is no method of this name; ")
