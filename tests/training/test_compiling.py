"""Compiled layers train as plain ones do."""

import shutil
from pathlib import Path

import pytest

from kdcore.data.batching import LengthGroupedBatches
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.features import FeatureKey
from kdcore.training.batches import Shares
from kdcore.training.compiling import compiled
from tests.training.problem import run, tiny_student, write_prepared


def test_features_inside_layers_are_refused(prepared: Prepared) -> None:
    needs = frozenset({FeatureKey("query", 2), FeatureKey("logits")})
    with pytest.raises(UserError, match=r"^compile is true, but this method reads query-02 inside"), \
            compiled(tiny_student(prepared), needs):
        pass


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_same_training(tmp_path: Path) -> None:
    """With code for inputs of any length, which a batch of another length does not compile anew (A78)."""
    import torch._dynamo  # takes a second, as compiling does

    prepared = write_prepared(tmp_path / "prepared", longest=28)
    lengths = prepared.tokens("train", "student").lengths
    assert len({lengths[share.rows].max() for share in Shares(LengthGroupedBatches(lengths, 16, 1))}) > 4
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    plain, quick = (run(prepared, tmp_path / str(flag), "rail_kd_l", dropout=0.0, compile=flag)
                    for flag in (False, True))
    assert 0 < counters["stats"]["unique_graphs"] <= 4  # all layers share one for training and one for evaluation
    for one, other in zip(plain.record["history"], quick.record["history"], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3)
        assert other["diagnostics"]["layer/1"] == one["diagnostics"]["layer/1"]
    assert not any("forward" in vars(module) for module in quick.student.modules())
    assert plain.student.state_dict().keys() == quick.student.state_dict().keys()
