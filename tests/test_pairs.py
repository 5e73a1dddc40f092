"""Pairs of encoders that differ in depth, width, architecture and tokenizer, with every method, from prepared data to
an exported student."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from kdcore import config, methods
from kdcore.data.batching import Examples
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.export import export
from kdcore.features import LOGITS
from kdcore.layout import Layout
from kdcore.models.initialise import build_student
from kdcore.models.loading import dims, load_tokenizer, tokenizer_fingerprint
from kdcore.models.reading import family, read
from kdcore.objective import Phase, Progress
from kdcore.stages import features
from kdcore.stages.distill import Work
from kdcore.teacher import Teacher
from kdcore.training.distiller import Distiller
from kdcore.training.journal import Journal
from kdcore.training.precision import Precision
from kdcore.training.run import train
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
            "methods": {name: {} for name in methods.names()},
            "features": {"kinds": ["logits", "cls", "mean"], "dtype": "float32"},
            "gate": {"allow_weak": True}, "evaluation": {}}
        return config.parse(config.Study, content, "params.yaml"), layout


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
    Pair("ModernBERT to itself", Encoder("modernbert", 10), {"layers": [1, 4, 6, 8]}),
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
    for method, settings in (*((name, {}) for name in methods.names()), *TOKENWISE):
        work = Work(study.model_copy(update={"methods": study.methods | {method: settings}}), layout, "toy", method)
        phases = work.phases(dims(start), seed=1)
        if aligned(phases) or work.prepared.same_tokenizer:
            usable.append((work, phases))
            continue
        with pytest.raises(UserError, match="token by token") as caught:
            work.teacher(phases, pair.name)
        assert all(fingerprint in str(caught.value) for fingerprint in work.prepared.info.tokenizers.values())
    work, _ = usable[place % len(usable)]
    teacher = work.teacher(tuple(phase for _, phases in usable for phase in phases), pair.name)
    for _, phases in usable:
        one_step(copy.deepcopy(start), phases, teacher, work.prepared)
    trains_and_is_the_same_after_export(start, work, teacher, tmp_path)


def aligned(phases: tuple[Phase, ...]) -> bool:
    """True where the method compares sentences as wholes, so that it does not matter how they are cut into tokens."""
    return all(key.is_sentence_level for phase in phases for key in phase.objective.needs.teacher)


def one_step(student: PreTrainedModel, phases: tuple[Phase, ...], teacher: Teacher, prepared: Prepared) -> None:
    """Forward and backward of a batch in each phase: finite losses, and a gradient from the embeddings on."""
    examples = Examples(prepared, "train", teacher_inputs=True)
    batch = examples.__getitems__(range(8))
    for phase in phases:
        objective = phase.objective
        distiller = Distiller(student.train(), objective, Precision("fp32", "cpu"))
        objective.before_steps(lambda: 1.0)
        objective.before_epoch(START, lambda ids, keys: teacher.features(examples.__getitems__(ids.tolist()), keys))
        needs = objective.needs_at(START).teacher
        loss = distiller(batch, teacher.features(batch, needs), START)
        assert loss.total.shape == (8,)
        assert all(part.isfinite().all() for part in loss.parts.values())
        student.zero_grad()
        loss.total.mean().backward()
        gradient = student.get_input_embeddings().weight.grad
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0
        objective.after_step(START, lambda: 1.0)


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
        train(student, phases, work.prepared, work.settings, 1, tmp_path / "checkpoints",
              Journal(tmp_path / "journal.jsonl", None), "pair")


def trains_and_is_the_same_after_export(student: PreTrainedModel, work: Work, teacher: Teacher, folder: Path) -> None:
    """What `distill` does for a seed, and what a user of the exported folder does."""
    before = {name: value.clone() for name, value in student.state_dict().items()}
    phases = work.phases(dims(student), seed=1)
    result = train(student, phases, work.prepared, work.settings, 1, folder / "checkpoints",
                   Journal(folder / "journal.jsonl", None), "pair", teacher)
    assert result.record["skipped_steps"] == 0
    stem = family(student.config).layers
    assert any(stem in name and not torch.equal(value, before[name]) for name, value in student.state_dict().items())
    source = work.study.pair.student.source
    tokenizer = load_tokenizer(str(work.teacher_folder) if source == "teacher" else source)
    export(result.student, tokenizer, result.record, folder / "out")
    tokenizer = AutoTokenizer.from_pretrained(folder / "out")
    assert tokenizer_fingerprint(tokenizer) == work.prepared.info.tokenizers["student"]
    again = AutoModelForSequenceClassification.from_pretrained(folder / "out").eval()
    assert tuple(again.config.id2label.values()) == SENTIMENT
    inputs = dict(tokenizer(tiny_texts(6), padding=True, return_tensors="pt"))
    with torch.no_grad():
        ours, theirs = (read(each, inputs, frozenset({LOGITS})).logits for each in (result.student, again))
    assert torch.equal(ours, theirs)
