"""The stage `report`: what it refuses, and in which words."""

import json
import shutil

import pytest

from kdcore.errors import UserError
from tests.analysis.evaluations import SPLITS, info_of, write, write_study
from tests.evaluation.synthetic import SENTIMENT, split
from tests.stages.reported import run

pytest_plugins = ("tests.stages.reported",)
pytestmark = pytest.mark.usefixtures("few_resamples")


def test_nothing_evaluated_names_the_way(tmp_path):
    layout, _ = write_study(tmp_path)
    with pytest.raises(UserError, match=r"nothing of rte was evaluated yet; run `dvc repro`"):
        run(layout, datasets=("rte",))


def test_a_damaged_file_names_itself_and_the_command(layout):
    (layout.evaluation("movies", "finetune") / "context.json").write_text('{"protocol": ')
    with pytest.raises(UserError, match=r"evaluation in .*finetune cannot be read .*kdflow evaluate movies finetune"):
        run(layout)


def test_a_missing_file_names_the_command(layout):
    (layout.evaluation("movies", "finetune") / "metrics.json").unlink()
    with pytest.raises(UserError, match=r"metrics.json is missing; run `kdflow evaluate movies finetune` again"):
        run(layout)


def test_numbers_of_another_protocol_are_not_mixed(layout):
    path = layout.evaluation("movies", "finetune") / "context.json"
    path.write_text(path.read_text().replace("kdflow-metrics/1", "kdflow-metrics/0"))
    with pytest.raises(UserError, match="was scored by kdflow-metrics/0, this version computes kdflow-metrics/1"):
        run(layout)


def test_numbers_of_other_data_are_not_mixed(layout):
    shutil.rmtree(layout.evaluation("movies", "finetune"))
    other = (*SPLITS[:1], split("validation", "select", 399, SENTIMENT), *SPLITS[2:])
    write(layout, info_of("movies", splits=other), "finetune", {"seed-1": 0.8})
    with pytest.raises(UserError, match="teacher and finetune were evaluated on different preparations of movies"):
        run(layout)


def test_runs_that_do_not_agree_are_refused(layout):
    path = layout.evaluation("movies", "finetune") / "metrics.json"
    content = json.loads(path.read_text())
    del content["seed-3"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"name different runs; run `kdflow evaluate movies finetune` again"):
        run(layout)


def test_methods_without_a_common_seed_are_refused(layout):
    shutil.rmtree(layout.evaluation("movies", "finetune"))
    write(layout, info_of("movies"), "finetune", {"seed-7": 0.8})
    with pytest.raises(UserError, match="vanilla_kd and finetune have no seed in common on movies"):
        run(layout)


@pytest.mark.parametrize(("content", "said"), [("{", "is no JSON"), ("[1]", "holds list, expected a mapping")])
def test_damaged_measurements_name_the_file(layout, content, said):
    layout.measured.mkdir(parents=True, exist_ok=True)
    (layout.measured / "distill@movies-finetune.json").write_text(content)
    with pytest.raises(UserError, match=rf"distill@movies-finetune.json {said}"):
        run(layout)


def test_an_old_report_stays_when_a_new_one_fails(layout):
    run(layout)
    before = (layout.report / "report.md").read_bytes()
    (layout.evaluation("movies", "finetune") / "metrics.json").unlink()
    with pytest.raises(UserError, match="missing"):
        run(layout)
    assert (layout.report / "report.md").read_bytes() == before
