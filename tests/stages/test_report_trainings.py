"""The stage `report`: what it says of teachers and trainings."""

import json

import pytest

from tests.analysis.evaluations import SPLITS, write_study
from tests.stages.reported import edit_trainings, numbers, run

pytest_plugins = ("tests.stages.reported",)
pytestmark = pytest.mark.usefixtures("few_resamples")


def test_the_last_weights_are_not_said_to_be_selected(tmp_path):
    layout, _ = write_study(tmp_path, splits=SPLITS[:2])
    edit_trainings(layout, "movies", "rail_kd_l", keep="last")
    assert "flatters every method a little; of `rail_kd_l` the weights of the last step were kept" in run(layout)
    for method in ("teacher", "finetune", "vanilla_kd"):
        edit_trainings(layout, "movies", method, keep="last")
    text = run(layout)
    assert "No checkpoint was chosen, the weights of the last step were kept" in text
    assert "were selected" not in text


def test_settings_that_a_method_has_on_one_dataset_alone_are_said_there(tmp_path):
    layout, _ = write_study(tmp_path)
    write_study(tmp_path, name="books")
    for dataset, temperature in (("movies", 2.0), ("books", 4.0)):
        edit_trainings(layout, dataset, "vanilla_kd", method={"name": "vanilla_kd", "alpha": 0.5,
                                                              "temperature": temperature})
        edit_trainings(layout, dataset, "rail_kd_l", method={"name": "rail_kd_l", "alpha": 0.5})
    text = run(layout, datasets=("movies", "books"))
    movies, books = text[text.index("\n## movies"):].split("\n## books")
    assert "\n- `vanilla_kd`: temperature 2.0\n" in movies
    assert "\n- `vanilla_kd`: temperature 4.0\n" in books
    assert "- `rail_kd_l`: " not in text
    assert "differ between the datasets" not in run(layout, datasets=("movies",))


def test_a_start_that_each_seed_draws_is_told_once(layout):
    path = layout.evaluation("movies", "rail_kd_l") / "context.json"
    content = json.loads(path.read_text())
    for run_name, found in content["runs"].items():
        found["training"]["init"] = f"layers 2 of it, new head (seed {run_name.removeprefix('seed-')})"
    path.write_text(json.dumps(content))
    assert "rail_kd_l: layers 2 of it, new head (seed of the run); " in run(layout)


def test_seeds_that_ran_fewer_phases_are_said(layout):
    path = layout.evaluation("movies", "rail_kd_l") / "context.json"
    content = json.loads(path.read_text())
    for count, found in zip((1, 3, 2), content["runs"].values(), strict=True):
        (phase,) = found["training"]["phases"]
        found["training"]["phases"] = [*(phase | {"name": f"episode-{n}"} for n in range(1, count)), phase]
    path.write_text(json.dumps(content))
    told = next(line for line in run(layout).splitlines() if line.startswith("rail_kd_l: "))
    assert "; episode-1, episode-2: epochs 2, " in told, "alike, so told once"
    assert told.endswith("; seeds ran 1 to 3 of these phases; seeds 1, 2, 3.")


def test_a_teacher_that_is_only_files_has_no_numbers_where_it_was_not_asked(layout, capsys):
    """Neither scores of splits that its files do not answer, nor a size or latency."""
    folder = layout.evaluation("movies", "teacher")
    metrics, context = (json.loads((folder / f"{name}.json").read_text()) for name in ("metrics", "context"))
    metrics["teacher"] = {"train": metrics["teacher"]["test"], "validation": metrics["teacher"]["validation"]}
    run_of = context["runs"]["teacher"]
    run_of["size"], run_of["training"]["phases"], run_of["training"]["history"] = {}, [], []
    run_of["training"]["init"] = "answers in data/teacher.csv (probabilities)"
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "context.json").write_text(json.dumps(context))
    text = run(layout)
    assert "Teacher: answers in data/teacher.csv (probabilities).\n" in text
    assert "| teacher | - | - | - | - |" in text, "its size"
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("teacher")]
    assert rows == [["teacher", rows[0][1], "-", "-", "-", "-"], ["teacher", "-", "-"]]
    assert set(numbers(layout)["datasets"]["movies"]["systems"]["teacher"]["metrics"]) == {"validation/accuracy"}


def test_several_datasets_where_one_teacher_is_only_files(tmp_path):
    layout, _ = write_study(tmp_path)
    write_study(tmp_path, name="reviews")
    path = layout.evaluation("reviews", "teacher") / "metrics.json"
    path.write_text(json.dumps({"teacher": {"train": {"accuracy": 0.9, "degenerate": False, "n": 3000}}}))
    text = run(layout, datasets=("movies", "reviews"))
    overview = next(line for line in text.splitlines() if line.startswith("| teacher |"))
    cells = [cell.strip() for cell in overview.strip("|").split("|")]
    assert cells[2:] == ["-", "-"], "not evaluated there, so there is no mean of datasets either"
    assert cells[1] != "-"


def test_members_of_an_average_have_curves_and_scores(layout, monkeypatch):
    folder = layout.evaluation("movies", "teacher")
    context = json.loads((folder / "context.json").read_text())
    training = context["runs"]["teacher"]["training"]
    one = dict(training)
    training |= {"members": [one, one], "history": [], "check": {
        "split": "validation", "teacher": 0.9, "constant": 0.5, "answer": "positive", "members": [0.88, 0.87]}}
    (folder / "context.json").write_text(json.dumps(context))
    drawn = []
    monkeypatch.setattr("kdcore.analysis.plots.draw", lambda panels, path: drawn.extend(panels))
    text = run(layout)
    assert len(drawn[0].curves["teacher"]) == 2
    assert "the teacher 90.0 (its members 88.0, 87.0)." in text


def test_steps_in_place_of_epochs_are_told(layout):
    """A training of so many steps has a number of epochs too, which it does not look at."""
    folder = layout.evaluation("movies", "rail_kd_l")
    context = json.loads((folder / "context.json").read_text())
    for found in context["runs"].values():
        (phase,) = found["training"]["phases"]
        found["training"]["phases"] = [phase | {"steps": 688}]
    (folder / "context.json").write_text(json.dumps(context))
    told = next(line for line in run(layout).splitlines() if line.startswith("rail_kd_l: "))
    assert "; steps 688, batch size " in told
    assert "epochs" not in told


def test_phases_of_a_method_are_told_and_drawn_one_after_another(layout, monkeypatch):
    """Others that were trained otherwise are told apart, lest a longer training pass for a better method."""
    folder = layout.evaluation("movies", "rail_kd_l")
    context = json.loads((folder / "context.json").read_text())
    for found in context["runs"].values():
        training = found["training"]
        (phase,) = training["phases"]
        training["phases"] = [phase | {"name": "layers", "epochs": 2, "learning_rate": 1e-3}, phase]
        last = training["history"][-1]
        layers = [{key: value for key, value in last.items() if key != "development"} | {
            "phase": "layers", "epoch": epoch} for epoch in (1.0, 2.0)]
        training["history"] = [*layers, last | {"phase": phase["name"], "epoch": 1.0}]
    (folder / "context.json").write_text(json.dumps(context))
    drawn = []
    monkeypatch.setattr("kdcore.analysis.plots.draw", lambda panels, path: drawn.extend(panels))
    text = run(layout)
    assert [list(curve.epochs) for curve in drawn[0].curves["rail_kd_l"]] == 3 * [[1, 2, 3]]
    assert drawn[0].curves["rail_kd_l"][0].scores[:2] == [None, None]
    assert "\nfinetune, vanilla_kd: " in text
    told = next(line for line in text.splitlines() if line.startswith("rail_kd_l: "))
    assert "; layers: epochs 2, " in told
    assert "learning rate 0.001" in told
    assert told.endswith("seeds 1, 2, 3.")
