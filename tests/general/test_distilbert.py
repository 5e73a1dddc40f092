"""DistilBERT: golden values and gradients, its options, widths that differ, vocabularies that must not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import MASKED_LOGITS, MLM_LOGITS, FeatureKey, Features, at_positions
from kdcore.objective import Masked
from tests.general.golden import CUTS, EQUAL, UNEQUAL, loss_of, masked_of, objective_of
from tests.general.toys import SAME_WIDTH, phases_of
from tests.methods.golden import DTYPES
from tests.test_losses import GRADIENT, vectors

LAST = {"student": FeatureKey("hidden", 4), "teacher": FeatureKey("hidden", 8)}


@pytest.fixture
def data(golden: Path) -> dict[str, Tensor]:
    return vectors(golden, "08_distilbert")


def features(data: dict[str, Tensor], side: str, masked: Masked, dtype: torch.dtype = torch.float64) -> Features:
    logits = data[f"in.{side}_mlm_logits"].to(dtype)
    values = {MLM_LOGITS: logits, MASKED_LOGITS: at_positions(logits, masked.positions),
              LAST[side]: data[f"in.{side}_last_hidden"].to(dtype)}
    return Features(values, data["in.mask"].long())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("restricted", [False, True])
def test_golden_values(data: dict[str, Tensor], restricted: bool, cut: tuple[int, ...], dtype: torch.dtype) -> None:
    """However the step is cut; one of its rows has no masked token."""
    masked = masked_of(data["in.mlm_labels"].long())
    objective = objective_of("distilbert", EQUAL, dtype, restrict_ce_to_mask=restricted)
    loss = loss_of(objective, features(data, "student", masked, dtype), features(data, "teacher", masked, dtype), cut,
                   masked)
    for name, expected in (("ce", "ce_T2_masked_only" if restricted else "ce_T2"), ("mlm", "mlm"), ("cos", "cos")):
        torch.testing.assert_close(loss.parts[name].mean(), data[f"out.{expected}"].to(dtype), **DTYPES[dtype])
    if not restricted:
        torch.testing.assert_close(loss.total.mean(), data["out.total_5_2_1"].to(dtype), **DTYPES[dtype])


def test_golden_gradient(data: dict[str, Tensor]) -> None:
    data["in.student_last_hidden"].requires_grad_()
    masked = masked_of(data["in.mlm_labels"].long())
    sides = (features(data, side, masked) for side in ("student", "teacher"))
    loss_of(objective_of("distilbert", EQUAL), *sides, (1, 3), masked).parts["cos"].mean().backward()
    torch.testing.assert_close(data["in.student_last_hidden"].grad, data["grad.cos__student_last_hidden"], **GRADIENT)


def test_gradients_at_logits_by_hand(data: dict[str, Tensor]) -> None:
    """5 T (p_S - p_T) over the real tokens, and 2 (p_S - word) over the masked ones, at T = 1."""
    data["in.student_mlm_logits"].requires_grad_()
    labels, mask = data["in.mlm_labels"].long(), data["in.mask"]
    masked = masked_of(labels)
    sides = [features(data, side, masked) for side in ("student", "teacher")]
    loss_of(objective_of("distilbert", EQUAL, temperature=2), *sides, (1, 3), masked).total.mean().backward()
    ours, theirs = (data[f"in.{side}_mlm_logits"].detach() for side in ("student", "teacher"))
    soft = 5 * 2 * ((ours / 2).softmax(-1) - (theirs / 2).softmax(-1)) * (mask / mask.sum())[:, :, None]
    words = torch.nn.functional.one_hot(labels.clamp_min(0), 11)
    hard = 2 * (ours.softmax(-1) - words) * (labels >= 0)[:, :, None] / (labels >= 0).sum()
    torch.testing.assert_close(data["in.student_mlm_logits"].grad, soft + hard)


def test_a_twin_has_only_the_language_model_loss(data: dict[str, Tensor]) -> None:
    masked = masked_of(data["in.mlm_labels"].long())
    student = features(data, "student", masked)
    twin = Features({LAST["teacher"] if key == LAST["student"] else key: value for key, value in student.items()},
                    student.mask)
    loss = loss_of(objective_of("distilbert", EQUAL), student, twin, masked=masked)
    assert loss.parts["ce"].abs().max() < 1e-12
    assert loss.parts["cos"].abs().max() < 1e-12
    assert loss.parts["mlm"].sum() > 0


def test_heads_run_at_the_masked_tokens_alone_where_that_is_enough() -> None:
    everywhere, restricted = (objective_of("distilbert", EQUAL, restrict_ce_to_mask=on).needs for on in (False, True))
    assert everywhere.student == {MLM_LOGITS, LAST["student"]}
    assert everywhere.teacher == {MLM_LOGITS, LAST["teacher"]}
    assert restricted.student == {MASKED_LOGITS, LAST["student"]}
    assert restricted.teacher == {MASKED_LOGITS, LAST["teacher"]}


def test_a_narrower_student_learns_a_map_to_the_teachers_width(data: dict[str, Tensor]) -> None:
    objective = objective_of("distilbert", UNEQUAL)
    assert sum(p.numel() for p in objective.parameters()) == 8 * 12 + 12
    assert not list(objective_of("distilbert", EQUAL).parameters())
    masked = masked_of(data["in.mlm_labels"].long())
    student, teacher = (features(data, side, masked) for side in ("student", "teacher"))
    wide = torch.cat([teacher[LAST["teacher"]], torch.zeros(4, 7, 4, dtype=torch.float64)], dim=-1)
    linear = objective.bridge.student.maps[0]
    linear.weight.data, linear.bias.data = torch.eye(12, 8, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    loss = loss_of(objective, student, Features(dict(teacher) | {LAST["teacher"]: wide}, teacher.mask), masked=masked)
    torch.testing.assert_close(loss.parts["cos"].mean(), data["out.cos"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["distilbert", "mlm_kd"])
def test_vocabularies_of_different_sizes_are_refused_by_name(name: str) -> None:
    other = replace(SAME_WIDTH, student=replace(SAME_WIDTH.student, vocabulary=30))
    with pytest.raises(UserError, match=rf"methods\.{name}: .*the teacher has 31 tokens and the student 30"):
        phases_of(name, other)
