"""Scores of papers beside ours."""

from pathlib import Path

import pytest

from kdcore import config, strict
from kdcore.analysis import published
from kdcore.analysis.results import DatasetResults
from kdcore.analysis.tables import markdown
from kdcore.errors import UserError
from kdcore.layout import ROOT
from tests.analysis.evaluations import write_study

PAPER = config.Published(source="A. Author 2020, table 2", scores={"movies": {"test/accuracy": 91.2}})


@pytest.fixture
def results(tmp_path: Path) -> DatasetResults:
    layout, info = write_study(tmp_path)
    return DatasetResults.load(layout.evaluation(info.name, "teacher").parent, ("finetune", "rail_kd_l"))


def test_published_scores_are_marked_and_their_source_is_told(results: DatasetResults) -> None:
    table = published.table({"Paper": PAPER}, [results])
    assert table is not None
    assert table.columns[1].startswith("movies\ntest")
    assert len(table.columns) == 2, "only what a paper gives"
    assert [row[0] for row in table.rows] == ["teacher", "finetune", "rail_kd_l", "Paper, published"]
    assert table.rows[-1][1] == "91.2"
    assert "±" in table.rows[1][1]
    assert "Paper: A. Author 2020, table 2" in markdown(table)


def test_without_scores_of_these_datasets_there_is_no_table(results: DatasetResults) -> None:
    other = config.Published(source="x", scores={"rte": {"validation/accuracy": 70.0}})
    assert published.table({}, [results]) is None
    assert published.table({"Paper": other}, [results]) is None


def test_a_column_that_does_not_exist_gets_near_names(results: DatasetResults) -> None:
    wrong = config.Published(source="x", scores={"movies": {"test/acuracy": 70.0}})
    with pytest.raises(UserError, match=r"study\.published, 'Paper': movies has no column 'test/acuracy'; did"):
        published.table({"Paper": wrong}, [results])


def test_a_dataset_that_does_not_exist_gets_near_names() -> None:
    content = strict.read_yaml(ROOT / "params.yaml")
    content["study"]["published"] = {"Paper": {"source": "x", "scores": {"moves": {"test/accuracy": 70.0}}}}
    with pytest.raises(UserError, match=r"study\.published\.Paper\.scores names 'moves', .*did you mean 'movies'"):
        strict.parse(config.Study, content, "params.yaml")
