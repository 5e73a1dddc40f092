"""Two gloo processes train as one does at the same global batch (lessons A14-A16, A82, B33)."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kdcore.data.prepared import Prepared
from tests.training.problem import lines, steps
from tests.training.ranks import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "accumulation", "hyper"),
    [("rail_kd_l", 1, "{}"), ("rail_kd_c", 2, "{}"), ("finetune", 1, "{}"), ("codir", 2, "{}"),
     ("tinybert", 2, '{"intermediate_epochs": 1, "prediction_epochs": 1}'),
     ("codir", 1, '{"bank": "refresh"}'), ("codir", 2, '{"objective": "nce_two_sided", "gamma": 0.01}')])
def test_two_ranks_equal_one(method: str, accumulation: int, hyper: str, prepared: Prepared, tmp_path: Path) -> None:
    """Memory banks too, which each rank fills with the examples of both."""
    one, two = tmp_path / "one", tmp_path / "two"
    main(prepared.folder, one, method, accumulation, hyper)
    said = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "tests.training.ranks", str(prepared.folder), str(two), method, str(accumulation),
         hyper],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200)
    assert said.returncode == 0, said.stderr
    (alone,), ranks = _results(one, 1), _results(two, 2)
    for part in ("student", "objective"):
        for name, value in alone[part].items():
            assert torch.equal(ranks[0][part][name], ranks[1][part][name]), name
            if not name.endswith("key.bias"):  # softmax ignores it: its gradient is rounding, which AdamW scales up
                torch.testing.assert_close(ranks[0][part][name], value, rtol=0, atol=2e-4, msg=name)
    for mine, theirs in zip(alone["record"]["history"], ranks[0]["record"]["history"], strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-4)
        assert theirs["diagnostics"].keys() == mine["diagnostics"].keys()
    assert ranks[0]["record"]["selected"] == ranks[1]["record"]["selected"]
    first = [line["gradient_norm"] for line in (steps(one)[0], steps(two)[0])]
    assert first[1] == pytest.approx(first[0], rel=1e-5)
    assert len(lines(one)) == len(lines(two))  # one process writes


def _results(folder: Path, ranks: int) -> list[dict[str, Any]]:
    return [torch.load(folder / f"result-{rank}.pt", weights_only=False) for rank in range(ranks)]
