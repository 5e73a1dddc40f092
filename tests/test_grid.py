"""The grid of a study: which points it has, what is refused, and the commands that run them."""

import shlex

import pytest

from kdcore import config, strict
from kdcore.errors import UserError
from kdcore.layout import ROOT
from tests.command import kdflow

WRITTEN = strict.read_yaml(ROOT / "params.yaml")
RATES = {"training.student.learning_rate": [1e-5, 2e-5]}


def study(grid: dict) -> config.Study:
    return strict.parse(config.Study, WRITTEN | {"grid": grid}, "params.yaml")


def test_points_are_all_combinations_in_the_order_written():
    points = study(RATES | {"training.student.batch_size": [8, 16, 32]}).points("movies", "finetune")
    assert len(points) == 6
    assert points[0] == {"training.student.learning_rate": 1e-5, "training.student.batch_size": 8}
    assert points[1] == {"training.student.learning_rate": 1e-5, "training.student.batch_size": 16}


def test_a_hyper_parameter_concerns_its_method_only():
    grid = study(RATES | {"methods.vanilla_kd.temperature": [5, 10, 20], "methods.rail_kd_l.width": [64, 128]})
    assert [len(grid.points("movies", name)) for name in ("finetune", "vanilla_kd", "rail_kd_l", "rail_kd_c")] == [
        2, 6, 4, 2]


def test_a_setting_of_a_dataset_concerns_that_dataset_only():
    grid = study(RATES | {"datasets.movies.student.epochs": [1, 2, 3]})
    assert (len(grid.points("movies", "finetune")), len(grid.points("other", "finetune"))) == (6, 2)


def test_what_a_dataset_sets_for_itself_is_not_varied_for_it():
    """Its own value would stand, and all points would be the same."""
    written = WRITTEN | {"datasets": WRITTEN["datasets"] | {
        "own": {"data": {}, "teacher": {}, "student": {"learning_rate": 3e-5, "epochs": 1}}}}
    written["study"] = written["study"] | {"datasets": ["movies", "own"]}
    grid = strict.parse(config.Study, written | {"grid": RATES | {
        "training.student.batch_size": [8, 16, 32], "datasets.movies.student.batch_size": [64]}}, "params.yaml")
    assert grid.points("own", "finetune") == tuple({"training.student.batch_size": size} for size in (8, 16, 32))
    assert grid.points("movies", "finetune") == tuple(
        {"training.student.learning_rate": rate, "datasets.movies.student.batch_size": 64} for rate in (1e-5, 2e-5))


@pytest.mark.parametrize("who", ["teacher", "student"])
def test_what_every_dataset_sets_for_itself_cannot_be_varied(who):
    datasets = {"movies": WRITTEN["datasets"]["movies"] | {who: {"epochs": 1}},
                "unused": WRITTEN["datasets"]["movies"]}
    with pytest.raises(UserError, match=rf"grid varies training.{who}.epochs, but every dataset of the study has a "
                                        rf"value of its own, which stands; vary datasets.movies.{who}.epochs instead"):
        strict.parse(config.Study, WRITTEN | {"datasets": datasets, "grid": {f"training.{who}.epochs": [1, 2]}}, "x")


def test_without_a_grid_the_study_is_the_only_point():
    assert study({}).points("movies", "finetune") == ({},)


def test_at_a_point_the_study_has_its_values_and_nothing_else_changes():
    before = study(RATES | {"methods.vanilla_kd.temperature": [5]})
    after = before.at({"training.student.learning_rate": 2e-5, "methods.vanilla_kd.temperature": 5})
    assert after.student_training("movies").learning_rate == 2e-5
    assert after.method("vanilla_kd").options == before.method("vanilla_kd").options | {"temperature": 5}
    assert after.model_dump(exclude={"training", "methods", "grid"}) == before.model_dump(
        exclude={"training", "methods", "grid"})
    assert after.teacher_training("movies") == before.teacher_training("movies")


@pytest.mark.parametrize(("grid", "told"), [
    ({"training.student.learning_rat": [1e-5]}, "grid: unknown key `training.student.learning_rat`; did you mean "),
    ({"training.student.batch_size": [8, 0]}, r"grid: training.student.batch_size = 0: .* greater than or equal to 1"),
    ({"training.student.batch_size": [8, 9], "training.student.accumulation": [1, 4]},
     "grid: accumulation 4 does not divide batch_size 9"),
    ({"trainin.student.batch_size": [8]}, r"grid names 'trainin.student.batch_size', expected .* training, datasets"),
    ({"study.seeds": [[1]]}, "grid names 'study.seeds', expected a setting such as"),
    ({"methods.vanilla_kd": [{}]}, "grid names 'methods.vanilla_kd', expected a setting such as"),
    ({"methods.vanila_kd.alpha": [0.5]}, "'vanila_kd' has no entry under `methods`; did you mean 'vanilla_kd'"),
    ({"datasets.movie.student.epochs": [1]}, "'movie' has no entry under `datasets`; did you mean 'movies'"),
    ({"datasets.movies.student.epoch": [1]}, "unknown key `epoch`; did you mean 'epochs'"),
    ({"training.student.batch_size": []}, r"training.student.batch_size lists \[\], expected at least one value"),
    ({"training.student.batch_size": [8, 8]}, r"training.student.batch_size lists \[8, 8\], expected .* each once"),
    ({"training.student.batch_size": 8}, "grid.training.student.batch_size = 8: Input should be a valid tuple"),
])
def test_a_grid_that_does_not_fit_is_refused(grid, told):
    with pytest.raises(UserError, match=told):
        study(grid)


def folder_with(grid: str, folder):
    (folder / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8") + grid, encoding="utf-8")
    return folder


def test_the_command_prints_what_dvc_runs(tmp_path):
    folder = folder_with("""
grid:
  training.student.learning_rate: [1.0e-5, 4.0e-6]
  methods.vanilla_kd.temperature: [5]
  methods.rail_kd_l.student_layers: [[1], [1, 2]]
""", tmp_path)
    done = kdflow("grid", "movies", "rail_kd_l", cwd=folder)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == 4
    assert shlex.split(lines[-1]) == [
        "dvc", "exp", "run", "-S", "++study.seeds=[1]", "-S", "++training.student.learning_rate=4e-06",
        "-S", "++methods.rail_kd_l.student_layers=[1, 2]", "evaluate@movies-rail_kd_l"]


def test_hyper_parameters_in_the_grid_are_checked_before_anything_runs(tmp_path):
    folder = folder_with("\ngrid: {methods.vanilla_kd.temperatur: [5]}\n", tmp_path)
    for command in (("grid", "movies", "vanilla_kd"), ("prepare", "movies")):
        done = kdflow(*command, cwd=folder)
        assert done.code == 2
        assert "grid: methods.vanilla_kd: unknown key `temperatur`; did you mean 'temperature'" in done.err


@pytest.mark.parametrize("setting", [
    "methods.layer_kd.knowledge: [{cls: 1}, {mean: 1}]",
    "pair.teacher.members: [[{source: a, seed: 1}, {source: a, seed: 2}]]",
])
def test_what_dvc_cannot_set_is_refused(setting, tmp_path):
    """DVC refuses `{"cls": 1}`, and would merge `{cls: 1}` into the values of the point before."""
    folder = folder_with(f"\ngrid: {{{setting}}}\n", tmp_path)
    if "members" in setting:
        text = (folder / "params.yaml").read_text(encoding="utf-8")
        (folder / "params.yaml").write_text(text.replace(
            'teacher: {source: "package:all-MiniLM-L6-v2"}', "teacher: {members: [{source: a}]}"), encoding="utf-8")
    done = kdflow("grid", "movies", "layer_kd", cwd=folder)
    assert done.code == 2
    assert f"grid: {setting.partition(':')[0]} lists" in done.err
    assert "sets no mappings" in done.err


def test_a_setting_inside_a_mapping_can_be_varied(tmp_path):
    folder = folder_with("\ngrid: {methods.layer_kd.knowledge.cls: [1, 0.5]}\n", tmp_path)
    done = kdflow("grid", "movies", "layer_kd", cwd=folder)
    assert done.code == 0, done.err
    assert shlex.split(done.out.splitlines()[1])[-2:] == [
        "++methods.layer_kd.knowledge.cls=0.5", "evaluate@movies-layer_kd"]
