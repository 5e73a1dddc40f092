"""A masked language model ranks words in place of another, many words of many sentences at once."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kdcore.data.batching import sorted_batches
from kdcore.data.tokens import TokenTable
from kdcore.errors import UserError
from kdcore.features import MASKED_LOGITS
from kdcore.models.loading import quiet, usable_length
from kdcore.models.reading import read

_NO_TEXT = "\N{REPLACEMENT CHARACTER}"
"""In what a piece of a character is written as, with vocabularies of bytes."""


class Span(NamedTuple):
    """A word in a sentence: characters from `start` up to `end`."""

    start: int
    end: int


class MaskedLm:
    """A masked language model with its head, in eval mode, and its tokenizer.

    Raises:
        UserError: the tokenizer has no mask token, or does not tell where in a text its tokens lie.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.mask_token_id is None or not tokenizer.is_fast:
            raise UserError(f"the tokenizer of {tokenizer.name_or_path} has no mask token or no tokenizer.json; "
                            "augmentation takes both: name another model as `augment.model`")
        self.model = model
        self.tokenizer = tokenizer
        self.longest = usable_length(model.config)
        self._pieces: dict[int, tuple[str, bool]] = {}

    @cached_property
    def lower_case(self) -> bool:
        """Whether case makes no difference to the model."""
        return self.tokenizer.tokenize("Word") == self.tokenizer.tokenize("word")

    def propose(self, sentences: Sequence[str], words: Sequence[Sequence[Span]], count: int,
                batch_size: int) -> list[list[tuple[str, ...] | None]]:
        """Candidates for words of each sentence, in alphabetical order.

        The word is masked in "[CLS] sentence [SEP] sentence [SEP]", in the first of the two. Of the `count` most
        probable tokens those are taken that are text and begin a word exactly if the masked one does: no "##" pieces,
        and with vocabularies that mark where words begin, nothing that would grow onto what stands before it. The
        forward runs under the caller's autocast; batches hold `batch_size` words in contexts of similar length.

        Returns:
            None for a word that is not one token, or that lies beyond the tokens that the model takes.
        """
        with quiet():  # it would warn of long texts, which are cut below
            encodings = self.tokenizer(list(sentences), list(sentences), return_token_type_ids=True).encodings
        found: list[list[tuple[str, ...] | None]] = [[None] * len(row) for row in words]
        asked = []
        for row, (sentence, encoding) in enumerate(zip(sentences, encodings, strict=True)):
            tokens = _tokens(sentence, encoding)
            asked += [(row, word, tokens[span]) for word, span in enumerate(words[row])
                      if tokens.get(span, self.longest) < self.longest]
        if not asked:
            return found
        table = self._table(encodings)
        rows, places = torch.tensor([(row, place) for row, _, place in asked]).unbind(1)
        for batch in sorted_batches(table.lengths[rows.numpy()], batch_size):
            best = self._best(table, rows[batch], places[batch], count)
            for (row, word, place), ids in zip([asked[i] for i in batch], best, strict=True):
                begins = self._piece(encodings[row].ids[place])[1]
                pieces = [self._piece(token) for token in ids]
                found[row][word] = tuple(sorted({text for text, start in pieces if text and start == begins}))
        return found

    def _best(self, table: TokenTable, rows: Int[Tensor, " b"], places: Int[Tensor, " b"],
              count: int) -> list[list[int]]:
        """The most probable tokens at one masked place of each row."""
        inputs = table.pad(rows) | {"masked_positions": places.unsqueeze(1)}
        inputs["input_ids"].scatter_(1, inputs["masked_positions"], int(self.tokenizer.mask_token_id))
        with torch.inference_mode():
            logits = read(self.model, {name: values.to(self.model.device) for name, values in inputs.items()},
                          frozenset({MASKED_LOGITS}))[MASKED_LOGITS].squeeze(1)
            return logits.float().topk(min(count, logits.shape[-1])).indices.tolist()

    def _table(self, encodings: Sequence[Encoding]) -> TokenTable:
        """The tokens of the pairs, cut to what the model takes."""
        ids, types = ([values[:self.longest] for values in column] for column in (
            (encoding.ids for encoding in encodings), (encoding.type_ids for encoding in encodings)))
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in ids], dtype=np.int64)])
        return TokenTable(np.concatenate(ids), np.concatenate(types), offsets, int(self.tokenizer.pad_token_id),
                          int(self.tokenizer.pad_token_type_id))

    def _piece(self, token: int) -> tuple[str, bool]:
        """What a token is as text (empty where it is none), and whether it begins a word."""
        if token not in self._pieces:
            piece = self.tokenizer.convert_ids_to_tokens([token])[0]
            if self._continuing is not None:
                begins = not piece.startswith(self._continuing)
                text = piece if begins else ""
            else:
                begins = piece.startswith(("Ġ", "▁"))  # of byte-level vocabularies, of SentencePiece
                text = self.tokenizer.convert_tokens_to_string([piece]).strip()
            is_text = token not in self.tokenizer.all_special_ids and _NO_TEXT not in text
            self._pieces[token] = text if is_text else "", begins
        return self._pieces[token]

    @cached_property
    def _continuing(self) -> str | None:
        """What pieces inside of words start with; None for vocabularies that mark where words begin instead."""
        return getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None) or None


def _tokens(sentence: str, encoding: Encoding) -> dict[Span, int]:
    """The place of each token of the first of two sentences, by what it covers without white space around it."""
    places = {}
    for place, (sequence, (start, end)) in enumerate(zip(encoding.sequence_ids, encoding.offsets, strict=True)):
        if sequence == 0:
            text = sentence[start:end]
            places[Span(start + len(text) - len(text.lstrip()), end)] = place
    return places
