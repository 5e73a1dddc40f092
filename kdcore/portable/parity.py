"""Whether a graph answers as the student it was made of, on a whole split, from texts by its folder's tokenizer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kdcore.data.batching import sorted_batches
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.evaluation.metrics import decide, score, selection_score
from kdcore.portable.folder import Inputs, encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Form = Callable[[Inputs], np.ndarray]
"""Gives the float32 logits [b, c] of a batch."""

EXACT = 1e-3
"""How far logits of the same computation in float32 may lie apart, relative to the largest one where that is over 1."""
BATCH = 32


@dataclass(frozen=True)
class Parity:
    """What a form answers on a split, beside PyTorch.

    metrics      as `kdcore.evaluation.metrics.score` gives them
    lost         by how much the mean of the dataset's metrics is below PyTorch's, in points; negative where above
    difference   largest difference of two logits; `relative`: as a share of the largest logit where that is over 1
    same         share of rows with the same predicted class; None for a regression
    """

    metrics: dict[str, Any]
    lost: float
    difference: float
    relative: float
    same: float | None


def logits(forms: Mapping[str, Form], tokenizer: "Tokenizer", prepared: Prepared,
           split: str) -> dict[str, torch.Tensor]:
    """Logits [n, c] of a split by form, from its texts.

    Raises:
        UserError: the tokenizer cuts a text otherwise than the preparation did.
    """
    table = prepared.table(split)
    columns = [table.column(name).to_pylist() for name in ("text", "text_pair") if name in table.column_names]
    tokens = prepared.tokens(split, "student")
    found = {name: np.empty((len(tokens), prepared.info.classes), np.float32) for name in forms}
    for rows in sorted_batches(tokens.lengths, BATCH):
        inputs = encode(tokenizer, *[[column[row] for row in rows] for column in columns])
        _check_tokens(inputs, tokens.pad(torch.tensor(rows)), rows, f"{prepared.info.name}/{split}")
        for name, form in forms.items():
            found[name][rows] = form(inputs)
    return {name: torch.from_numpy(values) for name, values in found.items()}


def compare(found: Mapping[str, torch.Tensor], reference: str, prepared: Prepared, split: str) -> dict[str, Parity]:
    """Every form beside the reference, which is among them."""
    info = prepared.info
    scores = {name: score(prepared, split, values) for name, values in found.items()}
    wanted = found[reference]
    scale = max(1.0, float(wanted.abs().max()))
    chosen = {name: decide(values, info.regression) for name, values in found.items()}
    compared = {}
    for name, values in found.items():
        difference = float((values - wanted).abs().max())
        same = None if info.regression else float(np.mean(chosen[name] == chosen[reference]))
        lost = 100 * (selection_score(scores[reference], info) - selection_score(scores[name], info))
        compared[name] = Parity(scores[name], lost, difference, difference / scale, same)
    return compared


def _check_tokens(inputs: Inputs, prepared: Mapping[str, torch.Tensor], rows: list[int], where: str) -> None:
    for name, values in prepared.items():
        if inputs[name].shape != values.shape or (inputs[name] != values.numpy()).any():
            raise UserError(f"the exported tokenizer gives other {name} than the preparation of {where}, in a batch "
                            f"with row {rows[0]}; run `kdflow prepare` again, then distil and export again")
