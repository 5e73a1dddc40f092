"""Teachers that are no single model, through all stages: an average of several, and files of answers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from kdcore import config, strict
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.evaluation.predict import predict
from kdcore.features import LOGITS
from kdcore.layout import Layout
from kdcore.lineage import hash_folder
from kdcore.models.loading import load_finetuned
from kdcore.stages import distill, evaluate, features, prepare, report, teacher
from kdcore.store import FeatureStore
from kdcore.teacher_folder import fingerprint
from tests.command import kdflow
from tests.data.studies import make
from tests.stages.small_study import small_study, with_teacher
from tests.tiny import save_tiny, tiny_texts
from tests.training.problem import FRIENDLY

Ready = tuple[config.Study, Layout]
CPU = torch.device("cpu")
METHODS = ("finetune", "vanilla_kd")


def stored(layout: Layout, name: str = "toy") -> torch.Tensor:
    """All logits of the store."""
    store = FeatureStore.open(layout.features(name))
    return store.gather(torch.arange(store.manifest.rows), {LOGITS}, CPU)[LOGITS]


def record(folder: Path) -> dict[str, Any]:
    """How a model came about."""
    return json.loads((folder / "training.json").read_text())


def changed(settings: config.Study, /, **sections: Any) -> config.Study:
    """The study with other values in sections, merged two levels deep."""
    content = json.loads(settings.model_dump_json())
    for section, values in sections.items():
        for key, value in values.items():
            old = content[section].get(key)
            content[section][key] = old | value if isinstance(old, dict) and isinstance(value, dict) else value
    return strict.parse(config.Study, content, "params.yaml")


def averaged(folder: Path, regression: bool = False, **average: Any) -> Ready:
    """A study whose teacher is the average of seeds 1 and 2 of one model."""
    study, layout = small_study(folder, regression)
    return changed(study, pair={"teacher": {"seeds": [1, 2]} | average}, study={"methods": list(METHODS)},
                   features={"dtype": "float32"}), layout


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """With its teacher and features."""
    study, layout = averaged(tmp_path_factory.mktemp("two"))
    with_teacher(study, layout)
    return study, layout


def of_members(layout: Layout, split: str) -> torch.Tensor:
    """The members' logits of a split, one by one."""
    prepared = Prepared.load(layout.prepared("toy"))
    folders = sorted(layout.teacher("toy").glob("member-*"))
    return torch.stack([predict(load_finetuned(folder, prepared.info.labels), prepared, split, 16, "teacher")
                        for folder in folders])


class TestAverage:
    def test_members_are_what_they_would_be_alone(self, two: Ready, tmp_path: Path) -> None:
        """A teacher of one model keeps its folder as it was, byte for byte; members are such folders."""
        study, layout = two
        for seed in (1, 2):
            one = Layout(tmp_path / str(seed))
            shutil.copytree(layout.prepared("toy"), one.prepared("toy"))
            teacher.run(changed(study, pair={"teacher": {"seeds": [seed]}}), one, "toy")
            assert hash_folder(one.teacher("toy")) == hash_folder(layout.teacher("toy") / f"member-{seed}")
            assert {path.name for path in one.teacher("toy").iterdir()} == {
                "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training.json"}
            assert not one.kept.exists() or not list(one.kept.iterdir())

    def test_the_store_holds_the_mean_of_their_logits_and_nothing_else(self, two: Ready) -> None:
        _, layout = two
        assert sorted(path.name for path in layout.features("toy").iterdir()) == ["logits.arrow", "manifest.json"]
        torch.testing.assert_close(stored(layout), of_members(layout, "train").mean(dim=0), atol=1e-5, rtol=1e-5)
        assert not list(layout.scratch.glob("features-*"))
        manifest = json.loads((layout.features("toy") / "manifest.json").read_text())
        assert manifest["teacher"] == fingerprint(layout.teacher("toy"))

    def test_weighted_probabilities(self, tmp_path: Path) -> None:
        study, layout = averaged(tmp_path, average="probabilities", weights=[1, 3])
        with_teacher(study, layout)
        wanted = (of_members(layout, "train").softmax(dim=-1) * torch.tensor([0.25, 0.75]).view(2, 1, 1)).sum(dim=0)
        torch.testing.assert_close(stored(layout).exp(), wanted, atol=1e-5, rtol=1e-5)

    def test_members_are_aligned_by_class_name(self, two: Ready, tmp_path: Path) -> None:
        """Lesson A55: the second member calls its outputs in another order, and swaps them."""
        study, layout = two
        other = Layout(tmp_path)
        shutil.copytree(layout.study / "artifacts", other.study / "artifacts")
        folder = other.teacher("toy") / "member-2"
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        with torch.no_grad():
            for part in (model.classifier.weight, model.classifier.bias):
                part.copy_(part.flip(0))
        model.config.id2label = {0: "positive", 1: "negative"}
        model.config.label2id = {"positive": 0, "negative": 1}
        model.save_pretrained(folder)
        features.run(study, other, "toy")
        torch.testing.assert_close(stored(other), stored(layout), atol=1e-5, rtol=1e-5)

    def test_other_class_names_are_refused(self, two: Ready, tmp_path: Path) -> None:
        study, layout = two
        other = Layout(tmp_path)
        shutil.copytree(layout.study / "artifacts", other.study / "artifacts")
        path = other.teacher("toy") / "member-2" / "config.json"
        path.write_text(path.read_text().replace('"negative"', '"sad"').replace('"positive"', '"glad"'))
        with pytest.raises(UserError, match="calls its classes sad, glad, the dataset negative, positive"):
            features.run(study, other, "toy")

    def test_students_and_report(self, two: Ready, capsys: pytest.CaptureFixture[str]) -> None:
        study, layout = two
        for method in METHODS:
            distill.run(study, layout, "toy", method)
        evaluate.run(study, layout, "toy", "teacher")
        for method in METHODS:
            evaluate.run(changed(study, evaluation={"latency": False}), layout, "toy", method)
        student = record(layout.student("toy", "vanilla_kd") / "seed-1")
        assert student["init"] == "layers 2, 4 of the first of 2 fine-tuned teachers (4 layers), its head"
        assert student["teacher"] == fingerprint(layout.teacher("toy"))
        assert student["taught_by"].startswith("the average of the logits of 2 teachers: ")
        found = json.loads((layout.evaluation("toy", "teacher") / "metrics.json").read_text())["teacher"]["validation"]
        labels = Prepared.load(layout.prepared("toy")).labels("validation")
        mean = of_members(layout, "validation").mean(dim=0)
        assert found["accuracy"] == pytest.approx((mean.argmax(dim=1) == labels).double().mean().item())
        assert found["accuracy"] == record(layout.teacher("toy"))["check"]["teacher"]
        capsys.readouterr()
        report.run(study, layout)
        printed = " ".join(capsys.readouterr().out.split())
        assert "(its members " in printed
        text = (layout.report / "report.md").read_text()
        for words in ("Teacher: the average of the logits of 2 teachers: ", "trained with seed 1; ",
                      "trained with seed 2; epochs 2,"):
            assert words in text
        context = json.loads((layout.evaluation("toy", "teacher") / "context.json").read_text())["runs"]["teacher"]
        assert context["size"]["weight_bytes"] == sum(path.stat().st_size for path in layout.teacher("toy").rglob(
            "model.safetensors"))
        measured = json.loads((layout.measured / "evaluate@toy-teacher.json").read_text())["teacher"]
        assert measured["latency"]["batch_1"]["p50_ms"] > 0
        assert set(json.loads((layout.measured / "teacher@toy.json").read_text())) == {"member-1", "member-2"}

    def test_other_weights_train_nothing_and_a_third_seed_only_itself(self, tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
        study, layout = averaged(tmp_path)
        teacher.run(study, layout, "toy")
        before = fingerprint(layout.teacher("toy"))
        shutil.rmtree(layout.teacher("toy"))  # as DVC does before a stage runs
        trained: list[int] = []
        train = teacher.train

        def counted(*args: Any, **more: Any) -> Any:
            trained.append(args[4])
            return train(*args, **more)

        monkeypatch.setattr(teacher, "train", counted)
        teacher.run(changed(study, pair={"teacher": {"weights": [2, 1], "average": "probabilities"}}), layout, "toy")
        assert trained == []
        assert fingerprint(layout.teacher("toy")) != before
        teacher.run(changed(study, pair={"teacher": {"seeds": [1, 2, 3]}}), layout, "toy")
        assert trained == [3]
        assert len(list(layout.kept.glob("teacher-toy/teacher-*"))) == 3
        teacher.run(changed(study, pair={"teacher": {"seeds": [3]}}), layout, "toy")
        assert not list(layout.kept.iterdir())

    def test_a_weak_average_is_refused_and_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        study, layout = averaged(tmp_path)
        hopeless = changed(study, gate={"allow_weak": False}, training={"teacher": {"learning_rate": 1e-12}})
        with pytest.raises(UserError, match=r"the teacher of toy scores .* gate.allow_weak: true"):
            teacher.run(hopeless, layout, "toy")
        assert not layout.teacher("toy").exists()
        monkeypatch.setattr(teacher, "train", lambda *args, **more: pytest.fail("trained again"))
        teacher.run(changed(hopeless, gate={"allow_weak": True}), layout, "toy")
        assert "member 1 alone is no better than a constant answer" in record(layout.teacher("toy"))["warnings"][0]

    def test_scores(self, tmp_path: Path) -> None:
        study, layout = averaged(tmp_path, regression=True, average="probabilities", weights=[3, 1])
        with_teacher(study, layout)
        wanted = 0.75 * of_members(layout, "train")[0] + 0.25 * of_members(layout, "train")[1]
        torch.testing.assert_close(stored(layout), wanted, atol=1e-5, rtol=1e-5)
        about = record(layout.teacher("toy"))
        assert about["init"].startswith("the average of the scores of 2 teachers: ")
        assert {"teacher_squared_error", "constant_squared_error"} <= set(about["check"])

    def test_a_killed_pass_does_not_run_finished_members_again(self, two: Ready, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
        study, layout = two
        other, ran = Layout(tmp_path), []
        shutil.copytree(layout.study / "artifacts", other.study / "artifacts")
        shutil.rmtree(other.features("toy"))
        build = features.build

        def dies_in_the_second(folder: Path, *args: Any) -> dict[str, float]:
            ran.append(folder.name)
            if ran == ["member-1", "member-2"]:
                raise KeyboardInterrupt
            return build(folder, *args)

        monkeypatch.setattr(features, "build", dies_in_the_second)
        with pytest.raises(KeyboardInterrupt):
            features.run(study, other, "toy")
        features.run(study, other, "toy")
        assert ran == ["member-1", "member-2", "member-2"]
        assert hash_folder(other.features("toy")) == hash_folder(layout.features("toy"))

    def test_a_method_that_reads_layers_is_refused(self, two: Ready) -> None:
        study, layout = two
        with pytest.raises(UserError, match=r"^methods.rail_kd_l reads layers of the teacher, .* is the average of 2"):
            distill.run(study, layout, "toy", "rail_kd_l")


def rows(count: int, seed: int) -> str:
    """Texts as CSV; the label says whether a friendly word is in them."""
    texts = tiny_texts(count, seed, 12)
    answers = ["pos" if any(word in FRIENDLY for word in text.split()) else "neg" for text in texts]
    return "text,label\n" + "".join(f"{text},{answer}\n" for text, answer in zip(texts, answers, strict=True))


FILES: dict[str, str | bytes] = {"data/train.csv": rows(60, 0), "data/validation.csv": rows(40, 1),
                                 "data/tweets.csv": rows(20, 2)}


def told(csv: str, sure: float = 0.9, right: float = 1.0) -> str:
    """Answers to rows, `sure` of the label of the first share `right` of them and of the other class after that."""
    labels = [line.rpartition(",")[2] for line in csv.splitlines()[1:]]
    lines = []
    for place, label in enumerate(labels):
        p = sure if (label == "pos") == (place < right * len(labels)) else round(1 - sure, 3)
        lines.append(json.dumps({"id": place, "probabilities": {"pos": p, "neg": round(1 - p, 3)}}) + "\n")
    return "".join(lines)


def filed(folder: Path, right: float = 0.9, dev: float | None = None, **rows: int) -> Ready:
    """A prepared study whose teacher is files: right in a share of training rows, and of validation rows if given.

    `rows` are settings of the data.
    """
    model = save_tiny(folder / "model", layers=2)
    named = {"train": "data/teacher.jsonl"} | ({} if dev is None else {"validation": "data/dev.jsonl"})
    data = {"files": {"train": "data/train.csv", "validation": "data/validation.csv"}, "labels": ["neg", "pos"],
            "ood": {"tweets": {"file": "data/tweets.csv"}}, "teacher_files": named, **rows}
    files = FILES | {"data/teacher.jsonl": told(str(FILES["data/train.csv"]), right=right),
                     "data/dev.jsonl": told(str(FILES["data/validation.csv"]), right=dev or 0)}
    study = make(folder, "files", data, files=files, pair={"student": {"source": str(model)}})
    settings = config.load(study / "params.yaml")
    settings = changed(settings, methods={name: {} for name in (*METHODS, "rail_kd_l")}, features={"dtype": "float32"},
                       training={"student": {"epochs": 1, "precision": "fp32"}}, study={"methods": list(METHODS)},
                       evaluation={"latency": False})
    prepare.run(settings, Layout(study), "mine")
    return settings, Layout(study)


class TestFiles:
    def test_from_answers_to_report(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
        """Without any teacher model: none is loaded, trained or run."""
        study, layout = filed(tmp_path)
        for module in (teacher, features):
            monkeypatch.setattr(module, "train" if module is teacher else "build",
                                lambda *args, **more: pytest.fail("a teacher ran"))
        teacher.run(study, layout, "mine")
        out = capsys.readouterr().out
        assert "mine teacher, answers in data/teacher.jsonl (probabilities): accuracy 90.0 on its 60" in out
        assert "validation has no answers, so the teacher could be checked on its training rows only" in out
        folder = layout.teacher("mine")
        assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {
            "answers/answers.json", "answers/train.parquet", "training.json"}
        check = record(folder)["check"]
        assert (check["split"], check["teacher"]) == ("train", pytest.approx(0.9))
        features.run(study, layout, "mine")
        assert sorted(path.name for path in layout.features("mine").iterdir()) == ["logits.arrow", "manifest.json"]
        wanted = [json.loads(line)["probabilities"]["pos"] for line in (layout.study / "data" / "teacher.jsonl").open()]
        assert stored(layout, "mine").softmax(dim=1)[:, 1].tolist() == pytest.approx(wanted, abs=1e-5)
        for method in METHODS:
            distill.run(study, layout, "mine", method)
        student = record(layout.student("mine", "vanilla_kd") / "seed-1")
        assert student["taught_by"] == "answers in data/teacher.jsonl (probabilities)"
        assert student["teacher"] == fingerprint(folder)
        capsys.readouterr()
        for who in ("teacher", *METHODS):
            evaluate.run(study, layout, "mine", who)
        assert "mine teacher validation: the teacher's files do not answer it, so it is not scored" in \
            capsys.readouterr().out
        metrics = json.loads((layout.evaluation("mine", "teacher") / "metrics.json").read_text())
        assert metrics == {"teacher": {"train": {"accuracy": pytest.approx(0.9), "degenerate": False, "n": 60}}}
        report.run(study, layout)
        printed = capsys.readouterr().out
        line = next(line for line in printed.splitlines() if line.startswith("teacher"))
        assert set(line.split()[1:]) == {"-"}
        text = (layout.report / "report.md").read_text()
        assert "Teacher: answers in data/teacher.jsonl (probabilities)." in text
        assert "on `train`, the teacher 90.0" in text
        assert "teacher (teacher): validation has no answers" in text
        assert json.loads((layout.measured / "teacher@mine.json").read_text()) == {}

    def test_rows_without_labels_are_answered_and_never_scored(self, tmp_path: Path) -> None:
        """Right where labels are known, as far as anybody can tell: on 40 rows of 60."""
        study, layout = filed(tmp_path, right=1.0, train_rows=40, unlabelled=20)
        teacher.run(study, layout, "mine")
        told = record(layout.teacher("mine"))
        assert (told["on_train"]["n"], told["check"]["teacher"]) == (40, 1.0)
        assert 0.5 <= told["check"]["constant"] < 1
        assert any("take out-of-fold predictions" in text for text in told["warnings"])
        features.run(study, layout, "mine")
        assert len(stored(layout, "mine")) == 60
        for method in METHODS:
            distill.run(study, layout, "mine", method)
        taught, alone = (record(layout.student("mine", method) / "seed-1") for method in ("vanilla_kd", "finetune"))
        assert taught["unlabelled"] == {"rows": 20, "of": 60, "share": 0.3333}
        assert "unlabelled" not in alone
        for who in ("teacher", *METHODS):
            evaluate.run(study, layout, "mine", who)
        metrics = json.loads((layout.evaluation("mine", "teacher") / "metrics.json").read_text())
        assert metrics["teacher"]["train"]["n"] == 40
        report.run(study, layout)
        assert ("40 training rows with labels and 20 without (33%), which methods without a teacher leave out, classes "
                "neg, pos;") in (layout.report / "report.md").read_text()
        numbers = json.loads((layout.report / "results.json").read_text())
        assert '"unlabelled": 20' in json.dumps(numbers)

    def test_rows_that_select_decide_where_they_are_answered(self, tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
        study, layout = filed(tmp_path, dev=0.8)
        teacher.run(study, layout, "mine")
        assert record(layout.teacher("mine"))["check"]["split"] == "validation"
        assert "warning" not in capsys.readouterr().out
        evaluate.run(study, layout, "mine", "teacher")
        metrics = json.loads((layout.evaluation("mine", "teacher") / "metrics.json").read_text())["teacher"]
        assert {split: values["accuracy"] for split, values in metrics.items()} == pytest.approx(
            {"train": 0.9, "validation": 0.8})

    @pytest.mark.parametrize(("right", "dev", "split"), [(0.9, 0.3, "validation"), (0.3, None, "train")])
    def test_useless_answers_are_refused(self, right: float, dev: float | None, split: str, tmp_path: Path) -> None:
        """Also where only training rows tell: ids or classes are swapped, most likely."""
        study, layout = filed(tmp_path, right, dev)
        with pytest.raises(UserError, match=rf"scores 0.3000 \(accuracy\) on {split}, .*; check whether ids and class "
                                            r"names of the answers in data/teacher.jsonl .*gate.allow_weak") as caught:
            teacher.run(study, layout, "mine")
        assert "\n" not in str(caught.value)
        assert not layout.teacher("mine").exists()

    def test_answers_that_always_agree_with_the_labels_are_pointed_out(self, tmp_path: Path) -> None:
        study, layout = filed(tmp_path, right=1.0)
        teacher.run(study, layout, "mine")
        assert any("take out-of-fold predictions" in text for text in record(layout.teacher("mine"))["warnings"])

    def test_changed_answers_make_the_store_stale(self, tmp_path: Path) -> None:
        """Lesson A50."""
        study, layout = filed(tmp_path)
        teacher.run(study, layout, "mine")
        features.run(study, layout, "mine")
        before = fingerprint(layout.teacher("mine"))
        (layout.study / "data" / "teacher.jsonl").write_text(told(str(FILES["data/train.csv"]), sure=0.8, right=0.9))
        prepare.run(study, layout, "mine")
        teacher.run(study, layout, "mine")
        assert fingerprint(layout.teacher("mine")) != before
        with pytest.raises(UserError, match=r"teacher features .* are stale"):
            distill.run(study, layout, "mine", "vanilla_kd")

    def test_a_method_that_reads_layers_is_refused_before_the_teacher_stage(self, tmp_path: Path) -> None:
        study, layout = filed(tmp_path)
        content = json.loads(changed(study, study={"methods": ["finetune", "rail_kd_l"]}).model_dump_json())
        layout.params.write_text(json.dumps(content))  # JSON is YAML
        outcome = kdflow("teacher", "mine", cwd=layout.study)
        assert outcome.code == 2
        assert outcome.err == (
            "kdflow: methods.rail_kd_l reads layers of the teacher, but the teacher of mine is only files, which has "
            "logits and nothing else; take the method out of study.methods (those that read only logits fit), or use "
            "one model as teacher\n")
        assert not layout.teacher("mine").exists()

    def test_without_answers_prepare_is_named(self, tmp_path: Path) -> None:
        study, layout = filed(tmp_path)
        shutil.rmtree(layout.prepared("mine") / "answers")
        with pytest.raises(UserError, match=r"holds no answers of a teacher, .* run `kdflow prepare mine` again"):
            teacher.run(study, layout, "mine")


def test_members_of_several_families(tmp_path: Path) -> None:
    """Each reads the texts with its own tokenizer; the first one gives the student its layers and tokenizer."""
    bert, roberta = save_tiny(tmp_path / "bert"), save_tiny(tmp_path / "roberta", "roberta")
    folder = make(tmp_path / "study", bert, files=FILES, pair={"teacher": {"members": [
        {"source": str(bert)}, {"source": str(roberta), "seed": 5}]}})
    study, layout = config.load(folder / "params.yaml"), Layout(folder)
    study = changed(study, gate={"allow_weak": True}, features={"dtype": "float32"},
                    training={"teacher": {"epochs": 0.5, "precision": "fp32"}})
    prepare.run(study, layout, "mine")
    prepared = Prepared.load(layout.prepared("mine"))
    assert sorted(prepared.info.tokenizers) == ["student", "teacher", "teacher-2"]
    assert len(set(prepared.info.tokenizers.values())) == 2
    for stage in (teacher, features):
        stage.run(study, layout, "mine")
    expected = [predict(load_finetuned(layout.teacher("mine") / f"member-{place + 1}", prepared.info.labels),
                        prepared.for_teacher(place), "train", 16, "teacher") for place in range(2)]
    torch.testing.assert_close(stored(layout, "mine"), torch.stack(expected).mean(dim=0), atol=1e-5, rtol=1e-5)
    assert [member["seed"] for member in record(layout.teacher("mine"))["members"]] == [0, 5]
    evaluate.run(study, layout, "mine", "teacher")


def test_seeds_of_one_source_prepare_as_one_teacher_does(tmp_path: Path) -> None:
    """So that one seed more leaves the data, and the members that are done, as they are."""
    model = save_tiny(tmp_path / "bert")
    prints = set()
    for place, average in enumerate(({}, {"seeds": [1, 2]}, {"seeds": [1, 2, 3]})):
        folder = make(tmp_path / str(place), model, files=FILES, pair={"teacher": {"source": str(model)} | average})
        prepare.run(config.load(folder / "params.yaml"), Layout(folder), "mine")
        prints.add(Prepared.load(Layout(folder).prepared("mine")).fingerprint)
    assert len(prints) == 1


def test_a_member_with_another_tokenizer_trains_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens join the prepared data, which the others do not read."""
    bert, roberta = save_tiny(tmp_path / "bert"), save_tiny(tmp_path / "roberta", "roberta")
    members = [{"source": str(bert)}, {"source": str(bert), "seed": 7}, {"source": str(roberta), "seed": 5}]
    folder = make(tmp_path / "study", bert, files=FILES, pair={"teacher": {"members": members[:2]}})
    layout, trained = Layout(folder), []
    train = teacher.train

    def counted(*args: Any, **more: Any) -> Any:
        trained.append(args[4])
        return train(*args, **more)

    monkeypatch.setattr(teacher, "train", counted)
    for count, wanted in ((2, [0, 7]), (3, [5]), (2, [])):
        study = changed(config.load(folder / "params.yaml"), gate={"allow_weak": True}, training={
            "teacher": {"epochs": 0.5, "precision": "fp32"}}, pair={"teacher": {"members": members[:count]}})
        prepare.run(study, layout, "mine")
        teacher.run(study, layout, "mine")
        assert trained == wanted
        trained.clear()
