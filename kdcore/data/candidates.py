"""What may stand in a sentence in place of its words: TinyBERT's candidates (Jiao et al. 2020, section 3.2).

A masked language model proposes for words that are one token to it, vectors of words for all others.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import pre_tokenizers

from kdcore.data.stop_words import STOP_WORDS
from kdcore.data.word_prediction import MaskedLm, Span
from kdcore.data.word_vectors import WordVectors

Source = Literal["masked_lm", "word_vectors", "none"]
_WORDS = pre_tokenizers.BertPreTokenizer()
_LETTERS = re.compile("[A-Za-z]+")


@dataclass(frozen=True)
class Slot:
    """A word that may be replaced, and what by, in alphabetical order: by nothing where the source is `none`."""

    span: Span
    source: Source
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Sentence:
    """The number of words of a sentence, and those of them that may be replaced."""

    words: int
    slots: tuple[Slot, ...]


def words(sentence: str) -> list[Span]:
    """All words as BERT cuts them before it looks at its vocabulary: at white space and around punctuation."""
    return [Span(*span) for _, span in _WORDS.pre_tokenize_str(sentence)]


def eligible(sentence: str) -> list[Span]:
    """The words that consist of letters a to z, in either case, and are no stop words."""
    found = ((sentence[span.start:span.end], span) for span in words(sentence))
    return [span for word, span in found if _LETTERS.fullmatch(word) and word.lower() not in STOP_WORDS]


def propose(sentences: Sequence[str], model: MaskedLm, vectors: WordVectors | None, count: int,
            batch_size: int) -> list[Sentence]:
    """Up to `count` candidates for every eligible word.

    Title case is restored: words in it get candidates in it from vectors, and from a model to which case makes no
    difference. Vectors None: words that the model does not propose for have no candidates.
    """
    spans = [eligible(sentence) for sentence in sentences]
    predicted = model.propose(sentences, spans, count, batch_size)
    near = {} if vectors is None else vectors.nearest(
        (sentence[span.start:span.end] for sentence, row, found in zip(sentences, spans, predicted, strict=True)
         for span, candidates in zip(row, found, strict=True) if candidates is None), count)
    return [Sentence(len(words(sentence)), tuple(
                _slot(sentence[span.start:span.end], span, candidates, near, model.lower_case)
                for span, candidates in zip(row, found, strict=True)))
            for sentence, row, found in zip(sentences, spans, predicted, strict=True)]


def _slot(word: str, span: Span, predicted: tuple[str, ...] | None, near: dict[str, tuple[str, ...]],
          lower_case: bool) -> Slot:
    source: Source = "word_vectors" if predicted is None else "masked_lm"
    candidates = near.get(word, ()) if predicted is None else predicted
    if word.istitle() and (predicted is None or lower_case):
        candidates = tuple(candidate.capitalize() for candidate in candidates)
    return Slot(span, source if candidates else "none", candidates)
