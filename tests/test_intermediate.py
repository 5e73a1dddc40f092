"""TinyBERT's layer losses against golden vectors, the faults of earlier systems, and what they refuse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import FeatureKey, Features, layer_keys
from kdcore.intermediate import Intermediate, IntermediateConfig
from kdcore.objective import Batch, Dims, Loss, Setting, Step
from kdcore.strict import parse
from tests.methods.golden import UNEQUAL, parameters_of
from tests.methods.toys import CLASSIFICATION, Toy, batch, progress, toys
from tests.test_losses import GRADIENT, VALUE, vectors

IDS = torch.arange(8)
DEEP = replace(CLASSIFICATION, teacher=Dims(12, 24, 4, 31), student=Dims(6, 16, 4, 31))


def intermediate(setting: Setting = CLASSIFICATION, **settings: Any) -> Intermediate:
    return Intermediate(parse(IntermediateConfig, settings, "toy"), setting).double()


def loss_of(objective: Intermediate, models: tuple[Toy, Toy], ids: Tensor = IDS, padding: int = 0) -> Loss:
    student, teacher = models
    return objective(student.features(ids, objective.needs.student, padding),
                     teacher.features(ids, objective.needs.teacher, padding), batch(CLASSIFICATION, ids, step=ids),
                     progress(0))


# Golden vectors


def golden_objective(data: dict[str, Tensor]) -> Intermediate:
    """With the golden projection, which all layers share."""
    objective = intermediate(UNEQUAL)
    (linear,) = objective.maps["all"].maps
    linear.weight.data, linear.bias.data = data["in.w"].T.contiguous(), data["in.b"]
    return objective


def golden_features(data: dict[str, Tensor], side: str) -> Features:
    states = dict(zip(layer_keys("hidden", range(9)), data[f"in.{side}_hidden"], strict=False))
    scores = dict(zip(layer_keys("scores", range(1, 9)), data[f"in.{side}_scores"], strict=False))
    return Features(states | scores, data["in.mask"].long())


def golden_loss(data: dict[str, Tensor], objective: Intermediate) -> Loss:
    step = Step(data["in.mask"].long().sum(dim=1), torch.zeros(4, dtype=torch.int64))
    return objective(golden_features(data, "student"), golden_features(data, "teacher"),
                     Batch(torch.arange(4), UNEQUAL.labels, step), progress(0))


def compare_layers(loss: Loss, data: dict[str, Tensor], expected: str) -> None:
    for name, ours, first in (("hidden", "hidden", 0), ("attn", "attention", 1)):
        for layer, value in enumerate(data[f"out.{name}_{expected}"], first):
            torch.testing.assert_close(loss.diagnostics[f"{ours}/{layer}"], value, **VALUE)


def test_golden_values(golden: Path) -> None:
    data = vectors(golden, "09_tinybert")
    loss = golden_loss(data, golden_objective(data))
    compare_layers(loss, data, "per_layer")
    torch.testing.assert_close(loss.parts["hidden"].mean(), data["out.hidden_per_layer"].sum(), **VALUE)
    torch.testing.assert_close(loss.parts["attention"].mean(), data["out.attn_per_layer"].sum(), **VALUE)
    torch.testing.assert_close(loss.total.mean(), data["out.intermediate_total"], **VALUE)


def test_golden_gradients(golden: Path) -> None:
    data = vectors(golden, "09_tinybert")
    data["in.student_scores"].requires_grad_()
    objective = golden_objective(data)
    loss = golden_loss(data, objective)
    loss.parts["attention"].mean().backward()
    torch.testing.assert_close(data["in.student_scores"].grad[0], data["grad.attn1__student_scores"], **GRADIENT)
    objective = intermediate(UNEQUAL, hidden=[[0, 0]], attention=[])
    (linear,) = objective.maps["all"].maps
    linear.weight.data, linear.bias.data = data["in.w"].T.contiguous(), data["in.b"]
    golden_loss(data, objective).total.mean().backward()
    torch.testing.assert_close(linear.weight.grad.T, data["grad.hidden0__w"], **GRADIENT)


def test_what_the_released_code_computes(golden: Path) -> None:
    """Our loss where padding counts as text, which is no option: of the scores, padding keys are zero on both sides."""
    data = vectors(golden, "09_tinybert")
    for side in ("student", "teacher"):
        data[f"in.{side}_scores"] *= data["in.mask"][:, None, None, :]
    data["in.mask"] = torch.ones_like(data["in.mask"])
    compare_layers(golden_loss(data, golden_objective(data)), data, "per_layer_public")


# Which layers


def test_layers_of_states_and_of_attention() -> None:
    """Twelve to six: states have embeddings, attention has none (lesson A2)."""
    objective = intermediate(DEEP)
    assert objective.hidden == ((0, 0), (1, 2), (2, 4), (3, 6), (4, 8), (5, 10), (6, 12))
    assert objective.attention == objective.hidden[1:]
    even = (2, 4, 6, 8, 10, 12)
    assert objective.needs.teacher == {*layer_keys("hidden", (0, *even)), *layer_keys("scores", even)}
    assert objective.needs.student == {*layer_keys("hidden", range(7)), *layer_keys("scores", range(1, 7))}


def test_embeddings_alone() -> None:
    """Lesson A3: nothing else is read, and nothing above the embeddings gets a gradient."""
    objective, models = intermediate(hidden=[[0, 0]], attention=[]), toys(CLASSIFICATION)
    assert objective.needs.student == objective.needs.teacher == {FeatureKey("hidden", 0)}
    loss = loss_of(objective, models)
    assert set(loss.parts) == {"hidden"}
    loss.total.sum().backward()
    gradient = models[0].states.grad.abs().sum(dim=(1, 2))
    assert gradient[0] > 0
    assert not gradient[1:].any()


def test_pairs_of_ones_own() -> None:
    objective = intermediate(DEEP, hidden=[[2, 1], [0, 0]], attention=[[6, 12], [1, 12]])
    assert (objective.hidden, objective.attention) == (((0, 0), (2, 1)), ((1, 12), (6, 12)))
    loss = loss_of(objective, (Toy(DEEP.student, 3, 1), Toy(DEEP.teacher, 3, 2)))
    assert set(loss.diagnostics) == {"hidden/0", "hidden/2", "attention/1", "attention/6"}


@pytest.mark.parametrize(("settings", "message"), [
    ({"attention": [[0, 1]]}, r"student layer 0, expected 1\.\.6"),
    ({"attention": [[1, 0]]}, r"teacher layer 0, expected 1\.\.12"),
    ({"attention": [[6, 13]]}, r"teacher layer 13, expected 1\.\.12"),
    ({"hidden": [[7, 12]]}, r"student layer 7, expected 0\.\.6"),
    ({"hidden": [[1, 2], [1, 3]]}, "student layer 1 twice"),
    ({"hidden": [], "attention": []}, "hidden and attention both name no layers"),
])
def test_layers_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        intermediate(DEEP, **settings)
    assert "\n" not in str(caught.value)


def test_depths_that_do_not_divide() -> None:
    """They are refused with a remedy, and pairs are one."""
    setting = replace(DEEP, student=replace(DEEP.student, layers=5))
    with pytest.raises(UserError, match=r"12 layers .* student of 5; use a student of 1, 2, 3, 4, 6, 12 layers, or "
                                        r"write pairs .* `hidden` and `attention`, such as \[\[5, 12\]\]$"):
        intermediate(setting)
    objective = intermediate(setting, hidden=[[5, 12]], attention=[[5, 12]])
    assert objective.needs.teacher == {FeatureKey("hidden", 12), FeatureKey("scores", 12)}
    with pytest.raises(UserError, match="for `hidden` and `attention`"):
        intermediate(setting, hidden=[[5, 12]])


# Projections (lessons A8, A12)


@pytest.mark.parametrize(("projection", "maps"), [("shared", 1), ("embeddings_apart", 2), ("per_layer", 4)])
@pytest.mark.parametrize("width", [24, 16])
def test_maps(projection: str, maps: int, width: int) -> None:
    """They are learned also where widths agree, and each of them learns."""
    setting = replace(CLASSIFICATION, teacher=replace(CLASSIFICATION.teacher, width=width))
    objective = intermediate(setting, projection=projection)
    assert parameters_of(objective) == maps * width * (16 + 1)
    loss_of(objective, toys(setting)).total.sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in objective.parameters())


def test_maps_of_layers_that_are_not_compared_do_not_exist() -> None:
    assert set(intermediate(projection="embeddings_apart", hidden=[[1, 2], [3, 6]]).maps) == {"layers"}
    assert not parameters_of(intermediate(hidden=[]))


def test_without_projection() -> None:
    same = replace(CLASSIFICATION, teacher=replace(CLASSIFICATION.teacher, layers=3, width=16))
    objective = intermediate(same, projection="none")
    assert not parameters_of(objective)
    student = Toy(same.student, 3, seed=1)
    assert not loss_of(objective, (student, student)).total.any()
    with pytest.raises(UserError, match=r"teacher has a width of 24 and the student of 16; use projection: shared"):
        intermediate(projection="none")
    intermediate(projection="none", hidden=[])


def test_unequal_heads_are_refused() -> None:
    setting = replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, heads=2))
    with pytest.raises(UserError, match=r"teacher has 4 heads and the student 2; .* `attention: \[\]`"):
        intermediate(setting)
    assert intermediate(setting, attention=[]).needs.student == set(layer_keys("hidden", range(4)))


# Averages


def test_mean_over_all_tokens_of_the_step() -> None:
    """A text of seven tokens weighs 3.5 times one of two for states, and its square for attention; by hand."""
    models, objective = toys(CLASSIFICATION), intermediate(hidden=[[1, 2]], attention=[[1, 2]])
    student, teacher = (model.features(IDS, needs) for model, needs in
                        zip(models, (objective.needs.student, objective.needs.teacher), strict=True))
    real = student.mask.bool()
    (linear,) = objective.maps["all"].maps
    states = (linear(student[FeatureKey("hidden", 1)]) - teacher[FeatureKey("hidden", 2)])[real]
    pairs = (real[:, :, None] & real[:, None, :])[:, None].expand(-1, 4, -1, -1)
    scores = (student[FeatureKey("scores", 1)] - teacher[FeatureKey("scores", 2)])[pairs]
    loss = loss_of(objective, models)
    torch.testing.assert_close(loss.parts["hidden"].mean(), states.square().mean())
    torch.testing.assert_close(loss.parts["attention"].mean(), scores.square().mean())


def test_each_layer_counts_and_is_in_the_log() -> None:
    loss = loss_of(intermediate(), toys(CLASSIFICATION))
    assert set(loss.diagnostics) == {f"hidden/{layer}" for layer in range(4)} | {f"attention/{i}" for i in (1, 2, 3)}
    for name, part in loss.parts.items():
        summands = [value for key, value in loss.diagnostics.items() if key.startswith(name)]
        torch.testing.assert_close(part.mean(), torch.stack(summands).sum())


def test_a_batch_must_know_its_step() -> None:
    objective, models = intermediate(), toys(CLASSIFICATION)
    features = [model.features(IDS, needs) for model, needs in
                zip(models, (objective.needs.student, objective.needs.teacher), strict=True)]
    with pytest.raises(ValueError, match="names no step"):
        objective(*features, Batch(IDS, CLASSIFICATION.labels[IDS]), progress(0))
