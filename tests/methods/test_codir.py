"""CoDIR: golden values and gradients, the bank's life, negatives, refresh, refusals, invariances."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore import methods
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features, layer_keys, masked_mean
from kdcore.losses import unit
from kdcore.methods import codir
from kdcore.objective import Batch, Dims, Loss, Objective, Setting, Standing
from tests.methods.toys import CLASSIFICATION, EXAMPLES, REGRESSION, Toy, batch, progress, toys
from tests.test_losses import GRADIENT, VALUE, vectors

GOLDEN = Setting(Dims(8, 12, 2, 11), Dims(4, 8, 2, 11), classes=3, regression=False,
                 labels=torch.arange(10) % 3, batch_size=4, seed=0)
SOME = torch.tensor([3, 0, 9, 14])
both = pytest.mark.parametrize("objective", ["info_nce", "nce_two_sided"])


def objective_of(setting: Setting = CLASSIFICATION, **settings: Any) -> Objective:
    (phase,) = methods.load("codir").phases(methods.configure("codir", settings), setting)
    return phase.objective.double()


def loss_of(objective: Objective, models: tuple[Toy, Toy], ids: Tensor = SOME, step: int = 0,
            setting: Setting = CLASSIFICATION) -> Loss:
    needs = objective.needs
    return objective(models[0].features(ids, needs.student), models[1].features(ids, needs.teacher),
                     batch(setting, ids), progress(step))


def after(objective: Objective, step: int) -> None:
    objective.after_step(progress(step), not_examined)


def not_examined(rows: int | None = None) -> Standing:
    raise AssertionError("costs a pass")


def banks(objective: Objective) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in objective.state_dict().items() if name.endswith("rows")}


# Golden vectors


def golden_objective(data: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Objective:
    """With the golden maps, banks and negatives."""
    objective = objective_of(GOLDEN, width=5, negatives=3, **settings)
    for side in ("student", "teacher"):
        (linear,) = getattr(objective, f"{side}_projection").maps
        linear.weight.data = data[f"in.w_{side}"].T.contiguous()
        linear.bias.data = data[f"in.b_{side}"]
    for name, bank in (("bank", "teacher"), ("teacher_bank", "teacher"), ("student_bank", "student")):
        if hasattr(objective.contrast, name):
            getattr(objective.contrast, name).rows.copy_(data[f"in.bank_{bank}"])
    monkeypatch.setattr(objective.draw, "forward", lambda ids, step: data["in.negative_ids"])
    return objective


def golden_part(data: dict[str, Tensor], objective: Objective, step: int = 0) -> Tensor:
    mask = data["in.mask"].long()
    sides = []
    for side in ("student", "teacher"):
        means = {FeatureKey("mean", layer): masked_mean(states, mask)
                 for layer, states in enumerate(data[f"in.{side}_hidden"].unbind())}
        sides.append(Features(means | {LOGITS: torch.zeros(4, 3).double()}))
    ids = data["in.batch_ids"]
    return objective(*sides, Batch(ids, data["in.data_labels"][ids]), progress(step)).parts["codir"]


def test_golden_info_nce(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = vectors(golden, "06_codir")
    objective = golden_objective(data, monkeypatch)
    part = golden_part(data, objective)
    torch.testing.assert_close(part.mean(), data["out.infonce"], **VALUE)
    part.mean().backward()
    (linear,) = objective.student_projection.maps
    torch.testing.assert_close(linear.weight.grad.T, data["grad.infonce__w_student"], **GRADIENT)
    torch.testing.assert_close(linear.bias.grad, data["grad.infonce__b_student"], **GRADIENT)
    after(objective, 0)
    torch.testing.assert_close(objective.contrast.bank.rows, data["out.bank_teacher_after"], **VALUE)


def test_golden_two_sided(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = vectors(golden, "06_codir")
    objective = golden_objective(data, monkeypatch, objective="nce_two_sided")
    golden_part(data, objective)
    after(objective, 0)
    for side in ("student", "teacher"):
        bank = getattr(objective.contrast, f"{side}_bank").rows
        torch.testing.assert_close(bank, data[f"out.bank_{side}_after"], **VALUE)
        bank.copy_(data[f"in.bank_{side}"])
    z = torch.stack([data["out.nce_Z_student"], data["out.nce_Z_teacher"]])
    torch.testing.assert_close(objective.contrast.log_z.exp(), z, rtol=1e-12, atol=0)
    torch.testing.assert_close(golden_part(data, objective, 1).mean(), data["out.nce_two_sided"], **VALUE)


# Parts and options


def test_by_hand() -> None:
    """From features to the loss with plain loops."""
    setting, objective, models = CLASSIFICATION, objective_of(negatives=4, width=6, tau=0.3), toys(CLASSIFICATION)
    loss = loss_of(objective, models)
    features = [models[0].features(SOME, objective.needs.student), models[1].features(SOME, objective.needs.teacher)]
    units = []
    for side, model, layers in (("student", features[0], 3), ("teacher", features[1], 6)):
        (linear,) = getattr(objective, f"{side}_projection").maps
        joined = torch.cat([model[FeatureKey("mean", layer)] for layer in range(1, layers + 1)], dim=1)
        units.append(unit(joined @ linear.weight.T + linear.bias))
    for row, example in enumerate(SOME.tolist()):
        negatives = objective.draw(SOME[row:row + 1], 0)[0].tolist()
        assert all(setting.labels[other] != setting.labels[example] for other in negatives)
        rows = [units[1][row], *(objective.contrast.bank.rows[other] for other in negatives)]
        share = [math.exp((units[0][row] @ other).item() / 0.3) for other in rows]
        assert loss.parts["codir"][row].item() == pytest.approx(-math.log(share[0] / sum(share)))


def test_weights_and_temperature() -> None:
    models = toys(CLASSIFICATION)
    loss = loss_of(objective_of(alpha=0.3, gamma=2.0), models)
    assert loss.weights == {"label": 0.7, "kd": 0.3, "codir": 2.0}
    warmer = loss_of(objective_of(temperature=5), models)
    assert not torch.allclose(warmer.parts["kd"], loss.parts["kd"])
    torch.testing.assert_close(warmer.parts["codir"], loss.parts["codir"])
    assert not torch.allclose(loss_of(objective_of(tau=0.5), models).parts["codir"], loss.parts["codir"])


def test_layers_that_are_read() -> None:
    objective = objective_of(pooling="cls", teacher_layers=[1, 3, 5])
    assert objective.needs.teacher == {LOGITS, *layer_keys("cls", (1, 3, 5))}
    assert objective.needs.student == {LOGITS, *layer_keys("cls", (1, 2, 3))}
    assert objective.teacher_projection.maps[0].in_features == 3 * 24
    assert objective_of().needs.teacher == {LOGITS, *layer_keys("mean", range(1, 7))}


@both
def test_only_maps_learn(objective: str) -> None:
    learned = {name: p.numel() for name, p in objective_of(objective=objective, width=5).named_parameters()}
    assert learned == {"student_projection.maps.0.weight": 5 * 3 * 16, "student_projection.maps.0.bias": 5,
                       "teacher_projection.maps.0.weight": 5 * 6 * 24, "teacher_projection.maps.0.bias": 5}


@both
def test_no_negatives_give_no_loss(objective: str) -> None:
    part = loss_of(objective_of(objective=objective, negatives=0), toys(CLASSIFICATION)).parts["codir"]
    assert part.abs().max() < (1e-12 if objective == "info_nce" else 1e-5)


@both
@pytest.mark.parametrize("setting", [CLASSIFICATION, REGRESSION], ids=["classes", "scores"])
def test_finite_and_independent_of_the_company(objective: str, setting: Setting) -> None:
    """Also in the first step of the released objective, whose Z is not known yet."""
    method, models = objective_of(setting, objective=objective, negatives=3), toys(setting)
    for step in range(3):
        together = loss_of(method, models, SOME, step, setting).parts["codir"]
        assert together.shape == (4,)
        assert together.isfinite().all()
        alone = [loss_of(method, models, one, step, setting).parts["codir"] for one in SOME.split(1)]
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-10, atol=1e-12)
        loss_of(method, models, SOME, step + 100, setting)
        after(method, step + 100)


@pytest.mark.parametrize("bias", [True, False])
def test_scale_of_states(bias: bool) -> None:
    """Without bias a common factor of all layers of a model changes nothing, one of a single layer does."""
    objective, (student, teacher) = objective_of(bias=bias), toys(CLASSIFICATION)
    before = loss_of(objective, (student, teacher)).parts["codir"]
    for layers, same in (((1, 2, 3), not bias), ((1,), False)):
        scale = torch.ones(4, 1, 1).double()
        scale[list(layers)] = 3.0
        student.states.data *= scale
        assert torch.allclose(loss_of(objective, (student, teacher)).parts["codir"], before) is same
        student.states.data /= scale


# The bank


@both
def test_bank_moves_for_the_step_s_examples_only_and_stays_unit(objective: str) -> None:
    method, models = objective_of(objective=objective, negatives=3, width=7), toys(CLASSIFICATION)
    for step in range(6):
        before = banks(method)
        for ids in (SOME[:3], SOME[3:]):
            loss_of(method, models, ids, step)
        assert all(torch.equal(before[name], rows) for name, rows in banks(method).items())  # only after the step
        after(method, step)
        for name, rows in banks(method).items():
            moved = (rows != before[name]).any(dim=1)
            assert torch.nonzero(moved).flatten().tolist() == sorted(SOME.tolist())
            torch.testing.assert_close(rows.norm(dim=1), torch.ones(EXAMPLES).double())


def test_bank_approaches_the_teacher() -> None:
    objective, models = objective_of(negatives=3), toys(CLASSIFICATION)
    for step in range(12):
        loss_of(objective, models, SOME, step)
        after(objective, step)
    expected = objective._teacher_vectors(models[1].features(SOME, objective.needs.teacher)).detach()
    torch.testing.assert_close(objective.contrast.bank.rows[SOME], expected, rtol=0, atol=2**-10)


@both
def test_micro_batches_leave_the_same_state(objective: str) -> None:
    states = []
    for parts in ((SOME,), SOME.split([1, 3]), SOME.flip(0).split(2)):
        method, models = objective_of(objective=objective, negatives=3), toys(CLASSIFICATION)
        for step in range(3):
            for ids in parts:
                loss_of(method, models, ids, step)
            after(method, step)
        states.append(method.state_dict())
    for other in states[1:]:
        for name, value in states[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-12, atol=1e-12)


def test_a_skipped_step_leaves_no_trace() -> None:
    straight, disturbed, models = objective_of(), objective_of(), toys(CLASSIFICATION)
    loss_of(straight, models, SOME, 1)
    after(straight, 1)
    loss_of(disturbed, models, torch.tensor([1, 2]), 0)  # not applied: no `after_step`
    loss_of(disturbed, models, SOME, 1)
    after(disturbed, 1)
    assert torch.equal(straight.contrast.bank.rows, disturbed.contrast.bank.rows)


def test_state_that_a_checkpoint_holds() -> None:
    maps = {f"{side}_projection.maps.0.{part}" for side in ("student", "teacher") for part in ("weight", "bias")}
    assert set(objective_of().state_dict()) == maps | {"contrast.bank.rows"}
    assert set(objective_of(objective="nce_two_sided").state_dict()) == maps | {
        "contrast.teacher_bank.rows", "contrast.student_bank.rows", "contrast.log_z"}


@pytest.mark.parametrize("id_", [-1, EXAMPLES])
def test_ids_out_of_range(id_: int) -> None:
    objective, models = objective_of(), toys(CLASSIFICATION)
    features = (models[0].features(SOME[:1], objective.needs.student),
                models[1].features(SOME[:1], objective.needs.teacher))
    with pytest.raises(IndexError):
        objective(*features, Batch(torch.tensor([id_]), torch.tensor([0])), progress(0))


# Refresh


def recording_teacher(toy: Toy, asked: list[Tensor]) -> Callable[[Tensor, frozenset[FeatureKey]], Features]:
    def teacher(ids: Tensor, keys: frozenset[FeatureKey]) -> Features:
        assert LOGITS not in keys  # of what the bank is made of, nothing else
        asked.append(ids)
        return toy.features(ids, keys)
    return teacher


def test_refresh_computes_all_rows_and_steps_leave_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codir, "REFRESHED_TOGETHER", 5)
    objective, models, asked = objective_of(bank="refresh"), toys(CLASSIFICATION), []
    objective.before_epoch(progress(0), recording_teacher(models[1], asked))
    assert [len(ids) for ids in asked] == [5, 5, 5, 1]
    assert torch.cat(asked).tolist() == list(range(EXAMPLES))
    everyone = torch.arange(EXAMPLES)
    expected = objective._teacher_vectors(models[1].features(everyone, objective.needs.teacher)).detach()
    bank = objective.contrast.bank.rows
    torch.testing.assert_close(bank, expected)
    before = bank.clone()
    loss_of(objective, models)
    after(objective, 0)
    assert torch.equal(bank, before)
    with torch.no_grad():
        objective.teacher_projection.maps[0].weight += 0.3
    objective.before_epoch(progress(4), recording_teacher(models[1], asked))
    assert (bank - before).abs().max() > 1e-3
    assert all(parameter.grad is None for parameter in objective.parameters())


def test_the_bank_of_updates_asks_for_nothing_before_an_epoch() -> None:
    asked: list[Tensor] = []
    objective_of().before_epoch(progress(0), recording_teacher(toys(CLASSIFICATION)[1], asked))
    assert asked == []


# Negatives


@pytest.mark.parametrize(("source", "allowed"), [
    ("different", lambda mine, other: mine != other), ("same", lambda mine, other: mine == other)])
def test_source_of_negatives(source: str, allowed: Callable[[int, int], bool]) -> None:
    objective = objective_of(negatives=2, negatives_from=source)
    for step in range(20):
        for example, row in enumerate(objective.draw(torch.arange(EXAMPLES), step).tolist()):
            assert all(allowed(example % 3, other % 3) and other != example for other in row)


@pytest.mark.parametrize("source", ["different", "same"])
def test_regression_draws_from_all_others(source: str) -> None:
    """Scores are no classes: what the setting says of labels has no meaning there."""
    draw = objective_of(REGRESSION, negatives=5, negatives_from=source).draw
    drawn = torch.cat([draw(torch.tensor([6]), step) for step in range(40)])
    assert set(drawn.flatten().tolist()) == set(range(EXAMPLES)) - {6}
    assert all(len(set(row)) == 5 for row in drawn.tolist())


def test_the_hundred_negatives_of_the_default_repeat_where_there_are_fewer_examples() -> None:
    assert objective_of().draw.replacement
    assert objective_of().draw(SOME, 0).shape == (4, 100)


@pytest.mark.parametrize(
    ("settings", "setting", "message"),
    [
        ({}, replace(CLASSIFICATION, labels=torch.ones(9).long()), r"another label.*label 1.*draw them from `any`"),
        ({"teacher_layers": [1, 7]}, CLASSIFICATION, r"is \[1, 7\], expected different layers of 1\.\.6"),
        ({"teacher_layers": [2, 2]}, CLASSIFICATION, r"teacher_layers is \[2, 2\]"),
        ({"teacher_layers": []}, CLASSIFICATION, r"teacher_layers is \[\], .* leave it out to take all"),
        ({"teacher_layers": [0]}, CLASSIFICATION, r"teacher_layers is \[0\]"),
        ({"objective": "nce_two_sided", "bank": "refresh"}, CLASSIFICATION, "set bank: momentum"),
        ({"objective": "paper"}, CLASSIFICATION, "objective = 'paper'"),
        ({"negatives": -1}, CLASSIFICATION, "negatives = -1"),
        ({"tau": 0}, CLASSIFICATION, "tau = 0"),
        ({"momentum": 1}, CLASSIFICATION, "momentum = 1"),
        ({"gamma": float("inf")}, CLASSIFICATION, "gamma = inf"),
        ({"negative": 5}, CLASSIFICATION, "unknown key `negative`; did you mean 'negatives'"),
    ],
    ids=str,
)
def test_what_does_not_fit(settings: dict[str, Any], setting: Setting, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        objective_of(setting, **settings)
    assert "\n" not in str(caught.value)


def test_one_class_is_taken_with_any() -> None:
    setting = replace(CLASSIFICATION, labels=torch.ones(EXAMPLES).long())
    loss = loss_of(objective_of(setting, negatives_from="any"), toys(setting), setting=setting)
    assert loss.parts["codir"].isfinite().all()
