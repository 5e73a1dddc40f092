"""Cells of selection times knowledge in real trainings, with a teacher that is run for every batch."""

from pathlib import Path
from typing import Any

import pytest

from kdcore.data.prepared import Prepared
from tests.training.problem import phases_of, run, steps

CELLS: dict[str, dict[str, Any]] = {
    "attention over value relations": {"selection": "attention", "knowledge": {"value_relations": 1.0, "mean": 0.5}},
    "random by step, hidden and scores": {"resample": "step", "knowledge": {"hidden": 1.0, "attention_scores": 1.0}},
    "blocks of relations and states": {"selection": "grouped", "knowledge": {"query_relations": 1.0, "hidden": 1.0}},
}


def journal(prepared: Prepared, folder: Path, cell: str, **changes: Any) -> list[dict[str, float]]:
    phases = phases_of("layer_kd", prepared, **CELLS[cell])
    run(prepared, folder, phases=phases, dropout=0.0, **changes)
    return steps(folder)


@pytest.mark.parametrize("cell", CELLS)
def test_micro_batches_are_the_batch_and_the_student_learns(cell: str, prepared: Prepared, tmp_path: Path) -> None:
    """A draw by step holds for all micro-batches of the step; rows are of unequal length."""
    whole = journal(prepared, tmp_path / "whole", cell)
    parts = journal(prepared, tmp_path / "parts", cell, accumulation=4)
    assert len(whole) == len(parts) == 12
    for one, many in zip(whole, parts, strict=True):
        for name in ("loss", "gradient_norm", *(f"loss/{part}" for part in CELLS[cell]["knowledge"])):
            assert many[name] == pytest.approx(one[name], rel=5e-4, abs=1e-6), (name, one["step"])
    for part in CELLS[cell]["knowledge"] if "random" not in cell else ():  # other layers are further or nearer
        assert sum(line[f"loss/{part}"] for line in whole[6:]) < sum(line[f"loss/{part}"] for line in whole[:6])
