"""Everything that learns is optimised, once, and can be restored before any forward (lessons A9, A10, B28, B30)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from kdcore import methods
from kdcore.data.prepared import Prepared
from kdcore.objective import Phase
from kdcore.training.distiller import Distiller
from kdcore.training.optimiser import parameter_groups
from kdcore.training.precision import Precision
from tests.training.doubles import Watched, watched
from tests.training.problem import phases_of, run, steps, tiny_student

FP32 = Precision("fp32", "cpu")


class HalfOwned(Watched):
    """Keeps a part for an optimiser of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(4, 4)

    def main_parameters(self) -> Iterator[nn.Parameter]:
        return self.bridge.parameters()


@pytest.mark.parametrize("method", methods.names())
def test_every_parameter_is_in_exactly_one_group(method: str, prepared: Prepared) -> None:
    for phase in phases_of(method, prepared):
        distiller = Distiller(tiny_student(prepared), phase.objective, FP32)
        grouped = [id(p) for group in parameter_groups(distiller, 0.01) for p in group["params"]]
        learning = {id(p) for p in distiller.student.parameters()} | {
            id(p) for p in phase.objective.main_parameters() if p.requires_grad}
        assert len(grouped) == len(set(grouped))
        assert set(grouped) == learning


def test_what_decays(prepared: Prepared) -> None:
    distiller = Distiller(tiny_student(prepared), Watched(), FP32)
    names = {id(parameter): name for name, parameter in distiller.named_parameters()}
    decays, stays = parameter_groups(distiller, 0.01)
    assert (decays["weight_decay"], stays["weight_decay"]) == (0.01, 0.0)
    assert all(names[id(p)].endswith("bias") or "LayerNorm" in names[id(p)] for p in stays["params"])
    assert not any(names[id(p)].endswith("bias") or "LayerNorm" in names[id(p)] for p in decays["params"])
    assert "objective.bridge.weight" in {names[id(p)] for p in decays["params"]}


def test_parts_with_an_optimiser_of_their_own_are_left_out(prepared: Prepared, folder: Path) -> None:
    objective = HalfOwned()
    distiller = Distiller(tiny_student(prepared), objective, FP32)
    grouped = {id(p) for group in parameter_groups(distiller, 0.01) for p in group["params"]}
    assert id(objective.bridge.weight) in grouped
    assert not grouped & {id(p) for p in objective.own.parameters()}
    before = objective.own.weight.clone()
    run(prepared, folder, phases=(Phase("toy", objective),), epochs=1)
    assert torch.equal(before, objective.own.weight)


def test_frozen_parameters_stay(prepared: Prepared, folder: Path) -> None:
    (phase,) = phases_of("rail_kd_l", prepared, freeze_teacher_projection=True)
    frozen = phase.objective.teacher_projection.maps[0].weight
    before = frozen.clone()
    run(prepared, folder, phases=(phase,), epochs=1)
    assert torch.equal(before, frozen)


@pytest.mark.parametrize("method", ["rail_kd_l", "rail_kd_c"])
def test_projections_move_with_the_first_step(method: str, prepared: Prepared, folder: Path) -> None:
    phases = phases_of(method, prepared)
    before = {name: value.clone() for name, value in phases[0].objective.named_parameters()}
    run(prepared, folder, phases=phases, epochs=1 / 6, warmup_share=0.0)
    assert before
    for name, value in phases[0].objective.named_parameters():
        assert not torch.equal(before[name], value), name


def test_optimiser_state_loads_before_any_forward(prepared: Prepared) -> None:
    """Nothing is created at the first call: the group sizes are final at once."""
    def new() -> torch.optim.AdamW:
        (phase,) = phases_of("rail_kd_c", prepared)
        return torch.optim.AdamW(parameter_groups(Distiller(tiny_student(prepared), phase.objective, FP32), 0.01))

    one, other = new(), new()
    other.load_state_dict(one.state_dict())  # raises when sizes differ
    assert [len(group["params"]) for group in one.param_groups] == [len(g["params"]) for g in other.param_groups]


def test_clipping_covers_projections(prepared: Prepared, folder: Path) -> None:
    """The norm that is clipped counts the bridge's gradient, which outweighs the student's a thousandfold here."""
    run(prepared, folder / "small", phases=watched(), epochs=1 / 6)
    run(prepared, folder / "large", phases=watched(interfere=lambda step, part: 1e6 * part), epochs=1 / 6)
    assert steps(folder / "large")[0]["gradient_norm"] > 1e3 * steps(folder / "small")[0]["gradient_norm"]


def test_schedule(prepared: Prepared, folder: Path) -> None:
    """Warm-up from zero over a tenth of the steps, then down to zero; or constant after it."""
    run(prepared, folder / "a", phases=watched(), learning_rate=1e-3, warmup_share=0.5)
    rates = [line["learning_rate"] for line in steps(folder / "a")]
    assert rates == pytest.approx([i * 1e-3 / 6 for i in (0, 1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1)])
    run(prepared, folder / "b", phases=watched(), learning_rate=1e-3, warmup_share=0.1, schedule="constant")
    assert [line["learning_rate"] for line in steps(folder / "b")] == pytest.approx([0, 5e-4] + 10 * [1e-3])
