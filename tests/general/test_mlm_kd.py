"""MLM-KD: golden values, gradients by hand, where and how hard."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kdcore.features import MASKED_LOGITS, MLM_LOGITS, Features, at_positions
from kdcore.objective import Loss
from tests.general.golden import CUTS, EQUAL, loss_of, masked_of, objective_of
from tests.methods.golden import DTYPES
from tests.test_losses import vectors


@pytest.fixture
def data(golden: Path) -> dict[str, Tensor]:
    return vectors(golden, "12_mlm_kd")


def loss(data: dict[str, Tensor], cut: tuple[int, ...] = (4,), dtype: torch.dtype = torch.float64,
         **settings: object) -> Loss:
    masked = masked_of(data["in.mlm_labels"].long())
    sides = []
    for side in ("student", "teacher"):
        logits = data[f"in.{side}_mlm_logits"].to(dtype)
        values = {MLM_LOGITS: logits, MASKED_LOGITS: at_positions(logits, masked.positions)}
        sides.append(Features(values, data["in.mask"].long()))
    return loss_of(objective_of("mlm_kd", EQUAL, dtype, **settings), *sides, cut, masked)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize(("expected", "settings"), [
    ("masked_T1", {}), ("masked_T2", {"temperature": 2}), ("all_tokens_T1", {"tokens": "all"})], ids=str)
def test_golden_values(data: dict[str, Tensor], expected: str, settings: dict[str, object], cut: tuple[int, ...],
                       dtype: torch.dtype) -> None:
    total = loss(data, cut, dtype, **settings).total.mean()
    torch.testing.assert_close(total, data[f"out.{expected}"].to(dtype), **DTYPES[dtype])


@pytest.mark.parametrize("tokens", ["masked", "all"])
def test_gradient_by_hand(data: dict[str, Tensor], tokens: str) -> None:
    student = data["in.student_mlm_logits"].requires_grad_()
    loss(data, (1, 3), tokens=tokens, temperature=3).total.mean().backward()
    counted = data["in.mlm_labels"] >= 0 if tokens == "masked" else data["in.mask"] == 1
    gap = (student.detach() / 3).softmax(-1) - (data["in.teacher_mlm_logits"] / 3).softmax(-1)
    torch.testing.assert_close(student.grad, 3 * gap * counted[:, :, None] / counted.sum())


@pytest.mark.parametrize("tokens", ["masked", "all"])
def test_hard_words_are_logged_and_weigh_nothing_unless_asked_to(data: dict[str, Tensor], tokens: str) -> None:
    labels = data["in.mlm_labels"].long()
    words = torch.nn.functional.cross_entropy(data["in.student_mlm_logits"].flatten(0, 1), labels.flatten())
    plain = loss(data, tokens=tokens)
    torch.testing.assert_close(plain.parts["mlm"].mean(), words)
    torch.testing.assert_close(plain.total, plain.parts["kd"])
    both = loss(data, tokens=tokens, kd_weight=0.5, mlm_weight=2)
    torch.testing.assert_close(both.total, 0.5 * plain.parts["kd"] + 2 * plain.parts["mlm"])


def test_heads_run_where_they_are_compared() -> None:
    assert objective_of("mlm_kd", EQUAL).needs.student == {MASKED_LOGITS}
    assert objective_of("mlm_kd", EQUAL).needs.teacher == {MASKED_LOGITS}
    assert objective_of("mlm_kd", EQUAL, tokens="all").needs.teacher == {MLM_LOGITS}
