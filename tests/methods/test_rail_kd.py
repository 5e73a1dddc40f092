"""RAIL-KD, layer-wise and concatenated: golden values, options, invariances, collapse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore import methods
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features, masked_mean
from kdcore.objective import Batch, Dims, Loss, Objective, Setting
from kdcore.projection import COLLAPSE_ALARMS
from tests.methods.toys import CLASSIFICATION, Toy, batch, progress, toys
from tests.test_losses import GRADIENT, VALUE, vectors

BOTH = ("rail_kd_l", "rail_kd_c")
GOLDEN = Setting(Dims(8, 12, 2, 11), Dims(4, 8, 2, 11), classes=3, regression=False,
                 labels=torch.zeros(4, dtype=torch.int64), batch_size=4, seed=0)
both = pytest.mark.parametrize("name", BOTH)


def objective_of(name: str, setting: Setting = CLASSIFICATION, **settings: Any) -> Objective:
    (phase,) = methods.load(name).phases(methods.configure(name, settings), setting)
    return phase.objective.double()


def loss_of(objective: Objective, models: tuple[Toy, Toy], step: int = 0) -> Loss:
    needs, ids = objective.needs_at(progress(step)), torch.arange(8)
    return objective(models[0].features(ids, needs.student), models[1].features(ids, needs.teacher),
                     batch(CLASSIFICATION, ids), progress(step))


# Golden vectors


def golden_objective(data: dict[str, Tensor], name: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Objective:
    """With the golden projections and the golden draw."""
    objective = objective_of(name, GOLDEN, width=5, **settings)
    suffix = "" if name == "rail_kd_l" else "_cat"
    for side in ("student", "teacher"):
        (linear,) = getattr(objective, f"{side}_projection").maps
        linear.weight.data = data[f"in.w_{side}{suffix}"].T.contiguous()
        if linear.bias is not None:
            linear.bias.data = data[f"in.b_{side}{suffix}"]
    monkeypatch.setattr(objective.draw, "at", lambda epoch, step: tuple(data["in.teacher_layers"].tolist()))
    return objective


def golden_loss(data: dict[str, Tensor], objective: Objective, masked: bool = True) -> Loss:
    mask = data["in.mask"].long() if masked else torch.ones_like(data["in.mask"], dtype=torch.int64)
    sides = []
    for side in ("student", "teacher"):
        means = {FeatureKey("mean", layer): masked_mean(states, mask)
                 for layer, states in enumerate(data[f"in.{side}_hidden"].unbind())}
        sides.append(Features(means | {LOGITS: data[f"in.{side}_logits"]}))
    return objective(*sides, Batch(torch.arange(4), data["in.labels"]), progress(0))


@pytest.mark.parametrize(
    ("name", "expected", "settings", "masked"),
    [
        ("rail_kd_l", "layerwise", {}, True),
        ("rail_kd_l", "layerwise_alphas", {"alphas": [1.0, 0.5, 2.0]}, True),
        ("rail_kd_l", "layerwise_nobias", {"bias": False}, True),
        ("rail_kd_l", "layerwise_unmasked", {}, False),  # as in third-party code; no option of ours
        ("rail_kd_c", "concat", {}, True),
        ("rail_kd_c", "concat_nobias", {"bias": False}, True),
        ("rail_kd_c", "concat_unmasked", {}, False),
    ],
)
def test_golden_value(golden: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: str,
                      settings: dict[str, Any], masked: bool) -> None:
    data = vectors(golden, "07_rail")
    loss = golden_loss(data, golden_objective(data, name, monkeypatch, **settings), masked)
    torch.testing.assert_close(loss.parts["rail"].mean(), data[f"out.{expected}"], **VALUE)


def test_golden_total(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = vectors(golden, "07_rail")
    loss = golden_loss(data, golden_objective(data, "rail_kd_l", monkeypatch))
    torch.testing.assert_close(loss.total.mean(), data["out.total_third_each"], **VALUE)
    assert {k: v for k, v in loss.diagnostics.items() if k.startswith("layer")} == {
        "layer/1": 2.0, "layer/2": 3.0, "layer/3": 6.0}


def test_golden_gradients(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = vectors(golden, "07_rail")
    data["in.student_hidden"].requires_grad_()
    objective = golden_objective(data, "rail_kd_l", monkeypatch)
    golden_loss(data, objective).parts["rail"].mean().backward()
    torch.testing.assert_close(data["in.student_hidden"].grad[1], data["grad.layerwise__student_hidden1"], **GRADIENT)
    for side in ("student", "teacher"):
        weight = getattr(objective, f"{side}_projection").maps[0].weight
        torch.testing.assert_close(weight.grad.T, data[f"grad.layerwise__w_{side}"], **GRADIENT)
    objective = golden_objective(data, "rail_kd_c", monkeypatch)
    golden_loss(data, objective).parts["rail"].mean().backward()
    torch.testing.assert_close(objective.student_projection.maps[0].weight.grad.T,
                               data["grad.concat__w_student_cat"], **GRADIENT)


# Layers


@both
def test_a_teacher_of_constants_shows_which_layers_are_read(name: str) -> None:
    """12 to 6: five layers of 1..11, ascending; never embeddings, never the last layer, of either model."""
    setting = replace(CLASSIFICATION, teacher=Dims(12, 4, 2, 31), student=Dims(6, 4, 2, 31))
    objective = objective_of(name, setting)
    assert objective.needs.teacher == {LOGITS, *(FeatureKey("mean", layer) for layer in range(1, 12))}
    assert objective.needs.student == {LOGITS, *(FeatureKey("mean", layer) for layer in range(1, 6))}
    seen = []
    objective.teacher_projection.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for epoch in range(5):
        moment = progress(4 * epoch, epochs=5)
        needs = objective.needs_at(moment)
        assert len(needs.teacher) == 6
        student = Features({key: torch.randn(2, 3 if key == LOGITS else 4).double() for key in needs.student})
        teacher = Features({key: torch.full((2, 3 if key == LOGITS else 4), float(key.layer)).double()
                            for key in needs.teacher})
        loss = objective(student, teacher, batch(setting, torch.arange(2)), moment)
        drawn = [loss.diagnostics[f"layer/{slot}"] for slot in range(1, 6)]
        assert seen[-1][0].flatten()[::4].tolist() == drawn == sorted(set(drawn))


@both
@pytest.mark.parametrize(("resample", "draws"), [("epoch", 10), ("step", 40)])
def test_resampling(name: str, resample: str, draws: int) -> None:
    setting = replace(CLASSIFICATION, teacher=Dims(24, 24, 4, 31), student=Dims(12, 16, 4, 31))
    objective = objective_of(name, setting, resample=resample)
    needs = [objective.needs_at(progress(step, epochs=10)).teacher for step in range(40)]
    assert len(set(needs)) == draws


@both
def test_named_student_layers(name: str) -> None:
    objective = objective_of(name, student_layers=[3, 1])
    assert objective.needs.student == {LOGITS, FeatureKey("mean", 1), FeatureKey("mean", 3)}
    assert len(objective.needs_at(progress(0)).teacher) == 3


@both
@pytest.mark.parametrize(
    ("depths", "settings", "message"),
    [
        ((3, 6), {}, r"5 student layers .* teacher of 3 layer\(s\) has only 2"),
        ((12, 1), {}, "no intermediate layer to teach"),
        ((12, 6), {"student_layers": [7]}, r"layer 7, expected 1\.\.6"),
        ((12, 6), {"student_layers": [1, 1]}, "student layer 1 twice"),
        ((12, 6), {"student_layers": []}, "student_layers is empty"),
    ],
)
def test_depths_that_do_not_fit(name: str, depths: tuple[int, int], settings: dict[str, Any], message: str) -> None:
    setting = replace(CLASSIFICATION, teacher=Dims(depths[0], 24, 4, 31), student=Dims(depths[1], 16, 4, 31))
    with pytest.raises(UserError, match=message):
        objective_of(name, setting, **settings)


@both
@pytest.mark.parametrize("depths", [(12, 6), (24, 6), (6, 3), (4, 4), (2, 2)])
def test_depths_that_fit(name: str, depths: tuple[int, int]) -> None:
    setting = replace(CLASSIFICATION, teacher=Dims(depths[0], 24, 4, 31), student=Dims(depths[1], 16, 4, 31))
    loss = loss_of(objective_of(name, setting), toys(setting))
    assert {f"layer/{slot}" for slot in range(1, depths[1])} < loss.diagnostics.keys()


# Options


def test_number_of_parameters() -> None:
    def count(name: str, **settings: Any) -> int:
        return sum(p.numel() for p in objective_of(name, **settings).parameters() if p.requires_grad)

    assert count("rail_kd_l") == 128 * (16 + 1) + 128 * (24 + 1)
    assert count("rail_kd_l", projection="per_layer") == 2 * count("rail_kd_l")
    assert count("rail_kd_l", bias=False, width=5) == 5 * 16 + 5 * 24
    assert count("rail_kd_l", freeze_teacher_projection=True) == 128 * (16 + 1)
    assert count("rail_kd_c") == 128 * (2 * 16 + 1) + 128 * (2 * 24 + 1)
    assert count("rail_kd_c", freeze_teacher_projection=True) == 128 * (2 * 16 + 1)


def test_a_map_per_layer_equals_the_shared_one_with_equal_weights() -> None:
    shared, per_layer = objective_of("rail_kd_l"), objective_of("rail_kd_l", projection="per_layer")
    for side in ("student_projection", "teacher_projection"):
        for linear in getattr(per_layer, side).maps:
            linear.load_state_dict(getattr(shared, side).maps[0].state_dict())
    models = toys(CLASSIFICATION)
    torch.testing.assert_close(loss_of(shared, models).total, loss_of(per_layer, models).total)


@both
def test_weights_and_temperature(name: str) -> None:
    models = toys(CLASSIFICATION)
    loss = loss_of(objective_of(name, label_weight=1, kd_weight=2, rail_weight=3), models)
    assert loss.weights == {"label": 1, "kd": 2, "rail": 3}
    warmer = loss_of(objective_of(name, temperature=5), models)
    assert not torch.allclose(warmer.parts["kd"], loss.parts["kd"])
    torch.testing.assert_close(warmer.parts["rail"], loss.parts["rail"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"alphas": [1.0]}, "alphas has 1 weights, expected 2"), ({"alphas": [1.0, -1.0]}, "alphas.1 = -1.0"),
     ({"rail_weight": float("inf")}, "rail_weight = inf"), ({"width": 0}, "width = 0"),
     ({"resample": "batch"}, "resample = 'batch'"), ({"widht": 64}, "unknown key `widht`; did you mean 'width'")],
    ids=str,
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        objective_of("rail_kd_l", **settings)


# Invariances and range


class Scaled(Toy):
    """The states of some layers are three times as long."""

    layers: tuple[int, ...] = ()

    def _feature(self, key: FeatureKey, inputs: Tensor, mask: Tensor) -> Tensor:
        factor = 3.0 if key.layer in self.layers else 1.0
        return factor * super()._feature(key, inputs, mask)


@pytest.mark.parametrize(("name", "layers", "same"), [("rail_kd_l", (1,), True), ("rail_kd_c", (1,), False),
                                                      ("rail_kd_c", (1, 2), True)])
def test_scale_of_states(name: str, layers: tuple[int, ...], same: bool) -> None:
    objective = objective_of(name, bias=False)
    student, teacher = toys(CLASSIFICATION)
    plain = loss_of(objective, (student, teacher)).parts["rail"]
    student.__class__, student.layers = Scaled, layers
    assert torch.allclose(plain, loss_of(objective, (student, teacher)).parts["rail"]) is same


@both
def test_zero_for_a_twin_and_within_range(name: str) -> None:
    setting = replace(CLASSIFICATION, teacher=CLASSIFICATION.student)
    objective = objective_of(name, setting)
    slots = 2 if name == "rail_kd_l" else 1
    student, teacher = toys(setting)
    values = loss_of(objective, (student, teacher)).parts["rail"]
    assert ((values > 0) & (values <= 4 * slots)).all()
    objective.teacher_projection.load_state_dict(objective.student_projection.state_dict())
    assert loss_of(objective, (student, student)).parts["rail"].abs().max() < 1e-20  # 3 to 3 draws layers 1 and 2


# Collapse


def test_collapse_is_noticed_where_the_student_cannot_learn() -> None:
    """The student's encoder is frozen noise: what the loss gains is the projections' doing, and it says so."""
    models = toys(CLASSIFICATION)
    for model in models:
        model.requires_grad_(False)
        model.inputs *= 0.1
    objective = objective_of("rail_kd_l", width=8)
    optimiser = torch.optim.Adam(objective.parameters(), lr=0.02)
    first = loss_of(objective, models)
    for step in range(300):
        optimiser.zero_grad()
        loss_of(objective, models, step).parts["rail"].mean().backward()
        optimiser.step()
    last = loss_of(objective, models)
    assert last.parts["rail"].mean() < 0.05 < first.parts["rail"].mean()
    rings = {alarm.diagnostic: alarm for alarm in objective.alarms}
    assert not rings["collapse"].rings(float(first.diagnostics["collapse"]))
    assert rings["collapse"].rings(float(last.diagnostics["collapse"]))
    assert "freeze_teacher_projection" in rings["collapse"].message


@both
def test_a_frozen_teacher_projection_cannot_collapse(name: str) -> None:
    objective = objective_of(name, freeze_teacher_projection=True)
    models = toys(CLASSIFICATION)
    optimiser = torch.optim.Adam([p for p in objective.main_parameters() if p.requires_grad], lr=0.02)
    before = loss_of(objective, models).diagnostics
    for _ in range(20):
        optimiser.zero_grad()
        loss_of(objective, models).total.mean().backward()
        optimiser.step()
    after = loss_of(objective, models).diagnostics
    torch.testing.assert_close(before["collapse"], after["collapse"], rtol=0, atol=0)


@both
def test_total_collapse_rings_both_alarms(name: str) -> None:
    objective = objective_of(name)
    for linear in objective.teacher_projection.maps:
        torch.nn.init.zeros_(linear.weight)
    diagnostics = loss_of(objective, toys(CLASSIFICATION)).diagnostics
    assert all(alarm.rings(float(diagnostics[alarm.diagnostic])) for alarm in COLLAPSE_ALARMS)
