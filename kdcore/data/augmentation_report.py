"""What augmentation did, in numbers and samples, as the page that lies beside prepared data."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from kdcore.data.candidates import Sentence, Source
from kdcore.data.variants import Variant, pieces
from kdcore.data_config import Augmentation

FILE = "augmentation.md"
VARIANTS_SHOWN = 4
_NAMES: dict[Source, str] = {"masked_lm": "masked language model", "word_vectors": "word vectors",
                             "none": "none: the word stays"}


@dataclass(frozen=True)
class Sample:
    """A text and its variants."""

    source_id: str | None
    text: str
    variants: Sequence[Variant]


@dataclass
class Tally:
    """Counts of words: of the texts that were varied, and of the rows that were made of them."""

    rows: int = 0
    words: int = 0
    eligible: Counter[Source] = field(default_factory=Counter)
    candidates: Counter[Source] = field(default_factory=Counter)
    added: int = 0
    equal: int = 0
    words_in_added: int = 0
    eligible_in_added: int = 0
    replaced: Counter[Source] = field(default_factory=Counter)

    def count_origin(self, sentences: Iterable[Sentence]) -> None:
        """Count a training row by its texts."""
        self.rows += 1
        for sentence in sentences:
            self.words += sentence.words
            for slot in sentence.slots:
                self.eligible[slot.source] += 1
                self.candidates[slot.source] += len(slot.candidates)

    def count_added(self, sentence: Sentence, variant: Variant) -> None:
        """Count a new row by the text that varies in it, and what of that was replaced."""
        self.added += 1
        self.words_in_added += sentence.words
        self.eligible_in_added += len(sentence.slots)
        self.replaced.update(slot.source for slot, _ in variant.replaced)


@dataclass(frozen=True)
class Report:
    """Settings, draws per text, counts and samples."""

    dataset: str
    settings: Augmentation
    draws: int
    tally: Tally
    samples: Sequence[Sample]

    @property
    def note(self) -> str:
        """The new rows in a few words, for whoever reads a result."""
        without = " without labels" if self.settings.labels == "teacher" else ""
        return f"with {self.tally.added:,} variants{without} of {self.tally.rows:,} rows, by {self.settings.model}"

    @property
    def numbers(self) -> str:
        """The counts in one sentence."""
        tally = self.tally
        return (f"{tally.added:,} variants of {tally.rows:,} rows ({tally.equal:,} more were equal to a row that is "
                f"there); {tally.eligible.total():,} of {tally.words:,} words may be replaced "
                f"({', '.join(self._shares())}); in a variant "
                f"{_share(tally.replaced.total(), tally.eligible_in_added)} of them are, "
                f"{_share(tally.replaced.total(), tally.words_in_added)} of all words")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is amiss, with a remedy: that some words have no candidates for want of word vectors."""
        left, model = self.tally.eligible["none"], self.settings.model
        if self.settings.word_vectors is not None or not left:
            return ()
        return (f"augmentation: without word vectors, {_share(left, self.tally.eligible.total())} of the words that "
                f"may be replaced stay as they are, since they are several tokens to {model} or beyond its length; to "
                f"vary them too, name a file of vectors (GloVe's format) as "
                f"datasets.{self.dataset}.data.augment.word_vectors",)

    def markdown(self) -> str:
        """The whole page."""
        tally = self.tally
        settings = self.settings
        vectors = f"the vectors of {settings.word_vectors}" if settings.word_vectors else "without word vectors"
        labels = "have no label, the teacher answers them" if settings.labels == "teacher" else "have their row's label"
        parts = [f"# Augmentation of {self.dataset}\n",
                 f"By {settings.model}, {vectors}; {self.draws} draws per text, each word replaced with probability "
                 f"{settings.replace_probability:g} by one of up to {settings.candidates} candidates; variants "
                 f"{labels}.\n",
                 f"{self.numbers}.\n",
                 "| candidates by | words that may be replaced | share | candidates per word | replaced in variants |",
                 "|---|---|---|---|---|"]
        for source in get_args(Source):
            count = tally.eligible[source]
            mean = f"{tally.candidates[source] / count:.1f}" if tally.candidates[source] else "0"
            parts.append(f"| {_NAMES[source]} | {count:,} | {_share(count, tally.eligible.total())} | {mean} | "
                         f"{tally.replaced[source]:,} |")
        parts += ["\n## Samples\n", "Words that were replaced are bold.\n", "| row | text | variants |",
                  "|---|---|---|"]
        for sample in self.samples:
            shown = "<br>".join(_marked(sample.text, variant) for variant in sample.variants[:VARIANTS_SHOWN])
            parts.append(f"| {_plain(sample.source_id or '')} | {_plain(sample.text)} | {shown or 'none'} |")
        return "\n".join(parts) + "\n"

    def _shares(self) -> list[str]:
        counts = self.tally.eligible
        return [f"{_share(counts[source], counts.total())} by {source}" for source in get_args(Source)
                if counts[source]]


def _share(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.1%}"


def _marked(text: str, variant: Variant) -> str:
    return "".join(f"**{_plain(piece)}**" if place % 2 else _plain(piece)
                   for place, piece in enumerate(pieces(text, variant.replaced)))


def _plain(text: str) -> str:
    """The text as a cell of a Markdown table shows it unchanged."""
    for character in "\\`*_[]|":
        text = text.replace(character, f"\\{character}")
    return text.replace("<", "&lt;").replace("\n", " ").replace("\r", " ")
