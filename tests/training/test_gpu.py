"""On CUDA: every precision trains, and a resumed training ends near an undisturbed one."""

from pathlib import Path

import pytest
import torch

from kdcore import general, methods
from kdcore.data.prepared import Prepared
from tests.corpora import tiny_corpus
from tests.training import corpus_problem
from tests.training.doubles import Stop, poison, stop_at, watched
from tests.training.problem import phases_of, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("method", methods.names())
def test_every_precision(method: str, precision: str, prepared: Prepared, tmp_path: Path) -> None:
    couples = any(phase.objective.couples_examples for phase in phases_of(method, prepared))
    result = run(prepared, tmp_path, method, precision=precision, epochs=3, accumulation=1 if couples else 2)
    assert result.record["precision"] == precision
    assert result.student.device.type == "cpu"
    assert all(torch.isfinite(value).all() for value in result.student.state_dict().values())
    assert result.record["history"][-1]["loss"] < result.record["history"][0]["loss"] * 1.5
    assert result.measured["peak_cuda_bytes"] > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("method", general.names())
def test_every_precision_on_a_corpus(method: str, precision: str, tmp_path: Path) -> None:
    """The teacher is live on the same device; counts of a step's tokens stay on the host."""
    corpus = tiny_corpus(tmp_path)
    teacher, student = (corpus_problem.save_encoder(tmp_path / str(seed), layers=3, seed=seed) for seed in (3, 5))
    result = corpus_problem.run(method, corpus, teacher, student, tmp_path, precision=precision, accumulation=2)
    assert result.record["precision"] == precision
    assert all(torch.isfinite(value).all() for value in result.student.state_dict().values())
    assert not result.record["skipped_steps"] or precision == "fp16"


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_resume(precision: str, prepared: Prepared, tmp_path: Path) -> None:
    straight = run(prepared, tmp_path / "a", phases=watched(), precision=precision)
    with pytest.raises(Stop):
        run(prepared, tmp_path / "b", phases=watched(interfere=stop_at(8)), precision=precision)
    resumed = run(prepared, tmp_path / "b", phases=watched(), precision=precision)
    for one, other in zip(straight.record["history"], resumed.record["history"], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_non_finite_steps_are_skipped(precision: str, prepared: Prepared, folder: Path) -> None:
    result = run(prepared, folder, phases=watched(interfere=poison(2, 3)), precision=precision)
    assert result.record["skipped_steps"] == 2
    assert all(torch.isfinite(value).all() for value in result.student.state_dict().values())
