"""Which points a search tries, what it remembers, and what a trial is."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from kdcore import config, grid, strict, study, tracking_store
from kdcore.errors import UserError
from kdcore.layout import ROOT, Layout
from kdcore.search import Rules, Search, searches

WRITTEN = strict.read_yaml(ROOT / "params.yaml")
GRID = {"training.student.learning_rate": [1e-5, 2e-5, 4e-5], "methods.vanilla_kd.temperature": [1, 4]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    study.initialise(tmp_path / "mine", WRITTEN | {"grid": GRID}, cache=tmp_path / "cache", git=False)
    return tmp_path / "mine"


def search(folder: Path, method: str = "vanilla_kd", **rules: Any) -> Search:
    settings = config.load(folder / "params.yaml")
    (found,) = searches(folder, settings, Rules(1, **rules), ("movies",), (method,), named=True)
    found.open()
    return found


def train(found: Search, point: Any, score: float) -> float:
    """Write what the stage of a trial writes."""
    place = Layout(found.folder(point)).student("movies", found.method) / "seed-1" / "training.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"selected": {"score": score}, "history": [{"development": {}}, {}]}))
    return found.finish(point)


def test_all_points_are_tried_in_order_and_the_best_is_known(folder):
    found = search(folder)
    tried = []
    while (point := found.next()) is not None:
        tried.append(point)
        assert train(found, point, 0.5 + 0.1 * (point == found.points[3])) >= 0.5
    assert tried == list(found.points)
    assert found.best().point == found.points[3] == {"training.student.learning_rate": 2e-5,
                                                     "methods.vanilla_kd.temperature": 4}
    assert (found.best().score, found.best().evaluations) == (0.6, 1)
    assert search(folder).next() is None
    assert search(folder).best() == found.best()


def test_what_was_killed_is_next_and_what_is_done_stays_done(folder):
    found = search(folder)
    train(found, found.next(), 0.5)
    killed = found.next(), found.next()
    again = search(folder, sampler="tpe")
    assert [tried.point for tried in again.tried()] == [again.points[0]]
    assert (again.next(), again.next()) == killed
    assert again.next() not in (again.points[0], *killed)


def test_who_looks_takes_nothing_from_who_searches(folder):
    found = search(folder)
    train(found, found.next(), 0.5)
    under_way = found.next()
    (onlooker,) = searches(folder, found.settings, found.rules, ("movies",), ("vanilla_kd",), named=True)
    onlooker.read()
    assert onlooker.best() == found.best()
    assert train(found, under_way, 0.6) == 0.6


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_part_of_the_points_is_drawn_each_once_and_the_same_again(folder, tmp_path, sampler):
    drawn = []
    for name in ("first", "second"):
        study.initialise(tmp_path / name, WRITTEN | {"grid": GRID}, cache=tmp_path / "cache", git=False)
        found = search(tmp_path / name, sampler=sampler, trials=5)
        points = []
        while (point := found.next()) is not None:
            points.append(point)
            train(found, point, point["training.student.learning_rate"])
        drawn.append(points)
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 5 == len({json.dumps(point) for point in drawn[0]})
    assert drawn[0] != list(search(folder).points[:5])


def test_trials_far_behind_are_pruned_and_stay_so(folder):
    found = search(folder, pruner="median")
    for _ in range(5):
        point = found.next()
        assert not found.report(point, 1, 0.6)
        train(found, point, 0.7)
    point = found.next()
    assert found.report(point, 1, 0.2)
    found.prune(point)
    last = search(folder)
    assert last.next() is None
    assert (last.tried()[-1].state, last.tried()[-1].score, last.tried()[-1].evaluations) == ("pruned", 0.2, 1)
    assert last.best().score == 0.7


def test_hyperband_gives_up_trials_after_growing_numbers_of_epochs(folder):
    rates = [index * 1e-5 for index in range(1, 13)]
    content = strict.read_yaml(folder / "params.yaml") | {"grid": {"training.student.learning_rate": rates}}
    (folder / "params.yaml").write_text(study._dump(content))
    found, ended = search(folder, pruner="hyperband"), {}
    while (point := found.next()) is not None:
        rate = point["training.student.learning_rate"]
        score = 1 - rate * 1e4  # the first is the best: what comes later is behind
        ended[rate] = next((epoch for epoch in range(1, 10) if found.report(point, epoch, score)), None)
        if ended[rate]:
            found.prune(point)
        else:
            train(found, point, score)
    assert ended[rates[0]] is None
    assert len({epoch for epoch in ended.values() if epoch}) > 1
    assert found.best().point == {"training.student.learning_rate": rates[0]}


def test_a_failed_trial_is_tried_again_by_the_next_search(folder):
    found = search(folder)
    point = found.next()
    found.fail(point, "the loss is not finite")
    assert found.next() != point
    again = search(folder)
    assert again.tried()[0].why == "the loss is not finite"
    assert [again.next() for _ in range(2)] == [found.points[1], point]  # the second was killed


def test_a_finished_trial_that_is_not_current_is_tried_again(folder):
    found = search(folder)
    point = found.next()
    train(found, point, 0.5)
    again = search(folder)
    again.again(point)
    assert again.next() == point


def test_other_values_or_settings_are_another_search(folder):
    found = search(folder)
    train(found, found.next(), 0.5)
    content = strict.read_yaml(folder / "params.yaml")
    for change in ({"grid": GRID | {"training.student.learning_rate": [1e-5, 3e-5]}},
                   {"training": content["training"] | {"student": content["training"]["student"] | {"epochs": 9}}}):
        (folder / "params.yaml").write_text(study._dump(content | change))
        assert search(folder).tried() == []
    (folder / "params.yaml").write_text(study._dump(content | {"evaluation": {"latency": False}}))
    assert len(search(folder).tried()) == 1


def test_a_trial_is_the_study_with_the_point_accepted(folder):
    found = search(folder)
    place = found.folder(found.points[1])
    trial = config.load(place / "params.yaml")
    assert trial.study == config.Selection(datasets=("movies",), methods=("vanilla_kd",), seeds=(1,))
    assert trial.student_training("movies", "vanilla_kd").learning_rate == 1e-5
    assert trial.method("vanilla_kd", "movies").options == {"alpha": 0.5, "temperature": 4}
    assert trial.grid == {}
    assert place.parent == folder.parent
    assert (place / "dvc.yaml").resolve() == ROOT / "dvc.yaml"
    assert (place / "data").resolve() == folder / "data"
    assert (place / trial.code).resolve() == ROOT
    assert found.folder(found.points[1]) == place != found.folder(found.points[0])
    assert tracking_store.study_name(place) == "mine"


def test_what_is_accepted_changes_no_trial(folder):
    found = search(folder)
    before = found.content(found.points[0])
    written = strict.read_yaml(folder / "params.yaml")
    written["methods"]["vanilla_kd"]["datasets"] = {"movies": {"temperature": 4}, "other": {"temperature": 9}}
    (folder / "params.yaml").write_text(study._dump(written))
    assert found.content(found.points[0]) == before


def test_a_trial_takes_over_what_the_study_has_done(folder):
    code = config.load(folder / "params.yaml").code
    stage = {"cmd": "x", "deps": [{"path": f"{code}/kdcore/config.py", "md5": "1" * 32},
                                  {"path": "artifacts/prepared/movies", "md5": "2" * 32}]}
    (folder / "dvc.lock").write_text(study._dump({"schema": "2.0", "stages": {
        "teacher@movies": stage, "teacher@other": stage, "report": stage}}))
    found = search(folder)
    stages = strict.read_yaml(found.folder(found.points[0]) / "dvc.lock")["stages"]
    assert stages == {"teacher@movies": stage}


def test_settings_of_students_become_those_of_one_method_on_one_dataset():
    point = {"training.student.learning_rate": 1, "datasets.movies.student.epochs": 2, "methods.pkd.beta": 3,
             "pair.max_length": 4, "training.teacher.epochs": 5}
    assert grid.own(point, "movies", "pkd") == {
        "methods.pkd.datasets.movies.student.learning_rate": 1, "methods.pkd.datasets.movies.student.epochs": 2,
        "methods.pkd.datasets.movies.beta": 3, "pair.max_length": 4, "training.teacher.epochs": 5}


def test_only_evaluations_of_this_training_are_seen(folder):
    found = search(folder)
    logs = Layout(folder).logs
    logs.mkdir(parents=True)
    journal = logs / "distill@movies-vanilla_kd-seed-1.jsonl"
    journal.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "dev/score": 0.5}\n{"step": 4, "dev/sco')
    assert list(found.evaluations(folder, 0.0)) == [0.5]
    assert list(found.evaluations(folder, time.time() + 60)) == []
    assert list(found.evaluations(folder / "elsewhere", 0.0)) == []


@pytest.mark.parametrize(("rules", "message"), [
    ({"sampler": "gird"}, r"sampler = 'gird'; did you mean 'grid'"),
    ({"pruner": "medain"}, r"pruner = 'medain'; did you mean 'median'.*leave it out to prune none"),
    ({"trials": 0}, "trials = 0: expected 1 or more"),
    ({"seed": -1}, "seed = -1: expected 0 or more"),
])
def test_rules_that_do_not_fit_are_one_line(rules, message):
    with pytest.raises(UserError, match=message):
        Rules(**{"seed": 1} | rules)


@pytest.mark.parametrize(("values", "named", "message"), [
    ({}, True, "has no `grid`, so there is nothing to search; list values to try, e.g. `grid: {training.student"),
    ({"methods.vanilla_kd.temperature": [1, 4]}, True, "the grid has no setting that concerns finetune on movies"),
    ({"methods.rail_kd_l.width": [64]}, False, "no setting that concerns one of finetune, vanilla_kd on movies"),
    ({"methods.vanilla_kd.temperatur": [1, 4]}, False, "grid: methods.vanilla_kd: unknown key `temperatur`"),
])
def test_a_grid_with_nothing_to_search_is_one_line(values, named, message):
    settings = strict.parse(config.Study, WRITTEN | {"grid": values}, "params.yaml")
    with pytest.raises(UserError, match=message):
        searches(ROOT, settings, Rules(1), ("movies",), ("finetune", "vanilla_kd"), named)


def test_methods_that_the_grid_does_not_concern_are_left_out():
    settings = strict.parse(config.Study, WRITTEN | {"grid": {"methods.vanilla_kd.temperature": [1, 4]}}, "params.yaml")
    found = searches(ROOT, settings, Rules(1), ("movies",), ("finetune", "vanilla_kd"), named=False)
    assert [one.method for one in found] == ["vanilla_kd"]
