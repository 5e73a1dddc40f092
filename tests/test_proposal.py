"""What a search writes for a person to review, and what accepting it changes in `params.yaml`."""

import json
from pathlib import Path
from typing import Any

import pytest

from kdcore import config, proposal, strict, study
from kdcore.errors import UserError
from kdcore.layout import ROOT, Layout
from kdcore.search import Rules, Tried, searches
from tests.command import kdflow

GRID = """
grid:
  training.student.learning_rate: [1.0e-5, 2.0e-5]
  methods.vanilla_kd.temperature: [1, 4]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study with the settings of the default one, comments and all, and a grid."""
    made = tmp_path / "mine"
    study.initialise(made, ROOT / "params.yaml", cache=tmp_path / "cache", git=False)
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    code = config.load(made / "params.yaml").code
    (made / "params.yaml").write_text(text.replace("code: .  ", f"code: {code}") + GRID, encoding="utf-8")
    return made


class Done:
    """A search that is over, with these scores in the order of its points."""

    def __init__(self, folder: Path, method: str, *scores: float | None) -> None:
        (search,) = searches(folder, config.load(folder / "params.yaml"), Rules(1), ("movies",), (method,), True)
        self.dataset, self.method, self.points, self.rules, self.told = (
            "movies", method, search.points, search.rules, search.told)
        self._tried = [Tried(point, "failed" if score is None else "finished", score, 3)
                       for point, score in zip(search.points, scores, strict=False)]

    def tried(self) -> list[Tried]:
        return self._tried

    def best(self) -> Tried:
        return max((tried for tried in self._tried if tried.score), key=lambda tried: tried.score)


def rows(folder: Path) -> list[dict[str, Any]]:
    return proposal._read_rows(Layout(folder).search / proposal.TRIALS)


def test_the_proposal_says_what_accepting_it_writes(folder):
    before = (folder / "params.yaml").read_text(encoding="utf-8")
    proposal.write(folder, [Done(folder, "vanilla_kd", 0.7, 0.8, None), Done(folder, "finetune", 0.6, 0.5)])
    assert (folder / "params.yaml").read_text(encoding="utf-8") == before
    text = (Layout(folder).search / proposal.PROPOSAL).read_text(encoding="utf-8")
    assert text.startswith("# The best points that the search found; `kdflow accept-search` writes")
    assert strict.read_yaml(Layout(folder).search / proposal.PROPOSAL)["proposal"][0] == {
        "dataset": "movies", "method": "vanilla_kd", "score": 0.8, "seed": 1, "trials": "2 finished, 1 failed of 4",
        "settings": {"methods.vanilla_kd.datasets.movies.student.learning_rate": 1e-5,
                     "methods.vanilla_kd.datasets.movies.temperature": 4}}
    assert [(row["method"], row["state"], row["best"]) for row in rows(folder)] == [
        ("vanilla_kd", "finished", "False"), ("vanilla_kd", "finished", "True"), ("vanilla_kd", "failed", "False"),
        ("finetune", "finished", "True"), ("finetune", "finished", "False")]


def test_another_search_leaves_what_was_found_of_other_methods(folder):
    proposal.write(folder, [Done(folder, "vanilla_kd", 0.7), Done(folder, "finetune", 0.6)])
    proposal.write(folder, [Done(folder, "finetune", 0.6, 0.9)])
    assert [(row["method"], row["score"]) for row in rows(folder)] == [
        ("vanilla_kd", "0.7"), ("finetune", "0.6"), ("finetune", "0.9")]
    found = strict.read_yaml(Layout(folder).search / proposal.PROPOSAL)["proposal"]
    assert [(entry["method"], entry["score"]) for entry in found] == [("vanilla_kd", 0.7), ("finetune", 0.9)]


def test_accepting_changes_the_lines_of_the_methods_alone(folder):
    proposal.write(folder, [Done(folder, "vanilla_kd", 0.7, 0.8), Done(folder, "finetune", 0.6, 0.5)])
    before = (folder / "params.yaml").read_text(encoding="utf-8").splitlines()
    done = kdflow("accept-search", cwd=folder)
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "methods.vanilla_kd.datasets.movies.student.learning_rate: 1e-05",
        "methods.vanilla_kd.datasets.movies.temperature: 4",
        "methods.finetune.datasets.movies.student.learning_rate: 1e-05"]
    after = (folder / "params.yaml").read_text(encoding="utf-8").splitlines()
    assert [line for line in after if line not in before] == [
        "  finetune: {datasets: {movies: {student: {learning_rate: 1e-05}}}}",
        "  vanilla_kd: {alpha: 0.5, temperature: 1.0, datasets: {movies: {student: {learning_rate: 1e-05}, "
        "temperature: 4}}}"]
    assert [line for line in before if line not in after] == [
        "  finetune: {}", "  vanilla_kd: {alpha: 0.5, temperature: 1.0}"]
    settings = config.load(folder / "params.yaml")
    assert settings.student_training("movies", "vanilla_kd").learning_rate == 1e-5
    assert settings.method("vanilla_kd", "movies").options == {"alpha": 0.5, "temperature": 4}
    assert kdflow("accept-search", cwd=folder).code == 0
    assert (folder / "params.yaml").read_text(encoding="utf-8").splitlines() == after


def test_remarks_stay_where_they_are():
    text = ("methods:\n  # one\n  pkd:  # two\n    beta: 10  # three\n\n    layers: [1,\n             2]\n"
            "  # of the next\n  fsp: {}  # four\n\n# of training\ntraining: {student: {epochs: 3}}\n")
    changed = proposal._with_setting(text, ["methods", "pkd", "datasets", "a", "beta"], 5)
    assert changed == text.replace("    beta: 10", "    datasets: {a: {beta: 5}}\n    beta: 10").replace(
        "[1,\n             2]", "[1, 2]")
    changed = proposal._with_setting(changed, ["methods", "fsp", "datasets", "a", "student", "epochs"], 1)
    assert "  # of the next\n  fsp: {datasets: {a: {student: {epochs: 1}}}} # four\n\n# of training\n" in changed
    changed = proposal._with_setting(changed, ["training", "student", "epochs"], 4)
    assert changed.endswith("\n\n# of training\ntraining: {student: {epochs: 4}}\n")


@pytest.mark.parametrize(("settings", "message"), [
    ({"methods.finetune.datasets.movies.student.learning_rat": 1e-5}, r"unknown key `learning_rat`; did you mean"),
    ({"methods.finetune.datasets.movies.temperature": 4}, r"methods.finetune: unknown key `temperature`"),
    ({"methods.vanilla_kd.datasets.movies.temprature": 4}, r"methods.vanilla_kd: unknown key `temprature`"),
    ({"training": {"student": {"epochs": 2}}}, r"'training' is no setting; expected one such as training.teacher"),
    ({"analysis.samples": 5}, r"'analysis.samples' is no setting; .* these sections: pair, training, datasets"),
])
def test_an_edited_proposal_that_does_not_fit_changes_nothing(folder, settings, message):
    edit(folder, ("finetune", settings))
    before = (folder / "params.yaml").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=message):
        proposal.accept(folder)
    assert (folder / "params.yaml").read_text(encoding="utf-8") == before


def test_methods_that_want_different_values_of_one_setting_are_named(folder):
    edit(folder, ("finetune", {"pair.max_length": 64}), ("vanilla_kd", {"pair.max_length": 128}))
    with pytest.raises(UserError, match=r"pair.max_length is 64 for finetune on movies, but 128 for vanilla_kd on "
                                        r"movies; it is one setting for both: choose one value"):
        proposal.accept(folder)


def test_what_is_made_at_every_start_is_not_edited(folder):
    edit(folder, ("finetune", {}))
    text = (folder / "params.yaml").read_text(encoding="utf-8")
    (folder / "params.yaml").write_text(study.MADE.format(sources="x/params.yaml") + text, encoding="utf-8")
    with pytest.raises(UserError, match=r"is written anew at every start; copy the settings of"):
        proposal.accept(folder)


def test_without_a_proposal_it_says_how_to_get_one(folder):
    done = kdflow("accept-search", cwd=folder)
    assert done.code == 2
    assert "there is no search/proposal.yaml; run `python -m flows.search" in done.err


def edit(folder: Path, *entries: tuple[str, dict[str, Any]]) -> None:
    """Write a proposal by hand."""
    Layout(folder).search.mkdir()
    (Layout(folder).search / proposal.PROPOSAL).write_text(json.dumps({"proposal": [
        {"dataset": "movies", "method": method, "score": 0.5, "seed": 1, "trials": "", "settings": settings}
        for method, settings in entries]}), encoding="utf-8")
