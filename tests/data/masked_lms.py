"""Tiny masked language models for tests of augmentation: random ones, and one whose answers are known."""

from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

from tests.tiny import WORDS, tiny_config, tiny_tokenizer


def random_masked_lm(family: str = "bert", seed: int = 0, words: tuple[str, ...] = WORDS) -> PreTrainedModel:
    """With its head, in eval mode; what it says depends on the whole context."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForMaskedLM.from_config(tiny_config(family, words=words))
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter.data, std=0.2)
    return model.eval()


def predictable_masked_lm(family: str, order: list[int]) -> PreTrainedModel:
    """Ranks tokens alike in every context: those in `order` first, in this order, all others behind."""
    model = random_masked_lm(family)
    bias = torch.full((model.config.vocab_size,), -100.0)
    bias[order] = torch.linspace(100, 50, len(order))
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
        model.get_output_embeddings().bias.copy_(bias)
    return model


def save_masked_lm(folder: Path, family: str = "bert", seed: int = 0, words: tuple[str, ...] = WORDS) -> Path:
    """A random one with its tokenizer, as a transformers folder; returns it."""
    random_masked_lm(family, seed, words).save_pretrained(folder)
    tiny_tokenizer(family, words).save_pretrained(folder)
    return folder
