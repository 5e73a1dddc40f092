"""What an entry of `methods` says of single datasets: hyper-parameters and settings of the training there."""

from typing import Any

import pytest

from kdcore import config, methods, strict
from kdcore.errors import UserError
from kdcore.layout import ROOT, Layout
from kdcore.stages import method as stage
from kdcore.stages.distill import Work

WRITTEN = strict.read_yaml(ROOT / "params.yaml")
ON_MOVIES = {"temperature": 4.0, "student": {"learning_rate": 2e-5}}


def study(entry: dict[str, Any], method: str = "vanilla_kd") -> config.Study:
    return strict.parse(config.Study, WRITTEN | {"methods": WRITTEN["methods"] | {method: entry}}, "params.yaml")


def test_a_dataset_has_its_own_values_and_the_others_stay():
    declared = study({"alpha": 0.3, "datasets": {"movies": ON_MOVIES}})
    assert declared.method("vanilla_kd").options == {"alpha": 0.3}
    assert declared.method("vanilla_kd", "movies").options == {"alpha": 0.3, "temperature": 4.0}
    assert declared.method("vanilla_kd", "other").options == {"alpha": 0.3}
    assert declared.student_training("movies", "vanilla_kd").learning_rate == 2e-5
    assert declared.student_training("movies", "vanilla_kd").epochs == declared.student_training("movies").epochs
    assert declared.student_training("movies", "finetune") == declared.student_training("movies")


def test_settings_inside_a_mapping_are_merged():
    declared = study({"knowledge": {"cls": 1, "mean": 1}, "datasets": {"movies": {"knowledge": {"cls": 0.5}}}},
                     "layer_kd")
    assert declared.method("layer_kd", "movies").options == {"knowledge": {"cls": 0.5, "mean": 1}}


def test_students_are_trained_so(tmp_path):
    work = Work(study({"alpha": 0.3, "datasets": {"movies": ON_MOVIES}}), Layout(tmp_path), "movies", "vanilla_kd")
    assert work.method_config == methods.configure("vanilla_kd", {"alpha": 0.3, "temperature": 4.0})
    assert work.settings.learning_rate == 2e-5


def test_the_stage_of_the_method_links_to_the_files_of_all_datasets(tmp_path):
    declared = study({"knowledge": {"fsp": {}}, "datasets": {"movies": {"knowledge": {"pkd": {}}}}}, "ksm")
    stage.run(declared.model_copy(update={"code": str(ROOT)}), Layout(tmp_path), "ksm")
    assert {"ksm.py", "fsp.py", "pkd.py"} == {path.name for path in Layout(tmp_path).method("ksm").iterdir()}


@pytest.mark.parametrize(("own", "message"), [
    (["movies"], r"methods.vanilla_kd.datasets = \['movies'\], expected hyper-parameters by dataset"),
    ({"movies": 3}, r"methods.vanilla_kd.datasets = {'movies': 3}, expected hyper-parameters by dataset"),
    ({"movie": {}}, r"methods.vanilla_kd.datasets names 'movie', which has no entry .* did you mean 'movies'"),
    ({"movies": {"student": 3}}, r"methods.vanilla_kd.datasets.movies.student = 3, expected settings of a training"),
    ({"movies": {"student": {"epoch": 3}}},
     r"methods.vanilla_kd.datasets.movies.student: unknown key `epoch`; did you mean 'epochs'"),
])
def test_what_does_not_fit_is_one_line(own, message):
    with pytest.raises(UserError, match=message):
        study({"datasets": own})


def test_a_hyper_parameter_that_does_not_fit_is_told_with_the_method():
    _, on_movies = study({"datasets": {"movies": {"temperatur": 4.0}}}).entries("vanilla_kd")
    with pytest.raises(UserError, match=r"methods.vanilla_kd: unknown key `temperatur`; did you mean 'temperature'"):
        methods.of_entry(on_movies)


def test_a_grid_names_no_setting_of_a_method_on_a_dataset():
    with pytest.raises(UserError, match=r"grid names 'methods.vanilla_kd.datasets.movies.alpha', which is of one "
                                        r"dataset; name methods.vanilla_kd.SETTING"):
        strict.parse(config.Study, WRITTEN | {"grid": {"methods.vanilla_kd.datasets.movies.alpha": [0.1]}}, "x")
