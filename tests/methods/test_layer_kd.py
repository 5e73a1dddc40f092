"""Every selection with every knowledge: it trains or says why not; the published methods are cells of the table."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features
from kdcore.knowledge import NAMES
from kdcore.losses import layer_attention
from kdcore.objective import Dims, Loss, Objective, Setting
from kdcore.token_losses import attention_divergence, probabilities, relation_scores
from tests.methods.golden import objective_of, parameters_of
from tests.methods.toys import CLASSIFICATION, REGRESSION, Toy, batch, progress, toys

IDS = torch.arange(8)
SELECTIONS: dict[str, dict[str, Any]] = {
    "skip": {"selection": "fixed"},
    "pairs": {"selection": "fixed", "mapping": [[1, 5], [3, 5]]},
    "random by epoch": {"selection": "random"},
    "random by step": {"selection": "random", "resample": "step"},
    "attention": {"selection": "attention"},
    "attention by mean": {"selection": "attention", "match": "mean"},
    "grouped": {"selection": "grouped"},
    "grouped, overlapping": {"selection": "grouped", "grouping": "overlap"},
}
AS_NEEDED = "where_widths_differ"
EQUAL = replace(CLASSIFICATION, teacher=replace(CLASSIFICATION.teacher, width=16))
cells = pytest.mark.parametrize(("selection", "knowledge"), [
    (selection, knowledge) for selection in SELECTIONS for knowledge in NAMES
    if not (knowledge == "fsp" and selection.startswith("grouped"))])


def loss_of(objective: Objective, models: tuple[Toy, Toy], step: int = 0, ids: Tensor = IDS, padding: int = 0,
            setting: Setting = CLASSIFICATION) -> Loss:
    needs = objective.needs_at(progress(step))
    sides = (model.features(ids, side, padding) for model, side in zip(models, (needs.student, needs.teacher),
                                                                       strict=True))
    return objective(*sides, batch(setting, ids), progress(step))


@cells
@pytest.mark.parametrize("setting", [CLASSIFICATION, REGRESSION], ids=["classes", "scores"])
def test_a_cell_trains(selection: str, knowledge: str, setting: Setting) -> None:
    objective = objective_of("layer_kd", setting, knowledge={knowledge: 2.0}, **SELECTIONS[selection])
    models = toys(setting)
    parameters = [*models[0].parameters(), *objective.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=1e-3)
    losses = []
    for _ in range(3):
        loss = loss_of(objective, models, setting=setting)
        assert loss.parts.keys() == {"label", "kd", knowledge}
        assert loss.weights[knowledge] == pytest.approx(2 / 3)
        assert (loss.parts[knowledge] > 0).all()
        optimiser.zero_grad()
        loss.parts[knowledge].mean().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in parameters)
        assert models[0].states.grad[1].any()
        optimiser.step()
        losses.append(loss.parts[knowledge].mean())
    assert losses[2] < losses[0]


@cells
def test_a_cell_knows_neither_padding_nor_company(selection: str, knowledge: str) -> None:
    """Hence neither accumulation nor the number of processes changes a step."""
    objective = objective_of("layer_kd", CLASSIFICATION, knowledge={knowledge: 1.0}, **SELECTIONS[selection])
    models = toys(CLASSIFICATION)
    together = loss_of(objective, models, step=5).total
    torch.testing.assert_close(loss_of(objective, models, step=5, padding=3).total, together)
    alone = torch.cat([loss_of(objective, models, step=5, ids=part).total for part in IDS.split([3, 1, 4])])
    torch.testing.assert_close(alone, together)


@cells
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_cell_in_half_precision(selection: str, knowledge: str, dtype: torch.dtype) -> None:
    objective = objective_of("layer_kd", CLASSIFICATION, knowledge={knowledge: 1.0}, **SELECTIONS[selection])
    models = toys(CLASSIFICATION)
    exact = loss_of(objective, models).parts[knowledge]
    needs = objective.needs_at(progress(0))
    sides = [model.features(IDS, side) for model, side in zip(models, (needs.student, needs.teacher), strict=True)]
    halves = [Features({key: value.detach().to(dtype).requires_grad_() for key, value in side.items()}, side.mask)
              for side in sides]  # scores of padding are infinite in float16
    objective.float()
    with torch.autocast("cpu", dtype=dtype):
        loss = objective(*halves, batch(CLASSIFICATION, IDS), progress(0))
    assert {part.dtype for part in loss.parts.values()} == {torch.float32}
    # Attention over layers turns rounding of a dot product into a factor of the weights.
    rounding = 0.05 if selection.startswith("attention") and dtype == torch.bfloat16 else 0.02
    torch.testing.assert_close(loss.parts[knowledge].double().mean(), exact.mean(), rtol=rounding, atol=1e-3)
    loss.total.sum().backward()
    assert all(value.grad is None or value.grad.isfinite().all() for side in halves for value in side.values())


# The published methods are cells


@pytest.mark.parametrize("setting", [CLASSIFICATION, EQUAL, REGRESSION], ids=["unequal", "equal", "scores"])
@pytest.mark.parametrize(("method", "part", "theirs", "ours"), [
    ("rail_kd_l", "rail", {}, {}),
    ("rail_kd_l", "rail", {"resample": "step", "width": 5, "bias": False, "student_layers": [2]},
     {"resample": "step", "width": 5, "bias": False, "student_layers": [2]}),
    ("rail_kd_l", "rail", {"freeze_teacher_projection": True}, {"freeze_teacher_projection": True}),
    ("pkd", "pkd", {"reduction": "sum"}, {"selection": "fixed", "knowledge": {"cls": 1}, "project": AS_NEEDED}),
    ("pkd", "pkd", {"reduction": "sum", "mapping": "last", "pooling": "mean"},
     {"selection": "fixed", "mapping": "last", "project": AS_NEEDED}),
    ("alp_kd", "alp", {},
     {"selection": "attention", "knowledge": {"cls": 1}, "normalise": False, "project": AS_NEEDED}),
    ("alp_kd", "alp", {"pooling": "mean"},
     {"selection": "attention", "match": "mean", "normalise": False, "project": AS_NEEDED}),
    ("ckd", "ckd", {}, {"selection": "grouped", "knowledge": {"cls": 1}, "normalise": False}),
    ("ckd", "ckd", {"grouping": "overlap", "pooling": "mean"},
     {"selection": "grouped", "grouping": "overlap", "normalise": False}),
    ("fsp", "fsp", {}, {"selection": "fixed", "knowledge": {"fsp": 1}}),
], ids=str)
def test_a_published_method_is_a_cell(method: str, part: str, theirs: dict[str, Any], ours: dict[str, Any],
                                      setting: Setting) -> None:
    """From the same seed: needs, values, gradients and draws, up to the order of additions."""
    settings = {"knowledge": {"mean": 1.0}} | ours
    cell, original = objective_of("layer_kd", setting, **settings), objective_of(method, setting, **theirs)
    (name,) = settings["knowledge"]
    assert cell.needs == original.needs
    assert parameters_of(cell) == parameters_of(original)
    models = toys(setting)
    for step in (0, 1, 4, 9):
        assert cell.needs_at(progress(step)) == original.needs_at(progress(step))
        results = []
        for objective, key in ((cell, name), (original, part)):
            loss = loss_of(objective, models, step, setting=setting)
            learned = [models[0].states, *(p for p in objective.parameters() if p.requires_grad)]
            results.append((loss, loss.parts[key], torch.autograd.grad(loss.parts[key].sum(), learned)))
        (loss, value, gradients), (its_loss, its_value, its_gradients) = results
        torch.testing.assert_close(value, its_value, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(gradients, its_gradients, rtol=1e-9, atol=1e-13)
        diagnostics = {key: value for key, value in loss.diagnostics.items() if not key.startswith("attended/")}
        torch.testing.assert_close(diagnostics, dict(its_loss.diagnostics))
        if method == "rail_kd_l":
            torch.testing.assert_close(loss.total, its_loss.total, rtol=1e-12, atol=0)


# By hand


def test_value_relations_of_layers_weighed_by_cls() -> None:
    """The least published cell: what decides is the CLS state, what is mixed are the relations' probabilities."""
    setting = EQUAL
    objective = objective_of("layer_kd", setting, selection="attention", knowledge={"value_relations": 1.0},
                             project=AS_NEEDED)
    assert not list(objective.parameters())
    kinds = ("cls", "value")
    assert objective.needs.student == {LOGITS, *(FeatureKey(kind, i) for kind in kinds for i in (1, 2))}
    assert objective.needs.teacher == {LOGITS, *(FeatureKey(kind, i) for kind in kinds for i in range(1, 6))}
    student, teacher = (model.features(IDS, side) for model, side in
                        zip(toys(setting), (objective.needs.student, objective.needs.teacher), strict=True))
    loss = objective(student, teacher, batch(setting, IDS), progress(0))
    mask = student.mask
    states = [torch.stack([side[FeatureKey("cls", i)] for i in layers], dim=1)
              for side, layers in ((student, (1, 2)), (teacher, range(1, 6)))]
    weights = layer_attention(*states)
    expected = torch.zeros(8, dtype=torch.float64)
    for slot in (1, 2):
        relations = [probabilities(relation_scores(teacher[FeatureKey("value", i)], mask), mask) for i in range(1, 6)]
        mixture = sum(weights[:, slot - 1, i, None, None, None] * relation for i, relation in enumerate(relations))
        expected += attention_divergence(relation_scores(student[FeatureKey("value", slot)], mask), mixture, mask)
    torch.testing.assert_close(loss.parts["value_relations"], expected)
    for slot in (1, 2):
        mean_layer = (weights[:, slot - 1] * torch.arange(1.0, 6)).sum(dim=1).mean()
        torch.testing.assert_close(loss.diagnostics[f"attended/{slot}"], mean_layer)


def test_several_kinds_at_once_are_weighed_parts() -> None:
    both = objective_of("layer_kd", CLASSIFICATION, knowledge={"hidden": 3.0, "attention": 0.5}, layer_weight=0.2,
                        label_weight=0.7, kd_weight=0)
    models = toys(CLASSIFICATION)
    loss = loss_of(both, models)
    assert loss.weights == pytest.approx({"label": 0.7, "kd": 0, "hidden": 0.6, "attention": 0.1})
    alone = objective_of("layer_kd", CLASSIFICATION, knowledge={"attention": 1.0})
    torch.testing.assert_close(loss_of(alone, models).parts["attention"], loss.parts["attention"])


def test_embeddings_alone_can_be_taught() -> None:
    objective = objective_of("layer_kd", CLASSIFICATION, selection="fixed", mapping=[[0, 0]], knowledge={"hidden": 1})
    assert objective.needs.teacher == {LOGITS, FeatureKey("hidden", 0)}
    student, teacher = toys(CLASSIFICATION)
    loss_of(objective, (student, teacher)).parts["hidden"].mean().backward()
    assert [bool(layer.any()) for layer in student.states.grad] == [True, False, False, False]


def test_projections() -> None:
    def count(setting: Setting, **settings: Any) -> int:
        return parameters_of(objective_of("layer_kd", setting, **settings))

    up, both = 24 * (16 + 1), 128 * (16 + 1) + 128 * (24 + 1)
    assert count(CLASSIFICATION, knowledge={"hidden": 1}) == up
    assert count(CLASSIFICATION, knowledge={"hidden": 1, "cls": 1, "mean": 1}) == up + 2 * both
    # The matching is learned too, and shared with what is taught.
    assert count(CLASSIFICATION, selection="attention", knowledge={"hidden": 1}) == up + both
    assert count(CLASSIFICATION, selection="attention", knowledge={"hidden": 1, "cls": 1}) == up + both
    assert count(CLASSIFICATION, selection="grouped", knowledge={"hidden": 1}, bias=False) == 3 * 16 * 2 * 24
    assert count(EQUAL, knowledge={"hidden": 1, "mean": 1}, project=AS_NEEDED) == 0
    assert count(EQUAL, knowledge={"hidden": 1}) == 16 * 17
    assert count(CLASSIFICATION, knowledge={"attention": 1, "attention_scores": 1, "value_relations": 1}) == 0


@pytest.mark.parametrize(("selection", "watched"), [({"selection": "random"}, True), ({"selection": "attention"}, True),
                                                    ({"selection": "grouped"}, False)], ids=str)
def test_the_collapse_watch(selection: dict[str, Any], watched: bool) -> None:
    """Where both sides are mapped into one space, taught or only matched."""
    for knowledge in ("mean", "hidden"):
        objective = objective_of("layer_kd", CLASSIFICATION, knowledge={knowledge: 1.0}, **selection)
        diagnostics = loss_of(objective, toys(CLASSIFICATION)).diagnostics
        expected = watched and (knowledge == "mean" or selection["selection"] == "attention")
        assert ("collapse" in diagnostics) is ("spread" in diagnostics) is expected


# What does not go together

HEADS = replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, heads=2))
SHALLOW = replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, layers=2))
ODD = replace(CLASSIFICATION, teacher=Dims(6, 24, 6, 31))


@pytest.mark.parametrize(
    ("setting", "settings", "message"),
    [
        (HEADS, {"knowledge": {"attention_scores": 1}},
         "teacher has 4 heads and the student 2; use a student of 4 heads, or layer_kd with query_relations"),
        (HEADS, {"knowledge": {"attention": 1}}, "compared head by head"),
        (CLASSIFICATION, {"knowledge": {"value_relations": 1}, "relation_heads": 5},
         "relation_heads = 5 does not divide both widths, 24 of the teacher and 16 of the student; use a divisor of 8"),
        (CLASSIFICATION, {"selection": "fixed", "mapping": [[0, 0], [1, 2]], "knowledge": {"attention": 1}},
         r"layer 0, but embeddings have no attention; pair layers 1\.\.3 with layers 1\.\.6"),
        (CLASSIFICATION, {"selection": "fixed", "mapping": [[1, 0]], "knowledge": {"value_relations": 1}}, "layer 0"),
        (CLASSIFICATION, {"selection": "fixed", "mapping": [[1, 7]]}, r"teacher layer 7, expected 0\.\.6"),
        (CLASSIFICATION, {"selection": "grouped", "knowledge": {"fsp": 1}}, "grouped selection makes new ones"),
        (SHALLOW, {"knowledge": {"fsp": 1}}, "only one is taught"),
        (replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, layers=1)), {}, "no intermediate layer"),
        (replace(CLASSIFICATION, teacher=replace(CLASSIFICATION.teacher, layers=1)), {"selection": "attention"},
         "no intermediate layer to attend to"),
        (replace(CLASSIFICATION, teacher=replace(CLASSIFICATION.teacher, layers=2)), {"selection": "grouped"},
         r"only 2 teacher layer\(s\)"),
        (CLASSIFICATION, {"resample": "step", "selection": "fixed"}, "resample goes with selection random, not with"),
        (CLASSIFICATION, {"mapping": "last"}, "mapping goes with selection fixed, not with random"),
        (CLASSIFICATION, {"selection": "grouped", "width": 64}, "width goes with selection fixed or random or"),
        (CLASSIFICATION, {"selection": "fixed", "student_layers": [1]}, "student_layers goes with"),
        (CLASSIFICATION, {"relation_heads": 2}, "relation_heads concerns query_relations and key_relations and"),
        (CLASSIFICATION, {"knowledge": {"hidden": 1}, "normalise": False}, "normalise concerns cls and mean, of which"),
        (CLASSIFICATION, {"knowledge": {"attention": 1}, "bias": False}, "bias concerns"),
        (CLASSIFICATION, {"knowledge": {}}, "knowledge = {}"),
        (CLASSIFICATION, {"knowledge": {"hiden": 1}}, "knowledge.hiden"),
        (CLASSIFICATION, {"knowledge": {"mean": -1}}, "knowledge.mean = -1"),
        (CLASSIFICATION, {"selection": "atention"}, "selection = 'atention'"),
    ],
    ids=str,
)
def test_refusals_are_one_line_with_the_reason(setting: Setting, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        objective_of("layer_kd", setting, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("setting", "settings", "heads"), [
    (CLASSIFICATION, {}, 4), (HEADS, {}, 2), (ODD, {}, 2), (ODD, {"relation_heads": 8}, 8)], ids=str)
def test_relations_of_unequal_heads(setting: Setting, settings: dict[str, Any], heads: int) -> None:
    objective = objective_of("layer_kd", setting, knowledge={"value_relations": 1.0}, **settings)
    assert objective.knowledge["value_relations"].heads == heads
    assert (loss_of(objective, toys(setting)).parts["value_relations"] > 0).all()
