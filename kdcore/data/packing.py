"""Documents to rows of tokens: sentences packed as for BERT, or each text a row.

Devlin et al. 2019, appendix A.2: a row takes consecutive sentences of one document until it is full; one row in ten
aims at a random smaller length, so that a model meets short texts too; as pairs, a row is two segments. Documents are
never mixed.

Deviations: nothing is cut away, since a sentence that does not fit begins the next row and one that is longer than a
row is continued in the next; both segments of a pair come from the same place (RoBERTa found that the prediction of
the next sentence does not help), cut at a random end of a sentence, or in the middle of a single one.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

STREAM = 0x7061636B
"""Keeps these draws apart from others of the same seed."""
SHORTEST = 2
"""Tokens that a row of random length aims at, at least."""

SENTENCE_END = re.compile(r"""
    [.!?\u2026\u3002\uff01\uff1f]  # stands first, so that the search looks for these alone
    (?: (?<![.!?\u2026]) [\u3002\uff01\uff1f]* [\u300d\u300f\u201d\u2019\uff09]*  # Chinese and Japanese
      | (?<!\b[A-Z].)(?<!\b(?:Mr|Ms|Dr|St|vs|Jr|Sr).)(?<!\b(?:Mrs|etc).)  # initials and titles end no sentence,
        [.!?\u2026]* ["'\u201d\u2019\u00bb)\]]* (?=\s+[^\sa-z\u00df-\u00f6\u00f8-\u00ff])  # a small letter begins none
    )""", re.VERBOSE)


class Rows(NamedTuple):
    """Rows one after another. values, types: [sum of lengths]; lengths: [rows], special tokens included."""

    values: np.ndarray
    types: np.ndarray
    lengths: np.ndarray

    def cut(self, first: int, stop: int | None = None) -> "Rows":
        """The rows from `first` up to `stop`."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        start, end = ends[first], ends[len(self.lengths) if stop is None else stop]
        return Rows(self.values[start:end], self.types[start:end], self.lengths[first:stop])


class Template(NamedTuple):
    """The special tokens of a row, before, between and after its two segments, each with its segment number.

    Without pairs there is but one segment and nothing between.
    """

    before: list[tuple[int, int]]
    between: list[tuple[int, int]]
    after: list[tuple[int, int]]
    segments: tuple[int, int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, pairs: bool) -> "Template":
        """What the tokenizer puts around texts."""
        encoded = tokenizer(*(["a", "a"] if pairs else ["a"]), return_token_type_ids=True)
        tokens = list(zip(encoded["input_ids"], encoded["token_type_ids"], strict=True))
        homes = encoded.sequence_ids()
        starts = [homes.index(segment) for segment in range(1 + pairs)]
        ends = [len(homes) - homes[::-1].index(segment) for segment in range(1 + pairs)]
        between = tokens[ends[0]:starts[1]] if pairs else []
        return cls(tokens[:starts[0]], between, tokens[ends[-1]:], (tokens[starts[0]][1], tokens[starts[-1]][1]))

    @property
    def size(self) -> int:
        """Special tokens of a row."""
        return len(self.before) + len(self.between) + len(self.after)


class Packer:
    """Packs documents; `cut_off` counts the tokens of texts that were longer than a row."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, packing: Literal["sentences", "rows"],
                 pairs: bool, short_sequences: float, seed: int) -> None:
        """`max_length` counts special tokens; the rest is as in `general_config.Corpus`."""
        self.max_length = max_length
        self.packing = packing
        self.pairs = pairs
        self.template = Template.of(tokenizer, pairs)
        self.pad_type = int(tokenizer.pad_token_type_id)
        self.cut_off = 0
        # A copy of what does the work: transformers' wrapping takes as long again for short sentences.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self._room = max_length - self.template.size
        self._short = short_sequences
        self._seed = seed

    @property
    def joins_texts(self) -> bool:
        """True when the texts of one row of a source make one document."""
        return self.packing == "sentences"

    def __call__(self, documents: list[str], number: int) -> Rows:
        """Rows of some documents; `number` says which documents of the corpus, and draws depend on it."""
        if self.packing == "rows":
            values, lengths = self._encode(documents)
            inside = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths) < self._room
            self.cut_off += len(values) - int(inside.sum())
            lengths = np.minimum(lengths, self._room)
            lengths = lengths[lengths > 0]
            return assemble(values[inside], lengths, lengths, self.template)
        split = [sentences(document) for document in documents]
        values, lengths = self._encode([sentence for document in split for sentence in document])
        most = len(lengths) + len(values) // self._room
        draws = np.random.default_rng([self._seed % 2**32, number, STREAM]).random((most, 3))
        packed: list[tuple[int, int]] = []
        of_sentences = iter(lengths.tolist())
        for document in split:
            packed += pack(list(itertools.islice(of_sentences, len(document))), self._room, self._short,
                           draws[len(packed):])
        totals, heads = np.array(packed, np.int64).reshape(-1, 2).T
        return assemble(values, totals, heads if self.pairs else totals, self.template)

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of all texts in one array, and how many each has. Text never becomes a special token."""
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        rows = [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
        return (np.fromiter(itertools.chain.from_iterable(rows), np.int32),
                np.fromiter(map(len, rows), np.int64, len(rows)))


def sentences(document: str) -> list[str]:
    """Cut a document at line breaks and ends of sentences.

    A sentence ends with `.`, `!`, `?` or `…` (and closing quotes or brackets) before a space and no small letter,
    unless an initial or a title stands before it; in Chinese and Japanese at the mark itself. Sentences after the
    first begin with a space, as they do inside of a text, which tokenizers of byte pairs tell apart.
    """
    found = []
    for line in document.split("\n"):
        start = 0
        for end in SENTENCE_END.finditer(line):
            found.append(line[start:end.end()].strip())
            start = end.end()
        found.append(line[start:].strip())
    found = [sentence for sentence in found if sentence]
    return [*found[:1], *(f" {sentence}" for sentence in found[1:])]


def pack(lengths: Sequence[int], room: int, short: float, draws: np.ndarray) -> list[tuple[int, int]]:
    """Pack the sentences of one document into rows.

    Args:
        lengths: tokens of each sentence.
        room: tokens of text that a row holds at most.
        short: share of rows that aim at a random smaller length.
        draws: [rows or more, 3], uniform in [0, 1): of each row whether it is short, how short, and where it is cut.

    Returns:
        Of each row its tokens, and how many of them are its first segment. All tokens are in the rows, in order.
    """
    rows: list[tuple[int, int]] = []
    ends: list[int] = []  # of the sentences in the open row, in tokens from its start
    target = 0

    def close() -> None:
        choice = int(draws[len(rows), 2] * (len(ends) - 1))
        rows.append((ends[-1], ends[choice] if len(ends) > 1 else (ends[-1] + 1) // 2))
        ends.clear()

    for length in lengths:
        for piece in _pieces(length, room):
            if ends and ends[-1] + piece > target:
                close()
            if not ends:
                is_short, size = draws[len(rows), :2]
                target = SHORTEST + int(size * (room - SHORTEST + 1)) if is_short < short else room
            ends.append(piece + (ends[-1] if ends else 0))
    if ends:
        close()
    return rows


def _pieces(length: int, room: int) -> list[int]:
    """The tokens of a sentence in pieces that fit into a row."""
    return [room] * (length // room) + ([length % room] if length % room else [])


def assemble(values: np.ndarray, lengths: np.ndarray, heads: np.ndarray, template: Template) -> Rows:
    """Put special tokens around the rows' texts.

    Args:
        values: [sum of lengths] tokens of the texts.
        lengths, heads: [rows] tokens of each text, and how many of them are its first segment.
    """
    rows = len(lengths)
    whole = lengths + template.size
    starts = np.cumsum(whole) - whole
    home = np.repeat(np.arange(rows), lengths)
    inside = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    second = inside >= heads[home]
    places = starts[home] + len(template.before) + inside + len(template.between) * second
    ids, types = np.empty(whole.sum(), np.int32), np.empty(whole.sum(), np.int8)
    ids[places] = values
    types[places] = np.where(second, template.segments[1], template.segments[0])
    middle = starts + len(template.before) + heads
    end = starts + whole - len(template.after)
    for special, first in ((template.before, starts), (template.between, middle), (template.after, end)):
        for number, (token, segment) in enumerate(special):
            ids[first + number] = token
            types[first + number] = segment
    return Rows(ids, types, whole)
