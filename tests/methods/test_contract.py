"""What every method must hold, checked for every file in kdcore/methods; a new file needs no change here."""

import copy
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

from kdcore import config, methods
from kdcore.errors import UserError
from kdcore.features import Features
from kdcore.method_config import MethodConfig
from kdcore.objective import Loss, Needs, Objective, Phase, Progress, Setting
from tests.methods.house_rules import keeps_the_house_rules
from tests.methods.toys import CLASSIFICATION, REGRESSION, Recording, Toy, batch, examine, progress, toys

NO_CANDIDATES = {"finetune", "knowledge_mix", "ksm", "tinybert"}
"""Methods whose objectives cannot be among those that others choose from."""
BESIDE = "label and "
"""Before the name of a method: its objective as a candidate beside the label loss."""
CASES = {f"{name}-{kind}": (name, setting) for name in methods.names()
         for kind, setting in (("classes", CLASSIFICATION), ("scores", REGRESSION))}
CASES |= {f"{BESIDE}{name}": (BESIDE + name, CLASSIFICATION) for name in methods.names() if name not in NO_CANDIDATES}
settings = pytest.mark.parametrize(("name", "setting"), CASES.values(), ids=CASES)
every_file = pytest.mark.parametrize("name", methods.names())
SOME = torch.tensor([3, 0, 9, 14])
READS_LABELS = {"codir", "tckd", "nckd", "dkd"}
"""Parts beside the label loss that labels decide: which examples are negatives, which class is the target."""
READS_ORDER = {"ksm"}
"""Methods whose state is a batch in its order, as their paper has it."""


def phases_of(name: str, setting: Setting) -> tuple[Phase, ...]:
    """The method's phases with its defaults, in float64; of several with the same objective the first."""
    options = {}
    if name.startswith(BESIDE):
        name, options = "knowledge_mix", {"knowledge": {"label": 1, name.removeprefix(BESIDE): {}}}
    found = {id(phase.objective): phase
             for phase in reversed(methods.load(name).phases(methods.configure(name, options), setting))}
    for phase in found.values():
        phase.objective.double()
    return tuple(reversed(found.values()))


def features_of(
    models: tuple[Toy, Toy], needs: Needs, ids: torch.Tensor, padding: int = 0
) -> tuple[Features, Features]:
    student, teacher = models
    return student.features(ids, needs.student, padding), teacher.features(ids, needs.teacher, padding)


def loss_of(objective: Objective, models: tuple[Toy, Toy], setting: Setting, ids: torch.Tensor = SOME,
            moment: Progress | None = None, padding: int = 0) -> Loss:
    moment = moment or progress(0)
    features = features_of(models, objective.needs_at(moment), ids, padding)
    return objective(*features, batch(setting, ids), moment)


def parameters_of(objective: Objective, student: Toy) -> list[torch.nn.Parameter]:
    return [*student.parameters(), *objective.parameters()]


@settings
@pytest.mark.parametrize("ids", [SOME, SOME[:1]], ids=["four", "one"])
def test_losses_are_finite_and_one_per_example(name: str, setting: Setting, ids: torch.Tensor) -> None:
    models = toys(setting)
    for phase in phases_of(name, setting):
        loss = loss_of(phase.objective, models, setting, ids)
        for values in (*loss.parts.values(), loss.total):
            assert values.shape == ids.shape
            assert values.isfinite().all()
        for value in loss.diagnostics.values():
            assert torch.as_tensor(value).ndim == 0
            assert not torch.as_tensor(value).requires_grad
            assert torch.as_tensor(value).isfinite()


@settings
def test_total_is_the_weighted_sum_of_the_parts(name: str, setting: Setting) -> None:
    for phase in phases_of(name, setting):
        loss = loss_of(phase.objective, toys(setting), setting)
        total = sum(loss.weights[part] * values for part, values in loss.parts.items())
        torch.testing.assert_close(loss.total, total, rtol=1e-6, atol=1e-6)


@settings
def test_reads_what_it_declares_and_nothing_else(name: str, setting: Setting) -> None:
    models = toys(setting)
    for phase in phases_of(name, setting):
        objective = phase.objective
        seen: tuple[set, set] = (set(), set())
        for step in range(200):
            needs = objective.needs_at(progress(step, epochs=50))
            student, teacher = (Recording(side) for side in features_of(models, needs, SOME))
            objective(student, teacher, batch(setting, SOME), progress(step, epochs=50))
            assert student.read == needs.student
            assert teacher.read == needs.teacher
            seen[0].update(student.read)
            seen[1].update(teacher.read)
        assert seen == (objective.needs.student, objective.needs.teacher)


@settings
def test_every_feature_that_is_read_matters(name: str, setting: Setting) -> None:
    models = toys(setting)
    for phase in phases_of(name, setting):
        needs = phase.objective.needs_at(progress(0))
        for side, owner, keys in ((0, "student", needs.student), (1, "teacher", needs.teacher)):
            for changed in keys:
                features = list(features_of(models, needs, SOME))
                before = phase.objective(*features, batch(setting, SOME), progress(0)).total
                noise = torch.linspace(0.2, 1, features[side][changed].numel()).view_as(features[side][changed])
                values = {k: v + noise if k == changed else v for k, v in features[side].items()}
                features[side] = Features(values, features[side].mask)
                after = phase.objective(*features, batch(setting, SOME), progress(0)).total
                assert not torch.allclose(before, after, rtol=1e-7, atol=0), f"{changed.name} of {owner}"


@settings
@pytest.mark.parametrize("sizes", [(4, 4), (3, 3, 2), (7, 1)], ids=str)
def test_micro_batches_add_up_to_the_batch(name: str, setting: Setting, sizes: tuple[int, ...]) -> None:
    """Loss and gradient (SGD would take exactly this step) of 8 equal those of its parts summed over 8."""
    models = toys(setting)
    ids = torch.arange(8)
    for phase in phases_of(name, setting):
        if phase.objective.couples_examples:
            pytest.skip("an example's value depends on its batch by declaration")
        results = []
        for parts in ((ids,), ids.split(sizes)):
            parameters = parameters_of(phase.objective, models[0])
            losses = [loss_of(phase.objective, models, setting, part).total.sum() / len(ids) for part in parts]
            gradients = torch.autograd.grad(sum(losses), parameters, allow_unused=True)
            results.append((sum(losses), [g for g in gradients if g is not None]))
        (whole, whole_gradients), (summed, summed_gradients) = results
        torch.testing.assert_close(whole, summed, rtol=1e-10, atol=0)
        torch.testing.assert_close(whole_gradients, summed_gradients, rtol=1e-9, atol=1e-12)
        assert len(whole_gradients) == len(summed_gradients) > 0


@settings
def test_padding_changes_nothing(name: str, setting: Setting) -> None:
    models = toys(setting)
    for phase in phases_of(name, setting):
        plain = loss_of(phase.objective, models, setting).total
        padded = loss_of(phase.objective, models, setting, padding=5).total
        torch.testing.assert_close(plain, padded, rtol=1e-10, atol=1e-12)


@settings
def test_an_example_has_the_value_that_it_has_alone(name: str, setting: Setting) -> None:
    models = toys(setting)
    for phase in phases_of(name, setting):
        if phase.objective.couples_examples:
            pytest.skip("an example's value depends on its batch by declaration")
        alone = torch.cat([loss_of(phase.objective, models, setting, one).total for one in SOME.split(1)])
        torch.testing.assert_close(loss_of(phase.objective, models, setting).total, alone, rtol=1e-10, atol=1e-12)


@settings
def test_examples_without_labels_leave_out_the_label_loss_alone(name: str, setting: Setting) -> None:
    models = toys(setting)
    labels = setting.labels.clone()
    labels[::2] = torch.nan if setting.regression else -1
    half = replace(setting, labels=labels)
    for phase, without in zip(phases_of(name, setting), phases_of(name, half), strict=True):
        full, loss = loss_of(phase.objective, models, setting), loss_of(without.objective, models, half)
        missing = SOME % 2 == 0
        for part, values in loss.parts.items():
            if part == "label":
                assert values[missing].tolist() == [0, 0]
                torch.testing.assert_close(values[~missing], full.parts[part][~missing], rtol=0, atol=0)
            elif part not in READS_LABELS:
                torch.testing.assert_close(values, full.parts[part], rtol=0, atol=0)
            assert values.isfinite().all()
        parameters = parameters_of(without.objective, models[0])
        gradients = torch.autograd.grad(loss.total.sum(), parameters, retain_graph=True, allow_unused=True)
        assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)
        if "label" in loss.parts:
            gradients = torch.autograd.grad(loss.parts["label"][missing].sum(), parameters, allow_unused=True)
            assert not any(gradient.any() for gradient in gradients if gradient is not None)


@settings
def test_order_of_examples_changes_nothing(name: str, setting: Setting) -> None:
    if name in READS_ORDER:
        pytest.skip("the order of a batch is a part of its state by the method's definition")
    order = torch.tensor([2, 0, 3, 1])
    models = toys(setting)
    for phase in phases_of(name, setting):
        straight = loss_of(phase.objective, models, setting, SOME).total
        torch.testing.assert_close(loss_of(phase.objective, models, setting, SOME[order]).total, straight[order])


@settings
def test_state_survives_save_and_load(name: str, setting: Setting, tmp_path: Path) -> None:
    """Also that nothing is built at the first forward: sizes of state and optimiser are there before it."""
    models = toys(setting)
    for index, phase in enumerate(phases_of(name, setting)):
        train(phase.objective, models, setting, steps=3)
        torch.save(phase.objective.state_dict(), tmp_path / "state.pt")
        fresh = phases_of(name, REGRESSION if setting.regression else CLASSIFICATION)[index].objective
        fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        for step in (3, 4, 11):
            expected = loss_of(phase.objective, models, setting, moment=progress(step))
            torch.testing.assert_close(loss_of(fresh, models, setting, moment=progress(step)).total, expected.total,
                                       rtol=0, atol=0)


@settings
def test_each_parameter_learns(name: str, setting: Setting) -> None:
    """All trainable parameters get a gradient, sit in the optimiser once, and move."""
    student, teacher = toys(setting)
    for phase in phases_of(name, setting):
        objective = phase.objective
        before = copy.deepcopy(objective.state_dict())
        learning = [p for p in objective.main_parameters() if p.requires_grad]
        assert len(learning) == len({id(p) for p in learning})
        train(objective, (student, teacher), setting, steps=12)
        for key, parameter in objective.named_parameters():
            moved = not torch.equal(parameter, before[key])
            assert moved == parameter.requires_grad, f"{key} {'stood still' if not moved else 'moved though frozen'}"
        assert student.states.grad is not None or student.head.grad is not None
        assert all(p.grad is None for p in teacher.parameters())


@settings
def test_same_setting_same_bytes_and_no_global_generator(name: str, setting: Setting) -> None:
    losses = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        random.seed(disturbance)
        numpy.random.seed(disturbance)
        states = torch.get_rng_state(), numpy.random.get_state()[1].tolist()
        models = toys(setting)
        losses.append([loss_of(phase.objective, models, setting, moment=progress(step)).total
                       for phase in phases_of(name, setting) for step in range(12)])
        assert torch.equal(states[0], torch.get_rng_state())
        assert states[1] == numpy.random.get_state()[1].tolist()
    torch.testing.assert_close(*losses, rtol=0, atol=0)


@settings
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_features_give_float32_losses(name: str, setting: Setting, dtype: torch.dtype) -> None:
    models = toys(setting)
    for phase in phases_of(name, setting):
        exact = loss_of(phase.objective, models, setting).total
        needs = phase.objective.needs_at(progress(0))
        halves = [Features({k: v.to(dtype) for k, v in side.items()}, side.mask)
                  for side in features_of(models, needs, SOME)]
        phase.objective.float()
        with torch.autocast("cpu", dtype=dtype):
            loss = phase.objective(*halves, batch(setting, SOME), progress(0))
        assert {values.dtype for values in loss.parts.values()} == {torch.float32}
        torch.testing.assert_close(loss.total.double(), exact, rtol=0.02, atol=0.02)
        loss.total.mean().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in phase.objective.parameters())


@settings
def test_a_diverged_student_gives_a_loss_that_is_not_finite(name: str, setting: Setting) -> None:
    """And no error: the trainer skips such a step, and says after several which term it was."""
    models = toys(setting)
    for phase in phases_of(name, setting):
        student, teacher = features_of(models, phase.objective.needs_at(progress(0)), SOME)
        broken = Features({key: value * math.nan for key, value in student.items()}, student.mask)
        assert not phase.objective(broken, teacher, batch(setting, SOME), progress(0)).total.isfinite().any()


@every_file
def test_unknown_key_names_the_nearest(name: str) -> None:
    fields = methods.load(name).Config.model_fields
    wrong = next(iter(fields), "some_key") + "x"
    with pytest.raises(UserError, match=f"methods.{name}: unknown key `{wrong}`") as caught:
        methods.configure(name, {wrong: 1})
    assert not fields or wrong[:-1] in str(caught.value)
    assert "\n" not in str(caught.value)


@every_file
def test_file_keeps_the_house_rules(name: str) -> None:
    keeps_the_house_rules(methods.load(name))


@every_file
def test_default_study_configures_it(name: str, repository: Path) -> None:
    study = config.load(repository / "params.yaml")
    assert name in study.methods, f"add `{name}: {{}}` under `methods` in the params.yaml of the root"
    assert isinstance(methods.of_entry(study.method(name)), MethodConfig)


def train(objective: Objective, models: tuple[Toy, Toy], setting: Setting, steps: int) -> None:
    """A bare loop over a whole phase: batches by id, AdamW over student and objective."""
    parameters = [*models[0].parameters(), *objective.main_parameters()]
    optimiser = torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-3, weight_decay=0)
    objective.before_steps(examine)
    for step in range(steps):
        ids = torch.arange(4) + 4 * (step % 4)
        optimiser.zero_grad()
        loss_of(objective, models, setting, ids, progress(step)).total.mean().backward()
        optimiser.step()
        objective.after_step(progress(step), examine)
    objective.after_steps(examine)
