"""Copy the weights of one model, bare or with a head, into another with fewer layers, or of another family.

Families share parameters only where each has a counterpart of the same meaning and shape. DistilBERT is
BERT under other names without segments; XLM-R is RoBERTa. All others differ in what they compute (relative
positions of MPNet and DeBERTa, ModernBERT's rotation and gates, ELECTRA's narrow embeddings, how positions are
numbered) and are refused: a copy would look like an initialisation and be noise.

Within a family a layer goes with what it is: ModernBERT's keep their reach, local or global, and the convolution of
DeBERTa-v2's large models goes with the layer 1 that it belongs to.
"""

import copy

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from kdcore.errors import UserError
from kdcore.models.loading import Auto, auto_of, draw_new
from kdcore.models.reading import family

_ALIKE = frozenset({"roberta", "xlm-roberta"})
_DISTILBERT_NAMES = {
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}
"""BERT's names inside a layer to DistilBERT's; the first that fits counts."""
_DISTILBERT_HEAD = {
    "cls.predictions.transform.dense": "vocab_transform",
    "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
    "cls.predictions.decoder": "vocab_projector",
}
"""The same for the masked-language-model head."""


def transfer(source: PreTrainedModel, layers: tuple[int, ...], architecture: str,
             seed: int) -> tuple[PreTrainedModel, str]:
    """A model of `architecture` whose layer i is layer `layers[i - 1]` of `source` (from 1), with its embeddings
    and head, if any; and a remark on the conversion, or "".

    From BERT to DistilBERT the vector of segment 0 is added to the position embeddings, so that single texts are
    embedded as before. The head of a classifier is new then (`seed`), since the two families compute it differently.

    Raises:
        UserError: the families' parameters do not correspond.
    """
    own = source.config.model_type
    target = _empty(converted(source.config, layers, architecture), auto_of(source))
    stem = "" if source.base_model is source else f"{source.base_model_prefix}."
    head = {name: value for name, value in source.state_dict().items() if not name.startswith(stem)}
    if _are_alike(own, architecture):
        weights, remark = _beginning(source, layers, _encoder(source, layers))
        target.base_model.load_state_dict(weights)
        target.load_state_dict(head, strict=False)  # the encoder, copied above, counts as missing here
        return target.eval(), remark if own == architecture else f"converted from {own} to {architecture}"
    target.base_model.load_state_dict(_distilbert_weights(_encoder(source, layers)))
    remark = "converted from bert to distilbert: segment 0 added to the positions"
    if "classifier.weight" in head:
        draw_new(target, seed, head=True, pooler=False)
        return target.eval(), f"{remark}, new head (seed {seed})"
    target.load_state_dict(_renamed(head, _DISTILBERT_HEAD), strict=False)  # as above
    return target.eval(), remark


def converted(config: PretrainedConfig, layers: tuple[int, ...], architecture: str) -> PretrainedConfig:
    """The configuration of the model that `transfer` makes of a source with this one.

    Raises:
        UserError: the families' parameters do not correspond, or the layers cannot do without those before them.
    """
    own = config.model_type
    if _are_alike(own, architecture):
        if own == "modernbert" and config.norm_bias and layers[0] > 1:
            raise UserError("layers of a modernbert whose norms have biases (norm_bias) cannot become the first one; "
                            "choose layers that begin with 1, e.g. `layers: first`")
        return _shorter(config, layers, architecture)
    if (own, architecture) == ("bert", "distilbert"):
        return _as_distilbert(config, len(layers))
    raise UserError(f"a {architecture} student cannot take layers from a {own} model, their parameters do not "
                    "correspond; possible: the same family, bert to distilbert, roberta to or from xlm-roberta")


def embeddings(source: PreTrainedModel, architecture: str) -> dict[str, Tensor]:
    """The weights of `source`'s embeddings under the names of a bare model of `architecture`, which `converted`
    accepts."""
    own = {name: value for name, value in _encoder(source, ()).items() if name.startswith("embeddings.")}
    return own if _are_alike(source.config.model_type, architecture) else _distilbert_weights(own)


def _are_alike(own: str, architecture: str) -> bool:
    return own == architecture or {own, architecture} <= _ALIKE


def _empty(config: PretrainedConfig, auto: Auto) -> PreTrainedModel:
    """A model to fill; what its construction draws is all replaced, so the caller's random state is kept."""
    with torch.random.fork_rng(devices=[]):
        return auto.from_config(config, dtype=torch.float32)


def _shorter(config: PretrainedConfig, layers: tuple[int, ...], architecture: str) -> PretrainedConfig:
    result = copy.deepcopy(config)
    if config.model_type != architecture:
        content = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "architectures")}
        result = AutoConfig.for_model(architecture, **content)
    result.num_hidden_layers = len(layers)
    if architecture == "modernbert":
        result.layer_types = [config.layer_types[layer - 1] for layer in layers]
    if _leaves_convolution(config, layers):
        result.conv_kernel_size = 0
    return result


def _leaves_convolution(config: PretrainedConfig, layers: tuple[int, ...]) -> bool:
    """True for DeBERTa-v2 with a convolution, which is part of layer 1, when that layer is not taken."""
    return layers[0] > 1 and getattr(config, "conv_kernel_size", 0) > 0


def _as_distilbert(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    return AutoConfig.for_model(
        "distilbert", vocab_size=config.vocab_size, max_position_embeddings=config.max_position_embeddings,
        n_layers=layers, n_heads=config.num_attention_heads, dim=config.hidden_size,
        hidden_dim=config.intermediate_size, activation=config.hidden_act, dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob, initializer_range=config.initializer_range,
        pad_token_id=config.pad_token_id, tie_word_embeddings=config.tie_word_embeddings, id2label=config.id2label,
        label2id=config.label2id, problem_type=config.problem_type)


def _encoder(source: PreTrainedModel, layers: tuple[int, ...]) -> dict[str, Tensor]:
    """The encoder's weights with only the chosen layers, renumbered."""
    stem = family(source.config).layers + "."
    result = {}
    for name, value in source.base_model.state_dict().items():
        if not name.startswith(stem):
            result[name] = value
            continue
        number, _, rest = name.removeprefix(stem).partition(".")
        for place, layer in enumerate(layers):
            if int(number) == layer - 1:
                result[f"{stem}{place}.{rest}"] = value
    return result


def _beginning(source: PreTrainedModel, layers: tuple[int, ...],
               weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """The weights as they must be where the student begins with a later layer than 1, and a remark or ""."""
    if layers[0] == 1:
        return weights, ""
    if _leaves_convolution(source.config, layers):
        kept = {name: value for name, value in weights.items() if not name.startswith("encoder.conv.")}
        return kept, "without the convolution of layer 1"
    if source.config.model_type == "modernbert":
        return _norm_folded(weights), f"norm of layer {layers[0]} folded into its attention"
    return weights, ""


def _norm_folded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """ModernBERT's first layer has no norm before its attention, since the embeddings come out of one: the norm of
    the layer that becomes the first goes into the projection behind it.

    A norm subtracts the mean, divides by the deviation and scales. The first and the last are linear; for the
    deviation stands the root mean square of the embedding norm's weights, which it equals on average.
    """
    result = dict(weights)
    scaled = result["layers.0.attn.Wqkv.weight"] * result.pop("layers.0.attn_norm.weight")
    deviation = result["embeddings.norm.weight"].square().mean().sqrt()
    result["layers.0.attn.Wqkv.weight"] = (scaled - scaled.mean(dim=1, keepdim=True)) / deviation
    return result


def _distilbert_weights(bert: dict[str, Tensor]) -> dict[str, Tensor]:
    result = {}
    for name, value in bert.items():
        if name.startswith("pooler.") or "token_type_embeddings" in name:
            continue
        if name == "embeddings.position_embeddings.weight":
            value = value + bert["embeddings.token_type_embeddings.weight"][0]
        result[name.replace("encoder.layer.", "transformer.layer.")] = value
    return _renamed(result, _DISTILBERT_NAMES)


def _renamed(weights: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    result = {}
    for name, value in weights.items():
        old, new = next(((old, new) for old, new in names.items() if f".{old}." in f".{name}"), ("", ""))
        result[name.replace(old, new) if old else name] = value
    return result
