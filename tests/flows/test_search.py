"""The flow that searches a grid: what it runs, what it proposes, and what a kill costs."""

import csv
import re
from collections import Counter

import pytest

from flows import search
from kdcore import config, proposal
from kdcore.layout import Layout
from tests.flows.checkout import Checkout
from tests.searched import Searched
from tests.tasks.test_stage import wait_for


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout") / "kdflow")


@pytest.fixture
def mine(tmp_path) -> Searched:
    return Searched(tmp_path / "toy")


@pytest.mark.parametrize(("arguments", "message"), [
    (["--methods", "vanila_kd"], "method 'vanila_kd' is not in study.methods of params.yaml; did you mean"),
    (["--datasets", "b"], "dataset 'b' is not in study.datasets of params.yaml; known: a"),
    (["--sampler", "bayes"], "sampler = 'bayes'; known: grid, random, tpe"),
    (["--pruner", "asha"], "pruner = 'asha'; known: hyperband, median; leave it out to prune none"),
    (["--trials", "0"], "trials = 0: expected 1 or more"),
    (["--seed", "-3"], "seed = -3: expected 0 or more"),
])
def test_mistakes_are_one_line_and_exit_code_2(mine, capsys, arguments, message):
    assert search.main(["--study", str(mine.folder), *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("search: ")
    assert said.count("\n") == 1
    assert re.search(message, said)


def test_a_study_without_a_grid_is_refused(toy, capsys):
    assert search.main(["--study", str(toy.folder)]) == 2
    assert "has no `grid`, so there is nothing to search" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_that_is_killed_goes_on_and_runs_nothing_twice(mine, checkout):
    mine.behave(seconds=1.0)
    command = ("flows.search", "--study", str(mine.folder), "--parallel", "1")
    first = checkout.start(*command)
    wait_for(lambda: [30, 1] in mine.evaluations(), seconds=240)  # the second point is under way
    first.kill()
    first.wait()
    mine.behave()
    code, said = checkout.run(*command, seconds=240)
    assert code == 0, said
    assert max(Counter(map(tuple, mine.evaluations())).values()) == 1
    assert mine.starts() == {"prepare@a": 1, "teacher@a": 1, "features@a": 1, "distill@a-vanilla_kd": 4}
    with (Layout(mine.folder).search / proposal.TRIALS).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["methods.vanilla_kd.temperature"], row["state"], row["score"], row["best"]) for row in rows] == [
        ("10", "finished", "0.1", "False"), ("30", "finished", "0.3", "True"), ("20", "finished", "0.2", "False")]
    assert "closed the run of a flow that was killed" in said
    assert "1 of 3 points were tried before" in said
    before = (mine.folder / "params.yaml").read_text()
    assert "temperature: 30" not in before
    assert proposal.accept(mine.folder) == ["methods.vanilla_kd.datasets.a.temperature: 30"]
    assert config.load(mine.folder / "params.yaml").method("vanilla_kd", "a").options == {"temperature": 30}
