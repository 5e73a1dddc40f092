"""Logits of a whole split, and nothing but logits: no hidden states or attentions are asked for or kept."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from kdcore.data.batching import sorted_batches
from kdcore.data.prepared import Prepared
from kdcore.models.labels import align, names_of
from kdcore.models.reading import accepts


def predict(model: PreTrainedModel, prepared: Prepared, split: str, batch_size: int,
            which: Literal["teacher", "student"] = "student",
            part: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c"]:
    """Run a sequence classifier over a split in eval mode on the model's device.

    Rows are batched by length, longest first (a batch that does not fit fails at once), and come back in the
    split's order. Train or eval mode of every module is restored, also when the forward raises. The forward
    runs under the caller's autocast; the result is float32 on the CPU.

    Args:
        which: whose tokens to read; they differ where teacher and student have different tokenizers.
        part: rows of the split to run over, in the order in which they are to come back; None is all.

    Returns:
        [n, c], columns in the order of the dataset's labels, whatever the model's own order is.

    Raises:
        UserError: no such split, or the model's label names are not the dataset's.
    """
    info = prepared.info
    columns = list(align(names_of(model.config), info.labels, f"the {which} of {info.name}"))
    prepared.split(split)
    tokens = prepared.tokens(split, which)
    kept = accepts(model)
    wanted = torch.arange(len(tokens)) if part is None else part
    logits = torch.empty(len(wanted), info.classes, device=model.device)  # one copy to the host, at the end
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            for batch in sorted_batches(tokens.lengths[wanted.numpy()], batch_size):
                places = torch.tensor(batch)
                padded = tokens.pad(wanted[places])
                inputs = {name: values.to(model.device) for name, values in padded.items() if name in kept}
                output = model(**inputs, output_hidden_states=False, output_attentions=False)
                logits[places.to(model.device)] = output.logits.float()
    finally:
        for module, training in modes:
            module.training = training
    return logits[:, columns].cpu()
