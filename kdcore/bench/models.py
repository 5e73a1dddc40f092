"""Random BERT classifiers of stated sizes: speed does not depend on what the weights say."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from kdcore.bench.corpus import MAX_LENGTH, VOCABULARY
from kdcore.models.loading import load_config


@dataclass(frozen=True)
class Size:
    """A pair: layers of teacher and student; width and heads of both; depths of other teachers to compare with."""

    name: str
    teacher_layers: int
    student_layers: int
    width: int
    heads: int
    depths: tuple[int, ...] = ()


SIZES = {
    "tiny": Size("6 to 3 layers, width 32", 6, 3, 32, 2, (6, 12)),
    "slim": Size("3 to 2 layers, width 128", 3, 2, 128, 4),
    "small": Size("6 to 3 layers, width 384 (all-MiniLM-L6-v2 to half of it)", 6, 3, 384, 12, (6, 12, 24)),
    "base": Size("12 to 6 layers, width 768 (BERT-base to DistilBERT's depth)", 12, 6, 768, 12, (6, 12, 24)),
}


def write_config(folder: Path, layers: int, width: int, heads: int) -> Path:
    """Write a BERT `config.json` with two classes; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "bert", "vocab_size": VOCABULARY, "max_position_embeddings": MAX_LENGTH,
        "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
        "intermediate_size": 4 * width, "id2label": {"0": "negative", "1": "positive"},
        "label2id": {"negative": 0, "positive": 1},
    }), encoding="utf-8")
    return folder


def classifier(folder: Path, seed: int = 0, dropout: float = 0.1) -> PreTrainedModel:
    """A random classifier of a written configuration, in eval mode."""
    config = load_config(str(folder))
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForSequenceClassification.from_config(config, attn_implementation="sdpa").eval()
