"""Run a model and read the features that are asked for, nothing else.

The only place that knows the modules of transformers' models. Hooks sit on the layers in need for the
length of one forward; what is pooled is pooled at once, so no list of all hidden states is ever kept.
Works in train mode with gradients (student) as under `inference_mode` (teacher), with SDPA or eager
attention and under autocast. Models come bare, not wrapped for data-parallel training.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DebertaV2Model, ModernBertModel, MPNetModel, PretrainedConfig, PreTrainedModel
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

from kdcore.errors import UserError, did_you_mean
from kdcore.features import MASKED_LOGITS, MLM_LOGITS, FeatureKey, Features, at_positions, masked_mean


@dataclass(frozen=True)
class Family:
    """Where a family keeps its layers, the names of the projections inside one, and the first module of the
    masked-language-model head, which takes the states of the last layer.

    ModernBERT makes all three projections in one linear layer.
    """

    layers: str
    query: str
    key: str
    value: str
    head: str


_BERT = Family("encoder.layer", "attention.self.query", "attention.self.key", "attention.self.value", "cls")
_ROBERTA = replace(_BERT, head="lm_head")
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": replace(_BERT, head="generator_predictions"),
    "distilbert": Family("transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin",
                         "vocab_transform"),
    "mpnet": Family("encoder.layer", "attention.attn.q", "attention.attn.k", "attention.attn.v", "lm_head"),
    "deberta-v2": Family("encoder.layer", "attention.self.query_proj", "attention.self.key_proj",
                         "attention.self.value_proj", "cls"),
    "modernbert": Family("layers", "attn.Wqkv", "attn.Wqkv", "attn.Wqkv", "head"),
}
"""By `model_type`; DeBERTa-v3 is `deberta-v2` too."""


def read(model: PreTrainedModel, inputs: Mapping[str, Tensor], keys: frozenset[FeatureKey]) -> Features:
    """Run the model once and return the features `keys` names, with the attention mask of the batch.

    `inputs` holds `input_ids` and `attention_mask` [b, t], for `masked_logits` also `masked_positions` [b, p], and may
    hold more; what the model does not take is left out. Layer 0 is the embedding output (after ELECTRA's projection to
    the hidden width), layer l what transformer layer l hands on, as `output_hidden_states` reports it: with DeBERTa's
    convolution in layer 1 where there is one, with ModernBERT's final norm in its last layer. Query and key are what
    the attention multiplies: ModernBERT's after rotation by position, DeBERTa's of the contents (`scores` has its terms
    of position as well). `masked_logits` alone run the masked-language-model head at the masked positions alone, and
    without any logits no head is run. `mean` and `scores` are float32 whatever the model computes in; everything else
    has the dtype of the computation.

    Raises:
        UserError: what `check` refuses, or logits of a head that the model lacks.
    """
    mask = inputs["attention_mask"]
    check(model.config, keys, mask.shape[1])
    _check_heads(model, keys)
    values: dict[FeatureKey, Tensor] = {}
    hooks = []
    try:
        for module, listener in _listeners(model, keys, mask, values):
            hooks.append(module.register_forward_hook(listener))
        if MASKED_LOGITS in keys and MLM_LOGITS not in keys:
            narrow = partial(_narrow_input, inputs["masked_positions"])
            hooks.append(_masked_head(model).register_forward_pre_hook(narrow))
        takes = accepts(model)
        run = model if any(key.kind.endswith("logits") for key in keys) else model.base_model
        output = run(**{name: tensor for name, tensor in inputs.items() if name in takes})
    finally:
        for hook in hooks:
            hook.remove()
    for key in keys:
        if key == MASKED_LOGITS and MLM_LOGITS in keys:
            values[key] = at_positions(output.logits, inputs["masked_positions"])
        elif key.kind.endswith("logits"):
            values[key] = output.logits
        elif key.kind == "scores":
            values[key] = _scores(model, values, key.layer, inputs["input_ids"])
    return Features({key: values[key] for key in keys}, mask)


def check(config: PretrainedConfig, keys: frozenset[FeatureKey], longest: int) -> None:
    """Refuse features that a model does not have for texts of up to `longest` tokens; the heads apart.

    Raises:
        UserError: unknown family, a layer beyond the model's, a projection of layer 0, or scores of a layer that does
            not look as far as such texts reach.
    """
    family(config)
    layers = config.num_hidden_layers
    for key in sorted(keys):
        if key.layer > layers:
            raise UserError(f"{key.kind} of layer {key.layer} was asked of a model with {layers} layers; "
                            f"layers are 0 (embeddings) to {layers}")
        if key.kind in ("query", "key", "value", "scores") and key.layer == 0:
            raise UserError(f"{key.kind} of layer 0 was asked for, but embeddings have no attention; "
                            f"layers are 1 to {layers}")
        if key.kind == "scores" and config.model_type == "modernbert":
            _check_window(config, key.layer, longest)


def _check_window(config: PretrainedConfig, layer: int, longest: int) -> None:
    """Scores of tokens that a layer never compares are not its attention, and nothing has trained them."""
    reach = config.local_attention // 2
    if config.layer_types[layer - 1] == "sliding_attention" and longest > reach + 1:
        whole = [str(place) for place, kind in enumerate(config.layer_types, 1) if kind == "full_attention"]
        raise UserError(f"scores of layer {layer} were asked for, but that layer of the modernbert model looks {reach} "
                        f"tokens to each side, and texts have up to {longest}; set max_length to at most "
                        f"{reach + 1}, or use layers with full attention: {', '.join(whole) or 'it has none'}")


def _check_heads(model: PreTrainedModel, keys: frozenset[FeatureKey]) -> None:
    for kind, head in (("logits", "ForSequenceClassification"), ("mlm_logits", "ForMaskedLM"),
                       ("masked_logits", "ForMaskedLM")):
        if any(key.kind == kind for key in keys) and not type(model).__name__.endswith(head):
            raise UserError(f"{kind} were asked of a {type(model).__name__}; load it as ...{head}")


def family(config: PretrainedConfig) -> Family:
    """Where a model keeps its layers; raises UserError for a family that is not known here."""
    kind = config.model_type
    if kind not in FAMILIES:
        raise UserError(f"features of a {kind!r} model cannot be read; {did_you_mean(kind, FAMILIES)}")
    return FAMILIES[kind]


def accepts(model: PreTrainedModel) -> frozenset[str]:
    """The tokenizer's outputs that the model takes.

    DistilBERT, MPNet and ModernBERT have no segment ids; RoBERTa and XLM-R accept them but have a table of one
    row, so that a second segment would be an index error; DeBERTa-v3 accepts them but has no table.
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
    where = family(model.config)
    layers = list(model.base_model.get_submodule(where.layers).children())
    outputs = _outputs(model, layers)
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
        listeners.append((outputs[layer], partial(_keep_states, wanted, mask, values)))
    for key in projections:
        module = layers[key.layer - 1].get_submodule(getattr(where, key.kind))
        listeners.append((module, partial(_keep_projection, key, model, values)))
    return listeners


def _outputs(model: PreTrainedModel, layers: list[nn.Module]) -> list[nn.Module]:
    """The modules that make the states of layers 0..n."""
    base = model.base_model
    outputs = [base.get_submodule("embeddings_project" if hasattr(base, "embeddings_project") else "embeddings"),
               *layers]
    match base:
        case DebertaV2Model() if base.encoder.conv is not None:
            outputs[1] = base.encoder.conv
        case ModernBertModel():
            outputs[-1] = base.final_norm
    return outputs


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


def _keep_projection(key: FeatureKey, model: PreTrainedModel, values: dict[FeatureKey, Tensor],
                     module: nn.Module, args: Any, output: Tensor) -> None:
    if key in values:  # DeBERTa projects its relative positions afterwards, by the same linear if they are shared
        return
    base, fused = model.base_model, ("query", "key", "value")
    if isinstance(base, ModernBertModel):
        output = output.unflatten(-1, (len(fused), -1)).select(-2, fused.index(key.kind))
    projection = output.unflatten(-1, (model.config.num_attention_heads, -1)).transpose(1, 2)
    if isinstance(base, ModernBertModel) and key.kind != "value":
        positions = torch.arange(projection.shape[2], device=projection.device).unsqueeze(0)
        cos, sin = base.rotary_emb(projection, positions, model.config.layer_types[key.layer - 1])
        projection, _ = apply_rotary_pos_emb(projection, projection, cos, sin)
    values[key] = projection


def _masked_head(model: PreTrainedModel) -> nn.Module:
    """The first module of the masked-language-model head; DeBERTa-v3's checkpoints have another one than v2's."""
    return model.get_submodule("lm_predictions" if hasattr(model, "lm_predictions") else family(model.config).head)


def _narrow_input(positions: Int[Tensor, "b p"], module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    states, *rest = args
    return (at_positions(states, positions), *rest)


def _scores(model: PreTrainedModel, values: Mapping[FeatureKey, Tensor], layer: int,
            input_ids: Int[Tensor, "b t"]) -> Float[Tensor, "b h t t"]:
    """q k^T / sqrt(d_head) before mask and softmax; in MPNet and DeBERTa with what they add by relative position."""
    query, key = (values[FeatureKey(kind, layer)] for kind in ("query", "key"))
    with torch.autocast(query.device.type, enabled=False):
        query, key = query.float(), key.float()
        if isinstance(model.base_model, DebertaV2Model):
            return _disentangled(model.base_model, layer, query, key)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if isinstance(model.base_model, MPNetModel):
        scores = scores + model.base_model.encoder.compute_position_bias(input_ids)
    return scores


def _disentangled(base: DebertaV2Model, layer: int, query: Float[Tensor, "b h t d"],
                  key: Float[Tensor, "b h t d"]) -> Float[Tensor, "b h t t"]:
    """Content to content, content to position and position to content, each divided by sqrt(d_head x terms)."""
    encoder = base.encoder
    attention: Any = encoder.layer[layer - 1].get_submodule("attention.self")
    terms = 1 + sum(term in attention.pos_att_type for term in ("c2p", "p2c"))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1] * terms)
    if attention.relative_attention and terms > 1:
        scores = scores + attention.disentangled_attention_bias(
            query.flatten(0, 1), key.flatten(0, 1), encoder.get_rel_pos(query), encoder.get_rel_embedding(),
            terms).view_as(scores)
    return scores
