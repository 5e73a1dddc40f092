"""Which parameters are optimised, with and without weight decay."""

from typing import Any

from torch import nn

from kdcore.training.distiller import Distiller


def parameter_groups(distiller: Distiller, weight_decay: float) -> list[dict[str, Any]]:
    """The student's parameters and the objective's `main_parameters` that learn, each in exactly one group.

    Biases and the parameters of LayerNorm do not decay (methods, section 1).
    """
    main = {id(parameter) for parameter in distiller.objective.main_parameters()}
    main |= {id(parameter) for parameter in distiller.student.parameters()}
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    seen: set[int] = set()
    for module in distiller.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) in main and id(parameter) not in seen:
                seen.add(id(parameter))
                groups[not (isinstance(module, nn.LayerNorm) or name.endswith("bias"))].append(parameter)
    return [{"params": groups[decays], "weight_decay": weight_decay if decays else 0.0}
            for decays in (True, False) if groups[decays]]
