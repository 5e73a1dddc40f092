"""Variants of a text with some words replaced, and the rows that they make: TinyBERT's augmentation, once candidates
are known (Jiao et al. 2020, algorithm 1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kdcore.data.candidates import Slot


@dataclass(frozen=True)
class Variant:
    """A text with words replaced: `replaced` are their places in the original text and what stands there now."""

    text: str
    replaced: tuple[tuple[Slot, str], ...]


@dataclass(frozen=True)
class Row:
    """A new row: its texts (one, or two of a pair), of which the one at `place` is the variant."""

    texts: tuple[str, ...]
    place: int
    variant: Variant


def draw(text: str, slots: Sequence[Slot], count: int, probability: float, generator: np.random.Generator,
         ) -> list[Variant]:
    """At most `count` different variants, none of them the text itself.

    In each of `count` tries every word with candidates is replaced with the given probability, by one that is drawn
    uniformly. A candidate may be the word itself, which then stays.
    """
    slots = [slot for slot in slots if slot.candidates]
    chances, draws = generator.random((2, count, len(slots)))
    chosen = (draws * [len(slot.candidates) for slot in slots]).astype(int)
    found: dict[str, Variant] = {}
    for row in range(count):
        replaced = tuple((slot, slot.candidates[chosen[row, place]]) for place, slot in enumerate(slots)
                         if chances[row, place] < probability)
        replaced = tuple((slot, word) for slot, word in replaced if word != text[slot.span.start:slot.span.end])
        variant = Variant("".join(pieces(text, replaced)), replaced)
        if variant.text != text:
            found.setdefault(variant.text, variant)
    return list(found.values())


def pieces(text: str, replaced: Sequence[tuple[Slot, str]]) -> list[str]:
    """The text in pieces: what stays, a replaced word, what stays, and so on, with what stays at both ends."""
    parts, end = [], 0
    for slot, word in replaced:
        parts += [text[end:slot.span.start], word]
        end = slot.span.end
    return [*parts, text[end:]]


def rows(texts: tuple[str, ...], variants: Sequence[Sequence[Variant]], public: bool) -> Iterator[Row]:
    """The rows that the variants of each of a row's texts make.

    Of a pair, each text's variants stand beside the other text as it was. `public`: those of the second stand beside
    the last variant of the first, since the released code overwrites the row that it walks through.
    """
    beside = list(texts)
    for place, own in enumerate(variants):
        for variant in own:
            yield Row((*beside[:place], variant.text, *beside[place + 1:]), place, variant)
        if public and own:
            beside[place] = own[-1].text
