"""Study folders, profiles, and the studies that ship."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kdcore import config, methods, strict, study
from kdcore.data import specs
from kdcore.errors import UserError
from kdcore.features import LOGITS
from kdcore.layout import ROOT
from kdcore.objective import Dims, Objective, Progress, Setting

STUDIES = sorted(path.parent for path in ROOT.glob("studies/*/params.yaml") if "." not in path.parent.name
                 and not config.is_general(strict.read_yaml(path)))
PROFILES = [(folder, name) for folder in STUDIES for name in study.profiles(folder)]


def copy_of(folder: Path, place: Path) -> Path:
    """A shipped study with its profiles in another place."""
    study.initialise(place, folder / "params.yaml", cache=place.parent / "cache", git=False)
    (place / "profiles").mkdir()
    for path in study.profiles(folder).values():
        (place / "profiles" / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return place


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A study made from the default settings."""
    study.initialise(tmp_path / "mine", ROOT / "params.yaml", cache=tmp_path / "cache", git=False)
    return tmp_path / "mine"


def test_a_new_study_is_one_for_dvc(mine):
    done = subprocess.run([sys.executable, "-m", "dvc", "status", "--json"], cwd=mine, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert "prepare@movies" in json.loads(done.stdout)
    assert (mine / "dvc.yaml").resolve() == ROOT / "dvc.yaml"
    assert (mine / config.load(mine / "params.yaml").code).resolve() == ROOT


def test_studies_share_a_cache(mine, tmp_path):
    done = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], cwd=mine, capture_output=True, text=True,
                          check=True)
    assert (mine / done.stdout.strip()).resolve() == (tmp_path / "cache").resolve()


@pytest.mark.parametrize("name", ["dvc.yaml", "dvc.lock", ".dvc/config", ".dvcignore"])
def test_another_dvc_project_is_left_as_it_is(name, mine, tmp_path):
    theirs = tmp_path / "theirs" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("of somebody else")
    with pytest.raises(UserError, match=rf"theirs holds {name.split('/')[0]} already, so another DVC project"):
        study.initialise(tmp_path / "theirs", mine / "params.yaml")
    assert theirs.read_text() == "of somebody else"
    assert not (tmp_path / "theirs" / "params.yaml").exists()


def test_an_existing_study_is_not_overwritten(mine):
    with pytest.raises(UserError, match=r"mine already is a study; delete its params\.yaml"):
        study.initialise(mine, ROOT / "params.yaml")


def test_settings_that_do_not_fit_leave_no_study(tmp_path):
    content = strict.read_yaml(ROOT / "params.yaml") | {"extra": 1}
    with pytest.raises(UserError, match="unknown key `extra`"):
        study.initialise(tmp_path / "bad", content)
    assert not (tmp_path / "bad" / "params.yaml").exists()


def test_a_profile_is_merged_and_follows_its_sources(mine):
    (mine / "profiles").mkdir()
    profile = mine / "profiles" / "smoke.yaml"
    profile.write_text("study: {seeds: [7]}\ndatasets: {movies: {data: {train_rows: 10}}}\n")
    folder = study.materialise(mine, "smoke")
    assert folder == mine.parent / "mine.smoke"
    settings = config.load(folder / "params.yaml")
    assert settings.study.seeds == (7,)
    assert settings.study.methods == config.load(mine / "params.yaml").study.methods
    assert settings.datasets["movies"].data.train_rows == 10
    assert settings.datasets["movies"].data.selection == "validation"
    assert (folder / "data").resolve() == (mine / "data").resolve()
    profile.write_text("study: {seeds: [8]}\n")
    assert config.load(study.materialise(mine, "smoke") / "params.yaml").study.seeds == (8,)


def test_an_unchanged_profile_touches_no_file(mine):
    (mine / "profiles").mkdir()
    (mine / "profiles" / "smoke.yaml").write_text("study: {seeds: [7]}\n")
    folder = study.materialise(mine, "smoke")
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    study.materialise(mine, "smoke")
    assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before


def test_no_profile_is_the_study_itself(mine):
    assert study.materialise(mine, None) == mine


def test_an_unknown_profile_gets_near_names(mine):
    with pytest.raises(UserError, match=r"mine has no profile 'smok'; .* holds none"):
        study.materialise(mine, "smok")
    (mine / "profiles").mkdir()
    (mine / "profiles" / "smoke.yaml").write_text("{}\n")
    with pytest.raises(UserError, match="did you mean 'smoke'"):
        study.materialise(mine, "smok")


def test_a_profile_with_an_unknown_key_is_refused(mine):
    (mine / "profiles").mkdir()
    (mine / "profiles" / "smoke.yaml").write_text("stuy: {seeds: [7]}\n")
    with pytest.raises(UserError, match="unknown key `stuy`; did you mean 'study'"):
        study.materialise(mine, "smoke")


def test_merging_replaces_lists_and_values():
    assert strict.merge({"a": {"b": [1, 2], "c": 1}, "d": 1}, {"a": {"b": [3]}, "d": {"e": 2}}) == {
        "a": {"b": [3], "c": 1}, "d": {"e": 2}}


def test_a_study_is_found_from_elsewhere(monkeypatch, tmp_path, mine):
    monkeypatch.chdir(tmp_path)
    assert study.find("mine") == mine
    assert study.find("studies/glue-cpu") == ROOT / "studies/glue-cpu"
    with pytest.raises(UserError, match=r"studies/glue-cpo is no study: .* did you mean 'studies/glue-cpu'"):
        study.find("studies/glue-cpo")


@pytest.mark.parametrize("folder", STUDIES, ids=lambda p: p.name)
def test_shipped_studies_name_what_there_is(folder):
    settings = config.load(folder / "params.yaml")
    for name in settings.study.methods:
        methods.of_entry(settings.method(name))
    for name in settings.study.datasets:
        known = {partner.name for partner in specs.built_in(name).ood}
        assert set(settings.datasets[name].data.ood_sets or ()) <= known
    assert (folder / "dvc.yaml").is_symlink()
    assert (folder / ".dvc" / "config").is_file()


@pytest.mark.parametrize(("folder", "profile"), PROFILES, ids=lambda value: getattr(value, "name", value))
def test_shipped_profiles_fit_and_run_the_same_stages(folder, profile, tmp_path):
    small = study.materialise(copy_of(folder, tmp_path / folder.name), profile)
    settings, whole = config.load(small / "params.yaml"), config.load(folder / "params.yaml")
    assert set(settings.study.datasets) <= set(whole.study.datasets)
    assert set(settings.study.methods) <= set(whole.study.methods)
    if profile != "smoke":
        return
    assert settings.study.methods == whole.study.methods
    for name in settings.study.datasets:
        assert settings.datasets[name].data.train_rows <= 256
        assert settings.student_training(name).epochs <= 1
        assert settings.teacher_training(name).epochs <= 1


def test_glue_all_is_the_protocol_of_rail():
    settings = config.load(ROOT / "studies/glue-all/params.yaml")
    assert set(settings.study.datasets) == {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"}
    assert len(settings.study.seeds) == 5
    ood = {name for data in settings.datasets.values() for name in data.data.ood_sets or ()}
    assert ood == {"imdb", "paws_wiki", "scitail"}
    for name in settings.study.datasets:
        training = settings.student_training(name)
        assert (training.epochs, training.patience is None, training.keep) == (40, False, "best")


RAIL = {"rail-bert12": (12, 2), "rail-roberta24": (24, 4), "rail-roberta12": (12, 2)}
"""Depth of the teacher, and every which layer teaches one of the six of the student under PKD-skip."""


@pytest.mark.parametrize("name", RAIL)
def test_the_rail_studies_are_the_papers(name):
    settings = config.load(ROOT / "studies" / name / "params.yaml")
    glue = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"}
    codir = name == "rail-roberta12"  # CoDIR's authors give no STS-B
    assert set(settings.study.datasets) == glue - ({"stsb"} if codir else set())
    assert set(settings.study.methods) == {"finetune", "vanilla_kd", "pkd", "alp_kd", "rail_kd_l", "rail_kd_c",
                                           *(["codir"] if codir else [])}
    assert len(settings.study.seeds) == 5
    assert {dataset: data.data.ood_sets for dataset, data in settings.datasets.items() if data.data.ood_sets} == {
        "sst2": ("imdb",), "qqp": ("paws_wiki",), "mnli": ("scitail",)}
    assert {"logits", "cls", "mean"} == set(settings.features.kinds), "else a method's teacher runs live"
    for dataset in settings.study.datasets:
        training = settings.student_training(dataset)
        assert (training.epochs, training.patience is None, training.keep) == (40, False, "best")
        for method in settings.study.methods:
            tried = {tuple(point.values()) for point in settings.points(dataset, method)}
            assert tried == set(itertools.product((1e-5, 2e-5, 5e-5, 4e-6), (8, 16, 32)))
            assert (training.learning_rate, training.batch_size) in tried


@pytest.mark.parametrize("name", RAIL)
def test_the_rail_studies_map_layers_as_the_paper_does(name):
    settings = config.load(ROOT / "studies" / name / "params.yaml")
    depth, stride = RAIL[name]
    sizes = Setting(Dims(depth, 16, 2, 50), Dims(6, 16, 2, 50), classes=2, regression=False, labels=torch.zeros(40),
                    batch_size=4, seed=1)

    def objective(method: str) -> Objective:
        return methods.load(method).phases(methods.of_entry(settings.method(method)), sizes)[0].objective

    inner, first_five = set(range(1, depth)), {1, 2, 3, 4, 5}
    for method, taught, teaching in (("pkd", first_five, {stride * j for j in first_five}),
                                     ("alp_kd", first_five, inner), ("rail_kd_l", first_five, inner),
                                     ("rail_kd_c", first_five, inner)):
        needs = objective(method).needs
        assert {key.layer for key in needs.student if key != LOGITS} == taught, method
        assert {key.layer for key in needs.teacher if key != LOGITS} == teaching, method
    assert len(objective("rail_kd_l").needs_at(Progress(0, 0, 10)).teacher - {LOGITS}) == 5


def test_the_probe_has_every_subset_of_the_types_once_and_repeats_what_is_drawn():
    settings = config.load(ROOT / "studies/ksm-probe/params.yaml")
    entries = [settings.method(name) for name in settings.study.methods]
    mixes = [methods.of_entry(entry) for entry in entries if entry.file == "knowledge_mix"]
    fixed = [frozenset(mix.types) for mix in mixes if mix.selection == "fixed"]
    assert len(fixed) == len(set(fixed)) == 15
    assert {mix.selection for mix in mixes} == {"fixed", "random_hard", "random_one"}
    assert [entry.name for entry in entries if entry.file != "knowledge_mix"] == ["finetune"]
    assert len(settings.study.seeds) >= 5
    assert settings.datasets["sst2"].data.selection == "held_out", "what selects is not what reports"


def test_the_study_of_knowledge_selection_compares_methods_with_themselves():
    settings = config.load(ROOT / "studies/ksm-cpu/params.yaml")
    files = {name: settings.method(name).file for name in settings.study.methods}
    mixed = dict.fromkeys(("fixed_all", "random_soft", "random_hard", "random_one"), "knowledge_mix")
    learned = dict.fromkeys(("ksm_soft", "ksm_hard", "ksm_noisy"), "ksm")
    assert files == {name: name for name in ("finetune", "vanilla_kd", "dynamic_kd")} | mixed | learned
    assert "cls" in settings.features.kinds, "else the teacher runs for every batch"
    selectors = {name: methods.of_entry(settings.method(name)) for name in settings.methods if name.startswith("ksm")}
    assert selectors.pop("ksm_stepwise").reward_steps == 1
    assert {mix.reward_steps for mix in selectors.values()} == {16}
    assert {name for name, mix in selectors.items() if not mix.exploration} == {"ksm_unexplored", "ksm_noisy"}


def test_the_studies_of_500_labels_differ_in_the_rows_without_labels_alone():
    with_text, alone = (strict.read_yaml(ROOT / "studies" / name / "params.yaml")
                        for name in ("sst2-unlabelled", "sst2-500"))
    assert with_text["datasets"]["sst2"]["data"].pop("unlabelled") == 5000
    assert with_text == alone
    settings = config.load(ROOT / "studies/sst2-500/params.yaml")
    assert len(settings.study.seeds) == 3
    assert settings.student_training("sst2").keep == "last"
    assert settings.student_training("sst2").steps == 2 * 172, "two passes over 5,500 rows in batches of 32"


def test_the_students_of_the_minilm_tables_have_a_profile_each():
    made = strict.read_yaml(ROOT / "studies/minilm-tables/params.yaml")["students"]
    folder = ROOT / "studies/minilm-glue"
    settings = config.load(folder / "params.yaml")
    others = {name: strict.read_yaml(path)["pair"]["student"]["source"] for name, path in study.profiles(folder).items()
              if name != "smoke"}
    sources = [settings.pair.student.source, *others.values()]
    assert {Path(source).name for source in sources} == {*made, "distilbert6", "tinybert6"} - {"assistant_12x384"}
    assert all(Path(source).name == name for name, source in others.items())
    sizes = {(student["model"].get("depth"), student["model"].get("width")) for student in made.values()}
    assert sizes == {(6, None), (None, 384), (6, 384), (4, 384), (3, 384)}
    assert {tuple(student.get("options", {}).items()) for student in made.values()} == {
        (), (("values", "none"),), (("values", "mse"),), (("layers", "layer_to_layer"),)}


def test_the_study_of_knowledge_selection_at_full_size_is_the_papers():
    settings = config.load(ROOT / "studies/ksm-bert6/params.yaml")
    assert len(settings.study.seeds) == 3
    teacher = settings.teacher_training("mnli")
    assert (teacher.learning_rate, teacher.batch_size, teacher.epochs) == (5e-5, 32, 5)
    selectors = {name: methods.of_entry(settings.method(name)) for name in settings.study.methods
                 if settings.method(name).file == "ksm"}
    assert {(found.actions, found.reward) for found in selectors.values()} == {
        ("soft", "loss"), ("hard", "loss"), ("soft", "score")}
    assert {point["training.student.learning_rate"] for point in settings.points("rte", "ksm_hard")} == {
        2e-5, 3e-5, 5e-5}
    assert len(settings.points("rte", "ksm_hard")) == 3 * 4 * 3 * 2
    for profile, depth in (("three", 3), ("augmented", None)):
        changes = strict.read_yaml(study.profiles(ROOT / "studies/ksm-bert6")[profile])
        content = strict.merge(strict.read_yaml(ROOT / "studies/ksm-bert6/params.yaml"), changes)
        assert strict.parse(config.Study, content, profile).pair.student.depth == depth
