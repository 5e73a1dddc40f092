"""MiniLMv2: golden values, relation heads, the teacher layer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import FeatureKey, Features
from kdcore.objective import Dims
from tests.general.golden import CUTS, UNEQUAL, loss_of, objective_of
from tests.general.test_minilm import features
from tests.general.toys import SMALLER, corpus, phases_of
from tests.methods.golden import DTYPES
from tests.test_losses import vectors

LARGE = corpus(Dims(24, 1024, 16, 30522), Dims(6, 384, 12, 30522))


@pytest.fixture
def data(golden: Path) -> dict[str, Tensor]:
    return vectors(golden, "11_minilm")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_golden_values(data: dict[str, Tensor], cut: tuple[int, ...], dtype: torch.dtype) -> None:
    loss = loss_of(objective_of("minilmv2", UNEQUAL, dtype, relation_heads=4), features(data, "student", 4, dtype),
                   features(data, "teacher", 8, dtype), cut)
    for values, expected in ((loss.parts["query"], "v2_qq"), (loss.parts["key"], "v2_kk"),
                             (loss.parts["value"], "v2_vv"), (loss.total, "v2_total")):
        torch.testing.assert_close(values.mean(), data[f"out.{expected}"].to(dtype), **DTYPES[dtype])


def test_relations_do_not_know_the_basis_of_a_relation_head(data: dict[str, Tensor]) -> None:
    objective = objective_of("minilmv2", UNEQUAL, relation_heads=2)
    student, teacher = features(data, "student", 4), features(data, "teacher", 8)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    turned = Features({key: value @ rotation if key.kind == "query" else value for key, value in student.items()},
                      student.mask)
    torch.testing.assert_close(loss_of(objective, turned, teacher).total, loss_of(objective, student, teacher).total)


def test_relation_heads_default_to_48_and_are_16_wide_in_a_base_model() -> None:
    """Lesson A42."""
    setting = corpus(Dims(12, 768, 12, 30522), Dims(6, 384, 12, 30522))
    objective = objective_of("minilmv2", setting)
    assert objective.heads == 48
    assert {key.layer for key in objective.needs.teacher} == {12}
    assert {key.layer for key in objective.needs.student} == {6}
    assert {key.kind for key in objective.needs.teacher} == {"query", "key", "value"}
    assert not objective.masks_tokens
    assert not list(objective.parameters())


def test_head_counts_may_differ_and_can_be_found() -> None:
    other = replace(SMALLER, student=replace(SMALLER.student, heads=6))
    assert objective_of("minilmv2", other).heads == 48
    assert objective_of("minilmv2", other, relation_heads=None).heads == 2


def test_a_large_teacher_has_its_own_heads_and_layer() -> None:
    objective = objective_of("minilmv2", LARGE, relation_heads=64, teacher_layer=21)
    assert objective.needs.teacher == {FeatureKey(kind, 21) for kind in ("query", "key", "value")}
    with pytest.raises(UserError) as caught:
        phases_of("minilmv2", LARGE)
    assert str(caught.value) == (
        "methods.minilmv2: relation_heads is 48, which does not divide both widths, 1024 of the teacher and 384 of the "
        "student; use a divisor of 128, or null to find one")
    with pytest.raises(UserError, match=r"methods\.minilmv2: teacher_layer is 25, expected 1\.\.24"):
        phases_of("minilmv2", LARGE, relation_heads=64, teacher_layer=25)
