"""Training on CUDA does what training on the CPU does, in every precision, and resumes."""

from pathlib import Path

import pytest
import torch

from kdcore.bench import corpus, models
from kdcore.config import Training
from kdcore.data.prepared import Prepared
from kdcore.methods import finetune
from kdcore.models.loading import dims
from kdcore.objective import Setting
from kdcore.training import checkpoint, run, trainer
from kdcore.training.datasets import OfDataset
from kdcore.training.journal import Journal
from kdcore.training.run import TrainingResult

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

ROWS, STEPS, BATCH = 256, 8, 32


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Prepared:
    return corpus.write(tmp_path_factory.mktemp("gpu") / "prepared", ROWS, dev_rows=32)


@pytest.fixture(scope="module")
def shape(tmp_path_factory) -> Path:
    return models.write_config(tmp_path_factory.mktemp("gpu") / "student", layers=2, width=64, heads=4)


def _train(folder: Path, prepared: Prepared, shape: Path, precision: str, steps: int = STEPS,
           dropout: float = 0.0, seed: int = 5) -> TrainingResult:
    student = models.classifier(shape, dropout=dropout)
    size = dims(student)
    setting = Setting(teacher=size, student=size, classes=2, regression=False, labels=prepared.labels("train"),
                      batch_size=BATCH, seed=seed)
    phases = finetune.phases(finetune.Config(), setting)
    settings = Training(epochs=steps * BATCH / ROWS, batch_size=BATCH, learning_rate=1e-3, precision=precision,
                        keep="last")
    return run.train(student, phases, OfDataset(prepared), settings, seed, folder, Journal(folder / "log.jsonl"),
                     "gpu test")


def _distance(one: TrainingResult, other: TrainingResult) -> float:
    """Largest difference of any weight."""
    return max((a - b).abs().max().item() for a, b in zip(one.student.parameters(), other.student.parameters(),
                                                          strict=True))


@pytest.fixture
def on_cpu(tmp_path, prepared, shape, monkeypatch) -> TrainingResult:
    with monkeypatch.context() as patch:
        patch.setattr(run, "device", lambda: torch.device("cpu"))
        return _train(tmp_path / "cpu", prepared, shape, "fp32")


def test_fp32_ends_with_the_weights_of_the_cpu(tmp_path, prepared, shape, on_cpu):
    """Adam divides by gradients' size, so weights whose gradient is rounding noise may differ by a step."""
    result = _train(tmp_path / "cuda", prepared, shape, "fp32")
    assert result.measured["device"] == torch.cuda.get_device_name()
    losses = [(a["loss"], b["loss"]) for a, b in zip(result.record["history"], on_cpu.record["history"], strict=True)]
    assert all(a == pytest.approx(b, rel=1e-4) for a, b in losses)
    logits = [_logits(r, prepared) for r in (result, on_cpu)]
    torch.testing.assert_close(*logits, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_stays_near_fp32(precision, tmp_path, prepared, shape, on_cpu):
    result = _train(tmp_path / "cuda", prepared, shape, precision)
    assert result.record["skipped_steps"] == 0 or precision == "fp16"  # the scaler may skip the first
    assert result.record["history"][-1]["loss"] == pytest.approx(on_cpu.record["history"][-1]["loss"], rel=0.05)
    assert all(torch.isfinite(p).all() and p.dtype == torch.float32 for p in result.student.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_interrupted_training_ends_like_an_undisturbed_one(precision, tmp_path, prepared, shape, monkeypatch):
    """Dropout on, so the random state of the device is restored too."""
    whole = _train(tmp_path / "whole", prepared, shape, precision, dropout=0.1)
    taken = 0
    step = run.DistillationTrainer.training_step

    def interrupted(*arguments: object, **named: object) -> torch.Tensor:
        nonlocal taken
        taken += 1
        if taken == STEPS // 2 + 2:
            raise KeyboardInterrupt
        return step(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "SAVE_SECONDS", 0.0)
        patch.setattr(trainer, "SAVING_SHARE", 1e9)  # a checkpoint after every step
        patch.setattr(run.DistillationTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _train(tmp_path / "cut", prepared, shape, precision, dropout=0.1)
    assert checkpoint.latest(tmp_path / "cut") is not None
    resumed = _train(tmp_path / "cut", prepared, shape, precision, dropout=0.1)
    assert resumed.record["history"][-1]["loss"] == pytest.approx(whole.record["history"][-1]["loss"], rel=1e-3)
    assert _distance(resumed, whole) < 2e-3


def _logits(result: TrainingResult, prepared: Prepared) -> torch.Tensor:
    rows = prepared.tokens("validation", "student").pad(torch.arange(32))
    with torch.inference_mode():
        return result.student(**rows).logits
