"""TinyBERT's general distillation: golden value in any cut of a step, masking, what goes over to the task's."""

from pathlib import Path

import pytest
import torch

from kdcore.features import Features, layer_keys
from kdcore.intermediate import Intermediate
from tests.general.golden import CUTS, UNEQUAL, loss_of, objective_of
from tests.general.toys import SMALLER, phases_of
from tests.methods.golden import DTYPES
from tests.test_losses import vectors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_golden_value(golden: Path, cut: tuple[int, ...], dtype: torch.dtype) -> None:
    data = vectors(golden, "09_tinybert")
    objective = objective_of("tinybert", UNEQUAL)
    (linear,) = objective.maps["all"].maps
    linear.weight.data, linear.bias.data = data["in.w"].T.contiguous(), data["in.b"]
    sides = []
    for side in ("student", "teacher"):
        states = zip(layer_keys("hidden", range(9)), data[f"in.{side}_hidden"], strict=False)
        scores = zip(layer_keys("scores", range(1, 9)), data[f"in.{side}_scores"], strict=False)
        values = {key: value.to(dtype) for key, value in (*states, *scores)}
        sides.append(Features(values, data["in.mask"].long()))
    loss = loss_of(objective.to(dtype), *sides, cut)
    torch.testing.assert_close(loss.total.mean(), data["out.intermediate_total"].to(dtype), **DTYPES[dtype])


def test_layers_only_and_text_as_it_is() -> None:
    """The released code's masking is off; with `masked: true` both models read masked text."""
    (phase,) = phases_of("tinybert", SMALLER)
    assert isinstance(phase.objective, Intermediate)
    assert not phase.objective.masks_tokens
    assert {key.kind for key in phase.objective.needs.student} == {"hidden", "scores"}
    assert (phase.epochs, phase.learning_rate, phase.schedule) == (None, None, None)
    (masked,) = phases_of("tinybert", SMALLER, masked=True)
    assert masked.objective.masks_tokens
    assert masked.objective.needs == phase.objective.needs
