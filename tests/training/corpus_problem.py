"""General distillation in small: a corpus of random sentences, a tiny teacher with a language-model head."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

from kdcore import general
from kdcore.config import Training
from kdcore.data.corpus import Corpus
from kdcore.general_config import Masking
from kdcore.general_students import has_language_model, student_needs, teacher_needs
from kdcore.live_model import LiveModel
from kdcore.models.loading import dims, load_encoder, load_masked_lm
from kdcore.objective import Phase, Setting
from kdcore.training.corpora import OfCorpus
from kdcore.training.journal import Journal
from kdcore.training.precision import Precision, device
from kdcore.training.run import TrainingResult, train
from tests.tiny import tiny_config, tiny_tokenizer

OPTIONS: dict[str, dict[str, Any]] = {"minilmv2": {"relation_heads": 4}}


def save_encoder(folder: Path, layers: int = 4, width: int = 32, head: bool = True, seed: int = 3,
                 dropout: float = 0.1) -> Path:
    """A tiny BERT as it comes from pre-training, with its tokenizer."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        config = tiny_config("bert", layers=layers, width=width)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
        model = AutoModelForMaskedLM.from_config(config, dtype=torch.float32)
    (model if head else model.base_model).save_pretrained(folder)
    tiny_tokenizer("bert").save_pretrained(folder)
    return folder


def phases_of(method: str, corpus: Corpus, teacher: Path, student: Path, batch_size: int = 8,
              **options: Any) -> tuple[Phase, ...]:
    """The phases of a general method for encoders in these folders."""
    above, below = (dims(load_encoder(str(folder))) for folder in (teacher, student))
    setting = Setting(above, below, 0, False, torch.tensor(-1).expand(len(corpus)), batch_size, 1)
    return general.load(method).phases(general.configure(method, OPTIONS.get(method, {}) | options), setting)


def loaded(folder: Path, head: bool) -> PreTrainedModel:
    return (load_masked_lm if head else load_encoder)(str(folder))


def run(method: str, corpus: Corpus, teacher: Path, student: Path, folder: Path,
        phases: tuple[Phase, ...] | None = None, **changes: Any) -> TrainingResult:
    """Train the student; `changes` are settings in place of eight steps of eight rows in fp32."""
    phases = phases or phases_of(method, corpus, teacher, student)
    settings = Training(**{"steps": 8, "batch_size": 8, "learning_rate": 1e-3, "precision": "fp32"} | changes)
    needs = teacher_needs(phases)
    live = LiveModel(partial(loaded, teacher, has_language_model(needs)), device(),
                     Precision("fp32", device().type))
    return train(loaded(student, has_language_model(student_needs(phases))), phases, OfCorpus(corpus, Masking()),
                 settings, 1, folder, Journal(folder / "journal.jsonl"), method, live if needs else None)
