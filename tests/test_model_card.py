"""What a version's page says: intervals, seeds, data, limits, and commands that bring the student back."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kdcore import candidate, model_card
from kdcore.layout import Layout
from kdcore.lineage import hash_folder
from kdcore.registry import DESCRIPTION
from tests import trained_study as study
from tests.toy import Toy


@pytest.fixture
def found(tmp_path: Path) -> candidate.Candidate:
    layout = Layout(tmp_path / "tiny")
    layout.study.mkdir()
    study.write_study(layout)
    return candidate.gather(study.settings(), layout, "toy", "rail_kd_l", 1)


def rows(card: str) -> dict[str, list[str]]:
    """The rows of the tables by their first cell."""
    cells = [[cell.strip("\N{NO-BREAK SPACE} ") for cell in line.strip("|").split("|")]
             for line in card.splitlines() if line.startswith("|")]
    return {row[0]: row for row in cells}


def test_scores_have_intervals_and_the_other_seeds(found: candidate.Candidate) -> None:
    row = rows(model_card.of_version(found))["validation"]
    assert row[:4] == ["validation", "selects and reports", "accuracy", "0.8000"]
    low, high = map(float, row[4].split(" to "))
    assert 0.72 < low < 0.76 < 0.84 < high < 0.87, "two binomial deviations of 200 rows are 0.057"
    assert row[5] == "0.8100 ± 0.0141 (n = 2)"
    assert row[6] == "0.9000"
    alone = rows(model_card.of_version(replace(found, all_seeds=found.all_seeds[:1], intervals={})))["validation"]
    assert alone[4:6] == ["", ""]


def test_data_and_limits_are_told(found: candidate.Candidate) -> None:
    card = model_card.of_version(found)
    assert "**Trained on** 500 rows of `toy`, from somewhere." in card
    assert "Outside of `toy` it was tried on `elsewhere` alone." in card
    assert "cut after 32 tokens" in card
    assert "**In:** `text` and `text_pair`" in card
    assert "**The study's teacher:** `somewhere`, fine-tuned on `toy`." in card
    nowhere = replace(found, scores={"validation": found.scores["validation"]})
    assert "how it does on other texts is not known" in model_card.of_version(nowhere)
    assert len(card) < DESCRIPTION


def test_the_last_weights_are_not_said_to_be_chosen(found: candidate.Candidate) -> None:
    assert "The checkpoint was chosen on `validation` (200 rows)." in model_card.of_version(found)
    training = found.settings["training"] | {"keep": "last"}
    card = model_card.of_version(replace(found, settings=found.settings | {"training": training}))
    assert "The weights of the last step were kept; `validation` (200 rows) may have chosen" in card
    assert "checkpoint was chosen" not in card


@pytest.mark.parametrize(("study", "given", "folder"), [
    ("glue-cpu.three", "studies/glue-cpu", "studies/glue-cpu.three"), ("demo.smoke", ".", "studies/demo.smoke")])
def test_a_student_of_a_profile_is_made_by_the_flow_that_makes_its_folder(study: str, given: str, folder: str) -> None:
    """Git does not have the folder, so nobody can enter it after a checkout."""
    assert model_card.rebuild("c0ffee", study, "distill@sst2-pkd", "abc") == [
        "git checkout c0ffee",
        f"python -m flows.distill --study {given} --profile {folder.partition('.')[2]} --datasets sst2 --methods pkd",
        f"grep abc {folder}/dvc.lock   # found: these are the same bytes"]


@pytest.mark.slow
def test_the_printed_commands_bring_back_the_same_bytes(tmp_path: Path) -> None:
    """From the cache, without running anything, also where git has an older `dvc.lock` or none."""
    checkout = tmp_path / "checkout"
    toy = Toy(checkout / "studies" / "tiny", ("a",), ("finetune",))
    (checkout / ".gitignore").write_text("artifacts/\nresults/\nstarts.txt\ndvc.lock\ntmp/\ncache/\n")
    commit = study.under_git(checkout)
    assert toy.dvc("repro").returncode == 0
    out = Layout(toy.folder).student("a", "finetune")
    before = hash_folder(out)
    toy.params["datasets"]["a"]["student"] = {"epochs": 7}
    toy.write()
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qam", "two"],
                   cwd=checkout, check=True)
    shutil.rmtree(toy.folder / "artifacts")
    (toy.folder / "dvc.lock").unlink()
    toy.forget_starts()
    commands = [line for line in model_card.rebuild(commit, "tiny", "distill@a-finetune", before)
                if not line.startswith("dvc pull")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-ec", "\n".join(commands)], cwd=checkout, env=os.environ | {"PATH": path},
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert hash_folder(out) == before
    assert not toy.starts(), "the cache had it all"
