"""MobileBERT: golden values, its three schedules with rates and shares, widths that differ, what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kdcore.errors import UserError
from kdcore.features import MASKED_LOGITS, FeatureKey, Features, at_positions, layer_keys
from kdcore.objective import Dims, Masked
from kdcore.training.run import effective
from tests.general.golden import CUTS, loss_of, masked_of
from tests.general.toys import SAME_SHAPE, corpus, phases_of
from tests.methods.golden import DTYPES
from tests.test_losses import GRADIENT, VALUE, vectors
from tests.training.problem import settings

GOLDEN = corpus(Dims(4, 8, 2, 11), Dims(4, 8, 2, 11))
SCHEDULES = ("auxiliary", "joint", "progressive")


@pytest.fixture
def data(golden: Path) -> dict[str, Tensor]:
    return vectors(golden, "10_mobilebert")


def features(data: dict[str, Tensor], side: str, masked: Masked, dtype: torch.dtype = torch.float64) -> Features:
    states = zip(layer_keys("hidden", range(5)), data[f"in.{side}_hidden"], strict=True)
    scores = zip(layer_keys("scores", range(1, 5)), data[f"in.{side}_scores"], strict=True)
    logits = at_positions(data[f"in.{side}_mlm_logits"], masked.positions)
    values = dict([*states, *scores, (MASKED_LOGITS, logits)])
    return Features({key: value.to(dtype) for key, value in values.items()}, data["in.mask"].long())


def golden_sides(data: dict[str, Tensor], dtype: torch.dtype = torch.float64) -> tuple[Features, Features, Masked]:
    masked = masked_of(data["in.mlm_labels"].long())
    return features(data, "student", masked, dtype), features(data, "teacher", masked, dtype), masked


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_golden_values(data: dict[str, Tensor], cut: tuple[int, ...], dtype: torch.dtype) -> None:
    """PD is golden with the next sentence and the soft cross-entropy; ours has neither it nor the teacher's entropy."""
    student, teacher, masked = golden_sides(data, dtype)
    (phase,) = phases_of("mobilebert", GOLDEN, dtype, schedule="auxiliary")
    loss = loss_of(phase.objective, student, teacher, cut, masked)
    means = {name: part.mean() for name, part in loss.parts.items()}
    layers = means["feature_map"] + means["attention"]
    torch.testing.assert_close(layers, data["out.kt_all_layers"].to(dtype), **DTYPES[dtype])
    there = masked.targets != -100
    entropy = torch.distributions.Categorical(logits=teacher[MASKED_LOGITS][there]).entropy().mean()
    sentence = nn.functional.cross_entropy(data["in.nsp_logits"], data["in.nsp_labels"].long())
    predicted = 0.5 * means["mlm"] + 0.5 * (means["kd"] + entropy) + sentence.to(dtype)
    torch.testing.assert_close(predicted, data["out.pd_alpha0_5"].to(dtype), **DTYPES[dtype])
    torch.testing.assert_close(loss.total.mean(), layers + 0.5 * (means["mlm"] + means["kd"]))


@pytest.mark.parametrize(("normalise", "golden_name"), [(False, "fmt"), (True, "fmt_layernorm")])
def test_golden_layers(data: dict[str, Tensor], normalise: bool, golden_name: str) -> None:
    student, teacher, masked = golden_sides(data)
    phases = phases_of("mobilebert", GOLDEN, schedule="joint", normalise=normalise)
    loss = loss_of(phases[0].objective, student, teacher, masked=masked)
    for layer in range(1, 5):
        for name, expected in (("feature_map", golden_name), ("attention", "attn_kl")):
            found = loss.diagnostics[f"{name}/{layer}"]
            torch.testing.assert_close(found, data[f"out.{expected}_per_layer"][layer - 1], **VALUE)


def test_golden_gradient(data: dict[str, Tensor]) -> None:
    data["in.student_scores"].requires_grad_()
    student, teacher, masked = golden_sides(data)
    first = phases_of("mobilebert", GOLDEN)[0].objective
    loss_of(first, student, teacher, (1, 3), masked).parts["attention"].mean().backward()
    torch.testing.assert_close(data["in.student_scores"].grad[0], data["grad.attn_kl1__student_scores"], **GRADIENT)
    assert not data["in.student_scores"].grad[1:].any()


def test_attention_is_pulled_towards_the_teachers() -> None:
    """Not the reverse divergence: a student that is sure where the teacher is not costs more than one that is not."""
    (phase,) = phases_of("mobilebert", corpus(Dims(1, 2, 1, 5), Dims(1, 2, 1, 5)), schedule="auxiliary")
    key, mask = FeatureKey("scores", 1), torch.ones(1, 2, dtype=torch.int64)
    fixed = {FeatureKey("hidden", 1): torch.zeros(1, 2, 2, dtype=torch.float64),
             MASKED_LOGITS: torch.zeros(1, 1, 5, dtype=torch.float64)}
    sure, unsure = (torch.tensor([[[[x, -x], [x, -x]]]], dtype=torch.float64) for x in (3.0, 0.0))
    masked = Masked(torch.tensor([[1]]), torch.tensor([[2]]))
    values = [loss_of(phase.objective, Features(fixed | {key: ours}, mask), Features(fixed | {key: theirs}, mask), (1,),
                      masked).parts["attention"].item() for ours, theirs in ((sure, unsure), (unsure, sure))]
    p = torch.tensor([3.0, -3.0], dtype=torch.float64).softmax(0)
    assert values == pytest.approx([-(0.5 * (2 * p).log()).sum().item(), (p * (2 * p).log()).sum().item()])


# Schedules


def test_auxiliary_has_everything_at_once() -> None:
    (phase,) = phases_of("mobilebert", SAME_SHAPE, schedule="auxiliary")
    assert {key.kind for key in phase.objective.needs.student} == {"hidden", "scores", "masked_logits"}
    assert (phase.share, phase.layer_rates) == (None, None)


def test_joint_has_layers_then_words() -> None:
    layers, words = phases_of("mobilebert", SAME_SHAPE, schedule="joint", transfer_share=0.25)
    assert layers.objective.needs.teacher == {*layer_keys("hidden", (1, 2, 3)), *layer_keys("scores", (1, 2, 3))}
    assert words.objective.needs.teacher == {MASKED_LOGITS}
    assert (layers.share, words.share) == (0.25, 0.75)
    assert layers.layer_rates is words.layer_rates is None


def test_progressive_has_one_layer_after_the_other() -> None:
    """Layers above stand still, those below learn slowly, embeddings stay; words at the end with all of them."""
    *layers, words = phases_of("mobilebert", SAME_SHAPE)
    assert [phase.name for phase in layers] == ["layer-1", "layer-2", "layer-3"]
    assert [phase.layer_rates for phase in layers] == [(0, 1, 0, 0), (0, 0.1, 1, 0), (0, 0.1, 0.1, 1)]
    for number, phase in enumerate(layers, 1):
        assert phase.objective.needs.student == {FeatureKey("hidden", number), FeatureKey("scores", number)}
    assert words.layer_rates is None
    assert words.objective.needs.student == {MASKED_LOGITS}
    strict = phases_of("mobilebert", SAME_SHAPE, lower_rate=0)
    assert [phase.layer_rates for phase in strict[:-1]] == [(0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]


def test_embeddings_that_cannot_be_the_teachers_learn() -> None:
    """Those of another width, unless told otherwise: with layer 1, and then as a layer below."""
    wide = replace(SAME_SHAPE, teacher=Dims(3, 96, 4, 31))
    learned, frozen = [1, 0.1, 0.1], [0, 0, 0]
    for setting, options, expected in ((wide, {}, learned), (wide, {"freeze_embeddings": True}, frozen),
                                       (SAME_SHAPE, {"freeze_embeddings": False}, learned), (SAME_SHAPE, {}, frozen)):
        phases = phases_of("mobilebert", setting, **options)
        assert [phase.layer_rates[0] for phase in phases[:-1]] == expected


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_schedules_have_one_budget(schedule: str) -> None:
    phases = phases_of("mobilebert", SAME_SHAPE, schedule=schedule)
    assert sum(effective(settings(epochs=10), phase).epochs for phase in phases) == pytest.approx(10)
    assert sum(effective(settings(steps=1000), phase).steps for phase in phases) == pytest.approx(1000, abs=2)
    assert all(phase.objective.masks_tokens for phase in phases)


@pytest.mark.parametrize(("schedule", "key"), [
    ("auxiliary", "transfer_share"), ("auxiliary", "lower_rate"), ("joint", "lower_rate"),
    ("joint", "freeze_embeddings")])
def test_settings_that_do_nothing_are_refused(schedule: str, key: str) -> None:
    with pytest.raises(UserError, match=rf"^methods\.mobilebert: {key} does nothing with schedule: {schedule}"):
        phases_of("mobilebert", SAME_SHAPE, schedule=schedule, **{key: False if key == "freeze_embeddings" else 0.5})


# Which models


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_widths_that_differ_need_a_map_per_layer(schedule: str) -> None:
    wide = replace(SAME_SHAPE, teacher=Dims(3, 96, 4, 31))
    maps = [sum(p.numel() for p in phase.objective.parameters())
            for phase in phases_of("mobilebert", wide, schedule=schedule)]
    one = 96 * (48 + 1)
    assert maps == {"auxiliary": [3 * one], "joint": [3 * one, 0], "progressive": [one, one, one, 0]}[schedule]
    assert not any(list(phase.objective.parameters()) for phase in phases_of("mobilebert", SAME_SHAPE))


@pytest.mark.parametrize(("changes", "message"), [
    ({"layers": 2}, "the teacher has 3 layers and the student 2; use a student of 3 layers"),
    ({"heads": 2}, "the teacher has 4 heads and the student 2; use a student of 4 heads"),
    ({"vocabulary": 30}, "the teacher has 31 tokens and the student 30")])
def test_models_that_do_not_fit_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=rf"^methods\.mobilebert: .*{message}"):
        phases_of("mobilebert", replace(SAME_SHAPE, student=replace(SAME_SHAPE.student, **changes)))
