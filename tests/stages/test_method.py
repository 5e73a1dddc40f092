"""The stage `method`: DVC looks at the file that a method is, by whichever name a study calls it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kdcore import config, strict, study
from kdcore.errors import UserError
from kdcore.layout import ROOT, Layout
from kdcore.stages import method
from tasks import plan
from tests.command import kdflow


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A study of a checkout of its own, with `finetune`, and `vanilla_kd` by another name."""
    code = tmp_path / "code"
    shutil.copytree(ROOT / "kdcore", code / "kdcore", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dvc.yaml", code)
    content = strict.read_yaml(ROOT / "params.yaml")
    content["study"] |= {"methods": ["finetune", "warm"]}
    content["methods"] = {"finetune": {}, "warm": {"method": "vanilla_kd", "temperature": 4.0}}
    study.initialise(tmp_path / "mine", content, code=code, cache=tmp_path / "cache", git=False)
    return tmp_path / "mine"


def dvc(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, capture_output=True, text=True,
                          check=False, env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def changed(folder: Path, *stages: str) -> set[str]:
    return set(json.loads(dvc(folder, "status", "--json", *stages)))


def test_an_edited_file_is_a_change_of_the_methods_that_are_it(mine: Path, tmp_path: Path) -> None:
    """Also after the run cache has seen the stage, and where an editor replaced the file."""
    links = "method@finetune", "method@warm"
    dvc(mine, "repro", *links)
    files = tmp_path / "code" / "kdcore" / "methods"
    assert (mine / "artifacts/method/warm/vanilla_kd.py").resolve() == files / "vanilla_kd.py"
    for path in ("prepared", "teacher", "knowledge", "student"):
        (mine / "artifacts" / path / "movies").mkdir(parents=True)
    both = tuple(f"distill@movies-{name}" for name in ("finetune", "warm"))
    for name in ("finetune", "warm"):
        (mine / "artifacts/student/movies" / name).mkdir()
    dvc(mine, "commit", "--force", *both)  # as if they had been trained
    assert changed(mine, *links, *both) == set()
    for text in ("# once\n", "# again\n"):
        (files / "new.py").write_text((files / "vanilla_kd.py").read_text() + text)
        (files / "new.py").replace(files / "vanilla_kd.py")
        assert changed(mine, *links, *both) == {"method@warm", "distill@movies-warm"}
        dvc(mine, "repro", *links)
        assert changed(mine, *links, *both) == {"distill@movies-warm"}


def test_a_name_that_stands_for_another_file_is_linked_anew(mine: Path) -> None:
    settings, layout = config.load(mine / "params.yaml"), Layout(mine)
    method.run(settings, layout, "warm")
    method.run(settings.model_copy(update={"methods": {"warm": {"method": "dkd"}}}), layout, "warm")
    (link,) = layout.method("warm").iterdir()
    assert link.name == link.resolve().name == "dkd.py"
    assert not Path(os.readlink(link)).is_absolute()


def test_what_borrows_objectives_has_links_to_all_files(mine: Path) -> None:
    settings, layout = config.load(mine / "params.yaml"), Layout(mine)
    knowledge = {"label": 1, "rail": {"method": "rail_kd_l", "width": 8}, "pkd": {}, "again": {"method": "pkd"}}
    mixed = settings.model_copy(update={"methods": {"warm": {"method": "knowledge_mix", "knowledge": knowledge}}})
    method.run(mixed, layout, "warm")
    assert sorted(link.resolve().name for link in layout.method("warm").iterdir()) == [
        "knowledge_mix.py", "pkd.py", "rail_kd_l.py"]
    knowledge["rail"]["method"] = "rail"
    with pytest.raises(UserError, match=r"^methods.warm.knowledge.rail.method = 'rail' is no method; did you mean"):
        method.run(mixed, layout, "warm")


def test_a_copy_in_place_of_a_link_is_replaced(mine: Path) -> None:
    """DVC makes one of a link that it is about to let a stage write."""
    layout = Layout(mine)
    layout.method("warm").mkdir(parents=True)
    (layout.method("warm") / "vanilla_kd.py").write_text("a copy")
    method.run(config.load(mine / "params.yaml"), layout, "warm")
    assert (layout.method("warm") / "vanilla_kd.py").is_symlink()


def test_what_is_no_method_has_no_link(mine: Path) -> None:
    settings = config.load(mine / "params.yaml").model_copy(update={"methods": {"hard": {"method": "kms"}}})
    with pytest.raises(UserError, match=r"^methods.hard.method = 'kms' is no method; did you mean 'ksm'"):
        method.run(settings, Layout(mine), "hard")
    assert not Layout(mine).method("hard").exists()
    assert "is not declared in params.yaml" in kdflow("method", "hard", cwd=mine).err


def test_links_that_are_gone_are_made_anew(mine: Path) -> None:
    """DVC's cache has none to restore. A flow of some methods takes their links alone."""
    dvc(mine, "repro", "method@finetune", "method@warm")
    shutil.rmtree(mine / "artifacts/method")
    found = plan.make(mine, methods=["warm"])
    assert found.notes == ()
    assert "method@warm" in found.stale
    assert "method@finetune" in found.stays_stale
    assert found.needs["distill@movies-warm"] == {"prepare@movies", "teacher@movies", "features@movies", "method@warm"}
