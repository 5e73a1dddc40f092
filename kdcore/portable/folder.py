"""A folder that answers texts with onnxruntime and tokenizers alone, as written by `kdflow export`.

    model.onnx, model-int8.onnx    graphs (`kdcore.portable.graph`); the second only where it was asked for
    tokenizer.json                 cuts to the student's length and pads, so that callers set nothing
    config.json                    of the student: `id2label` names the columns of the logits
    export.json                    parity, latency, sizes and lineage
    README.md                      the model card
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from transformers import PreTrainedTokenizerBase

from kdcore.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GRAPH = "model.onnx"
INT8 = "model-int8.onnx"
TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
RECORD = "export.json"
CARD = "README.md"
Inputs = dict[str, Int[np.ndarray, "b t"]]


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, max_length: int, path: Path) -> None:
    """Write a tokenizer that cuts texts to `max_length` tokens, of pairs the longer text first, and pads on the right.

    Raises:
        UserError: it is written in Python, which tokenizer.json cannot hold.
    """
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"the student's tokenizer ({type(tokenizer).__name__}) is written in Python and has no "
                        "tokenizer.json; distil into a student whose tokenizer has one")
    fast = Tokenizer.from_str(backend.to_str())
    fast.enable_truncation(max_length)
    fast.enable_padding(pad_id=tokenizer.pad_token_id, pad_type_id=tokenizer.pad_token_type_id,
                        pad_token=str(tokenizer.pad_token))
    fast.save(str(path))


def read_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer as any user reads it."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def encode(tokenizer: "Tokenizer", *texts: Sequence[str]) -> Inputs:
    """One batch of texts, or of pairs with a second list, padded to its longest row."""
    rows = tokenizer.encode_batch(list(texts[0] if len(texts) == 1 else zip(*texts, strict=True)))
    return {"input_ids": np.array([row.ids for row in rows], np.int64),
            "attention_mask": np.array([row.attention_mask for row in rows], np.int64),
            "token_type_ids": np.array([row.type_ids for row in rows], np.int64)}


class Graph:
    """An ONNX graph on the CPU."""

    def __init__(self, path: Path, threads: int) -> None:
        """`threads` compute at once; they sleep between runs, so that others who are timed have the processor."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = [entry.name for entry in self._session.get_inputs()]

    def __call__(self, inputs: Inputs) -> Float[np.ndarray, "b c"]:
        """The logits of a batch; what the graph does not take is left out."""
        return self._session.run(None, {name: inputs[name] for name in self.inputs})[0]
