"""Tiny random models of every family with tokenizers and prepared data built on the spot: nothing is fetched.

The tokenizers know every lower-case letter, digit and some punctuation, so that any text can be cut into
known pieces, and a few whole words, so that pieces differ in length.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    DebertaV2Tokenizer,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

from kdcore.data.prepared import INFO_FILE, Prepared, PreparedInfo, SplitInfo, split_file, token_file
from kdcore.data.tokenise import tokenise
from kdcore.models.loading import tokenizer_fingerprint

SENTIMENT = ("negative", "positive")
FAMILIES = ("bert", "distilbert", "roberta", "mpnet", "xlm-roberta", "electra", "deberta-v2", "modernbert")
POSITIONS = 64
"""Tokens that a tiny model takes, special tokens included."""

WORDS = ("the", "a", "film", "plot", "actor", "good", "bad", "great", "awful", "fine", "dull", "was", "is", "and",
         "not", "very", "he", "she", "they", "saw", "liked", "hated", "it", "of", "in")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
_ROBERTA_LIKE = ("roberta", "xlm-roberta", "mpnet")


def vocabulary(family: str, words: tuple[str, ...] = WORDS) -> dict[str, int]:
    """Token to id; special tokens first, in the order that the family's checkpoints use."""
    if family == "deberta-v2":
        pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"▁{word}" for word in words), "▁", *CHARACTERS, "[MASK]"]
        return {piece: place for place, piece in enumerate(pieces)}
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if family in _ROBERTA_LIKE else [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *words, *(c for c in CHARACTERS if c not in words), *(f"##{c}" for c in CHARACTERS)]
    return {piece: place for place, piece in enumerate(pieces)}


def tiny_tokenizer(family: str, words: tuple[str, ...] = WORDS) -> PreTrainedTokenizerFast | DebertaV2Tokenizer:
    """A word-piece tokenizer with the family's special tokens and pair template; for DeBERTa one of its own class."""
    known = vocabulary(family, words)
    if family == "deberta-v2":
        scores = [(piece, 0.0 if piece.startswith("[") else -1.0) for piece in known]
        return DebertaV2Tokenizer(vocab=scores, do_lower_case=True, model_max_length=POSITIONS)
    if family in _ROBERTA_LIKE:
        begin, pad, end, unknown, mask = "<s>", "<pad>", "</s>", "<unk>", "<mask>"
        pair, inputs = f"{begin} $A {end} {end} $B {end}", ["input_ids", "attention_mask"]
    else:
        begin, pad, end, unknown, mask = "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"
        pair, inputs = f"{begin} $A {end} $B:1 {end}:1", ["input_ids", "token_type_ids", "attention_mask"]
    core = Tokenizer(models.WordPiece(known, unk_token=unknown, max_input_chars_per_word=100))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", pair=pair, special_tokens=[(begin, known[begin]), (end, known[end])])
    if family == "modernbert":
        inputs.remove("token_type_ids")
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=begin, eos_token=end, cls_token=begin, sep_token=end, pad_token=pad,
        unk_token=unknown, mask_token=mask, model_max_length=POSITIONS, model_input_names=inputs)


def tiny_config(family: str, layers: int = 2, width: int = 32, labels: tuple[str, ...] | None = SENTIMENT,
                heads: int = 4, words: tuple[str, ...] = WORDS, dropout: float = 0.1) -> PretrainedConfig:
    """A configuration of the family; `labels` None is regression.

    DeBERTa is made as v3's checkpoints are. ModernBERT's local layers look 15 tokens to each side, less far
    than longer texts go.
    """
    names = labels or ("score",)
    size, pad = len(vocabulary(family, words)), 1 if family in _ROBERTA_LIKE else 0
    head = {"id2label": dict(enumerate(names)), "label2id": {name: place for place, name in enumerate(names)},
            "problem_type": "single_label_classification" if labels else "regression"}
    if family == "distilbert":
        return DistilBertConfig(vocab_size=size, max_position_embeddings=POSITIONS, n_layers=layers, n_heads=heads,
                                dim=width, hidden_dim=2 * width, pad_token_id=pad, dropout=dropout,
                                attention_dropout=dropout, **head)
    if family == "modernbert":
        return ModernBertConfig(
            vocab_size=size, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=2 * width, max_position_embeddings=POSITIONS, local_attention=30, pad_token_id=pad,
            bos_token_id=2, cls_token_id=2, eos_token_id=3, sep_token_id=3, embedding_dropout=dropout,
            attention_dropout=dropout, mlp_dropout=dropout, classifier_dropout=dropout, **head)
    positions = POSITIONS + (pad + 1 if family in _ROBERTA_LIKE else 0)
    shape = {"vocab_size": size, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
             "intermediate_size": 2 * width, "max_position_embeddings": positions, "pad_token_id": pad,
             "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    match family:
        case "bert":
            return BertConfig(**shape, **head)
        case "roberta":
            return RobertaConfig(**shape, type_vocab_size=1, **head)
        case "xlm-roberta":
            return XLMRobertaConfig(**shape, type_vocab_size=1, **head)
        case "mpnet":
            return MPNetConfig(**shape, **head)
        case "electra":
            return ElectraConfig(**shape, embedding_size=width // 2, **head)
        case "deberta-v2":
            return DebertaV2Config(**shape, relative_attention=True, position_buckets=8, share_att_key=True,
                                   pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", position_biased_input=False,
                                   type_vocab_size=0, **head)
    raise ValueError(f"no tiny {family}; known: {', '.join(FAMILIES)}")


def tiny_model(family: str, layers: int = 2, width: int = 32, labels: tuple[str, ...] | None = SENTIMENT,
               heads: int = 4, seed: int = 0, words: tuple[str, ...] = WORDS, dropout: float = 0.1) -> PreTrainedModel:
    """A random sequence classifier in eval mode, equal for equal arguments.

    Weights are drawn wider than usual (std 0.2), so that layers and examples differ visibly.
    """
    config = tiny_config(family, layers, width, labels, heads, words, dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(config)
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter.data, std=0.2)
    return model.eval()


def save_tiny(folder: Path, family: str = "bert", layers: int = 2, width: int = 32,
              labels: tuple[str, ...] | None = SENTIMENT, heads: int = 4, seed: int = 0,
              words: tuple[str, ...] = WORDS, dropout: float = 0.1) -> Path:
    """Write model and tokenizer as a transformers folder; returns it."""
    tiny_model(family, layers, width, labels, heads, seed, words, dropout).save_pretrained(folder)
    tiny_tokenizer(family, words).save_pretrained(folder)
    return folder


def tiny_texts(rows: int, seed: int = 0, longest: int = 20) -> list[str]:
    """Random sentences of 1 to `longest` known words, equal for equal arguments."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (rows,), generator=draw).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=draw).tolist()) for n in lengths]


def tiny_inputs(family: str, rows: int = 4, seed: int = 0, longest: int = 20) -> dict[str, torch.Tensor]:
    """A padded batch of random sentences with every input that the family's tokenizer makes."""
    return dict(tiny_tokenizer(family)(tiny_texts(rows, seed, longest), padding=True, return_tensors="pt"))


def tiny_prepared(folder: Path, teacher: str = "bert", student: str | None = None, rows: int = 40,
                  labels: tuple[str, ...] | None = SENTIMENT, max_length: int = 24, seed: int = 0,
                  pair: bool = False) -> Prepared:
    """Write a prepared dataset of random sentences, or pairs of them, with the splits train and validation; `student`
    None shares the teacher's tokenizer."""
    tokenizers = {"teacher": tiny_tokenizer(teacher), "student": tiny_tokenizer(student or teacher)}
    prints = {which: tokenizer_fingerprint(tokenizer) for which, tokenizer in tokenizers.items()}
    splits = {}
    for name, role, count, offset in (("train", "train", rows, 0), ("validation", "select", rows // 2 + 1, 1)):
        ids = np.arange(count)
        label = pa.array(ids % len(labels)) if labels else pa.array(ids / count, pa.float32())
        texts = {"text": tiny_texts(count, 2 * seed + offset)}
        if pair:
            texts["text_pair"] = tiny_texts(count, 2 * seed + offset + 1000)
        table = pa.table({"id": ids, **texts, "label": label})
        splits[name] = SplitInfo(name, role, count, "random", labels, max_length=max_length)
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, split_file(folder, name))
        for which, tokenizer in tokenizers.items():
            path = token_file(folder, prints[which], name)
            path.parent.mkdir(exist_ok=True)
            tokenise(table, tokenizer, max_length, lambda rows: None).save(path)
    info = PreparedInfo(folder.name, labels, None if labels else (0.0, 1.0), ("accuracy",) if labels else ("pearson",),
                        pair, max_length, splits, prints)
    (folder / INFO_FILE).write_text(info.to_json(), encoding="utf-8")
    return Prepared.load(folder)
