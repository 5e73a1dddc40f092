"""Run a model and read the features that are asked for, nothing else.

The only place that knows the modules of transformers' models. Hooks sit on the layers in need for the
length of one forward; what is pooled is pooled at once, so no list of all hidden states is ever kept.
Works in train mode with gradients (student) as under `inference_mode` (teacher), with SDPA or eager
attention and under autocast. Models come bare, not wrapped for data-parallel training.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import MPNetModel, PreTrainedModel

from kdcore.errors import UserError, did_you_mean
from kdcore.features import FeatureKey, Features


@dataclass(frozen=True)
class Family:
    """Where a family keeps its layers, and the names of the projections inside one."""

    layers: str
    query: str
    key: str
    value: str


_BERT = Family("encoder.layer", "attention.self.query", "attention.self.key", "attention.self.value")
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": _BERT,
    "distilbert": Family("transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "mpnet": Family("encoder.layer", "attention.attn.q", "attention.attn.k", "attention.attn.v"),
}


def read(model: PreTrainedModel, inputs: Mapping[str, Tensor], keys: frozenset[FeatureKey]) -> Features:
    """Run the model once and return the features `keys` names, with the attention mask of the batch.

    `inputs` holds `input_ids` and `attention_mask` [b, t] and may hold more; what the model does not take is
    left out. Layer 0 is the embedding output (after ELECTRA's projection to the hidden width), layer l the
    output of transformer layer l. `mean` and `scores` are float32 whatever the model computes in;
    everything else has the dtype of the computation.

    Raises:
        UserError: unknown family, a layer beyond the model's, a projection of layer 0, or a head it lacks.
    """
    check(model, keys)
    mask = inputs["attention_mask"]
    values: dict[FeatureKey, Tensor] = {}
    hooks = []
    try:
        for module, listener in _listeners(model, keys, mask, values):
            hooks.append(module.register_forward_hook(listener))
        takes = accepts(model)
        output = model(**{name: tensor for name, tensor in inputs.items() if name in takes})
    finally:
        for hook in hooks:
            hook.remove()
    for key in keys:
        if key.kind in ("logits", "mlm_logits"):
            values[key] = output.logits
        elif key.kind == "scores":
            values[key] = _scores(model, values, key.layer, inputs["input_ids"])
    return Features({key: values[key] for key in keys}, mask)


def check(model: PreTrainedModel, keys: frozenset[FeatureKey]) -> None:
    """Refuse features that the model does not have; raises UserError with the valid range."""
    family(model)
    layers = model.config.num_hidden_layers
    for key in sorted(keys):
        if key.layer > layers:
            raise UserError(f"{key.kind} of layer {key.layer} was asked of a model with {layers} layers; "
                            f"layers are 0 (embeddings) to {layers}")
        if key.kind in ("query", "key", "value", "scores") and key.layer == 0:
            raise UserError(f"{key.kind} of layer 0 was asked for, but embeddings have no attention; "
                            f"layers are 1 to {layers}")
        if key.kind in ("logits", "mlm_logits"):
            head = "ForSequenceClassification" if key.kind == "logits" else "ForMaskedLM"
            if not type(model).__name__.endswith(head):
                raise UserError(f"{key.kind} were asked of a {type(model).__name__}; load it as ...{head}")


def family(model: PreTrainedModel) -> Family:
    """Where this model keeps its layers; raises UserError for a family that is not known here."""
    kind = model.config.model_type
    if kind not in FAMILIES:
        raise UserError(f"features of a {kind!r} model cannot be read; {did_you_mean(kind, FAMILIES)}")
    return FAMILIES[kind]


def accepts(model: PreTrainedModel) -> frozenset[str]:
    """The tokenizer's outputs that the model takes.

    DistilBERT and MPNet have no segment ids; RoBERTa and XLM-R accept them but have a table of one row, so
    that a second segment would be an index error.
    """
    names = _parameters(type(model).forward) & {"input_ids", "attention_mask", "token_type_ids"}
    return names - {"token_type_ids"} if getattr(model.config, "type_vocab_size", 0) < 2 else names


@lru_cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


Listener = Callable[[nn.Module, Any, Any], None]


def _listeners(model: PreTrainedModel, keys: frozenset[FeatureKey], mask: Int[Tensor, "b t"],
               values: dict[FeatureKey, Tensor]) -> list[tuple[nn.Module, Listener]]:
    """The modules to hook and what to do with their outputs: one hook per module, however many keys need it."""
    where = family(model)
    base = model.base_model
    layers = list(base.get_submodule(where.layers).children())
    embeddings = base.get_submodule("embeddings_project" if hasattr(base, "embeddings_project") else "embeddings")
    states: dict[int, list[FeatureKey]] = {}
    projections: set[FeatureKey] = set()
    for key in keys:
        if key.kind in ("cls", "mean", "hidden"):
            states.setdefault(key.layer, []).append(key)
        elif key.kind in ("query", "key", "value"):
            projections.add(key)
        elif key.kind == "scores":
            projections |= {FeatureKey("query", key.layer), FeatureKey("key", key.layer)}
    listeners: list[tuple[nn.Module, Listener]] = []
    for layer, wanted in states.items():
        module = layers[layer - 1] if layer else embeddings
        listeners.append((module, partial(_keep_states, wanted, mask, values)))
    for key in projections:
        module = layers[key.layer - 1].get_submodule(getattr(where, key.kind))
        listeners.append((module, partial(_keep_projection, key, model.config.num_attention_heads, values)))
    return listeners


def _keep_states(wanted: list[FeatureKey], mask: Int[Tensor, "b t"], values: dict[FeatureKey, Tensor],
                 module: nn.Module, args: Any, output: Any) -> None:
    states = output[0] if isinstance(output, tuple) else output
    for key in wanted:
        match key.kind:
            case "cls":
                values[key] = states[:, 0]
            case "mean":
                values[key] = masked_mean(states, mask)
            case "hidden":
                values[key] = states


def _keep_projection(key: FeatureKey, heads: int, values: dict[FeatureKey, Tensor],
                     module: nn.Module, args: Any, output: Tensor) -> None:
    values[key] = output.unflatten(-1, (heads, -1)).transpose(1, 2)


def masked_mean(states: Float[Tensor, "b t d"], mask: Int[Tensor, "b t"]) -> Float[Tensor, "b d"]:
    """Mean over real tokens, accumulated in float32 (methods, section 0: h_b = sum_t mask H / n_b)."""
    kept = states * mask.unsqueeze(-1).to(states.dtype)  # exact in any dtype: the factors are 0 and 1
    return kept.sum(dim=1, dtype=torch.float32) / mask.sum(dim=1, keepdim=True)


def _scores(model: PreTrainedModel, values: Mapping[FeatureKey, Tensor], layer: int,
            input_ids: Int[Tensor, "b t"]) -> Float[Tensor, "b h t t"]:
    """q k^T / sqrt(d_head) before mask and softmax; in MPNet plus its bias by relative position."""
    query, key = (values[FeatureKey(kind, layer)] for kind in ("query", "key"))
    with torch.autocast(query.device.type, enabled=False):
        scores = query.float() @ key.float().transpose(-1, -2) / math.sqrt(query.shape[-1])
    if model.config.model_type == "mpnet":
        scores = scores + cast(MPNetModel, model.base_model).encoder.compute_position_bias(input_ids)
    return scores
