"""What a pair of models cannot serve is told before anything is trained, and for its true reason."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kdcore import config, methods, strict
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.features import LOGITS
from kdcore.objective import Dims, Setting
from kdcore.suitability import check
from kdcore.teacher_folder import needs_of
from tests.command import kdflow
from tests.stages.small_study import small_study
from tests.tiny import save_tiny

Ready = tuple[config.Study, Prepared]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """A study of one teacher with six layers, prepared."""
    study, layout = small_study(tmp_path_factory.mktemp("study"), layers=6)
    return study, Prepared.load(layout.prepared("toy"))


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.parametrize("kind", ["average", "files"])
def test_every_method_is_looked_at_before_anything_is_trained(kind: str, method: str, ready: Ready) -> None:
    one, prepared = ready
    check(one, prepared, method)
    setting = Setting(Dims(6, 32, 4, 100), Dims(3, 32, 4, 100), 2, False, prepared.labels("train"), 16, seed=1)
    needs = needs_of(methods.load(method).phases(methods.configure(method, {}), setting))
    if needs <= {LOGITS}:
        check(_with(one, kind), prepared, method)
        return
    with pytest.raises(UserError, match=f"^methods.{method} reads layers of the teacher") as caught:
        check(_with(one, kind), prepared, method)
    assert ("the average of 2 models" if kind == "average" else "is only files") in str(caught.value)


def _with(study: config.Study, kind: str) -> config.Study:
    """The study with two teachers, or with files."""
    content = json.loads(study.model_dump_json())
    source = content["pair"]["teacher"]["source"]
    content["pair"]["student"] |= {"source": source, "layers": "even", "depth": 3}
    if kind == "average":
        content["pair"]["teacher"] |= {"seeds": [1, 2]}
    else:
        content["pair"]["teacher"] |= {"source": "files"}
        content["datasets"]["toy"]["data"] |= {"teacher_files": {"train": "data/t.csv"}}
    return strict.parse(config.Study, content, "params.yaml")


@pytest.mark.parametrize(("method", "settings"), [
    ("pkd", {"mapping": [[1, 8], [2, 12]]}), ("ckd", {"grouping": "skip_middle"}),
    ("layer_kd", {"selection": "grouped", "grouping": "skip_middle"}), ("codir", {"teacher_layers": [200]})])
@pytest.mark.parametrize("kind", ["average", "files"])
def test_how_layers_are_paired_does_not_hide_that_there_are_none(kind: str, method: str, settings: dict[str, Any],
                                                                 ready: Ready) -> None:
    """Layers 8 and 12 of a teacher that has none: who the teacher is is the mistake to tell."""
    one, prepared = ready
    study = _with(one, kind).model_copy(update={"methods": {method: settings}})
    with pytest.raises(UserError, match=f"^methods.{method} reads layers of the teacher, but the teacher of toy is"):
        check(study, prepared, method)


@pytest.mark.parametrize(("method", "settings", "told"), [
    ("pkd", {"mapping": [[1, 13]]}, "pairs teacher layer 13, expected 1..6"),
    ("pkd", {"mapping": [[4, 1]]}, "pairs student layer 4, expected 1..3"),
    ("ckd", {"grouping": "skip_middle"}, "skip_middle is defined for 6 teacher layers in 2 groups, not for 6 in 3"),
    ("rail_kd_l", {"student_layers": [5]}, "student_layers names layer 5, expected 1..3")])
@pytest.mark.parametrize("own", [False, True])
def test_what_does_not_fit_one_model_is_refused_by_configurations(own: bool, method: str, settings: dict[str, Any],
                                                                  told: str, ready: Ready, tmp_path: Path) -> None:
    """Teacher of 6 layers, student of 3 of them, or of a checkpoint of its own; there are no weights to read."""
    one, prepared = ready
    shutil.copytree(one.pair.teacher.source, tmp_path / "six")
    save_tiny(tmp_path / "three", layers=3)
    for weights in tmp_path.rglob("model.safetensors"):
        weights.unlink()
    study = _changed(one, {"teacher": {"source": str(tmp_path / "six")}} | (
        {"student": {"source": str(tmp_path / "three"), "layers": None, "depth": None}} if own else {}))
    check(study, prepared, method)
    with pytest.raises(UserError, match=rf"^methods.{method}.*{re.escape(told)}"):
        check(study.model_copy(update={"methods": {method: settings}}), prepared, method)


def test_tokens_that_do_not_correspond_are_refused(ready: Ready) -> None:
    study, prepared = ready
    info = replace(prepared.info, tokenizers=prepared.info.tokenizers | {"student": "another"})
    for method in ("vanilla_kd", "rail_kd_l"):
        check(study, Prepared(prepared.folder, info), method)
    with pytest.raises(UserError, match=r"token by token, but .* have different vocabularies"):
        check(study, Prepared(prepared.folder, info), "rail_minilm")


@pytest.mark.parametrize("who", ["teacher", "student"])
def test_features_that_a_model_does_not_have_are_refused(who: str, ready: Ready, tmp_path: Path) -> None:
    """Attention scores of ModernBERT's local layers, which look 15 tokens to each side, in texts of up to 32."""
    study, prepared = ready
    save_tiny(tmp_path / "local", "modernbert", layers=3)
    pair = {"teacher": {"source": str(tmp_path / "local")}, "student": {"source": str(tmp_path / "local")}}
    if who == "student":
        del pair["teacher"]
    settings = {"methods": {"layer_kd": {"selection": "fixed", "mapping": [[2, 2]],
                                         "knowledge": {"attention_scores": 1}}}}
    content = _changed(study, pair | {"student": pair["student"] | {"layers": None, "depth": None}})
    with pytest.raises(UserError, match="scores of layer 2 were asked for, but that layer of the modernbert model"):
        check(content.model_copy(update=settings), prepared, "layer_kd")


def test_students_that_cannot_be_made_are_refused(ready: Ready) -> None:
    study, prepared = ready
    for student, told in (({"depth": 7}, "pair.student.depth is 7"), ({"architecture": "roberta"}, "cannot take"),
                          ({"layers": [3, 2], "depth": None}, "out of order")):
        with pytest.raises(UserError, match=told):
            check(_changed(study, {"student": student}), prepared, "finetune")
    check(_changed(study, {"student": {"architecture": "distilbert"}}), prepared, "rail_minilm")


def test_the_command_refuses_before_the_teacher_is_trained(tmp_path: Path) -> None:
    """All methods of the study are looked at."""
    study, layout = small_study(tmp_path)
    content = json.loads(study.model_dump_json())
    content["study"]["methods"] = ["finetune", "ckd"]
    content["methods"]["ckd"] = {"grouping": "skip_middle"}
    layout.params.write_text(json.dumps(content))  # JSON is YAML
    outcome = kdflow("teacher", "toy", cwd=layout.study)
    assert (outcome.code, outcome.out) == (2, "")
    assert "methods.ckd: grouping skip_middle is defined for 6 teacher layers in 2 groups, not for 4" in outcome.err
    assert not layout.teacher("toy").exists()
    assert not layout.scratch.exists()


def _changed(study: config.Study, pair: dict[str, Any]) -> config.Study:
    content = json.loads(study.model_dump_json())
    for who, values in pair.items():
        content["pair"][who] |= values
    return strict.parse(config.Study, content, "params.yaml")
