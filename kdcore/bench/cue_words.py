"""Toy sentences whose label follows from cue words, and tiny BERTs to learn it.

A sentence has eight words: each is neutral with probability 1/2, and else a cue, three times out of four of the
sentence's own side; the label is the side with more cues. So what is to be learned are vectors of twenty words, and a
tiny BERT gets better step by step, in seconds.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from kdcore.data.prepared import INFO_FILE, Prepared, PreparedInfo, SplitInfo, split_file, token_file
from kdcore.data.tokens import TokenTable

WORDS, CUES = 8, 10
"""In a sentence; of each side."""
NEUTRAL, OWN = 0.5, 0.75
"""Shares: of neutral words, and of cues of the sentence's own side."""
LABELS = ("negative", "positive")
CLS, SEP, FIRST_WORD = 1, 2, 3
_TOKENIZER = "cue words"


def write(folder: Path, train_rows: int, dev_rows: int) -> Prepared:
    """Write the dataset as the stage `prepare` would, and open it; always the same rows."""
    tokens = WORDS + 2
    splits = {"train": SplitInfo("train", "train", train_rows, "cue words", LABELS, max_length=tokens),
              "validation": SplitInfo("validation", "select", dev_rows, "cue words", LABELS, max_length=tokens)}
    info = PreparedInfo("cue words", LABELS, None, ("accuracy",), False, tokens, splits,
                        {"teacher": _TOKENIZER, "student": _TOKENIZER})
    folder.mkdir(parents=True)
    for number, split in enumerate(splits.values()):
        words, labels = _sentences(split.rows, np.random.default_rng(number))
        ids = np.full((split.rows, tokens), SEP, np.int32)
        ids[:, 0], ids[:, 1:-1] = CLS, FIRST_WORD + words
        path = token_file(folder, _TOKENIZER, split.name)
        path.parent.mkdir(exist_ok=True)
        TokenTable(ids.ravel(), np.zeros(ids.size, np.int8), tokens * np.arange(split.rows + 1), pad_id=0).save(path)
        pq.write_table(pa.table({"id": np.arange(split.rows), "text": pa.array([""] * split.rows), "label": labels}),
                       split_file(folder, split.name))
    (folder / INFO_FILE).write_text(info.to_json(), encoding="utf-8")
    return Prepared.load(folder)


def model(layers: int, width: int, seed: int) -> PreTrainedModel:
    """A random BERT with two heads and no dropout, in eval mode. Its weights are larger than BERT's usual ones, with
    which a model this small stands still for its first hundred steps."""
    config = AutoConfig.for_model(
        "bert", vocab_size=FIRST_WORD + 3 * CUES, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2,
        intermediate_size=2 * width, max_position_embeddings=WORDS + 2, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, initializer_range=0.15, id2label=dict(enumerate(LABELS)),
        label2id={name: number for number, name in enumerate(LABELS)})
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return AutoModelForSequenceClassification.from_config(config, attn_implementation="sdpa").eval()


def _sentences(rows: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Words [rows, WORDS], those of each side first, and labels [rows]; sentences that are undecided are left out."""
    size = (4 * rows, WORDS)
    side, kind = draw.integers(0, 2, (4 * rows, 1)), draw.random(size)
    group = np.where(kind < NEUTRAL, 2, np.where(kind < NEUTRAL + (1 - NEUTRAL) * OWN, side, 1 - side))
    words = CUES * group + draw.integers(0, CUES, size)
    lead = (group == 1).sum(axis=1) - (group == 0).sum(axis=1)
    decided = np.flatnonzero(lead)[:rows]
    return words[decided], (lead[decided] > 0).astype(np.int64)
