"""The stage `evaluate` on exported tiny models: files, offline, mistakes."""

import json
import logging
import socket

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from kdcore import config, strict
from kdcore.data.prepared import Prepared
from kdcore.data.splitting import keys
from kdcore.errors import UserError
from kdcore.evaluation.metrics import PROTOCOL
from kdcore.evaluation.submission import TASKS
from kdcore.layout import Layout
from kdcore.lineage import record_key
from kdcore.stages import evaluate, prepare
from tests.evaluation.synthetic import NLI, SENTIMENT, export, split, study, write_study

SPLITS = (split("train", "train", 20, SENTIMENT), split("validation", "select", 30, SENTIMENT, note="30 of 300 rows"),
          split("test", "report", 25, SENTIMENT),
          split("imdb", "ood", 20, ("pos", "neg"), label_map={"negative": "neg", "positive": "pos"}))


@pytest.fixture
def layout(tmp_path):
    return write_study(tmp_path, splits=SPLITS)


@pytest.fixture
def no_network(monkeypatch):
    """Any attempt to open a connection fails the test."""
    def refuse(*args, **kwargs):
        raise AssertionError("the evaluation wants the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def read(path):
    return json.loads(path.read_text())


def test_scores_all_labelled_splits_without_network(layout, no_network, capsys):
    evaluate.run(study(), layout, "toy", "finetune")
    out = layout.evaluation("toy", "finetune")
    metrics = read(out / "metrics.json")
    assert set(metrics) == {"seed-1", "seed-2"}
    rows = {name: values["n"] for name, values in metrics["seed-1"].items()}
    assert rows == {"validation": 30, "test": 25, "imdb": 20}
    assert "toy seed-1 validation: accuracy" in capsys.readouterr().out
    context = read(out / "context.json")
    assert context["protocol"] == PROTOCOL
    assert context["dataset"]["splits"][1]["note"] == "30 of 300 rows"
    assert context["runs"]["seed-2"]["training"]["seed"] == 2
    assert context["runs"]["seed-1"]["size"]["parameters"] > 0


def test_predictions_are_those_of_transformers_alone(layout):
    evaluate.run(study(), layout, "toy", "finetune")
    model = AutoModelForSequenceClassification.from_pretrained(layout.student("toy", "finetune") / "seed-2")
    prepared = Prepared.load(layout.prepared("toy"))
    table = pq.read_table(layout.evaluation("toy", "finetune") / "predictions" / "seed-2" / "imdb.parquet")
    assert table.column_names == ["id", "text_hash", "label", "logit:negative", "logit:positive", "prediction"]
    assert table.column("id").to_pylist() == list(range(20))
    assert table.column("text_hash").to_pylist() == [key.hex() for key in keys(prepared.table("imdb"))]
    assert table.column("label").to_pylist() == prepared.labels("imdb").tolist()
    with torch.inference_mode():
        logits = model(**prepared.tokens("imdb", "student").pad(torch.arange(20))).logits
    found = torch.tensor([table.column(f"logit:{name}").to_pylist() for name in SENTIMENT]).T
    torch.testing.assert_close(found, logits, atol=0.05, rtol=0.05)  # bf16 where the processor has it
    own = ["pos" if p > n else "neg" for n, p in found.tolist()]
    assert [("pos", "neg")[i] for i in table.column("prediction").to_pylist()] == own
    accuracy = read(layout.evaluation("toy", "finetune") / "metrics.json")["seed-2"]["imdb"]["accuracy"]
    right = table.column("prediction").to_numpy() == table.column("label").to_numpy()
    assert accuracy == pytest.approx(right.mean())


def test_the_teacher_is_one_run(layout):
    evaluate.run(study(), layout, "toy", "teacher")
    assert set(read(layout.evaluation("toy", "teacher") / "metrics.json")) == {"teacher"}
    assert (layout.evaluation("toy", "teacher") / "predictions" / "teacher" / "test.parquet").is_file()


def test_outs_are_the_same_bytes_every_time(layout):
    def outs():
        return {p.relative_to(layout.study): p.read_bytes() for p in layout.evaluation("toy", "finetune").rglob("*")
                if p.is_file()}

    evaluate.run(study(latency=True), layout, "toy", "finetune")
    first = outs()
    evaluate.run(study(latency=True), layout, "toy", "finetune")
    assert outs() == first
    assert len(first) == 2 + 2 * 3


def test_latency_of_every_seed_goes_to_the_measurements_only(layout):
    evaluate.run(study(latency=True), layout, "toy", "finetune")
    measured = read(layout.measured / "evaluate@toy-finetune.json")
    for seed in ("seed-1", "seed-2"):
        assert measured[seed]["latency"]["batch_1"]["p50_ms"] > 0
        assert measured[seed]["evaluation_seconds"] > 0
        assert measured[seed]["of"] == record_key(read(layout.student("toy", "finetune") / seed / "training.json"))
    for path in layout.evaluation("toy", "finetune").glob("*.json"):
        assert "p50_ms" not in path.read_text()
        assert "seconds" not in path.read_text()


def test_leftovers_of_a_killed_run_and_old_outs_go(layout):
    for folder in (layout.scratch / "evaluate-toy-finetune", layout.evaluation("toy", "finetune")):
        folder.mkdir(parents=True)
        (folder / "stale.json").write_text("{}")
    evaluate.run(study(), layout, "toy", "finetune")
    assert not list(layout.study.rglob("stale.json"))
    assert not (layout.scratch / "evaluate-toy-finetune").exists()


def test_hidden_labels_are_predicted_and_not_scored(tmp_path, capsys):
    layout = write_study(tmp_path, splits=(*SPLITS[:2], split("test", "test", 12, SENTIMENT, hidden=True)))
    evaluate.run(study(), layout, "toy", "finetune")
    out = layout.evaluation("toy", "finetune")
    assert set(read(out / "metrics.json")["seed-1"]) == {"validation"}
    table = pq.read_table(out / "predictions" / "seed-1" / "test.parquet")
    assert set(table.column("label").to_pylist()) == {-1}
    assert "toy seed-1 test: 12 predictions written; labels are hidden" in capsys.readouterr().out
    assert not (out / "submission").exists(), "toy is no dataset of GLUE"


@pytest.mark.parametrize(("rows", "said"), [(146, "WNLI.tsv"), (20, "WNLI.tsv not written: 20 of 146 rows")])
def test_files_for_glue(tmp_path, rows, said):
    labels = ("not_entailment", "entailment")
    layout = write_study(tmp_path, name="wnli", labels=labels, splits=(
        split("train", "train", 20, labels), split("validation", "select", 30, labels),
        split("test", "test", rows, labels, hidden=True)))
    evaluate.run(study(), layout, "toy", "finetune")
    out = layout.evaluation("toy", "finetune")
    assert read(out / "context.json")["runs"]["seed-1"]["submission"] == {"test": said}
    files = [f"{path.parent.name}/{path.name}" for path in sorted(out.glob("submission/*/*"))]
    assert files == (["seed-1/WNLI.tsv", "seed-2/WNLI.tsv"] if rows == 146 else [])
    evaluate.run(study(submission=False), layout, "toy", "finetune")
    assert not (out / "submission").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "labels", "file"), [
    ("wnli", ("not_entailment", "entailment"), "WNLI.tsv"), ("stsb", None, "STS-B.tsv")])
def test_files_for_glue_from_the_real_test_sets(tmp_path, shared, name, labels, file):
    """From the published Parquet files to the server's TSV, through the stages themselves."""
    layout = Layout(tmp_path)
    export(layout.teacher(name), labels)
    settings = strict.parse(config.Study, study(datasets=(name,)).model_dump() | {
        "pair": {"teacher": {"source": str(layout.teacher(name))}, "max_length": 48},
        "datasets": {name: {"data": {"source": str(shared / "data" / "glue")}, "teacher": {}, "student": {}}}}, "test")
    prepare.run(settings, layout, name)
    evaluate.run(settings, layout, name, "teacher")
    lines = (layout.evaluation(name, "teacher") / "submission" / "teacher" / file).read_text().splitlines()
    assert lines[0] == "index\tprediction"
    rows = TASKS[name, "test"].rows
    assert [int(line.split("\t")[0]) for line in lines[1:]] == list(range(rows))
    answers = [line.split("\t")[1] for line in lines[1:]]
    if labels:
        assert set(answers) <= {"0", "1"}
    else:
        assert all(0 <= float(answer) <= 5 and len(answer.partition(".")[2]) == 3 for answer in answers)


def test_scores_have_one_column(tmp_path):
    layout = write_study(tmp_path, labels=None, metrics=("pearson", "spearman"))
    evaluate.run(study(), layout, "toy", "finetune")
    table = pq.read_table(layout.evaluation("toy", "finetune") / "predictions" / "seed-1" / "validation.parquet")
    assert table.column_names == ["id", "text_hash", "label", "score"]
    assert set(read(layout.evaluation("toy", "finetune") / "metrics.json")["seed-1"]["validation"]) == {
        "pearson", "spearman", "degenerate", "n"}


def test_a_dataset_that_was_not_prepared_names_the_command(tmp_path):
    layout = write_study(tmp_path)
    with pytest.raises(UserError, match="kdflow prepare rte"):
        evaluate.run(study(datasets=("rte",)), layout, "rte", "finetune")


def test_a_method_that_was_not_trained_names_the_command(layout):
    with pytest.raises(UserError, match="run `kdflow distill toy rail_kd_l` first"):
        evaluate.run(study(), layout, "toy", "rail_kd_l")


def test_a_missing_teacher_names_the_command(layout):
    (layout.teacher("toy") / "config.json").unlink()
    with pytest.raises(UserError, match="run `kdflow teacher toy` first"):
        evaluate.run(study(), layout, "toy", "teacher")


def test_a_half_exported_seed_is_named(layout):
    (layout.student("toy", "finetune") / "seed-2" / "config.json").unlink()
    with pytest.raises(UserError, match=r"no exported model in .*seed-2"):
        evaluate.run(study(), layout, "toy", "finetune")


@pytest.mark.parametrize("content", [b"", b"no weights at all"])
def test_damaged_weights_are_one_line(layout, content):
    (layout.student("toy", "finetune") / "seed-1" / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"the model in .*seed-1 cannot be read .*delete the folder"):
        evaluate.run(study(), layout, "toy", "finetune")


def test_a_model_without_its_record_is_refused(layout):
    (layout.student("toy", "finetune") / "seed-1" / "training.json").unlink()
    with pytest.raises(UserError, match=r"training.json is missing"):
        evaluate.run(study(), layout, "toy", "finetune")


@pytest.mark.parametrize("content", ["{", "[]", '{"seed": 1}'])
def test_a_damaged_record_is_refused(layout, content):
    (layout.student("toy", "finetune") / "seed-1" / "training.json").write_text(content)
    with pytest.raises(UserError, match=r"training.json is not the record of a training"):
        evaluate.run(study(), layout, "toy", "finetune")


def test_a_model_of_another_dataset_is_refused_and_old_results_stay(layout):
    evaluate.run(study(), layout, "toy", "finetune")
    before = (layout.evaluation("toy", "finetune") / "metrics.json").read_bytes()
    export(layout.student("toy", "finetune") / "seed-1", NLI)
    with pytest.raises(UserError, match="3 outputs"):
        evaluate.run(study(), layout, "toy", "finetune")
    assert (layout.evaluation("toy", "finetune") / "metrics.json").read_bytes() == before


def test_a_diverged_model_is_refused(layout):
    folder = layout.student("toy", "finetune") / "seed-1"
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias.fill_(float("nan"))
    model.save_pretrained(folder)
    with pytest.raises(UserError, match="logits are not finite"):
        evaluate.run(study(), layout, "toy", "finetune")


def test_two_unnamed_classes_are_taken_in_order_with_a_warning(layout, caplog):
    export(layout.student("toy", "finetune") / "seed-1", ("LABEL_0", "LABEL_1"))
    with caplog.at_level(logging.WARNING):
        evaluate.run(study(), layout, "toy", "finetune")
    assert "does not name its classes" in caplog.text
