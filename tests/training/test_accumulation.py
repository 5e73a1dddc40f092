"""Micro-batches change neither the loss nor the gradient, for no method (lessons A76, C40, D3)."""

from pathlib import Path

import pytest

from kdcore import methods
from kdcore.data.prepared import Prepared
from tests.training.problem import phases_of, run, steps


def _couples(method: str, prepared: Prepared) -> bool:
    return any(phase.objective.couples_examples for phase in phases_of(method, prepared))


@pytest.mark.parametrize("method", methods.names())
def test_micro_batches_equal_the_whole_batch(method: str, prepared: Prepared, tmp_path: Path) -> None:
    if _couples(method, prepared):
        pytest.skip(f"{method} compares examples with those of their micro-batch, as its docstring says")
    whole, parts = (_journal(method, prepared, tmp_path / str(n), n) for n in (1, 4))
    assert len(whole) == len(parts) == 6 * len(phases_of(method, prepared))
    for one, many in zip(whole, parts, strict=True):  # rows of unequal length, steps of 15 rows: 4 + 4 + 4 + 3
        for name in ("loss", "gradient_norm", "learning_rate", *(n for n in one if n.startswith("loss/"))):
            assert many[name] == pytest.approx(one[name], rel=2e-4, abs=1e-6), (name, one["step"])
    assert whole[0]["gradient_norm"] == pytest.approx(parts[0]["gradient_norm"], rel=1e-5)


def test_regression_too(scores: Prepared, tmp_path: Path) -> None:
    whole, parts = (_journal("vanilla_kd", scores, tmp_path / str(n), n) for n in (1, 2))
    assert whole[0]["gradient_norm"] == pytest.approx(parts[0]["gradient_norm"], rel=1e-5)
    assert whole[-1]["loss"] == pytest.approx(parts[-1]["loss"], rel=1e-4)


def test_the_loss_is_the_mean_over_examples(prepared: Prepared, tmp_path: Path) -> None:
    """Not a sum, nor a mean of means: the first step's loss by hand, before anything was learned."""
    import torch

    from kdcore.data.batching import LengthGroupedBatches
    from tests.training.problem import tiny_student

    first = next(iter(LengthGroupedBatches(prepared.tokens("train", "student").lengths, 16, seed=1)))
    inputs = prepared.tokens("train", "student").pad(torch.tensor(first))
    with torch.no_grad():
        logits = tiny_student(prepared, dropout=0.0)(**inputs).logits
    by_hand = torch.nn.functional.cross_entropy(logits, prepared.labels("train")[first]).item()
    assert _journal("finetune", prepared, tmp_path, 4)[0]["loss"] == pytest.approx(by_hand, rel=1e-5)


def _journal(method: str, prepared: Prepared, folder: Path, accumulation: int) -> list[dict[str, float]]:
    run(prepared, folder, method, dropout=0.0, epochs=1, accumulation=accumulation)
    return steps(folder)
