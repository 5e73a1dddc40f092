"""Pairs of encoders that differ in depth, width, architecture and tokenizer, with every method, from prepared data to
an exported student."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from kdcore import config, methods, strict
from kdcore.data.batching import Examples
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.export import export
from kdcore.features import LOGITS
from kdcore.layout import Layout
from kdcore.models.initialise import build_student
from kdcore.models.loading import dims, load_tokenizer, tokenizer_fingerprint
from kdcore.models.reading import family, read
from kdcore.objective import Phase, Progress, Step
from kdcore.stages import distill, evaluate, features, prepare, teacher
from kdcore.stages.distill import Work
from kdcore.teacher import Teacher
from kdcore.training.datasets import OfDataset
from kdcore.training.distiller import Distiller
from kdcore.training.journal import Journal
from kdcore.training.precision import Precision
from kdcore.training.run import train
from tests.methods.toys import examine
from tests.stages.small_study import SHORT
from tests.tiny import SENTIMENT, save_tiny, tiny_prepared, tiny_texts

START = Progress(epoch=0, step=0, total_steps=3)
TOKENWISE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ckd", {"direction": "student_up"}),
    ("layer_kd", {"knowledge": {"hidden": 1, "query_relations": 1, "key_relations": 1, "value_relations": 1}}),
    ("layer_kd", {"selection": "fixed", "mapping": [[1, 1], [2, 4]],
                  "knowledge": {"attention": 1, "attention_scores": 1}}),
)
"""Settings under which methods compare token by token."""


@dataclass(frozen=True)
class Encoder:
    """A tiny checkpoint of its own."""

    family: str
    layers: int
    width: int = 8


@dataclass(frozen=True)
class Pair:
    """A teacher and where its student comes from: layers of it, or another checkpoint."""

    name: str
    teacher: Encoder
    student: dict[str, Any] | Encoder

    def study(self, folder: Path, max_length: int = 16) -> tuple[config.Study, Layout]:
        """Write the prepared data and the teacher, as its fine-tuning would leave it."""
        layout, source = Layout(folder), dict(self.student) if isinstance(self.student, dict) else {}
        if isinstance(self.student, Encoder):
            source["source"] = str(_save(folder / "student", self.student, seed=2))
        tiny_prepared(layout.prepared("toy"), self.teacher.family,
                      self.student.family if isinstance(self.student, Encoder) else None, rows=24,
                      max_length=max_length)
        _save(layout.teacher("toy"), self.teacher, seed=1)
        training = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "precision": "fp32"}
        content = {
            "code": ".", "study": {"datasets": ["toy"], "methods": list(methods.names()), "seeds": [1]},
            "pair": {"teacher": {"source": str(layout.teacher("toy"))}, "student": source,
                     "max_length": max_length},
            "training": {"teacher": training, "student": training},
            "datasets": {"toy": {"data": {}, "teacher": {}, "student": {}}},
            "methods": {name: {} for name in methods.names()} | {"tinybert": SHORT, "ksm": {"episodes": 1}},
            "features": {"kinds": ["logits", "cls", "mean"], "dtype": "float32"},
            "gate": {"allow_weak": True}, "evaluation": {}}
        return strict.parse(config.Study, content, "params.yaml"), layout


def _save(folder: Path, encoder: Encoder, seed: int) -> Path:
    return save_tiny(folder, encoder.family, encoder.layers, encoder.width, heads=2, seed=seed)


PAIRS = (
    Pair("12 to 6", Encoder("bert", 12), {"layers": "even", "depth": 6}),
    Pair("24 to 6", Encoder("bert", 24), {"layers": "even", "depth": 6}),
    Pair("12 to 3", Encoder("bert", 12), {"layers": "last", "depth": 3}),
    Pair("6 to 3", Encoder("bert", 6), {"layers": "first", "depth": 3}),
    Pair("equal depth", Encoder("bert", 6), {}),
    Pair("768 to 384", Encoder("bert", 12, width=16), Encoder("bert", 6, width=8)),
    Pair("1024 to 768", Encoder("bert", 24, width=16), Encoder("bert", 6, width=12)),
    Pair("BERT to DistilBERT", Encoder("bert", 12), {"layers": "even", "depth": 6, "architecture": "distilbert"}),
    Pair("BERT to a DistilBERT of its own", Encoder("bert", 12), Encoder("distilbert", 6)),
    Pair("RoBERTa to DistilRoBERTa", Encoder("roberta", 12), {"layers": "even", "depth": 6}),
    Pair("MPNet to BERT", Encoder("mpnet", 12), Encoder("bert", 6)),
    Pair("XLM-R to BERT", Encoder("xlm-roberta", 12), Encoder("bert", 3)),
    Pair("DeBERTa to itself", Encoder("deberta-v2", 12), {"layers": "even", "depth": 6}),
    Pair("DeBERTa to BERT", Encoder("deberta-v2", 12), Encoder("bert", 6)),
    Pair("ModernBERT to itself", Encoder("modernbert", 12), {"layers": [1, 4, 6, 8]}),
    Pair("ModernBERT to BERT", Encoder("modernbert", 10), Encoder("bert", 5)),
)


@pytest.mark.parametrize("place", range(len(PAIRS)), ids=lambda place: PAIRS[place].name.replace(" ", "_"))
def test_pair(place: int, tmp_path: Path) -> None:
    """Every method makes a step, or says why it cannot; one of them trains a student that is the same after export."""
    pair = PAIRS[place]
    study, layout = pair.study(tmp_path)
    features.run(study, layout, "toy")
    start, _ = build_student(study.pair.student, layout.teacher("toy"), SENTIMENT, seed=1)
    usable = []
    for method, settings in (*study.methods.items(), *TOKENWISE):
        work = Work(study.model_copy(update={"methods": study.methods | {method: settings}}), layout, "toy", method)
        phases = work.phases(dims(start), seed=1)
        if aligned(phases) or work.prepared.same_tokenizer:
            usable.append((work, phases))
            continue
        with pytest.raises(UserError, match="token by token") as caught:
            work.teacher(phases, pair.name)
        assert all(fingerprint in str(caught.value) for fingerprint in work.prepared.info.tokenizers.values())
    work, _ = usable[place % len(usable)]
    source = work.teacher(tuple(phase for _, phases in usable for phase in phases), pair.name)
    for _, phases in usable:
        one_step(copy.deepcopy(start), phases, source, work.prepared)
    trains_and_is_the_same_after_export(start, work, source, tmp_path)


def aligned(phases: tuple[Phase, ...]) -> bool:
    """True where the method compares sentences as wholes, so that it does not matter how they are cut into tokens."""
    return all(key.is_sentence_level for phase in phases for key in phase.objective.needs.teacher)


def one_step(student: PreTrainedModel, phases: tuple[Phase, ...], source: Teacher, prepared: Prepared) -> None:
    """Forward and backward of a batch in each phase: finite losses, and a gradient from the embeddings on."""
    examples = Examples(prepared, "train", teacher_inputs=True)
    batch = examples.__getitems__(range(8))
    batch["step"] = Step(torch.from_numpy(examples.lengths[:8]), torch.zeros(8, dtype=torch.int64))
    for phase in phases:
        objective = phase.objective
        distiller = Distiller(student.train(), objective, Precision("fp32", "cpu"))
        objective.before_steps(examine)
        objective.before_epoch(START, lambda ids, keys: source.features(examples.__getitems__(ids.tolist()), keys))
        needs = objective.needs_at(START).teacher
        loss = distiller(batch, source.features(batch, needs), START)
        assert loss.total.shape == (8,)
        assert all(part.isfinite().all() for part in loss.parts.values())
        student.zero_grad()
        loss.total.mean().backward()
        gradient = student.get_input_embeddings().weight.grad
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0
        objective.after_step(START, examine)


def test_scores_beyond_the_window_of_modernbert_are_refused_before_training(tmp_path: Path) -> None:
    """Not in the middle of it, when a layer that does not look so far is drawn for the first time."""
    pair = Pair("ModernBERT to itself", Encoder("modernbert", 6), {"layers": "first", "depth": 3})
    study, layout = pair.study(tmp_path, max_length=17)
    features.run(study, layout, "toy")
    work = Work(study, layout, "toy", "rail_tinybert")
    student, _ = build_student(study.pair.student, work.teacher_folder, SENTIMENT, seed=1)
    phases = work.phases(dims(student), seed=1)
    with pytest.raises(UserError, match="max_length to at most 16, or use layers with full attention: 1, 4"):
        work.teacher(phases, "pair")
    with pytest.raises(UserError, match=r"max_length to at most 16, or use layers with full attention: 1$"):
        train(student, phases, OfDataset(work.prepared), work.settings, 1, tmp_path / "checkpoints",
              Journal(tmp_path / "journal.jsonl", None), "pair")


def trains_and_is_the_same_after_export(student: PreTrainedModel, work: Work, source: Teacher, folder: Path) -> None:
    """What `distill` does for a seed, and what a user of the exported folder does."""
    before = {name: value.clone() for name, value in student.state_dict().items()}
    phases = work.phases(dims(student), seed=1)
    result = train(student, phases, OfDataset(work.prepared), work.settings, 1, folder / "checkpoints",
                   Journal(folder / "journal.jsonl", None), "pair", source)
    assert result.record["skipped_steps"] == 0
    stem = family(student.config).layers
    assert any(stem in name and not torch.equal(value, before[name]) for name, value in student.state_dict().items())
    own = work.study.pair.student.source
    tokenizer = load_tokenizer(str(work.teacher_folder) if own == "teacher" else own)
    export(result.student, tokenizer, result.record, folder / "out")
    tokenizer = AutoTokenizer.from_pretrained(folder / "out")
    assert tokenizer_fingerprint(tokenizer) == work.prepared.info.tokenizers["student"]
    again = AutoModelForSequenceClassification.from_pretrained(folder / "out").eval()
    assert tuple(again.config.id2label.values()) == SENTIMENT
    inputs = dict(tokenizer(tiny_texts(6), padding=True, return_tensors="pt"))
    with torch.no_grad():
        ours, theirs = (read(each, inputs, frozenset({LOGITS})).logits for each in (result.student, again))
    assert torch.equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize(("student", "layers", "method"), [
    ({"layers": "even", "depth": 6}, 6, "rail_kd_l"),
    ({"source": "paraphrase-minilm-3x384"}, 3, "alp_kd"),
], ids=["six_layers_of_itself", "BERT_pieces"])
def test_real_encoders_from_raw_data_to_evaluation(student: dict[str, Any], layers: int, method: str, shared: Path,
                                                   tmp_path: Path) -> None:
    """e5-small (12 layers of width 384, XLM-R's word pieces) teaches on a part of SST-2 in the hub's files."""
    if "source" in student:
        student = {"source": str(shared / "models" / student["source"])}
    training = {"batch_size": 16, "learning_rate": 1e-4, "precision": "fp32"}
    study = strict.parse(config.Study, {
        "code": ".", "study": {"datasets": ["sst2"], "methods": [method], "seeds": [1]},
        "pair": {"teacher": {"source": str(shared / "models" / "e5-small-12x384")}, "student": student,
                 "max_length": 32},
        "training": {"teacher": training | {"epochs": 1}, "student": training | {"epochs": 3}},
        "datasets": {"sst2": {"data": {"source": str(shared / "data" / "glue"), "train_rows": 96, "eval_rows": 64,
                                       "ood_sets": []}, "teacher": {}, "student": {}}},
        "methods": {method: {}}, "features": {"kinds": ["logits", "cls", "mean"]}, "gate": {"allow_weak": True},
        "evaluation": {"latency": False}}, "params.yaml")
    layout = Layout(tmp_path)
    prepare.run(study, layout, "sst2")
    teacher.run(study, layout, "sst2")
    features.run(study, layout, "sst2")
    distill.run(study, layout, "sst2", method)
    evaluate.run(study, layout, "sst2", method)

    steps = [json.loads(line) for line in next(layout.logs.glob("distill@*.jsonl")).read_text().splitlines()]
    losses = [step["loss"] for step in steps if "gradient_norm" in step]
    assert sum(losses[-3:]) < sum(losses[:3])
    prepared = Prepared.load(layout.prepared("sst2"))
    assert prepared.same_tokenizer == ("layers" in student)
    folder = layout.student("sst2", method) / "seed-1"
    again = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    start, _ = build_student(study.pair.student, layout.teacher("sst2"), prepared.info.labels, seed=1)
    assert again.config.num_hidden_layers == layers
    assert all(not torch.equal(mine.weight, theirs.weight) for mine, theirs in zip(
        (module for module in again.bert.encoder.modules() if isinstance(module, torch.nn.Linear)),
        (module for module in start.bert.encoder.modules() if isinstance(module, torch.nn.Linear)), strict=True))

    texts = pq.read_table(layout.prepared("sst2") / "validation.parquet").column("text").to_pylist()
    inputs = AutoTokenizer.from_pretrained(folder)(texts, truncation=True, max_length=32, padding=True,
                                                   return_tensors="pt")
    with torch.no_grad():
        logits = again(**inputs).logits
    evaluation = layout.evaluation("sst2", method)
    predicted = pq.read_table(evaluation / "predictions" / "seed-1" / "validation.parquet")
    stored = torch.tensor([predicted.column(f"logit:{name}").to_pylist() for name in prepared.info.labels]).T
    torch.testing.assert_close(stored, logits, rtol=0, atol=0.03)  # evaluation is in bf16 where the hardware is
    right = (stored.argmax(dim=1) == torch.tensor(predicted.column("label").to_pylist())).float().mean().item()
    metrics = json.loads((evaluation / "metrics.json").read_text())["seed-1"]["validation"]
    assert metrics["accuracy"] == pytest.approx(right)
