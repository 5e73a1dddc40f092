"""Masked language modelling on the fly: which tokens of a step are masked, and what stands in their place.

Devlin et al. 2019, section 3.1: of a row's text tokens a share is chosen; 80 % of them become the mask token, 10 % a
random token, 10 % stay. How many of a row are chosen is a function of its length alone, so that every rank knows the
counts of a whole step. All draws of a step come from one generator, for all of its rows in order, and are then cut:
neither accumulation nor ranks nor a resume change which tokens are masked.

With weights, tokens are drawn one after another without replacement, each in proportion to its weight among those
that are left: the smallest of exponential variables divided by the weights (Efraimidis and Spirakis 2006).

Deviations: DistilBERT draws over the whole batch at once, so its rows differ in how many tokens are masked; random
tokens are never special ones; [UNK] is masked only where a row has too few other tokens.
"""

from collections.abc import Mapping
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from kdcore import general_config
from kdcore.data.corpus import Corpus
from kdcore.errors import UserError
from kdcore.objective import Masked

STREAM = 0x6D61736B
"""Keeps these draws apart from others of the same seed, epoch and step."""
LAST_CHOICE = 1e12


class Place(Protocol):
    """Which step a batch belongs to, and the place of its first row in it; both count from 0."""

    @property
    def first(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def step(self) -> int: ...


def masked_counts(maskable: np.ndarray, share: float) -> np.ndarray:
    """How many tokens of each row are masked: int64 [n], at least 1. `maskable` [n] counts its tokens that are text."""
    return np.maximum(1, np.rint(share * maskable)).astype(np.int64)


class Masker:
    """Masks the steps of a training.

    weights     [vocabulary]: how likely a token is chosen against others, 0 for never
    candidates  ids that random tokens are drawn from
    specials    special tokens of every row
    """

    def __init__(self, mask_id: int, weights: np.ndarray, candidates: np.ndarray, specials: int, mask_share: float,
                 mask_token: float, random_token: float, seed: int) -> None:
        self._specials = specials
        self._mask_share = mask_share
        self._mask_id = mask_id
        self._allowed = weights > 0
        self._patience = 1 / np.where(self._allowed, weights, 1)
        self._candidates = candidates
        self._becomes_mask = mask_token
        self._changes = mask_token + random_token
        self._seed = seed

    @classmethod
    def of(cls, corpus: Corpus, settings: general_config.Masking, seed: int) -> Self:
        """The masker of a training on a corpus.

        Raises:
            UserError: the tokenizer has no mask token.
        """
        vocabulary = corpus.info.vocabulary
        if vocabulary.mask_id is None:
            raise UserError("a method with a language modelling loss masks tokens, but the teacher's tokenizer has no "
                            "mask token; name a teacher that was trained with one, or a method that masks none")
        weights = np.ones(vocabulary.size)
        if settings.weighting == "frequency":
            weights = np.maximum(corpus.counts(), 1.0) ** -settings.smoothing
        if vocabulary.unknown_id is not None:
            weights[vocabulary.unknown_id] = weights.min() / LAST_CHOICE
        weights[list(vocabulary.special_ids)] = 0
        unwanted = [*vocabulary.special_ids, *([] if vocabulary.unknown_id is None else [vocabulary.unknown_id])]
        candidates = np.setdiff1d(np.arange(vocabulary.size), unwanted)
        return cls(vocabulary.mask_id, weights, candidates, corpus.info.specials, settings.mask_share,
                   settings.mask_token, settings.random_token, seed)

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """How many tokens are masked of rows of so many tokens, special tokens included: int64 [n]."""
        return masked_counts(lengths - self._specials, self._mask_share)

    def __call__(self, inputs: Mapping[str, Tensor], place: Place,
                 lengths: np.ndarray) -> tuple[dict[str, Tensor], Masked]:
        """Mask a part of a step: the rows from its `place.first` on, as `inputs` has them.

        Args:
            inputs: input_ids and attention_mask [b, t] of the part, padded on the right.
            lengths: [s] tokens of each row of the whole step, special tokens included.

        Returns:
            New inputs, `masked_positions` [b, p] among them, and which tokens were masked.
        """
        generator = np.random.default_rng([self._seed % 2**32, place.epoch, place.step, STREAM])
        ids, real = inputs["input_ids"].numpy(), inputs["attention_mask"].numpy() == 1
        counts, start, stop = self.counts(lengths), place.first, place.first + len(ids)
        waits = generator.standard_exponential(lengths.sum())[_span(lengths, start, stop)]
        fates = generator.random(counts.sum())[_span(counts, start, stop)]
        others = self._candidates[generator.integers(len(self._candidates), size=counts.sum())]
        others = others[_span(counts, start, stop)]

        counts = counts[start:stop]
        filled = np.arange(counts.max()) < counts[:, None]  # [b, p]
        positions = np.sort(np.where(filled, self._first_to_come(ids, real, waits)[:, :counts.max()], ids.shape[1]))
        rows, places = np.nonzero(filled)[0], positions[filled]
        before = ids[rows, places]
        after = ids.copy()
        after[rows, places] = np.where(fates < self._becomes_mask, self._mask_id,
                                       np.where(fates < self._changes, others, before))
        targets = np.full(positions.shape, -100, np.int64)
        targets[filled] = before
        masked = Masked(torch.from_numpy(np.where(filled, positions, 0)), torch.from_numpy(targets))
        return {**inputs, "input_ids": torch.from_numpy(after), "masked_positions": masked.positions}, masked

    def _first_to_come(self, ids: np.ndarray, real: np.ndarray, waits: np.ndarray) -> np.ndarray:
        """Places of each row [b, t] in the order in which they are drawn; those that never are come last."""
        own, keys = ids[real], np.full(ids.shape, np.inf)
        keys[real] = np.where(self._allowed[own], waits * self._patience[own], np.inf)
        return np.argsort(keys, axis=1)


def _span(counts: np.ndarray, start: int, stop: int) -> slice:
    """Where the numbers of rows `start` to `stop` lie when each row has as many as `counts` says."""
    first = int(counts[:start].sum())
    return slice(first, first + int(counts[start:stop].sum()))
