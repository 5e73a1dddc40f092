"""TinyBERT's two phases in training: what is learned in which, what the log says."""

from pathlib import Path

import pytest

from kdcore.data.prepared import Prepared
from tests.training.problem import lines, phases_of, run


def test_both_phases_teach(prepared: Prepared, folder: Path) -> None:
    """Every layer comes nearer in the first phase, the outputs in the second; all of it is in the log (lesson A45)."""
    phases = phases_of("tinybert", prepared, intermediate_epochs=4.0, intermediate_learning_rate=2e-3,
                       prediction_learning_rate=2e-3)
    history = run(prepared, folder, phases=phases, dropout=0.0).record["history"]
    first, second = ([entry for entry in history if entry["phase"] == phase.name] for phase in phases)
    assert (len(first), len(second)) == (4, 2)
    names = {f"hidden/{layer}" for layer in range(4)} | {f"attention/{layer}" for layer in (1, 2, 3)}
    assert set(first[0]["diagnostics"]) == names
    assert all(first[-1]["diagnostics"][name] < first[0]["diagnostics"][name] for name in names)
    assert first[-1]["loss"] == pytest.approx(sum(first[-1]["diagnostics"].values()), rel=1e-5)
    assert second[-1]["parts"]["kd"] < second[0]["parts"]["kd"]
    assert all("development" not in entry for entry in first)
    assert {"loss/hidden", "loss/attention", *names} <= set(lines(folder)[0])
