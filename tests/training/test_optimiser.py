"""Everything that learns is optimised, once, and can be restored before any forward (lessons A9, A10, B28, B30)."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForMaskedLM

from kdcore import methods
from kdcore.data.prepared import Prepared
from kdcore.models.reading import FAMILIES
from kdcore.objective import Phase
from kdcore.training import trainer
from kdcore.training.distiller import Distiller
from kdcore.training.optimiser import freezing, parameter_groups
from kdcore.training.precision import Precision
from kdcore.training.run import effective
from tests.tiny import tiny_config, tiny_model
from tests.training.doubles import Stop, Watched, stop_at, watched
from tests.training.problem import phases_of, run, same_weights, settings, steps, tiny_student

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
        grouped = [id(p) for group in parameter_groups(distiller, 0.01, 1e-3) for p in group["params"]]
        learning = {id(p) for p in distiller.student.parameters()} | {
            id(p) for p in phase.objective.main_parameters() if p.requires_grad}
        assert len(grouped) == len(set(grouped))
        assert set(grouped) == learning


def test_what_decays(prepared: Prepared) -> None:
    distiller = Distiller(tiny_student(prepared), Watched(), FP32)
    names = {id(parameter): name for name, parameter in distiller.named_parameters()}
    decays, stays = parameter_groups(distiller, 0.01, 1e-3)
    assert (decays["weight_decay"], stays["weight_decay"]) == (0.01, 0.0)
    assert all(names[id(p)].endswith("bias") or "LayerNorm" in names[id(p)] for p in stays["params"])
    assert not any(names[id(p)].endswith("bias") or "LayerNorm" in names[id(p)] for p in decays["params"])
    assert "objective.bridge.weight" in {names[id(p)] for p in decays["params"]}


def test_parts_with_an_optimiser_of_their_own_are_left_out(prepared: Prepared, folder: Path) -> None:
    objective = HalfOwned()
    distiller = Distiller(tiny_student(prepared), objective, FP32)
    grouped = {id(p) for group in parameter_groups(distiller, 0.01, 1e-3) for p in group["params"]}
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
        return torch.optim.AdamW(parameter_groups(Distiller(tiny_student(prepared), phase.objective, FP32), 0.01, 1e-3))

    one, other = new(), new()
    other.load_state_dict(one.state_dict())  # raises when sizes differ
    assert [len(group["params"]) for group in one.param_groups] == [len(g["params"]) for g in other.param_groups]


def test_clipping_covers_projections(prepared: Prepared, folder: Path) -> None:
    """The norm that is clipped counts the bridge's gradient, which outweighs the student's a thousandfold here."""
    run(prepared, folder / "small", phases=watched(), epochs=1 / 6)
    run(prepared, folder / "large", phases=watched(interfere=lambda step, part: 1e6 * part), epochs=1 / 6)
    assert steps(folder / "large")[0]["gradient_norm"] > 1e3 * steps(folder / "small")[0]["gradient_norm"]


def test_what_the_optimiser_meets_is_as_the_settings_say(prepared: Prepared, folder: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients cut to `clip_norm`, the bridge's as well, and AdamW's own settings (B5, B28)."""
    made: list[torch.optim.Optimizer] = []
    norms: list[float] = []
    create = trainer.DistillationTrainer.create_optimizer

    def note(optimiser: torch.optim.Optimizer, *_: object) -> None:
        learning = [p.grad for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
        norms.append(nn.utils.get_total_norm(learning).item())

    def watching(self: trainer.DistillationTrainer, model: nn.Module | None = None) -> torch.optim.Optimizer:
        optimiser = create(self, model)
        if not made:
            made.append(optimiser)
            optimiser.register_step_pre_hook(note)
        return optimiser

    monkeypatch.setattr(trainer.DistillationTrainer, "create_optimizer", watching)
    run(prepared, folder, phases=watched(interfere=lambda step, part: 1e6 * part), epochs=1, clip_norm=0.5,
        weight_decay=0.3, betas=(0.8, 0.9), epsilon=1e-5)
    assert norms == pytest.approx(6 * [0.5], rel=1e-3)
    groups = made[0].param_groups
    assert {group["weight_decay"] for group in groups} == {0.3, 0.0}
    assert {(group["betas"], group["eps"]) for group in groups} == {((0.8, 0.9), 1e-5)}


def test_schedule(prepared: Prepared, folder: Path) -> None:
    """Warm-up from zero over a tenth of the steps, then down to zero; or constant after it."""
    run(prepared, folder / "a", phases=watched(), learning_rate=1e-3, warmup_share=0.5)
    rates = [line["learning_rate"] for line in steps(folder / "a")]
    assert rates == pytest.approx([i * 1e-3 / 6 for i in (0, 1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1)])
    run(prepared, folder / "b", phases=watched(), learning_rate=1e-3, warmup_share=0.1, schedule="constant")
    assert [line["learning_rate"] for line in steps(folder / "b")] == pytest.approx([0, 5e-4] + 10 * [1e-3])


# Rates of layers


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def rate_of(name: str, rates: tuple[float, ...]) -> float:
    """The factor that a parameter of a tiny BERT is to have."""
    if "embeddings" in name:
        return rates[0]
    layer = re.search(r"encoder\.layer\.(\d+)", name)
    return rates[int(layer[1]) + 1] if layer else 1.0


def test_each_layer_has_its_rate(prepared: Prepared) -> None:
    rates = (0.5, 0.1, 1.0, 2.0)
    distiller = Distiller(tiny_student(prepared), Watched(), FP32)
    names = {id(parameter): name for name, parameter in distiller.named_parameters()}
    groups = parameter_groups(distiller, 0.01, 1e-3, rates)
    assert [group["lr"] for group in groups[::2]] == pytest.approx([2e-3, 1e-3, 5e-4, 1e-4])
    found = {names[id(p)]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert found.keys() == dict(distiller.named_parameters()).keys()
    for name, (rate, decay) in found.items():
        assert rate == pytest.approx(1e-3 * rate_of(name, rates)), name
        assert decay == (0.0 if name.endswith("bias") or "LayerNorm" in name else 0.01)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_and_embeddings_of_every_family(family: str) -> None:
    """Of the base model all but the pooler is either a layer's or counts as embeddings."""
    model = tiny_model(family, layers=2)
    distiller = Distiller(model, Watched(), FP32)
    groups = parameter_groups(distiller, 0.0, 1.0, (0.25, 0.5, 0.75))
    numbers = {rate: sum(p.numel() for group in groups if group["lr"] == rate for p in group["params"])
               for rate in (0.25, 0.5, 0.75)}
    base = sum(p.numel() for name, p in model.base_model.named_parameters() if not name.startswith("pooler"))
    assert sum(numbers.values()) == base
    assert min(numbers.values()) > 0
    rated = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rated[id(model.get_input_embeddings().weight)] == 0.25
    assert {rated[id(p)] for name, p in model.named_parameters() if name.startswith("classifier")} == {1.0}


def test_a_head_that_shares_the_embeddings_has_their_rate() -> None:
    model = AutoModelForMaskedLM.from_config(tiny_config("bert", 2, 32, None))
    groups = parameter_groups(Distiller(model, Watched(), FP32), 0.0, 1.0, (0.5, 1.0, 1.0))
    shared = model.get_output_embeddings().weight
    assert shared is model.get_input_embeddings().weight
    assert [group["lr"] for group in groups for p in group["params"] if p is shared] == [0.5]
    with freezing(model, (0.0, 1.0, 1.0)):
        assert not shared.requires_grad
        assert model.get_output_embeddings().bias.requires_grad


def test_frozen_layers_keep_their_bytes(prepared: Prepared, folder: Path) -> None:
    rates = (0.0, 0.1, 1.0, 0.0)
    before = weights(tiny_student(prepared))
    student = run(prepared, folder, phases=(Phase("toy", watched()[0].objective, layer_rates=rates),)).student
    for name, value in student.state_dict().items():
        assert torch.equal(before[name], value) == (rate_of(name, rates) == 0), name
    assert all(parameter.requires_grad for parameter in student.parameters())


def test_frozen_parts_are_freed_after_a_crash_as_well(prepared: Prepared) -> None:
    student = tiny_student(prepared)
    student.classifier.bias.requires_grad_(False)

    def crash() -> None:
        with freezing(student, (0.0, 1.0, 1.0, 1.0)):
            assert not student.get_input_embeddings().weight.requires_grad
            raise Stop

    with pytest.raises(Stop):
        crash()
    assert [name for name, p in student.named_parameters() if not p.requires_grad] == ["classifier.bias"]


def test_a_tenth_of_the_rate_is_a_tenth_of_the_step(prepared: Prepared, tmp_path: Path) -> None:
    """AdamW's first step is proportional to the rate, without decay."""
    rates, before, moved = (1.0, 0.1, 1.0, 1.0), weights(tiny_student(prepared)), []
    for name, wanted in (("a", None), ("b", rates)):
        phase = Phase("toy", watched()[0].objective, layer_rates=wanted)
        student = run(prepared, tmp_path / name, phases=(phase,), steps=1, warmup_share=0.0, weight_decay=0.0).student
        moved.append({key: value - before[key] for key, value in student.state_dict().items()})
    for name, whole in moved[0].items():
        torch.testing.assert_close(moved[1][name], rate_of(name, rates) * whole, rtol=0.02, atol=1e-7, msg=name)


def test_the_schedule_keeps_the_factors(prepared: Prepared, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.optim.Optimizer] = []
    create = trainer.DistillationTrainer.create_optimizer
    monkeypatch.setattr(trainer.DistillationTrainer, "create_optimizer",
                        lambda self, model=None: made.append(create(self, model)) or made[-1])
    seen: list[list[float]] = []

    def note(step: int, part: torch.Tensor) -> torch.Tensor:
        seen.append([group["lr"] for group in made[0].param_groups[::2]])
        return part

    phase = Phase("toy", watched(interfere=note)[0].objective, layer_rates=(0.0, 0.1, 1.0, 0.5))
    run(prepared, folder, phases=(phase,), learning_rate=1e-3, warmup_share=0.5)
    full = [i * 1e-3 / 6 for i in (0, 1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1)]
    assert seen == [pytest.approx([rate, 0.5 * rate, 0.1 * rate]) for rate in full]
    assert [line["learning_rate"] for line in steps(folder)] == pytest.approx(full)


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize("step", [2, 5, 8])
def test_resume_in_the_middle_of_progressive_phases(prepared: Prepared, tmp_path: Path, step: int) -> None:
    """One phase per layer, those above frozen, those below slow; four steps each of twelve in all."""
    def phases(stop: int) -> tuple[Phase, ...]:
        found = []
        for layer in (1, 2, 3):
            rates = (0.0, *(0.1 if other < layer else float(other == layer) for other in (1, 2, 3)))
            torch.manual_seed(layer)
            objective = Watched(stop_at(stop - 4 * (layer - 1)))
            found.append(Phase(f"layer {layer}", objective, share=1 / 3, layer_rates=rates))
        return tuple(found)

    straight = run(prepared, tmp_path / "a", phases=phases(-1), steps=12)
    with pytest.raises(Stop):
        run(prepared, tmp_path / "b", phases=phases(step), steps=12)
    resumed = run(prepared, tmp_path / "b", phases=phases(-1), steps=12)
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record
    assert [phase["layer_rates"] for phase in resumed.record["phases"]] == [
        [0, 1, 0, 0], [0, 0.1, 1, 0], [0, 0.1, 0.1, 1]]


def test_shares_of_a_training() -> None:
    phase = Phase("toy", Watched(), share=0.25)
    assert effective(settings(epochs=6), phase).epochs == 1.5
    assert effective(settings(steps=10), phase).steps == 2
    assert effective(settings(steps=1), phase).steps == 1
    assert effective(settings(epochs=6, steps=None), phase).steps is None


@pytest.mark.parametrize("rates", [(0.0, 1.0), (1.0,) * 5])
def test_rates_that_do_not_fit_the_student(rates: tuple[float, ...], prepared: Prepared, folder: Path) -> None:
    with pytest.raises(ValueError, match=rf"^{len(rates)} layer rates for a student of 3 layers; .* 4 in all$"):
        run(prepared, folder, phases=(Phase("toy", Watched(), layer_rates=rates),))
