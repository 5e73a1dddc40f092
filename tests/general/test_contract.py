"""What every general method must hold, checked for every file in kdcore/general; a new file needs no change here.

A method may refuse pairs of toys that it cannot serve, but must take one of them.
"""

import copy
import random
from pathlib import Path

import numpy
import pytest
import torch

from kdcore import general
from kdcore.errors import UserError
from kdcore.features import FeatureKey, Features
from kdcore.objective import Objective, Phase, Setting
from tests.general.toys import (
    ROWS,
    SAME_SHAPE,
    SAME_WIDTH,
    SMALLER,
    Toys,
    batch_of,
    features_of,
    loss_of,
    phases_of,
    toys,
)
from tests.methods.house_rules import keeps_the_house_rules
from tests.methods.toys import Recording, examine, progress

PAIRS = {"smaller": SMALLER, "same_width": SAME_WIDTH, "same_shape": SAME_SHAPE}
SOME = torch.tensor([3, 0, 9, 14])
EDGES = torch.tensor([5, 11, 2])
"""A row of a single token, one of nothing but padding, and one of several tokens."""

pytestmark = pytest.mark.parametrize("name", general.names())
pairs = pytest.mark.parametrize("pair", PAIRS)


def accepted(name: str, pair: str) -> tuple[tuple[Phase, ...], Setting]:
    """The method's phases with its defaults in float64 for a pair of toys, or a skip where it refuses them."""
    try:
        return phases_of(name, PAIRS[pair]), PAIRS[pair]
    except UserError as error:
        pytest.skip(str(error))


def parameters_of(objective: Objective, models: Toys) -> list[torch.nn.Parameter]:
    return [*models[0].parameters(), *(p for p in objective.parameters() if p.requires_grad)]


def test_some_pair_is_accepted_and_others_are_refused_in_one_line_by_name(name: str) -> None:
    refusals = []
    for setting in PAIRS.values():
        try:
            assert phases_of(name, setting)
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) < len(PAIRS), refusals
    assert all(text.startswith(f"methods.{name}") and "\n" not in text for text in refusals)


@pairs
@pytest.mark.parametrize("ids", [SOME, SOME[:1], EDGES, EDGES[:1], EDGES[1:2]], ids=str)
def test_losses_are_finite_and_one_per_row(name: str, pair: str, ids: torch.Tensor) -> None:
    """Also of a row of one token and of one that is nothing but padding, which has the value 0."""
    phases, setting = accepted(name, pair)
    models = toys(setting)
    for phase in phases:
        loss = loss_of(phase.objective, models, setting, ids)
        for values in (*loss.parts.values(), loss.total):
            assert values.shape == ids.shape
            assert values.dtype == torch.float64
            assert values.isfinite().all()
            assert not values[ROWS[ids] == 0].any()
        for value in loss.diagnostics.values():
            assert torch.as_tensor(value).ndim == 0
            assert not torch.as_tensor(value).requires_grad
            assert torch.as_tensor(value).isfinite()
        gradients = torch.autograd.grad(loss.total.sum(), parameters_of(phase.objective, models), allow_unused=True)
        assert all(g.isfinite().all() for g in gradients if g is not None)


@pairs
def test_reads_what_it_declares_and_nothing_else(name: str, pair: str) -> None:
    phases, setting = accepted(name, pair)
    models = toys(setting)
    for phase in phases:
        objective = phase.objective
        seen: tuple[set[FeatureKey], set[FeatureKey]] = (set(), set())
        for step in range(20):
            needs = objective.needs_at(progress(step, epochs=5))
            student, teacher = (Recording(side) for side in features_of(models, needs, SOME))
            objective(student, teacher, batch_of(setting, SOME), progress(step, epochs=5))
            assert student.read == needs.student
            assert teacher.read == needs.teacher
            seen[0].update(student.read)
            seen[1].update(teacher.read)
        assert seen == (objective.needs.student, objective.needs.teacher)


@pairs
def test_reads_neither_labels_nor_a_classification_head(name: str, pair: str) -> None:
    for phase in accepted(name, pair)[0]:
        kinds = {key.kind for key in phase.objective.needs.student | phase.objective.needs.teacher}
        assert not kinds & {"logits"}
        assert phase.keep != "best", "there is no metric that could tell which is best"
        if "masked_logits" in kinds:
            assert phase.objective.masks_tokens


@pairs
def test_every_feature_that_is_read_matters(name: str, pair: str) -> None:
    phases, setting = accepted(name, pair)
    models = toys(setting)
    for phase in phases:
        needs = phase.objective.needs_at(progress(0))
        for side, owner, keys in ((0, "student", needs.student), (1, "teacher", needs.teacher)):
            for changed in keys:
                features = list(features_of(models, needs, SOME))
                before = phase.objective(*features, batch_of(setting, SOME), progress(0)).total
                noise = torch.linspace(0.2, 1, features[side][changed].numel()).view_as(features[side][changed])
                values = {k: v + noise if k == changed else v for k, v in features[side].items()}
                features[side] = Features(values, features[side].mask)
                after = phase.objective(*features, batch_of(setting, SOME), progress(0)).total
                assert not torch.allclose(before, after), f"{changed.name} of {owner}"


@pairs
@pytest.mark.parametrize("sizes", [(4, 4), (3, 3, 2), (7, 1)], ids=str)
def test_micro_batches_add_up_to_the_step(name: str, pair: str, sizes: tuple[int, ...]) -> None:
    """Loss and gradient of 8 uneven rows, an empty one and one of a single token among them, equal those of its parts
    summed over 8; each part knows the counts of the whole step, as each micro-batch of each rank does."""
    phases, setting = accepted(name, pair)
    models, ids = toys(setting), torch.tensor([4, 5, 6, 11, 0, 1, 2, 3])
    for phase in phases:
        assert not phase.objective.couples_examples
        results = []
        for parts in ((ids,), ids.split(sizes)):
            parameters = parameters_of(phase.objective, models)
            losses = [loss_of(phase.objective, models, setting, part, ids).total.sum() / len(ids) for part in parts]
            gradients = torch.autograd.grad(sum(losses), parameters, allow_unused=True)
            results.append((sum(losses), [g for g in gradients if g is not None]))
        (whole, whole_gradients), (summed, summed_gradients) = results
        torch.testing.assert_close(whole, summed, rtol=1e-10, atol=0)
        torch.testing.assert_close(whole_gradients, summed_gradients, rtol=1e-9, atol=1e-12)
        assert len(whole_gradients) == len(summed_gradients) > 0


@pairs
def test_padding_changes_nothing(name: str, pair: str) -> None:
    """More columns of garbage change neither the value nor the gradient."""
    phases, setting = accepted(name, pair)
    models = toys(setting)
    for phase in phases:
        results = []
        for padding in (0, 5):
            total = loss_of(phase.objective, models, setting, SOME, padding=padding).total
            gradients = torch.autograd.grad(total.sum(), parameters_of(phase.objective, models), allow_unused=True)
            results.append((total, [g for g in gradients if g is not None]))
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pairs
def test_what_padding_holds_does_not_matter_not_even_nan(name: str, pair: str) -> None:
    """For states, projections and scores; no value and no gradient of the objective's own weights is touched."""
    phases, setting = accepted(name, pair)
    models, ids = toys(setting), torch.cat([SOME, EDGES])
    for phase in phases:
        objective = phase.objective
        needs = objective.needs_at(progress(0))
        results = []
        for garbage in (7.0, torch.nan):
            sides = [_filled(side, garbage) for side in features_of(models, needs, ids)]
            total = objective(*sides, batch_of(setting, ids), progress(0)).total
            results.append([total])
            if own := [p for p in objective.parameters() if p.requires_grad]:
                gradients = torch.autograd.grad(total.sum(), own, allow_unused=True)
                results[-1] += [g for g in gradients if g is not None]
        torch.testing.assert_close(*results, rtol=0, atol=0)


def _filled(features: Features, garbage: float) -> Features:
    """The same with the padding of states, projections and scores replaced."""
    gap = features.mask == 0
    values = dict(features)
    for key, value in values.items():
        if key.kind == "hidden":
            values[key] = value.masked_fill(gap[:, :, None], garbage)
        elif key.kind in ("query", "key", "value"):
            values[key] = value.masked_fill(gap[:, None, :, None], garbage)
        elif key.kind == "scores":
            values[key] = value.masked_fill((gap[:, None, :, None] | gap[:, None, None, :]), garbage)
    return Features(values, features.mask)


@pairs
def test_a_row_has_the_value_that_it_has_alone(name: str, pair: str) -> None:
    phases, setting = accepted(name, pair)
    models = toys(setting)
    for phase in phases:
        alone = torch.cat([loss_of(phase.objective, models, setting, one).total for one in SOME.split(1)])
        together = loss_of(phase.objective, models, setting, SOME).total
        torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


@pairs
def test_state_survives_save_and_load(name: str, pair: str, tmp_path: Path) -> None:
    """Also that nothing is built at the first forward: sizes of state and optimiser are there before it."""
    phases, setting = accepted(name, pair)
    models = toys(setting)
    for index, phase in enumerate(phases):
        train(phase.objective, models, setting, steps=3)
        torch.save(phase.objective.state_dict(), tmp_path / "state.pt")
        fresh = accepted(name, pair)[0][index].objective
        fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        for step in (3, 4, 11):
            expected = loss_of(phase.objective, models, setting, SOME, moment=progress(step))
            actual = loss_of(fresh, models, setting, SOME, moment=progress(step))
            torch.testing.assert_close(actual.total, expected.total, rtol=0, atol=0)


@pairs
def test_each_parameter_learns_and_the_teacher_does_not(name: str, pair: str) -> None:
    """All trainable parameters get a gradient, sit in the optimiser once, and move; so does the student."""
    phases, setting = accepted(name, pair)
    models = toys(setting)
    for phase in phases:
        objective = phase.objective
        before = copy.deepcopy((objective.state_dict(), models[0].state_dict(), models[1].state_dict()))
        learning = [p for p in objective.main_parameters() if p.requires_grad]
        assert len(learning) == len({id(p) for p in learning})
        train(objective, models, setting, steps=12)
        for key, parameter in objective.named_parameters():
            moved = not torch.equal(parameter, before[0][key])
            assert moved == parameter.requires_grad, f"{key} {'stood still' if not moved else 'moved though frozen'}"
        assert any(not torch.equal(value, before[1][key]) for key, value in models[0].state_dict().items())
        assert all(torch.equal(value, before[2][key]) for key, value in models[1].state_dict().items())
        assert all(p.grad is None for p in models[1].parameters())


@pairs
def test_same_setting_same_bytes_and_no_global_generator(name: str, pair: str) -> None:
    losses = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        random.seed(disturbance)
        numpy.random.seed(disturbance)
        states = torch.get_rng_state(), numpy.random.get_state()[1].tolist()
        phases, setting = accepted(name, pair)
        models = toys(setting)
        losses.append([loss_of(phase.objective, models, setting, SOME, moment=progress(step)).total
                       for phase in phases for step in range(12)])
        assert torch.equal(states[0], torch.get_rng_state())
        assert states[1] == numpy.random.get_state()[1].tolist()
    torch.testing.assert_close(*losses, rtol=0, atol=0)


@pairs
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_features_give_float32_losses(name: str, pair: str, dtype: torch.dtype) -> None:
    """Within 2 % of the exact values, with padding in the batch; gradients are finite."""
    phases, setting = accepted(name, pair)
    models = toys(setting)
    for phase in phases:
        exact = loss_of(phase.objective, models, setting, SOME).total
        needs = phase.objective.needs_at(progress(0))
        halves = [Features({k: v.to(dtype) for k, v in side.items()}, side.mask)
                  for side in features_of(models, needs, SOME)]
        phase.objective.float()
        with torch.autocast("cpu", dtype=dtype):
            loss = phase.objective(*halves, batch_of(setting, SOME), progress(0))
        assert {values.dtype for values in loss.parts.values()} == {torch.float32}
        torch.testing.assert_close(loss.total.double(), exact, rtol=0.02, atol=0.02)
        gradients = torch.autograd.grad(loss.total.mean(), parameters_of(phase.objective, models), allow_unused=True)
        assert all(g.isfinite().all() for g in gradients if g is not None)


def test_unknown_key_names_the_nearest(name: str) -> None:
    fields = general.load(name).Config.model_fields
    wrong = next(iter(fields), "some_key") + "x"
    with pytest.raises(UserError, match=f"methods.{name}: unknown key `{wrong}`") as caught:
        general.configure(name, {wrong: 1})
    assert not fields or wrong[:-1] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_keeps_the_house_rules(name: str) -> None:
    keeps_the_house_rules(general.load(name))


def train(objective: Objective, models: Toys, setting: Setting, steps: int) -> None:
    """A bare loop: rows by id, AdamW over student and objective."""
    parameters = [*models[0].parameters(), *objective.main_parameters()]
    optimiser = torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-3, weight_decay=0)
    objective.before_steps(examine)
    for step in range(steps):
        ids = torch.arange(4) + 4 * (step % 4)
        optimiser.zero_grad()
        loss_of(objective, models, setting, ids, ids, progress(step)).total.mean().backward()
        optimiser.step()
        objective.after_step(progress(step), examine)
