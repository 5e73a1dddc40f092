"""Dynamic KD: golden values, who is selected, what weighs what, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore import methods
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features
from kdcore.losses import kd_loss, label_loss
from kdcore.methods.dynamic_kd import entropy, most_uncertain
from kdcore.objective import Batch, Dims, Loss, Objective, Setting
from tests.methods.toys import CLASSIFICATION, REGRESSION, batch, progress, toys
from tests.test_losses import VALUE, vectors

GOLDEN = Setting(Dims(2, 8, 2, 11), Dims(2, 8, 2, 11), classes=3, regression=False, labels=torch.arange(8) % 3,
                 batch_size=8, seed=0)
SOME = torch.tensor([3, 0, 9, 14])


def objective_of(setting: Setting = CLASSIFICATION, **settings: Any) -> Objective:
    (phase,) = methods.load("dynamic_kd").phases(methods.configure("dynamic_kd", settings), setting)
    return phase.objective.double()


def loss_of(setting: Setting = CLASSIFICATION, ids: Tensor = SOME, padding: int = 0, **settings: Any) -> Loss:
    objective, models = objective_of(setting, **settings), toys(setting)
    return objective(models[0].features(ids, objective.needs.student, padding),
                     models[1].features(ids, objective.needs.teacher, padding), batch(setting, ids), progress(0))


def golden_loss(data: dict[str, Tensor], **settings: Any) -> Loss:
    sides = []
    for side in ("student", "teacher"):
        states = {FeatureKey("hidden", layer): value for layer, value in enumerate(data[f"in.{side}_hidden"])}
        sides.append(Features(states | {LOGITS: data[f"in.{side}_logits"]}, torch.ones(8, 7, dtype=torch.int64)))
    return objective_of(GOLDEN, **settings)(*sides, Batch(torch.arange(8), GOLDEN.labels), progress(0))


# Golden vectors


def test_golden_uncertainty(golden: Path) -> None:
    data = vectors(golden, "13_dynamic_kd")
    logits = data["in.student_logits"].requires_grad_()
    torch.testing.assert_close(entropy(logits), data["out.entropy"], **VALUE)
    assert not entropy(logits).requires_grad
    loss = golden_loss(data, adapt="supervision")
    torch.testing.assert_close(loss.weights["representation"], data["out.weight"], **VALUE)


@pytest.mark.parametrize("ratio", [0.3, 0.5])
@pytest.mark.parametrize(("name", "measure"), [("entropy", "entropy"), ("margin", "margin"), ("lc", "confidence")])
def test_golden_selection(golden: Path, name: str, measure: str, ratio: float) -> None:
    data = vectors(golden, "13_dynamic_kd")
    chosen = most_uncertain(data["in.student_logits"], measure, ratio)
    assert chosen.tolist() == data[f"out.select_{name}_{ratio}"].tolist()


@pytest.mark.parametrize(("expected", "part", "settings"), [
    ("sup_kd_T5", "kd", {"distance": "kl"}), ("sup_kd_mse", "kd", {}), ("sup_rep", "representation", {}),
    ("weighted_kd_T5", "kd", {"distance": "kl", "swap": True})])
def test_golden_supervision(golden: Path, expected: str, part: str, settings: dict[str, Any]) -> None:
    data = vectors(golden, "13_dynamic_kd")
    loss = golden_loss(data, adapt="supervision", **settings)
    torch.testing.assert_close((loss.weights[part] * loss.parts[part]).mean(), data[f"out.{expected}"], **VALUE)


# Who is selected


def test_the_loss_is_the_mean_over_the_selected() -> None:
    loss = loss_of(ratio=0.5, distance="kl", temperature=3, label_weight=2, kd_weight=7)
    logits, taught = (model.features(SOME, frozenset({LOGITS})).logits for model in toys(CLASSIFICATION))
    chosen = most_uncertain(logits, "entropy", 0.5)
    expected = (2 * label_loss(logits, CLASSIFICATION.labels[SOME], False).mean()
                + 7 * kd_loss(logits, taught, 3, False)[chosen].mean())
    torch.testing.assert_close(loss.total.mean(), expected)


@pytest.mark.parametrize(("ratio", "examples", "count"),
                         [(0.5, 4, 2), (0.49, 4, 1), (0.1, 4, 1), (0.5, 1, 1), (1, 3, 3)])
def test_how_many_are_selected(ratio: float, examples: int, count: int) -> None:
    weights = loss_of(ids=SOME[:examples], ratio=ratio).weights["kd"]
    assert sorted(weights.tolist()) == [0] * (examples - count) + [examples / count] * count


def test_sure_of_the_wrong_class_is_sure() -> None:
    logits = torch.tensor([[9.0, 0, 0], [0, 0, 0], [5, 5, 0], [0, 1.2, 0]])
    assert most_uncertain(logits, "entropy", 1.0).tolist() == [1, 3, 2, 0]
    assert most_uncertain(logits, "margin", 1.0).tolist()[2:] == [3, 0]
    assert most_uncertain(logits, "confidence", 1.0).tolist() == [1, 2, 3, 0]


def test_scores_learn_from_all() -> None:
    assert loss_of(REGRESSION, ratio=0.25).weights["kd"].tolist() == [1, 1, 1, 1]


# Supervision


def test_an_example_has_the_value_that_it_has_alone() -> None:
    whole = loss_of(adapt="supervision", padding=3).total
    alone = torch.cat([loss_of(ids=one, adapt="supervision").total for one in SOME.split(1)])
    torch.testing.assert_close(whole, alone)
    assert not objective_of(adapt="supervision").couples_examples


def test_swap() -> None:
    one, other = (loss_of(adapt="supervision", swap=swap).weights for swap in (False, True))
    torch.testing.assert_close(one["kd"], other["representation"])
    torch.testing.assert_close(one["kd"] + one["representation"], torch.ones(4, dtype=torch.float64))


def test_the_map_is_there_where_widths_differ_and_learns() -> None:
    same = replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, width=24))
    assert not list(objective_of(same, adapt="supervision").parameters())
    objective, models = objective_of(adapt="supervision"), toys(CLASSIFICATION)
    objective(models[0].features(SOME, objective.needs.student), models[1].features(SOME, objective.needs.teacher),
              batch(CLASSIFICATION, SOME), progress(0)).total.sum().backward()
    assert all(parameter.grad.any() for parameter in objective.parameters())


@pytest.mark.parametrize(("settings", "setting", "message"), [
    ({"adapt": "supervision"}, REGRESSION, "methods.dynamic_kd: adapt: supervision .* set adapt: data"),
    ({"adapt": "supervision"}, replace(CLASSIFICATION, student=Dims(4, 16, 4, 31)), "no equal shares"),
    ({"adapt": "supervision", "ratio": 0.1}, CLASSIFICATION, "ratio is of no use with adapt: supervision"),
    ({"swap": True}, CLASSIFICATION, "swap is of no use with adapt: data"),
    ({"ratio": 0}, CLASSIFICATION, "ratio = 0"),
    ({"measure": "entropie"}, CLASSIFICATION, "measure = 'entropie'"),
], ids=str)
def test_what_does_not_fit(settings: dict[str, Any], setting: Setting, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        objective_of(setting, **settings)
    assert "\n" not in str(caught.value)
