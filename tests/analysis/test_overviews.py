"""What the datasets of a study say together: marks, wins, ranks, and when these say nothing."""

import pytest

from kdcore.analysis.overviews import Overview
from kdcore.analysis.results import DatasetResults
from kdcore.analysis.statistics import Difference
from tests.analysis.evaluations import SPLITS, info_of, write, write_study

METHODS = ("finetune", "vanilla_kd", "rail_kd_l")


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch):
    monkeypatch.setattr("kdcore.analysis.results.RESAMPLES", 300)


def overview(folder, names, seeds=3):
    for name in names:
        layout, _ = write_study(folder, seeds, name, splits=SPLITS[:3])
    return Overview([DatasetResults.load(layout.evaluation(name, "teacher").parent, METHODS) for name in names])


def rows(table):
    return {row[0]: row[1:] for row in table.rows}


def test_the_main_table_has_a_column_per_dataset_and_marks_what_differs(tmp_path):
    table = overview(tmp_path, ("movies", "books", "plays")).main()
    assert table.columns[1:] == ("movies\ntest\nacc", "books\ntest\nacc", "plays\ntest\nacc", "mean of\ndatasets")
    found = rows(table)
    assert all(cell.endswith("†‡") for cell in found["rail_kd_l"][:3])
    unmarked = [cell for name in ("teacher", "finetune", "vanilla_kd") for cell in found[name]]
    assert not [cell for cell in unmarked if "†" in cell or "‡" in cell]
    best = table.rows.index(next(row for row in table.rows if row[0] == "rail_kd_l"))
    assert table.best == {(best, 1), (best, 2), (best, 3)}, "the best student, not the teacher"
    assert "all 9 tested comparisons" in table.caption


def test_wins_ties_losses_and_ranks(tmp_path):
    found = overview(tmp_path, ("movies", "books", "plays"))
    table = rows(found.wins())
    assert table["rail_kd_l"][:2] == ("3 / 0 / 0", "3 / 0 / 0")
    assert table["vanilla_kd"][:2] == ("0 / 3 / 0", "-")
    assert table["finetune"][:2] == ("-", "-")
    assert table["rail_kd_l"][2] == "1.00"
    assert found.ranking.datasets == 3
    assert "Ranks over 3 datasets" in found.wins().caption


def test_a_worse_method_loses(tmp_path):
    layout, _ = write_study(tmp_path, splits=SPLITS[:3])
    for name in ("movies", "books"):
        write_study(tmp_path / name, name="movies", splits=SPLITS[:3])
        folder = tmp_path / name
        layout = type(layout)(folder)
        write(layout, info_of("movies", splits=SPLITS[:3]), "bad", {f"seed-{s}": 0.6 + 0.004 * s for s in (1, 2, 3)})
    everything = [DatasetResults.load(tmp_path / name / "artifacts" / "evaluation" / "movies", (*METHODS, "bad"))
                  for name in ("movies", "books")]
    assert rows(Overview(everything).wins())["bad"][:2] == ("0 / 0 / 2", "0 / 0 / 2")


def test_two_seeds_are_not_tested(tmp_path):
    found = overview(tmp_path, ("movies", "books"), seeds=2)
    assert rows(found.wins())["rail_kd_l"][0] == "0 / 0 / 0 (2)"
    assert "Nothing is tested with fewer than 3 seeds" in found.main().caption
    assert "†" not in "".join(cell for row in found.main().rows for cell in row)


def test_two_datasets_have_no_ranks_and_say_why(tmp_path):
    found = overview(tmp_path, ("movies", "books"))
    assert found.ranking is None
    assert found.wins().columns == ("", "against\nfinetune", "against\nvanilla_kd"), "no column without any rank"
    assert "No ranks: they need 3 methods on 3 datasets" in found.wins().caption


def test_a_method_that_a_dataset_lacks_has_no_rank(tmp_path):
    found = overview(tmp_path, ("movies", "books", "plays"))
    del found.everything[0].systems["vanilla_kd"]
    assert Overview(found.everything).ranking is None, "two methods are left"


def test_what_only_the_correction_keeps_from_a_verdict_is_named(tmp_path, monkeypatch):
    """Against one baseline p is 0.03 on movies alone: too much for a family of six, so more seeds are asked for."""
    found = overview(tmp_path, ("movies", "books"))
    monkeypatch.setattr(DatasetResults, "difference", lambda results, method, baseline, column: Difference(
        0.1, 0.0, 0.2, 0.03 if (method, baseline, results.info.name) == ("rail_kd_l", "finetune", "movies") else 0.5,
        None, 1.0, 3, "not distinguishable"))
    finetune, vanilla = found.in_short()[1:]
    assert finetune == ("Against `finetune`, 4 comparisons of a method on a dataset: 4 not distinguishable. p is below "
                        "0.05 before the correction: `rail_kd_l` on movies (+10.0); more seeds would tell.")
    assert vanilla == "Against `vanilla_kd`, 2 comparisons of a method on a dataset: 2 not distinguishable."


def test_a_verdict_needs_no_more_seeds(tmp_path):
    assert "more seeds" not in " ".join(overview(tmp_path, ("movies", "books", "plays")).in_short())
