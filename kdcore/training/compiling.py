"""`torch.compile` for the layers of a student."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from kdcore.errors import UserError
from kdcore.features import FeatureKey
from kdcore.models.reading import family

_INSIDE = ("query", "key", "value", "scores")


@contextmanager
def compiled(student: PreTrainedModel, needs: frozenset[FeatureKey]) -> Iterator[None]:
    """Compile each transformer layer's forward for the length of the block, for inputs of any length.

    Only `forward` is compiled, so that hooks on the layers run outside of it: inside, a hook would be baked into
    the code of its first call. Nothing of it stays in the student.

    Raises:
        UserError: the features in need are read inside the layers.
    """
    inside = sorted(key.name for key in needs if key.kind in _INSIDE)
    if inside:
        raise UserError(f"compile is true, but this method reads {inside[0]} inside the student's layers, which "
                        "compiled code hides; set compile: false")
    layers = list(student.base_model.get_submodule(family(student.config).layers).children())
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
