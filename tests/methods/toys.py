"""A toy encoder that yields any declared feature of any example, without a model library."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from kdcore.features import MASKED_LOGITS, MLM_LOGITS, FeatureKey, Features, masked_mean
from kdcore.objective import Batch, Dims, Masked, Progress, Setting, Standing, Step

EXAMPLES = 16
STEPS_PER_EPOCH = 4
CLASSIFICATION = Setting(
    teacher=Dims(layers=6, width=24, heads=4, vocabulary=31), student=Dims(layers=3, width=16, heads=4, vocabulary=31),
    classes=3, regression=False, labels=torch.arange(EXAMPLES) % 3, batch_size=4, seed=7)
REGRESSION = replace(CLASSIFICATION, classes=1, regression=True, labels=torch.arange(EXAMPLES) % 5 / 1.0)
LENGTHS = torch.randint(2, 8, (EXAMPLES,), generator=torch.Generator().manual_seed(1))
"""Real tokens of each example; a text of n has n // 2 masked."""


class Toy(nn.Module):
    """Every layer's states are its own linear map of fixed random numbers; float64.

    Examples have `lengths` real tokens; what padding holds is large garbage.
    """

    def __init__(self, dims: Dims, classes: int, seed: int, lengths: Tensor = LENGTHS) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.dims = dims
        self.lengths = lengths
        self.inputs = numbers(len(lengths), int(lengths.max()), dims.layers + 1, dims.width)
        self.states = nn.Parameter(numbers(dims.layers + 1, dims.width, dims.width) / dims.width**0.5)
        self.attention = nn.Parameter(numbers(3, dims.layers + 1, dims.width, dims.width) / dims.width**0.5)
        self.head = nn.Parameter(numbers(dims.width, classes) / dims.width**0.5)
        self.words = nn.Parameter(numbers(dims.width, dims.vocabulary) / dims.width**0.5)

    def features(self, ids: Tensor, keys: frozenset[FeatureKey], padding: int = 0) -> Features:
        """Exactly the features asked for; `padding` more columns of garbage."""
        lengths = self.lengths[ids]
        tokens = int(lengths.max()) + padding
        inputs = torch.full((len(ids), tokens, self.dims.layers + 1, self.dims.width), 1e3, dtype=torch.float64)
        mask = (torch.arange(tokens) < lengths[:, None]).long()
        real = min(tokens, self.inputs.shape[1])
        inputs[:, :real] = torch.where(mask[:, :real, None, None] == 1, self.inputs[ids, :real], inputs[:, :real])
        values = {key: self._feature(key, inputs, mask) for key in keys - {MASKED_LOGITS}}
        if MASKED_LOGITS in keys:
            positions = masked(self.lengths, ids).positions
            values[MASKED_LOGITS] = self._feature(MLM_LOGITS, inputs, mask)[torch.arange(len(ids))[:, None], positions]
        return Features(values, mask)

    def _feature(self, key: FeatureKey, inputs: Tensor, mask: Tensor) -> Tensor:
        layer = self.dims.layers if key.kind in ("logits", "mlm_logits") else key.layer
        states = inputs[:, :, layer] @ self.states[layer]
        match key.kind:
            case "logits":
                return states[:, 0] @ self.head
            case "mlm_logits":
                return states @ self.words
            case "hidden":
                return states
            case "cls":
                return states[:, 0]
            case "mean":
                return masked_mean(states, mask)
            case "query" | "key" | "value":
                return self._heads(states, layer, ("query", "key", "value").index(key.kind))
            case "scores":
                query, keys = (self._heads(states, layer, kind) for kind in (0, 1))
                return query @ keys.mT / query.shape[-1] ** 0.5

    def _heads(self, states: Tensor, layer: int, kind: int) -> Tensor:
        return (states @ self.attention[kind, layer]).unflatten(-1, (self.dims.heads, -1)).transpose(1, 2)


class Recording(Features):
    """Features that remember what was read."""

    def __init__(self, features: Features) -> None:
        super().__init__(dict(features), features.mask)
        self.read: set[FeatureKey] = set()

    def __getitem__(self, key: FeatureKey) -> Tensor:
        self.read.add(key)
        return super().__getitem__(key)


def toys(setting: Setting) -> tuple[Toy, Toy]:
    """Student and teacher of the same texts; the teacher takes no gradient."""
    return (Toy(setting.student, setting.classes, seed=1),
            Toy(setting.teacher, setting.classes, seed=2).requires_grad_(False))


def masked(lengths: Tensor, ids: Tensor) -> Masked:
    """Every other token of these texts, from the second on; what they were are words below 31."""
    counts = lengths[ids] // 2
    place = torch.arange(int(counts.max()))
    there = place < counts[:, None]
    return Masked(torch.where(there, 2 * place + 1, 0), torch.where(there, (7 * ids[:, None] + 3 * place) % 31, -100))


def batch(setting: Setting, ids: Tensor, lengths: Tensor = LENGTHS, step: Tensor | None = None) -> Batch:
    """The labels of these examples and which of their tokens are masked, in a step of the examples `step` (all)."""
    whole = lengths if step is None else lengths[step]
    return Batch(ids, setting.labels[ids], Step(whole, whole // 2), masked(lengths, ids))


def progress(step: int, epochs: int = 3) -> Progress:
    """The moment of an optimiser step."""
    return Progress(step // STEPS_PER_EPOCH, step, epochs * STEPS_PER_EPOCH)


def examine() -> Standing:
    """A student that always stands the same."""
    return Standing(loss=1.0, score=0.5, metrics={"accuracy": 0.5})
