"""The vocabulary between models, the teacher store and objectives: which tensor of which layer.

Axes: b batch, t tokens, p masked positions, d width, h heads, c classes, v vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

Kind = Literal["logits", "cls", "mean", "hidden", "query", "key", "value", "scores", "mlm_logits", "masked_logits"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SENTENCE_KINDS: frozenset[Kind] = frozenset({"logits", "cls", "mean"})


@dataclass(frozen=True, order=True)
class FeatureKey:
    """One tensor of one model; its `name` is also a column of the teacher store.

    Layer 0 is the embedding output, 1..n are the transformer layers, for every kind.
    `logits`, `mlm_logits` and `masked_logits` belong to no layer and carry 0.

    kind           shape         meaning
    logits         [b, c]        output of the sequence-classification head
    cls            [b, d]        state of token 0
    mean           [b, d]        mean over real tokens (padding left out)
    hidden         [b, t, d]     all token states
    query, key, value [b, h, t, d/h]  projections inside layer l (l >= 1)
    scores         [b, h, t, t]  attention scores before mask and softmax, no dropout (l >= 1)
    mlm_logits     [b, t, v]     output of the masked-language-model head
    masked_logits  [b, p, v]     the same at the masked positions alone, which costs a fraction
    """

    kind: Kind
    layer: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown feature kind {self.kind!r}; known: {', '.join(KINDS)}")
        if self.layer < 0:
            raise ValueError(f"layer {self.layer} of {self.kind}: layers count from 0 (embeddings)")

    @property
    def name(self) -> str:
        """Column and file name, e.g. `mean-03`."""
        return self.kind if self.kind.endswith("logits") else f"{self.kind}-{self.layer:02d}"

    @property
    def is_sentence_level(self) -> bool:
        """True when there is one vector per example, so no token alignment is needed."""
        return self.kind in SENTENCE_KINDS

    @classmethod
    def parse(cls, name: str) -> "FeatureKey":
        """Inverse of `name`."""
        kind, _, layer = name.partition("-")
        return cls(kind, int(layer or 0))  # type: ignore[arg-type]


LOGITS = FeatureKey("logits")
MLM_LOGITS = FeatureKey("mlm_logits")
MASKED_LOGITS = FeatureKey("masked_logits")


def layer_keys(kind: Kind, layers: Iterable[int]) -> tuple[FeatureKey, ...]:
    """One key per layer, in the order given."""
    return tuple(FeatureKey(kind, layer) for layer in layers)


class Features(Mapping[FeatureKey, Tensor]):
    """The tensors of one model for one batch; refuses to give what was not declared.

    `mask` [b, t] is 1 at real tokens; None where only sentence-level features exist.
    """

    def __init__(self, values: Mapping[FeatureKey, Tensor], mask: Int[Tensor, "b t"] | None = None) -> None:
        self._values = dict(values)
        self.mask = mask

    def __getitem__(self, key: FeatureKey) -> Tensor:
        try:
            return self._values[key]
        except KeyError:
            have = ", ".join(k.name for k in sorted(self._values)) or "nothing"
            raise KeyError(f"feature {key.name} was not declared in the objective's needs (declared: {have})") from None

    def __iter__(self) -> Iterator[FeatureKey]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def token_mask(self) -> Int[Tensor, "b t"]:
        """`mask` for what compares tokens; raises ValueError where only sentence-level features exist."""
        if self.mask is None:
            raise ValueError("token-level features came without a mask")
        return self.mask

    @property
    def logits(self) -> Float[Tensor, "b c"]:
        """Output of the classification head."""
        return self[LOGITS]

    def stack(self, keys: Sequence[FeatureKey]) -> Float[Tensor, "b k d"]:
        """Sentence-level features of k layers side by side, in the order of the keys."""
        return torch.stack([self[key] for key in keys], dim=1)


def masked_mean(states: Float[Tensor, "b t d"], mask: Int[Tensor, "b t"]) -> Float[Tensor, "b d"]:
    """What `mean` is: the mean over the tokens whose mask is 1, in float32 at least.

    What padding holds does not matter, not even NaN.
    """
    kept = states.masked_fill(mask.unsqueeze(-1) == 0, 0)
    return kept.sum(dim=1, dtype=torch.promote_types(states.dtype, torch.float32)) / mask.sum(dim=1, keepdim=True)


def at_positions(states: Float[Tensor, "b t d"], positions: Int[Tensor, "b p"]) -> Float[Tensor, "b p d"]:
    """What `masked_logits` are of `mlm_logits`: the states of the tokens at these positions."""
    return states.gather(1, positions.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
