"""TinyBERT's task distillation: its two phases, the prediction's golden value, regression."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kdcore import methods
from kdcore.errors import UserError
from kdcore.features import LOGITS, Features
from kdcore.intermediate import Intermediate
from kdcore.objective import Batch, Loss, Objective, Phase, Setting
from kdcore.training.run import effective
from tests.methods.golden import UNEQUAL
from tests.methods.toys import CLASSIFICATION, REGRESSION, batch, progress, toys
from tests.test_losses import VALUE, vectors
from tests.training.problem import settings

IDS = torch.arange(8)


def phases_of(setting: Setting = CLASSIFICATION, **hyper: Any) -> tuple[Phase, ...]:
    found = methods.load("tinybert").phases(methods.configure("tinybert", hyper), setting)
    for phase in found:
        phase.objective.double()
    return found


def loss_of(objective: Objective, setting: Setting) -> Loss:
    student, teacher = toys(setting)
    return objective(student.features(IDS, objective.needs.student), teacher.features(IDS, objective.needs.teacher),
                     batch(setting, IDS), progress(0))


def test_layers_first_then_outputs() -> None:
    layers, outputs = phases_of()
    assert isinstance(layers.objective, Intermediate)
    assert LOGITS not in layers.objective.needs.student | layers.objective.needs.teacher
    assert outputs.objective.needs.student == outputs.objective.needs.teacher == {LOGITS}
    assert (layers.keep, layers.schedule, outputs.keep, outputs.schedule) == ("last", "constant", None, None)
    assert not outputs.fresh_student


def test_settings_of_the_phases() -> None:
    study = settings(epochs=7, learning_rate=1e-3)
    first, second = (effective(study, phase) for phase in phases_of())
    assert (first.epochs, first.learning_rate, first.schedule, first.keep) == (20, 5e-5, "constant", "last")
    assert (second.epochs, second.learning_rate, second.schedule, second.keep) == (3, 3e-5, "linear", "best")
    keys = [f"{phase}_{key}" for phase in ("intermediate", "prediction") for key in ("epochs", "learning_rate")]
    for phase in phases_of(**dict.fromkeys(keys)):
        assert effective(study, phase).epochs == 7
        assert effective(study, phase).learning_rate == 1e-3
    assert effective(study, phases_of(intermediate_epochs=0.5)[0]).epochs == 0.5


def test_prediction_golden(golden: Path) -> None:
    """Golden is the cross-entropy; ours is less by the teacher's entropy. The released code divides by the classes."""
    data = vectors(golden, "09_tinybert")
    (_, phase) = phases_of(UNEQUAL)
    teacher = data["in.teacher_logits"]
    loss = phase.objective(Features({LOGITS: data["in.student_logits"]}), Features({LOGITS: teacher}),
                           Batch(torch.arange(4), UNEQUAL.labels), progress(0))
    entropy = torch.distributions.Categorical(logits=teacher).entropy().mean()
    torch.testing.assert_close(loss.total.mean() + entropy, data["out.pred_t1"], **VALUE)
    torch.testing.assert_close((loss.total.mean() + entropy) / 3, data["out.pred_t1_public"], **VALUE)


def test_temperature_reaches_the_loss() -> None:
    one, four = (loss_of(phases_of(temperature=t)[1].objective, CLASSIFICATION).total for t in (1, 4))
    assert not torch.allclose(one, four)


def test_regression_learns_from_the_teacher_or_from_gold() -> None:
    """The released code never looks at the teacher (lesson B8)."""
    ours, theirs = (model.features(IDS, frozenset({LOGITS})).logits.squeeze(1) for model in toys(REGRESSION))
    loss = loss_of(phases_of(REGRESSION)[1].objective, REGRESSION)
    torch.testing.assert_close(loss.parts, {"kd": (ours - theirs).square()})
    gold = phases_of(REGRESSION, regression_target="gold")[1].objective
    assert not gold.needs.teacher
    torch.testing.assert_close(loss_of(gold, REGRESSION).parts, {"label": (ours - REGRESSION.labels[IDS]).square()})
    assert set(loss_of(phases_of(regression_target="gold")[1].objective, CLASSIFICATION).parts) == {"kd"}


def test_labels_do_not_matter() -> None:
    other = replace(CLASSIFICATION, labels=(CLASSIFICATION.labels + 1) % 3)
    for one, two in zip(phases_of(), phases_of(other), strict=True):
        torch.testing.assert_close(loss_of(one.objective, CLASSIFICATION).total, loss_of(two.objective, other).total)


def test_models_that_do_not_fit_are_refused() -> None:
    for changes, message in (({"heads": 2}, "4 heads and the student 2"), ({"layers": 4}, "a student of 4")):
        with pytest.raises(UserError, match=message):
            phases_of(replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, **changes)))
