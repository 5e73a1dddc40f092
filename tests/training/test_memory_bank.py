"""CoDIR's memory bank through a training: interruptions, micro-batches, skipped steps, export (lesson B19).

Two ranks are in `test_distributed`.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore.data.prepared import Prepared
from kdcore.export import export
from kdcore.features import Features
from kdcore.objective import Batch, Loss, Objective, Phase, Progress
from kdcore.training import checkpoint
from tests.tiny import tiny_tokenizer
from tests.training.doubles import Stop
from tests.training.problem import phases_of, run, same_weights, steps

KINDS: dict[str, dict[str, Any]] = {
    "momentum": {}, "refresh": {"bank": "refresh"}, "two_sided": {"objective": "nce_two_sided"}}


def phases(prepared: Prepared, hyper: dict[str, Any], crash_at: int = -1, poison_at: int = -1) -> tuple[Phase, ...]:
    """CoDIR with few negatives, which crashes in a step or gives one example no finite loss there."""
    (phase,) = phases_of("codir", prepared, negatives=10, gamma=1.0, **hyper)
    objective, forward = phase.objective, phase.objective.forward

    def watched(student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        if progress.step == crash_at:
            raise Stop
        loss = forward(student, teacher, batch, progress)
        if progress.step != poison_at:
            return loss
        bad = torch.cat([loss.parts["kd"][:1] * torch.nan, loss.parts["kd"][1:]])
        return Loss({**loss.parts, "kd": bad}, loss.weights)

    objective.forward = watched  # type: ignore[method-assign]
    return (phase,)


def state(objective: Objective) -> dict[str, Tensor]:
    return {name: value for name, value in objective.state_dict().items() if name.startswith("contrast")}


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize(("kind", "step"), [("momentum", 2), ("refresh", 6), ("refresh", 8), ("two_sided", 7)])
def test_resumed_equals_uninterrupted(prepared: Prepared, tmp_path: Path, kind: str, step: int) -> None:
    """To the byte, bank and Z included, in an epoch of six steps and at the start of one."""
    undisturbed, crashing, again = (phases(prepared, KINDS[kind], crash_at=crash) for crash in (-1, step, -1))
    straight = run(prepared, tmp_path / "a", phases=undisturbed, epochs=1.5)
    with pytest.raises(Stop):
        run(prepared, tmp_path / "b", phases=crashing, epochs=1.5)
    saved = torch.load(checkpoint.latest(tmp_path / "b") / "modules.pt", weights_only=True)
    assert {f"objectives.0.{name}" for name in state(crashing[0].objective)} <= saved.keys()
    resumed = run(prepared, tmp_path / "b", phases=again, epochs=1.5)
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record
    for name, value in undisturbed[0].objective.state_dict().items():
        assert torch.equal(value, again[0].objective.state_dict()[name]), name


@pytest.mark.parametrize("hyper", KINDS.values(), ids=KINDS)
def test_micro_batches_equal_the_whole_batch(prepared: Prepared, tmp_path: Path, hyper: dict[str, Any]) -> None:
    """The bank is moved once a step, by all of its examples; the loss of every step is the same."""
    trained = []
    for accumulation in (1, 4):
        folder, made = tmp_path / str(accumulation), phases(prepared, hyper)
        run(prepared, folder, phases=made, dropout=0.0, accumulation=accumulation, epochs=1)
        trained.append((state(made[0].objective), steps(folder)))
    for name, value in trained[0][0].items():
        torch.testing.assert_close(trained[1][0][name], value, rtol=1e-3, atol=1e-4, msg=name)
    for one, many in zip(trained[0][1], trained[1][1], strict=True):
        assert many["loss/codir"] == pytest.approx(one["loss/codir"], rel=2e-4)


def test_a_step_that_was_skipped_moves_no_row(prepared: Prepared, tmp_path: Path) -> None:
    """Its vectors may be of no use, and the weights that gave them were not learned from."""
    made = phases(prepared, {}, poison_at=0)
    before = made[0].objective.contrast.bank.rows.clone()
    result = run(prepared, tmp_path, phases=made, epochs=1, keep="last")
    assert result.record["skipped_steps"] == 1
    rows = made[0].objective.contrast.bank.rows
    assert rows.isfinite().all()
    assert int((rows == before).all(dim=1).sum()) == 15  # an epoch has six steps of fifteen


def test_an_epoch_moves_every_row(prepared: Prepared, tmp_path: Path) -> None:
    made = phases(prepared, {})
    before = made[0].objective.contrast.bank.rows.clone()
    run(prepared, tmp_path, phases=made, epochs=1)
    rows = made[0].objective.contrast.bank.rows
    assert not (rows == before).all(dim=1).any()
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)), rtol=0, atol=1e-6)


def test_scores_too(scores: Prepared, tmp_path: Path) -> None:
    result = run(scores, tmp_path, phases=phases(scores, {}), epochs=1)
    assert result.record["history"][0]["parts"]["codir"] > 0


def test_export_holds_neither_bank_nor_maps(prepared: Prepared, tmp_path: Path) -> None:
    result = run(prepared, tmp_path / "work", phases=phases(prepared, {}), epochs=0.5)
    export(result.student, tiny_tokenizer("bert"), result.record, tmp_path / "student")
    loaded = type(result.student).from_pretrained(tmp_path / "student")
    assert same_weights(loaded, result.student)
    assert not [name for name in loaded.state_dict() if "bank" in name or "projection" in name]
    weights = sum(value.numel() for value in result.student.state_dict().values())
    assert (tmp_path / "student" / "model.safetensors").stat().st_size < 4 * weights + 20_000
