"""The stage `analyse`: what it shows, what it leaves out and why, that the numbers are right and the bytes the same."""

import csv
import json
import shutil
from collections import Counter

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from kdcore import tracking_store
from kdcore.analysis.exhibits import Exhibits
from kdcore.errors import UserError
from kdcore.mapping import RandomLayers
from kdcore.stages import analyse, distill
from tests.command import kdflow
from tests.evaluation.synthetic import training_record
from tests.stages.small_study import small_study, with_teacher
from tests.tiny import save_tiny
from tests.training.problem import LABELS

pytest_plugins = ("tests.mlflow_store",)

METHODS = ("finetune", "alp_kd", "rail_kd_l")


def settings(folder, methods=METHODS, **analysis):
    return small_study(folder, study={"datasets": ["toy"], "methods": list(methods), "seeds": [1, 2]},
                       methods={"finetune": {}, "alp_kd": {}, "rail_kd_l": {}}, analysis=analysis,
                       features={"kinds": ["logits", "mean", "cls"]})


@pytest.fixture(scope="module")
def analysed(tmp_path_factory):
    """A study that was analysed; tests that change it work on a copy."""
    folder = tmp_path_factory.mktemp("study") / "toy"
    study, layout = settings(folder)
    with_teacher(study, layout)
    for method in METHODS:
        distill.run(study, layout, "toy", method)
    run(study, layout)
    return study, layout


@pytest.fixture
def copied(analysed, tmp_path):
    study, layout = analysed
    shutil.copytree(layout.study, tmp_path / "toy")
    return study, type(layout)(tmp_path / "toy")


def run(study, layout, **analysis):
    study = study.model_copy(update={"analysis": study.analysis.model_copy(update=analysis)})
    analyse.run(study, layout, "toy")
    return Exhibits.load(layout.analysis("toy"))


def table(layout, name):
    with (layout.analysis("toy") / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def outs(layout):
    return {path.name: path.read_bytes() for path in layout.analysis("toy").iterdir()}


def student(layout, name, seed, layers=2, width=32, history=(), **record):
    """A student that was never trained, in place of those of the method."""
    folder = layout.student("toy", name) / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    save_tiny(folder, layers=layers, width=width, labels=LABELS, seed=seed)
    (folder / "training.json").write_text(json.dumps(
        training_record(seed) | {"history": list(history), "method": {"name": name}} | record))


def test_all_analyses_with_data_and_text_and_the_same_bytes_every_time(copied):
    study, layout = copied
    found = Exhibits.load(layout.analysis("toy"))
    assert [exhibit.image for exhibit in found.shown] == ["similarity.png", "pairs.png", "attention.png", "draws.png",
                                                          "collapse.png"]
    assert found.absent == ()
    first = outs(layout)
    assert set(first) == {*found.files, "analysis.json"}
    run(study, layout)
    assert outs(layout) == first
    text = first["analysis.json"].decode()
    for part in ("all 40 rows of `validation`", "over seeds 1, 2", "all 90 training rows", "student of seed 1"):
        assert part in text
    assert str(layout.study) not in text


def test_cosines_are_those_of_the_exported_models(analysed):
    """Against transformers' own hidden states."""
    study, layout = analysed
    teacher, trained = (AutoModelForSequenceClassification.from_pretrained(folder).eval() for folder in (
        layout.teacher("toy"), layout.student("toy", "rail_kd_l") / "seed-2"))
    tokens = analyse.Work(study, layout, "toy").prepared.tokens("validation", "student")
    inputs = tokens.pad(torch.arange(40))
    mask = inputs["attention_mask"].unsqueeze(-1)
    with torch.no_grad():
        theirs, ours = ([(states * mask).sum(1) / mask.sum(1) for states in
                         model(**inputs, output_hidden_states=True).hidden_states[1:]] for model in (teacher, trained))
    rows = [row for row in table(layout, "similarity") if (row["method"], row["seed"]) == ("rail_kd_l", "2")]
    assert len(rows) == 4 * 2
    for row in rows:
        expected = torch.cosine_similarity(theirs[int(row["teacher_layer"]) - 1], ours[int(row["student_layer"]) - 1])
        assert float(row["cosine"]) == pytest.approx(float(expected.mean()), abs=2e-6)


def test_a_copy_of_the_teacher_is_like_it_layer_by_layer(copied):
    study, layout = copied
    for path in layout.student("toy", "finetune").parent.iterdir():
        shutil.rmtree(path)
    student(layout, "finetune", 1)
    shutil.copytree(layout.teacher("toy"), layout.student("toy", "finetune") / "seed-1", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("training.json"))
    found = run(study, layout)
    assert found.absent == ("`alp_kd` has no students yet.", "`rail_kd_l` has no students yet.")
    ones = {(row["teacher_layer"], row["student_layer"]) for row in table(layout, "similarity")
            if row["cosine"] == "1.000000"}
    assert ones == {(str(layer), str(layer)) for layer in range(1, 5)}


@pytest.mark.parametrize(("analysis", "said"), [
    ({"samples": 7}, "7 rows of `validation`, drawn with seed 0"),
    ({"samples": 7, "split": "train", "seed": 3}, "7 rows of `train`, drawn with seed 3"),
    ({"pooling": "cls"}, "states of token 0"), ({"pooling": "tokens"}, "token by token")])
def test_which_rows_and_states_can_be_chosen_and_is_said(copied, analysis, said):
    study, layout = copied
    default = Exhibits.load(layout.analysis("toy"))
    before = table(layout, "similarity")
    other = run(study, layout, **analysis)
    assert said in other.shown[0].text
    assert said not in default.shown[0].text
    assert table(layout, "similarity") != before
    assert [exhibit.image for exhibit in other.shown] == [exhibit.image for exhibit in default.shown]


def test_draws_are_those_of_the_generator(analysed):
    _, layout = analysed
    drawn = Counter(layer for seed in (1, 2) for epoch in (0, 1)
                    for layer in RandomLayers(1, 4, seed, "epoch").at(epoch, 0))
    rows = table(layout, "draws")
    assert [(int(row["teacher_layer"]), int(row["draws"])) for row in rows] == [
        (layer, drawn[layer]) for layer in (1, 2, 3)]
    assert {row["expected"] for row in rows} == {"1.333333"}
    assert {row["method"] for row in rows} == {"rail_kd_l"}


def test_means_of_draws_are_not_taken_for_layers(copied):
    """A slot that draws 2 and 4 within an epoch has the mean 3, a layer by its look."""
    study, layout = copied
    drawn = {"phase": "distill", "epoch": 1.0, "loss": 1.0, "diagnostics": {"layer/1": 3.0}}
    for seed in (1, 2):
        student(layout, "rail_kd_l", seed, history=[drawn], method={"name": "rail_kd_l", "resample": "step"})
    found = run(study, layout)
    assert "draws.png" not in [exhibit.image for exhibit in found.shown]
    assert found.absent == ("How often `rail_kd_l` drew each layer is not shown: it draws at every step, and records "
                            "keep the mean of each epoch.",)


def test_attention_has_a_row_per_student_layer_that_sums_to_one(analysed):
    _, layout = analysed
    rows = table(layout, "attention")
    assert [(row["student_layer"], row["teacher_layer"]) for row in rows] == [("1", "1"), ("1", "2"), ("1", "3")]
    assert sum(float(row["weight"]) for row in rows) == pytest.approx(1, abs=2e-6)
    assert {row["seed"] for row in rows} == {"1"}


def test_the_collapse_watch_keeps_every_epoch_of_every_seed(analysed):
    _, layout = analysed
    rows = table(layout, "collapse")
    assert [(row["method"], row["seed"], float(row["epoch"])) for row in rows] == [
        ("rail_kd_l", seed, epoch) for seed in "12" for epoch in (1, 2)]
    record = json.loads((layout.student("toy", "rail_kd_l") / "seed-2" / "training.json").read_text())
    assert float(rows[3]["collapse"]) == pytest.approx(record["history"][1]["diagnostics"]["collapse"], abs=1e-6)


def test_epochs_of_later_phases_come_after_those_of_earlier_ones():
    history = [{"phase": phase, "epoch": epoch, "diagnostics": {"collapse": value}}
               for phase, epoch, value in (("a", 1.0, 0.1), ("a", 1.5, 0.2), ("b", 1.0, 0.3))]
    assert analyse._over_epochs(history, ["collapse", "spread"]) == (
        [1.0, 1.5, 2.5], {"collapse": [0.1, 0.2, 0.3], "spread": [None] * 3})


def test_students_of_another_width_say_what_is_not_defined(copied):
    study, layout = copied
    drawn = {"phase": "distill", "epoch": 1.0, "loss": 1.0, "diagnostics": {"layer/1": 2.5}}
    written = json.loads((layout.student("toy", "alp_kd") / "seed-1" / "training.json").read_text())["method"]
    for method in METHODS:
        shutil.rmtree(layout.student("toy", method))
        student(layout, method, 1, width=16, history=[drawn] if method == "rail_kd_l" else [],
                **({"method": written} if method == "alp_kd" else {}))
    found = run(study, layout)
    assert found.shown == ()
    similarity, attention, draws = found.absent
    assert "is not defined: their widths differ (32 and 16)" in similarity
    assert "learned maps between widths 32 and 16, which are not exported" in attention
    assert "`rail_kd_l` drew each layer is not shown: it draws at every step" in draws
    assert set(outs(layout)) == {"analysis.json"}


def test_each_name_that_a_study_gives_alp_kd_has_a_picture(copied):
    study, layout = copied
    written = json.loads((layout.student("toy", "alp_kd") / "seed-1" / "training.json").read_text())["method"]
    student(layout, "rail_kd_l", 1, method=written | {"attends": "block"})
    found = run(study, layout)
    weights = {name: [float(row["weight"]) for row in table(layout, "attention") if row["method"] == name]
               for name in ("alp_kd", "rail_kd_l")}
    assert len(weights["alp_kd"]) == len(weights["rail_kd_l"]) > 0
    assert "within the block that a student layer looks at" in found.shown[2].text


def test_tokens_of_different_tokenizers_are_not_compared(copied):
    study, layout = copied
    path = layout.prepared("toy") / "dataset.json"
    content = json.loads(path.read_text())
    content["tokenizers"]["teacher"] = "another"
    path.write_text(json.dumps(content))
    shutil.rmtree(layout.student("toy", "alp_kd"))
    found = run(study, layout, pooling="tokens")
    assert "teacher and student cut texts differently; set `analysis.pooling`" in found.absent[1]
    assert [exhibit.image for exhibit in found.shown] == ["draws.png", "collapse.png"]


def test_a_teacher_without_layers_is_said(copied):
    study, layout = copied
    (layout.teacher("toy") / "answers").mkdir()
    for method in ("alp_kd", "rail_kd_l"):
        shutil.rmtree(layout.student("toy", method))
    found = run(study, layout)
    assert found.shown == ()
    assert found.absent[-1] == ("The cosine of teacher and student layers is not defined: the teacher has outputs and "
                                "no layers.")


def test_a_student_deeper_than_its_teacher_has_no_pairs(copied):
    study, layout = copied
    for method in METHODS:
        shutil.rmtree(layout.student("toy", method))
    student(layout, "finetune", 1, layers=5)
    assert [exhibit.image for exhibit in run(study, layout).shown] == ["similarity.png"]


def test_mistakes_are_one_line(copied):
    study, layout = copied
    student(layout, "finetune", 1, layers=3)
    with pytest.raises(UserError, match=r"students of finetune have 3 layers of width 32, those of finetune 2 of 32; "
                                        r"run `dvc repro`"):
        run(study, layout)
    record = layout.student("toy", "finetune") / "seed-1" / "training.json"
    record.write_text("{}")
    with pytest.raises(UserError, match=r"not the record of a training .* run `kdflow distill toy finetune` again"):
        run(study, layout)
    record.unlink()
    with pytest.raises(UserError, match=r"training\.json is missing"):
        run(study, layout)
    for method in METHODS:
        shutil.rmtree(layout.student("toy", method))
    with pytest.raises(UserError, match="nothing of toy was distilled yet; run `dvc repro`, or `kdflow distill toy"):
        run(study, layout)


def test_an_unknown_dataset_gets_near_names(repository):
    outcome = kdflow("analyse", "moviez", cwd=repository)
    assert outcome.code == 2
    assert "did you mean 'movies'?" in outcome.err


def test_mlflow_gets_pictures_and_data(copied, store):
    study, layout = copied
    shutil.copytree(layout.study, store.study, dirs_exist_ok=True)
    found = run(study, store.layout)
    (tracked,) = store.runs()
    assert tracked.data.tags["kdflow.kind"] == "analyse"
    assert tracked.info.status == "FINISHED"
    files = tracking_store.connect().list_artifacts(tracked.info.run_id, "toy")
    assert {file.path for file in files} == {f"toy/{name}" for name in (*found.files, "analysis.json")}
