"""A sequence classifier as an ONNX graph in float32, and the same graph with int8 weights.

Inputs are `input_ids`, `attention_mask` and, where the model knows segments, `token_type_ids`, all int64 [b, t] for any
b and t that the model takes; the output is `logits`, float32 [b, c]. Equal models give equal bytes in one environment:
the exporter's notes on where code lies on this machine are left out.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kdcore.errors import UserError
from kdcore.models.loading import quiet
from kdcore.models.reading import accepts

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LARGEST = 2**31 - 1
"""Bytes that a file of ONNX can have."""


class _Logits(nn.Module):
    """Takes the inputs in order and gives the logits alone."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *values: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, values, strict=True))).logits


def write(model: PreTrainedModel, path: Path) -> None:
    """Write the graph of a float32 model on the CPU that is in eval mode.

    Raises:
        UserError: the weights do not fit one file.
    """
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size > LARGEST:
        raise UserError(f"the student has {size:,} bytes of weights, but an ONNX file holds at most {LARGEST:,}; "
                        "export a smaller student")
    import onnx

    names = [name for name in INPUTS if name in accepts(model)]
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, 5:] = 0  # with padding, so that nothing which only full rows allow gets into the graph
    example = {"input_ids": torch.ones_like(mask), "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}
    with _quiet():
        program = torch.onnx.export(
            _Logits(model, names), tuple(example[name] for name in names), input_names=names, output_names=["logits"],
            dynamic_shapes=(tuple({0: "batch", 1: "length"} for _ in names),), dynamo=True, verbose=False)
    assert program is not None
    graph = program.model_proto
    for part in (graph, graph.graph, *graph.graph.node, *graph.graph.value_info, *graph.graph.initializer):
        del part.metadata_props[:]  # among them where the code of each step lies
    onnx.save(graph, path)


def quantise(graph: Path, path: Path) -> None:
    """Write the graph with int8 weights, one scale per output channel; activations are quantised as they come.

    Weights use 7 of the 8 bits: on processors without VNNI, sums of full ones overflow 16 bits and saturate.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(graph, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what exporters tell their developers, and put the settings back afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
