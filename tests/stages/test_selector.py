"""The selector of knowledge as an artefact: trained once, exactly resumed, used by other seeds and students."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from safetensors import safe_open

from kdcore import config, strict, suitability
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.lineage import hash_folder
from kdcore.methods.ksm import Episodes
from kdcore.objective import Dims
from kdcore.pair_config import StudentModel
from kdcore.selector_folder import RECORD, WEIGHTS
from kdcore.stages import analyse, distill, selector
from kdcore.training import checkpoint, trainer
from tests.stages.small_study import small_study, with_teacher
from tests.test_other_teachers import make, run

KSM: dict[str, Any] = {"episodes": 2, "episode_patience": 2, "reward_steps": 3, "dev_rows": 8}
READY = {"method": "ksm", "selector": "study"}
STUDENT = Dims(3, 32, 4, 100)


def study_with(folder: Path, **ready: Any) -> tuple[config.Study, Layout]:
    """A study whose `ksm` trains a selector, which `ready` takes."""
    return small_study(folder, layers=6, study={"datasets": ["toy"], "methods": ["ready"], "seeds": [1, 2]},
                       methods={"finetune": {}, "ksm": KSM, "ready": READY | ready},
                       selectors={"toy": {"method": "ksm", "seed": 4}})


def changed(study: config.Study, **sections: Any) -> config.Study:
    return study.model_copy(update=sections)


def with_one_seed(study: config.Study) -> config.Study:
    return study.model_copy(update={"study": study.study.model_copy(update={"seeds": (1,)})})


def with_ready(study: config.Study, **ready: Any) -> config.Study:
    return changed(study, methods=study.methods | {"ready": {"method": "ksm"} | ready})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[config.Study, Layout]:
    """A study with its selector: two episodes of twelve steps."""
    study, layout = study_with(tmp_path_factory.mktemp("study"))
    with_teacher(study, layout)
    selector.run(study, layout, "toy")
    return study, layout


@pytest.fixture
def copied(trained: tuple[config.Study, Layout], tmp_path: Path) -> tuple[config.Study, Layout]:
    """The same elsewhere."""
    study, layout = trained
    shutil.copytree(layout.study / "artifacts", tmp_path / "other" / "artifacts")
    return study, Layout(tmp_path / "other")


@pytest.fixture
def saves_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "SAVING_SHARE", 1e9)


def record_of(layout: Layout) -> dict[str, Any]:
    return json.loads((layout.selector("toy") / RECORD).read_text())


def students_record(layout: Layout, method: str, seed: int) -> dict[str, Any]:
    return json.loads((layout.student("toy", method) / f"seed-{seed}" / "training.json").read_text())


def test_what_is_published(trained: tuple[config.Study, Layout]) -> None:
    study, layout = trained
    assert {path.name for path in layout.selector("toy").iterdir()} == {RECORD, WEIGHTS}
    record = record_of(layout)
    assert record["made_for"] == {
        "candidates": ["response", "feature", "relation", "label"], "student_width": 32, "teacher_width": 32,
        "batch_size": 16, "actions": "soft", "threshold": None}
    identity = distill.Work(study, layout, "toy", "ksm").identity(4)
    assert record["lineage"] == {
        "fingerprint": record["lineage"]["fingerprint"], "study": layout.study.name, "dataset": "toy", "method": "ksm",
        "seed": 4, "teacher": identity["teacher"], "prepared": identity["prepared"]}
    assert [phase["name"] for phase in record["phases"]] == ["episode-1", "episode-2"]
    assert record["phases"][0]["held_back"] == 8
    assert record["method"] == identity["method"]
    assert sum("episode/score" in entry["diagnostics"] for entry in record["history"]) == 2
    assert "selected" not in record
    with safe_open(layout.selector("toy") / WEIGHTS, framework="pt") as weights:
        assert {name.split(".")[0] for name in weights.keys()} == {  # noqa: SIM118 - not a mapping
            "student_features", "teacher_features", "actor", "critic"}
    measured = json.loads((layout.measured / "selector@toy.json").read_text())
    assert measured["train_seconds"] > 0
    assert not (layout.scratch / "selector-toy").exists()
    for path in layout.selector("toy").iterdir():
        assert str(layout.study).encode() not in path.read_bytes()


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize("step", [5, 14])  # of the first episode, of the second, in the middle of a segment
def test_resumed_in_the_middle_of_an_episode(trained: tuple[config.Study, Layout], copied: tuple[config.Study, Layout],
                                             step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (study, straight), (_, layout) = trained, copied
    study_names_alike(monkeypatch, straight)
    shutil.rmtree(layout.selector("toy"))
    forward, taken = Episodes.forward, 0

    def dies(self: Episodes, *arguments: Any) -> Any:
        nonlocal taken
        if taken == step:
            raise KeyboardInterrupt
        taken += 1
        return forward(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Episodes, "forward", dies)
        with pytest.raises(KeyboardInterrupt):
            selector.run(study, layout, "toy")
    assert not layout.selector("toy").exists()
    [place] = (layout.scratch / "selector-toy").glob("selector-*/checkpoints")
    saved = checkpoint.latest(place)
    assert saved is not None
    assert checkpoint.step_of(saved) == step
    selector.run(study, layout, "toy")
    assert hash_folder(layout.selector("toy")) == hash_folder(straight.selector("toy"))


def study_names_alike(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    """The one thing in a selector's record that tells a study from a copy of it."""
    monkeypatch.setattr(selector, "study_name", lambda _: layout.study.name)


def test_all_seeds_use_it_as_it_is(copied: tuple[config.Study, Layout]) -> None:
    study, layout = copied
    before = hash_folder(layout.knowledge("toy"))
    distill.run(study, layout, "toy", "ready")
    for seed in (1, 2):
        record = students_record(layout, "ready", seed)
        assert [phase["name"] for phase in record["phases"]] == ["distill"]
        assert record["selector"] == record_of(layout)["lineage"]
        assert record["selected"]["score"] is not None
        assert {f"action/{name}" for name in record_of(layout)["made_for"]["candidates"]} <= record["history"][0][
            "diagnostics"].keys()
    assert hash_folder(layout.knowledge("toy")) == before
    shown = analyse.Work(study, layout, "toy").selection(layout.study)
    assert [exhibit.image for exhibit in shown] == ["actions.png", "rewards.png", "episodes.png"]
    told = {name: (layout.study / f"{name}.csv").read_text() for name in ("actions", "rewards", "episodes")}
    assert {line.split(",")[0] for line in told["actions"].splitlines()[1:]} == {"selector", "ready"}
    assert {line.split(",")[0] for name in ("rewards", "episodes") for line in told[name].splitlines()[1:]} == {
        "selector"}


def test_a_deeper_student_of_the_same_width_uses_it(copied: tuple[config.Study, Layout]) -> None:
    study, layout = copied
    pair = study.pair.model_copy(update={"student": StudentModel(layers="first", depth=4)})
    distill.run(changed(with_one_seed(study), pair=pair), layout, "toy", "ready")
    assert students_record(layout, "ready", 1)["selector"] == record_of(layout)["lineage"]


def test_another_study_uses_it_by_its_fingerprint(trained: tuple[config.Study, Layout],
                                                  copied: tuple[config.Study, Layout]) -> None:
    (_, there), (study, layout) = trained, copied
    shutil.rmtree(layout.selector("toy"))
    lineage = record_of(there)["lineage"]
    source = str(there.selector("toy").absolute())
    study = changed(with_one_seed(study), selectors={})
    named = with_ready(study, selector={"source": source, "revision": lineage["fingerprint"]})
    distill.run(named, layout, "toy", "ready")
    record = students_record(layout, "ready", 1)
    assert (record["selector"], record["warnings"]) == (lineage, [])
    other = with_ready(study, selector={"source": source, "revision": "0" * 16})
    with pytest.raises(UserError, match=f"is {lineage['fingerprint']}, but its revision says 0{{16}};") as caught:
        distill.run(other, layout, "toy", "ready")
    assert str(caught.value).startswith("methods.ready: ")


def test_a_selector_of_another_teacher_is_said_to_be(copied: tuple[config.Study, Layout]) -> None:
    study, layout = copied
    record = record_of(layout)
    record["lineage"]["teacher"] = "f" * 16
    (layout.selector("toy") / RECORD).write_text(json.dumps(record))
    distill.run(with_one_seed(study), layout, "toy", "ready")
    [warning] = students_record(layout, "ready", 1)["warnings"]
    assert warning.startswith("its selector learned from states of another teacher, ffffffffffffffff, than this one")


def test_another_selector_is_another_student(copied: tuple[config.Study, Layout]) -> None:
    study, layout = copied
    before = distill.Work(study, layout, "toy", "ready").identity(1)
    shutil.rmtree(layout.selector("toy"))
    again = changed(study, selectors={"toy": config.SelectorTraining(method="ksm", seed=5)})
    selector.run(again, layout, "toy")
    after = distill.Work(again, layout, "toy", "ready").identity(1)
    assert before["selector"]["fingerprint"] != after["selector"]["fingerprint"]


@pytest.mark.parametrize(("ready", "message"), [
    ({"actions": "hard"}, "learned with actions soft, and here it is hard; set `actions` to that"),
    ({"knowledge": {"response": 1, "label": 1}},
     "learned with candidates response, feature, relation, label, and here it is response, label; name the same"),
])
def test_a_selector_for_something_else(ready: dict[str, Any], message: str,
                                       trained: tuple[config.Study, Layout]) -> None:
    """Told by the settings before the teacher trains, and by what lies there."""
    study, layout = trained
    study = with_ready(study, selector="study", **ready)
    with pytest.raises(UserError, match=f"methods.ready: the selector in .*/selector {message}") as caught:
        distill.Work(study, layout, "toy", "ready").phases(STUDENT, 1)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=f"methods.ready: the selector of toy, by methods.ksm, {message}"):
        suitability.check(study, Prepared.load(layout.prepared("toy")), "ready")


@pytest.mark.parametrize(("batch_size", "width", "message"), [
    (8, 32, "learned with batch size 16, and here it is 8; set batch_size of training.student to that"),
    (16, 24, "learned with student width 32, and here it is 24; take layers of a source of that width")])
def test_a_selector_for_other_sizes(batch_size: int, width: int, message: str,
                                    trained: tuple[config.Study, Layout]) -> None:
    study, layout = trained
    students = study.training.student.model_copy(update={"batch_size": batch_size})
    study = changed(study, training=study.training.model_copy(update={"student": students}))
    with pytest.raises(UserError, match=message):
        distill.Work(study, layout, "toy", "ready").phases(Dims(3, width, 4, 100), 1)


def test_a_study_that_fits_is_suitable(trained: tuple[config.Study, Layout]) -> None:
    study, layout = trained
    suitability.check(study, Prepared.load(layout.prepared("toy")), "ready")


def test_no_selector_yet(copied: tuple[config.Study, Layout]) -> None:
    study, layout = copied
    shutil.rmtree(layout.selector("toy"))
    with pytest.raises(UserError, match=r"methods.ready: no selector in .*run `kdflow selector toy` first"):
        distill.run(study, layout, "toy", "ready")
    none = changed(study, selectors={})
    with pytest.raises(UserError, match=r"asks for no selector on toy; add `selectors: {toy: {method: NAME}}`"):
        suitability.check(none, Prepared.load(layout.prepared("toy")), "ready")
    with pytest.raises(UserError, match="asks for no selector on toy"):
        selector.run(none, layout, "toy")


@pytest.mark.parametrize("damage", ["weights", "record", "changed"])
def test_a_damaged_selector(damage: str, copied: tuple[config.Study, Layout]) -> None:
    study, layout = copied
    folder = layout.selector("toy")
    if damage == "record":
        (folder / RECORD).write_text("{}")
    else:
        content = bytearray((folder / WEIGHTS).read_bytes())
        content[-1] ^= 1
        (folder / WEIGHTS).write_bytes(content if damage == "changed" else content[:100])
    with pytest.raises(UserError, match=r"damaged.*kdflow selector toy") as caught:
        distill.run(study, layout, "toy", "ready")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("method", "message"), [
    ("finetune", "selectors.toy.method names finetune, which trains no selector; name an entry that does, such as ksm"),
    ("ready", r"selectors.toy.method names ready \(ksm\), which takes the selector of 'study'")])
def test_a_method_that_trains_no_selector(method: str, message: str, trained: tuple[config.Study, Layout],
                                          tmp_path: Path) -> None:
    study, layout = trained
    study = changed(study, selectors={"toy": config.SelectorTraining(method=method)})
    with pytest.raises(UserError, match=message):
        selector.Work(study, layout, "toy").learning(STUDENT)
    with pytest.raises(UserError, match=message):
        suitability.check(study, Prepared.load(layout.prepared("toy")))


@pytest.mark.parametrize(("selectors", "message"), [
    ({"toi": {"method": "ksm"}}, "selectors names 'toi', which is not in study.datasets; did you mean 'toy'"),
    ({"toy": {"method": "kms"}}, "selectors.toy.method names 'kms', which has no entry under `methods`; did you mean"),
    ({"toy": {}}, "`selectors.toy.method` is missing")])
def test_selectors_that_a_study_cannot_have(selectors: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        small_study(tmp_path, selectors=selectors)


@pytest.mark.slow
def test_dvc_trains_it_once_for_all_who_take_it(tmp_path: Path) -> None:
    layout = make(tmp_path, {}, {})
    params = strict.read_yaml(layout.params)
    params["methods"] = {"finetune": {}, "ksm": KSM | {"knowledge": {"response": 1, "label": 1}},
                         "ready": READY | {"knowledge": {"response": 1, "label": 1}}}
    params["study"] |= {"methods": ["ready"], "seeds": [1, 2]}
    params["selectors"] = {"mine": {"method": "ksm"}}
    write(layout, params)
    run(layout.study, "-m", "dvc", "repro", "-q", "evaluate@mine-ready")
    lineage = json.loads((layout.selector("mine") / RECORD).read_text())["lineage"]
    assert (lineage["study"], lineage["seed"]) == (layout.study.name, 0)
    for seed in (1, 2):
        record = json.loads((layout.student("mine", "ready") / f"seed-{seed}" / "training.json").read_text())
        assert record["selector"] == lineage
    params["selectors"]["mine"]["seed"] = 1
    write(layout, params)
    stale = json.loads(run(layout.study, "-m", "dvc", "status", "--json"))
    assert "selectors.mine" in str(stale["selector@mine"])
    assert "distill@mine-ready" not in stale
    run(layout.study, "-m", "dvc", "repro", "-q", "distill@mine-ready")
    record = json.loads((layout.student("mine", "ready") / "seed-1" / "training.json").read_text())
    assert record["selector"]["fingerprint"] != lineage["fingerprint"]


def write(layout: Layout, params: dict[str, Any]) -> None:
    with layout.params.open("w") as file:
        YAML(typ="safe").dump(params, file)
