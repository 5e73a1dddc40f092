"""Write tiny encoders with random weights: stand-ins that let smoke profiles run without a hub.

    python -m kdcore.models.random_encoders FOLDER

They have the families, depths and unequal widths of the models in `studies/rail-*` and `studies/general-bert6` and
know nothing of any language, so no score of a student made from them means anything. The same names give the same
bytes on every machine. Studies name them as sources, and the environment says where they lie, which the command prints.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoModelForPreTraining,
    BertConfig,
    DistilBertConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from kdcore.models.loading import quiet
from kdcore.sources import VARIABLE

POSITIONS = 128
"""Tokens that each of them takes, special tokens included."""
HEADS = 4
SEED = 0


@dataclass(frozen=True)
class Shape:
    """What an encoder looks like."""

    family: Literal["bert", "distilbert", "roberta"]
    layers: int
    width: int

    @property
    def name(self) -> str:
        """Also the source that studies name."""
        return f"random-{self.family}-{self.layers}x{self.width}"


SHAPES = (Shape("bert", 12, 32), Shape("distilbert", 6, 32), Shape("roberta", 24, 48), Shape("roberta", 12, 32),
          Shape("roberta", 6, 32))


def write(folder: Path, shape: Shape) -> Path:
    """Write model and tokenizer as a transformers folder inside `folder`; returns it."""
    tokenizer = _byte_pieces() if shape.family == "roberta" else _word_pieces()
    with torch.random.fork_rng(devices=[]), quiet():
        torch.default_generator.manual_seed(SEED)
        # A BERT as it comes from pre-training: general studies read its language-model head, others its pooler.
        auto = AutoModelForPreTraining if shape.family == "bert" else AutoModel
        auto.from_config(_config(shape, len(tokenizer))).save_pretrained(folder / shape.name)
    tokenizer.save_pretrained(folder / shape.name)
    return folder / shape.name


def _config(shape: Shape, vocabulary: int) -> PretrainedConfig:
    # Drawn wider than usual: at this width the states of different texts would hardly differ.
    if shape.family == "distilbert":
        return DistilBertConfig(vocab_size=vocabulary, max_position_embeddings=POSITIONS, n_layers=shape.layers,
                                n_heads=HEADS, dim=shape.width, hidden_dim=2 * shape.width, initializer_range=0.1)
    sizes: dict[str, Any] = {"vocab_size": vocabulary, "hidden_size": shape.width, "num_hidden_layers": shape.layers,
             "num_attention_heads": HEADS, "intermediate_size": 2 * shape.width, "initializer_range": 0.1}
    if shape.family == "roberta":  # numbers positions from pad_token_id + 1
        return RobertaConfig(**sizes, max_position_embeddings=POSITIONS + 2, type_vocab_size=1)
    return BertConfig(**sizes, max_position_embeddings=POSITIONS)


def _word_pieces() -> PreTrainedTokenizerFast:
    """As BERT uncased, with single characters for pieces; what is no printable ASCII is unknown."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    known = {piece: place for place, piece in enumerate([*special, *characters, *(f"##{c}" for c in characters)])}
    core = Tokenizer(models.WordPiece(known, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", known["[CLS]"]), ("[SEP]", known["[SEP]"])])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        mask_token="[MASK]", model_max_length=POSITIONS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def _byte_pieces() -> PreTrainedTokenizerFast:
    """As RoBERTa, with single bytes for pieces."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "<mask>"]
    known = {piece: place for place, piece in enumerate(pieces)}
    core = Tokenizer(models.BPE(known, merges=[], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.RobertaProcessing(("</s>", known["</s>"]), ("<s>", known["<s>"]),
                                                       add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>",
        unk_token="<unk>", pad_token="<pad>", mask_token="<mask>", model_max_length=POSITIONS,
        model_input_names=["input_ids", "attention_mask"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all of them and print where they lie, as `KDFLOW_SOURCES` has it."""
    parser = argparse.ArgumentParser(prog="python -m kdcore.models.random_encoders", description=(
        "Write tiny encoders with random weights, for the smoke profiles of studies/rail-* and general-bert6."))
    parser.add_argument("folder", type=Path, help="where; what is there under the same names is replaced")
    folder = parser.parse_args(arguments).folder.resolve()
    places = [f"{shape.name}={write(folder, shape)}" for shape in SHAPES]
    print("random weights, of no use but to try the stages; say where they lie:", file=sys.stderr)
    print(f"{VARIABLE}={','.join(places)}")


if __name__ == "__main__":
    main()
