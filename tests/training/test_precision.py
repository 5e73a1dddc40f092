"""Half precision: only the models compute in it, and only where it pays (lessons A16, A40)."""

from pathlib import Path

import pytest
import torch

from kdcore import methods
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.features import Features
from kdcore.objective import Batch, Loss, Phase, Progress
from kdcore.training import precision
from kdcore.training.precision import resolve
from tests.training.doubles import Watched
from tests.training.problem import run

CPU = torch.device("cpu")


@pytest.mark.parametrize(("native", "name"), [(True, "bf16"), (False, "fp32")])
def test_auto_follows_the_hardware(native: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "native_bf16", lambda device: native)
    assert resolve("auto", CPU).name == name
    assert resolve("fp32", CPU).name == "fp32"


def test_fp16_needs_cuda() -> None:
    with pytest.raises(UserError, match="fp16, which needs CUDA, but this machine trains on cpu"):
        resolve("fp16", CPU)


@pytest.mark.parametrize("method", methods.names())
def test_bf16_trains_as_fp32_does(method: str, prepared: Prepared, tmp_path: Path) -> None:
    exact, half = (run(prepared, tmp_path / name, method, precision=name, dropout=0.0, epochs=1)
                   for name in ("fp32", "bf16"))
    assert half.record["precision"] == "bf16"
    for name, value in exact.record["history"][0]["parts"].items():
        assert half.record["history"][0]["parts"][name] == pytest.approx(value, rel=0.05, abs=0.02), name
    assert {value.dtype for value in half.student.state_dict().values() if value.is_floating_point()} == {torch.float32}


def test_losses_are_float32(prepared: Prepared, folder: Path) -> None:
    """The objective gets float32 and autocast does not reach into it."""
    class Typed(Watched):
        def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
            assert not torch.is_autocast_enabled("cpu")
            assert {value.dtype for value in student.values()} == {torch.float32}
            assert self.bridge(torch.ones(1, 16)).dtype == torch.float32
            return super().forward(student, teacher, batch, progress)

    run(prepared, folder, phases=(Phase("toy", Typed()),), precision="bf16", epochs=1)
