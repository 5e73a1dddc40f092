"""Which parameters are optimised, with and without weight decay, and how quickly each layer of the student learns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from kdcore.models.reading import family
from kdcore.training.distiller import Distiller


def parameter_groups(distiller: Distiller, weight_decay: float, learning_rate: float,
                     layer_rates: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """The student's parameters and the objective's `main_parameters` that learn, each in exactly one group.

    Biases and the parameters of LayerNorm do not decay (methods, section 1). `layer_rates` are factors of the learning
    rate, see `Phase`; groups of the highest one come first.

    Raises:
        ValueError: `layer_rates` does not fit the student's depth.
    """
    main = {id(parameter) for parameter in distiller.objective.main_parameters()}
    main |= {id(parameter) for parameter in distiller.student.parameters()}
    factors = {id(parameter): factor for factor, part in _rated(distiller.student, layer_rates) for parameter in part}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    seen: set[int] = set()
    for module in distiller.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) in main and id(parameter) not in seen:
                seen.add(id(parameter))
                decays = not (isinstance(module, nn.LayerNorm) or name.endswith("bias"))
                groups.setdefault((factors.get(id(parameter), 1.0), decays), []).append(parameter)
    return [{"params": groups[factor, decays], "weight_decay": weight_decay if decays else 0.0,
             "lr": factor * learning_rate} for factor, decays in sorted(groups, reverse=True)]


@contextmanager
def freezing(student: PreTrainedModel, layer_rates: Sequence[float] | None) -> Iterator[None]:
    """Parts of the student whose rate is 0 take no gradient for the length of the block.

    Raises:
        ValueError: `layer_rates` does not fit the student's depth.
    """
    frozen = [parameter for factor, part in _rated(student, layer_rates) if factor == 0
              for parameter in part if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def _rated(student: PreTrainedModel,
           layer_rates: Sequence[float] | None) -> list[tuple[float, list[nn.Parameter]]]:
    """The factors with the parameters of the embeddings and of each layer; none without factors.

    All of the base model that is neither a layer nor the pooler counts as embeddings, such as tables of relative
    positions; so does a head's matrix that is theirs too.
    """
    if layer_rates is None:
        return []
    base = student.base_model
    layers = [list(layer.parameters()) for layer in base.get_submodule(family(student.config).layers).children()]
    if len(layer_rates) != len(layers) + 1:
        raise ValueError(f"{len(layer_rates)} layer rates for a student of {len(layers)} layers; give one for the "
                         f"embeddings and one for each layer, {len(layers) + 1} in all")
    inside = {id(parameter) for layer in layers for parameter in layer}
    embeddings = [parameter for name, part in base.named_children() if name != "pooler"
                  for parameter in part.parameters() if id(parameter) not in inside]
    return list(zip(layer_rates, (embeddings, *layers), strict=True))
