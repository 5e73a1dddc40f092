"""Random selections over repetitions: the best, the worst, and what varies anyway."""

import json

import pytest

from kdcore.analysis.repetitions import repeated_selections
from kdcore.analysis.results import DatasetResults
from kdcore.layout import Layout
from tests.analysis.evaluations import info_of, write

ALL = {"response": 1.0, "feature": 1.0, "relation": 1.0, "label": 1.0}


def results(layout, methods, seeds=3):
    """Methods with 75 % right answers, and more with each seed."""
    info = info_of("movies")
    for name, method in methods.items():
        folder = write(layout, info, name, {f"seed-{s}": 0.75 + 0.02 * s for s in range(1, seeds + 1)})
        content = json.loads((folder / "context.json").read_text())
        for run in content["runs"].values():
            run["training"]["method"] = method
        (folder / "context.json").write_text(json.dumps(content))
    return DatasetResults.load(layout.evaluation("movies", "x").parent, methods)


def mix(selection, knowledge=ALL):
    return {"name": "knowledge_mix", "selection": selection, "knowledge": knowledge}


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path)


def test_best_worst_and_difference_on_every_split_of_the_dataset(layout):
    found = results(layout, {"random": mix("random_hard"), "one": mix("random_one"), "fixed_all": mix("fixed"),
                             "response": mix("fixed", {"response": 1.0}), "ksm": {"name": "ksm", "knowledge": ALL}})
    table = repeated_selections(found)
    assert [row[:3] for row in table.rows] == [
        (name, called, on) for name, called in (("random", "Random-All"), ("one", "Random-One"),
                                                ("fixed_all", "no draw"))
        for on in ("validation acc", "test acc")]
    for row in table.rows:
        values = [100 * value for value in found.values(row[0], next(
            column for column in found.columns if column.name == f"{row[2].split()[0]}/accuracy"))]
        best, worst, difference, n = row[3:]
        assert (best, worst, n) == (f"{max(values):.1f}", f"{min(values):.1f}", "3")
        assert difference == f"{max(values) - min(values):.1f}" != "0.0"


@pytest.mark.parametrize(("methods", "seeds"), [
    ({"random": mix("random_hard")}, 1), ({"fixed_all": mix("fixed")}, 3), ({"ksm": {"name": "ksm"}}, 3)])
def test_what_was_not_repeated_or_not_drawn_has_no_table(layout, methods, seeds):
    assert repeated_selections(results(layout, methods, seeds)) is None
