"""Vanilla KD: the golden total, the meaning of alpha and of the factor T^2."""

from pathlib import Path

import pytest
import torch

from kdcore import methods
from kdcore.errors import UserError
from kdcore.features import LOGITS, Features
from kdcore.methods import vanilla_kd
from kdcore.methods.vanilla_kd import Config
from kdcore.objective import Batch, Loss
from tests.methods.toys import CLASSIFICATION, REGRESSION, batch, progress, toys
from tests.test_losses import GRADIENT, VALUE, vectors

IDS = torch.arange(4)


def loss_with(config: Config, setting=CLASSIFICATION) -> Loss:
    (phase,) = vanilla_kd.phases(config, setting)
    student, teacher = toys(setting)
    needs = phase.objective.needs
    return phase.objective(student.features(IDS, needs.student), teacher.features(IDS, needs.teacher),
                           batch(setting, IDS), progress(0))


def test_golden_total_and_gradient(golden: Path) -> None:
    data = vectors(golden, "02_vanilla_kd")
    (phase,) = vanilla_kd.phases(Config(alpha=0.7, temperature=10), CLASSIFICATION)
    logits = data["in.student_logits"].requires_grad_()
    loss = phase.objective(Features({LOGITS: logits}), Features({LOGITS: data["in.teacher_logits"]}),
                           Batch(torch.arange(5), data["in.labels"]), progress(0))
    torch.testing.assert_close(loss.total.mean(), data["out.vanilla_T10_alpha0.7"], **VALUE)
    loss.total.mean().backward()
    torch.testing.assert_close(logits.grad, data["grad.vanilla_T10_alpha0.7__student_logits"], **GRADIENT)


def test_alpha_moves_all_weight_from_label_to_teacher() -> None:
    only_label, only_teacher = loss_with(Config(alpha=0)), loss_with(Config(alpha=1))
    torch.testing.assert_close(only_label.total, only_label.parts["label"])
    torch.testing.assert_close(only_teacher.total, only_teacher.parts["kd"])


def test_temperature_counts_and_its_square_can_be_left_out() -> None:
    scaled = loss_with(Config(alpha=1, temperature=4)).total
    torch.testing.assert_close(loss_with(Config(alpha=1, temperature=4, squared_temperature=False)).total * 16, scaled)
    assert not torch.allclose(loss_with(Config(alpha=1, temperature=2)).total, scaled)


@pytest.mark.parametrize("config", [Config(alpha=1, temperature=9), Config(alpha=1, squared_temperature=False)])
def test_regression_ignores_the_temperature(config: Config) -> None:
    torch.testing.assert_close(loss_with(config, REGRESSION).total, loss_with(Config(alpha=1), REGRESSION).total)


@pytest.mark.parametrize(
    "settings",
    [{"alpha": 1.5}, {"alpha": -0.1}, {"temperature": 0}, {"temperature": float("inf")}, {"alpha": float("nan")},
     {"alpha": "much"}],
    ids=str,
)
def test_values_out_of_range(settings: dict[str, object]) -> None:
    (key,) = settings
    with pytest.raises(UserError, match=f"methods.vanilla_kd: {key} = "):
        methods.configure("vanilla_kd", settings)


def test_unknown_method_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"method 'vanila_kd' does not exist; did you mean 'vanilla_kd'"):
        methods.load("vanila_kd")
    with pytest.raises(UserError, match="'__init__' does not exist"):
        methods.configure("__init__", {})
