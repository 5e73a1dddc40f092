"""Token-level losses against golden vectors, hand values and the faults of earlier systems."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, tensor

from kdcore import token_losses
from kdcore.objective import Step
from kdcore.token_losses import (
    attention_divergence,
    cosine_distance,
    hidden_distance,
    per_pair,
    per_token,
    probabilities,
    relation_divergence,
    relation_scores,
    score_distance,
    split_heads,
)
from tests.test_losses import GRADIENT, VALUE, vectors

MASK = tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])


def heads(vectors: Tensor, count: int) -> Tensor:
    """[b, t, d] to [b, h, t, d/h]."""
    return vectors.unflatten(-1, (count, -1)).transpose(1, 2)


def divergence(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    return attention_divergence(student, probabilities(teacher, mask), mask)


LOSSES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], tuple[int, ...]]] = {
    "hidden": (hidden_distance, (3, 5, 6)),
    "direction": (cosine_distance, (3, 5, 6)),
    "scores": (score_distance, (3, 2, 5, 5)),
    "attention": (divergence, (3, 2, 5, 5)),
    "relations": (relation_divergence, (3, 2, 5, 4)),
}
STATES = ("hidden", "direction")
every = pytest.mark.parametrize("name", LOSSES)


def numbers(name: str, seed: int, **kwargs: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LOSSES[name][1], generator=generator, dtype=torch.float64).to(**kwargs)


def padded(values: Tensor, name: str, content: float) -> Tensor:
    """The values with `content` wherever padding is."""
    if name in STATES:
        return values.masked_fill(MASK[:, :, None] == 0, content)
    if name == "relations":
        return values.masked_fill(MASK[:, None, :, None] == 0, content)
    return values.masked_fill((MASK[:, None, None] * MASK[:, None, :, None]) == 0, content)


# Golden vectors. TinyBERT's divide by all tokens of the batch: the mean of ours weighed by tokens (pairs of tokens).


def test_tinybert_golden(golden: Path) -> None:
    data = vectors(golden, "09_tinybert")
    mask, lengths = data["in.mask"].long(), data["in.mask"].sum(dim=1).double()
    student = data["in.student_hidden"] @ data["in.w"] + data["in.b"]
    for layer, theirs in enumerate(data["out.layer_map"].tolist()):
        per_example = hidden_distance(student[layer], data["in.teacher_hidden"][theirs], mask)
        batch = (per_example * lengths).sum() / lengths.sum()
        torch.testing.assert_close(batch, data["out.hidden_per_layer"][layer], **VALUE)
        if layer:
            scores = data["in.student_scores"][layer - 1], data["in.teacher_scores"][theirs - 1]
            batch = (score_distance(*scores, mask) * lengths**2).sum() / (lengths**2).sum()
            torch.testing.assert_close(batch, data["out.attn_per_layer"][layer - 1], **VALUE)


def test_tinybert_golden_gradients(golden: Path) -> None:
    data = vectors(golden, "09_tinybert")
    mask, lengths = data["in.mask"].long(), data["in.mask"].sum(dim=1).double()
    weight, scores = data["in.w"].requires_grad_(), data["in.student_scores"][0].requires_grad_()
    hidden = hidden_distance(data["in.student_hidden"][0] @ weight + data["in.b"], data["in.teacher_hidden"][0], mask)
    ((hidden * lengths).sum() / lengths.sum()).backward()
    torch.testing.assert_close(weight.grad, data["grad.hidden0__w"], **GRADIENT)
    attention = score_distance(scores, data["in.teacher_scores"][1], mask)
    ((attention * lengths**2).sum() / (lengths**2).sum()).backward()
    torch.testing.assert_close(scores.grad, data["grad.attn1__student_scores"], **GRADIENT)


def test_minilm_golden(golden: Path) -> None:
    data = vectors(golden, "11_minilm")
    mask, count = data["in.mask"].long(), int(data["in.heads"])
    for name in ("q_student", "v_student"):
        data[f"in.{name}"] = (data[f"in.{name}"] * mask[:, :, None]).requires_grad_()
    split = {key.removeprefix("in."): heads(value, count) for key, value in data.items() if key.startswith("in.")
             and value.dim() == 3}
    scores = {side: split[f"q_{side}"] @ split[f"k_{side}"].mT / split[f"q_{side}"].shape[-1] ** 0.5
              for side in ("student", "teacher")}
    attention = divergence(scores["student"], scores["teacher"], mask).mean()
    values = relation_divergence(split["v_student"], split["v_teacher"], mask).mean()
    torch.testing.assert_close(attention, data["out.l_at"], **VALUE)
    torch.testing.assert_close(values, data["out.l_vr"], **VALUE)
    torch.testing.assert_close(attention + values, data["out.l_total"], **VALUE)
    real_rows = mask[:, None, :, None].double()  # the reference keeps rows of padding queries, which nothing reads
    maps = {"attention": scores["teacher"], "value_relation": relation_scores(split["v_teacher"], mask)}
    for name, teacher in maps.items():
        torch.testing.assert_close(probabilities(teacher, mask), data[f"out.{name}_teacher"] * real_rows, **VALUE)
    (attention + values).backward()
    for name in ("q_student", "v_student"):
        torch.testing.assert_close(data[f"in.{name}"].grad, data[f"grad.l_total__{name}"], **GRADIENT)


@pytest.mark.parametrize("kind", ["q", "k", "v"])
def test_relation_heads_golden(golden: Path, kind: str) -> None:
    data = vectors(golden, "11_minilm")
    mask, count = data["in.mask"].long(), int(data["in.heads"])
    cut = [split_heads(heads(data[f"in.{kind}_{side}"], count), int(data["in.relation_heads"]))
           for side in ("student", "teacher")]
    torch.testing.assert_close(relation_divergence(*cut, mask).mean(), data[f"out.v2_{kind}{kind}"], **VALUE)


# Hand values


def test_hidden_distance_by_hand() -> None:
    student, teacher = tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]]), tensor([[[1.0, 0.0], [0.0, 4.0], [0.0, 0.0]]])
    assert hidden_distance(student, teacher, tensor([[1, 1, 0]])).tolist() == [(4 + 9) / (2 * 2)]


def test_cosine_distance_by_hand() -> None:
    student, teacher = tensor([[[3.0, 4.0], [0.0, -2.0], [9.0, 9.0]]]), tensor([[[1.0, 0.0], [0.0, 5.0], [0.0, 1.0]]])
    torch.testing.assert_close(cosine_distance(student, teacher, tensor([[1, 1, 0]])), tensor([(0.4 + 2) / 2]))


def test_score_distance_by_hand_keeps_large_negative_scores() -> None:
    """They are scores like others, not masked positions: no threshold zeroes them."""
    student = tensor([[[[-200.0, 1.0], [7.0, 7.0]]], [[[1.0, 2.0], [3.0, 4.0]]]])
    teacher = tensor([[[[-203.0, 0.0], [0.0, 0.0]]], [[[0.0, 0.0], [1.0, 2.0]]]])
    mask = tensor([[1, 0], [1, 1]])
    assert score_distance(student, teacher, mask).tolist() == [9.0, (1 + 4 + 4 + 4) / 4]


def test_divergence_by_hand_is_teacher_first_and_applies_one_softmax() -> None:
    teacher, student = tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), tensor([[0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])
    mask = tensor([[1, 1, 1]])

    def rows(p: Tensor, q: Tensor) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p.flatten().tolist(), q.flatten().tolist(), strict=True))

    rows_of = [x.log().expand(1, 1, 2, 3) for x in (student, teacher)]
    square = [torch.cat([x, x[:, :, :1]], dim=2) for x in rows_of]  # a third query like the first
    expected = (rows(teacher, student) + rows(teacher[0], student[0])) / 3
    torch.testing.assert_close(divergence(*square, mask), tensor([expected]))
    assert abs(rows(student, teacher) + rows(student[0], teacher[0]) - 3 * expected) > 0.04


def test_one_gap_in_one_row_is_divided_by_heads_and_queries() -> None:
    student, teacher = torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3)
    teacher[0, 1, 0] = tensor([0.6, 0.3, 0.1]).log()
    one_row = sum(p * math.log(3 * p) for p in (0.6, 0.3, 0.1))
    torch.testing.assert_close(divergence(student, teacher, tensor([[1, 1, 1]])), tensor([one_row / 6]))


def test_relation_scores_by_hand() -> None:
    vectors = tensor([[[[1.0, 2.0, 0.0, 2.0], [0.0, 1.0, 0.0, 0.0]]]])
    assert relation_scores(vectors, tensor([[1, 1]])).tolist() == [[[[4.5, 1.0], [1.0, 0.5]]]]


def test_split_heads() -> None:
    vectors = torch.arange(2 * 2 * 3 * 4.0).view(2, 2, 3, 4)
    whole = vectors.transpose(1, 2).flatten(2)  # [b, t, 8]
    assert torch.equal(split_heads(vectors, 4)[:, 3], whole[:, :, 6:])
    assert torch.equal(split_heads(vectors, 1)[:, 0], whole)
    assert torch.equal(split_heads(split_heads(vectors, 8), 2), vectors)
    with pytest.raises(ValueError, match="width of 8 cannot be cut into 3 heads"):
        split_heads(vectors, 3)


def test_relations_do_not_know_the_basis_of_a_head() -> None:
    vectors, student = torch.randn(3, 2, 5, 4, dtype=torch.float64), torch.randn(3, 2, 5, 4, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(2, 4, 4, dtype=torch.float64)).Q
    torch.testing.assert_close(relation_divergence(student, vectors @ rotation, MASK),
                               relation_divergence(student, vectors, MASK))


# Padding, company and degenerate sentences


@every
@pytest.mark.parametrize("content", [1e3, -1e30, float("nan"), float("inf")])
def test_content_of_padding_does_not_matter(name: str, content: float) -> None:
    loss, student, teacher = LOSSES[name][0], numbers(name, 1), numbers(name, 2)
    garbage = padded(student, name, content).requires_grad_()
    values = loss(garbage, padded(teacher, name, content), MASK)
    torch.testing.assert_close(values, loss(student, teacher, MASK))
    values.sum().backward()
    assert torch.equal(garbage.grad, padded(garbage.grad, name, 0.0))
    assert garbage.grad.isfinite().all()


@every
def test_company_and_amount_of_padding_do_not_matter(name: str) -> None:
    loss, student, teacher = LOSSES[name][0], numbers(name, 1), numbers(name, 2)
    together = loss(student, teacher, MASK)
    for row, length in enumerate(MASK.sum(dim=1).tolist()):
        cut = [x[row:row + 1, :length] if name in STATES else x[row:row + 1, :, :length] for x in (student, teacher)]
        if name in ("scores", "attention"):
            cut = [x[..., :length] for x in cut]
        torch.testing.assert_close(loss(*cut, MASK[row:row + 1, :length]), together[row:row + 1])


@every
def test_zero_for_a_twin_and_positive_otherwise(name: str) -> None:
    loss, student, teacher = LOSSES[name][0], numbers(name, 1), numbers(name, 2)
    assert loss(teacher, teacher, MASK).abs().max() < 1e-15
    values = loss(student, teacher, MASK)
    assert (values[:2] > 0).all()
    one_token = values[2]
    assert one_token == 0 if name in ("attention", "relations") else one_token > 0  # all attention goes to it


@every
def test_an_example_of_padding_only_is_harmless(name: str) -> None:
    loss, student, teacher = LOSSES[name][0], numbers(name, 1).requires_grad_(), numbers(name, 2)
    mask = MASK.clone()
    mask[1] = 0
    values = loss(student, teacher, mask)
    values.sum().backward()
    assert values[1] == 0
    assert values.isfinite().all()
    assert student.grad.isfinite().all()
    assert not student.grad[1].any()


@every
def test_slots_are_compared_one_by_one(name: str) -> None:
    loss = LOSSES[name][0]
    students, teachers = ([numbers(name, seed) for seed in seeds] for seeds in ((1, 2), (3, 4)))
    stacked = loss(torch.stack(students, dim=1), torch.stack(teachers, dim=1), MASK)
    alone = [loss(*pair, MASK) for pair in zip(students, teachers, strict=True)]
    torch.testing.assert_close(stacked, torch.stack(alone, dim=1))


@pytest.mark.parametrize("name", ["hidden", "direction", "scores", "attention", "relations"])
def test_shapes_are_compared(name: str) -> None:
    loss, values = LOSSES[name][0], numbers(name, 1)
    with pytest.raises(Exception, match=r"differ in shape|Type-check"):
        loss(values, values[:, :1], MASK)


# Precision


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_padding(name: str, dtype: torch.dtype) -> None:
    loss, student, teacher = LOSSES[name][0], numbers(name, 1), numbers(name, 2)
    exact = loss(student, teacher, MASK)
    halves = [padded(x, name, 6e4).to(dtype) for x in (student, teacher)]
    halves[0].requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        values = loss(*halves, MASK)
        values.sum().backward()
    assert values.dtype == torch.float32
    torch.testing.assert_close(values[:2].double(), exact[:2], rtol=0.02, atol=0)
    assert halves[0].grad.isfinite().all()


def test_an_impossible_key_has_a_gradient_and_a_finite_loss() -> None:
    """No clamp on the student's side; a scaled gradient stays finite at padding."""
    student, teacher = torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3, 3)
    student[..., 1] = -60.0  # probability below 1e-26
    student.requires_grad_()
    target = probabilities(teacher, tensor([[1, 1, 0]])).requires_grad_()
    loss = attention_divergence(student, target, tensor([[1, 1, 0]]))
    (2.0**16 * loss).sum().backward()
    torch.testing.assert_close(student.grad[0, 0, 0] / 2**16, tensor([0.25, -0.25, 0.0]))
    assert target.grad.isfinite().all()
    assert divergence(teacher, 200 * student.detach(), tensor([[1, 1, 0]])).isfinite().all()


def test_float32_is_accurate_for_real_sizes() -> None:
    generator = torch.Generator().manual_seed(1)
    student, teacher = (3 * torch.randn(2, 12, 128, 128, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(2, 128, dtype=torch.int64)
    torch.testing.assert_close(divergence(student.float(), teacher.float(), mask).double(),
                               divergence(student, teacher, mask), rtol=1e-6, atol=0)


def test_no_loss_swallows_a_misspelt_argument() -> None:
    for name, function in inspect.getmembers(token_losses, inspect.isfunction):
        kinds = {p.kind for p in inspect.signature(function).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}, name


def test_per_token_and_per_pair_average_over_all_tokens_of_a_step() -> None:
    lengths = torch.tensor([2, 5, 1, 4])
    mask = (torch.arange(6) < lengths[:, None]).long()
    values = torch.randn(4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = Step(lengths, torch.zeros(4, dtype=torch.int64))
    pairs = mask[:, :, None] * mask[:, None, :]
    by_token = (values[:, 0] * mask).sum(1) / lengths
    by_pair = (values * pairs).sum((1, 2)) / lengths**2
    for piece in (slice(0, 4), slice(0, 1), slice(1, 4)):  # of the same step, cut in two
        tokens = per_token(by_token[piece], mask[piece], step).sum() / 4
        assert tokens.item() == pytest.approx(((values[:, 0] * mask)[piece].sum() / 12).item(), abs=1e-12)
        both = per_pair(by_pair[piece], mask[piece], step).sum() / 4
        assert both.item() == pytest.approx(((values * pairs)[piece].sum() / (4 + 25 + 1 + 16)).item(), abs=1e-12)


def test_averages_over_a_step_need_one() -> None:
    with pytest.raises(ValueError, match="names no step"):
        per_token(torch.ones(1), torch.ones(1, 2, dtype=torch.int64), None)
