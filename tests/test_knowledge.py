"""What of a layer is taught: each kind of knowledge by itself, on tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from kdcore.knowledge import (
    Attention,
    BlockMaps,
    Fsp,
    Knowledge,
    Maps,
    Relations,
    Scores,
    Sentences,
    Tokens,
)
from kdcore.losses import squared_distance, unit
from kdcore.projection import Projection
from kdcore.token_losses import attention_divergence, hidden_distance, probabilities, relation_scores, score_distance

MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
AS_THEY_ARE = Maps(nn.Identity(), nn.Identity())

KNOWLEDGE: dict[str, tuple[Callable[[], Knowledge], tuple[int, ...]]] = {
    "cls": (lambda: Sentences("cls", AS_THEY_ARE, normalise=True), (6,)),
    "mean, not normalised": (lambda: Sentences("mean", AS_THEY_ARE, normalise=False), (6,)),
    "hidden": (lambda: Tokens(AS_THEY_ARE), (4, 6)),
    "attention_scores": (Scores, (2, 4, 4)),
    "attention": (Attention, (2, 4, 4)),
    "value_relations": (lambda: Relations("value", 2), (2, 4, 3)),
    "fsp": (lambda: Fsp(AS_THEY_ARE), (6,)),
}
every = pytest.mark.parametrize("name", KNOWLEDGE)


def numbers(name: str, layers: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, layers, *KNOWLEDGE[name][1], generator=generator, dtype=torch.float64)


@every
def test_zero_for_a_twin_and_positive_otherwise(name: str) -> None:
    known, student, teacher = KNOWLEDGE[name][0](), numbers(name, 2, 1), numbers(name, 2, 2)
    distance = known(student, teacher, None, MASK)
    assert distance.shape == (3, 1 if name == "fsp" else 2)
    assert (distance > 0).all()
    assert known(teacher, teacher, None, MASK).abs().max() < 1e-15


@every
def test_weights_of_one_layer_each_pick_it(name: str) -> None:
    known, student, teacher = KNOWLEDGE[name][0](), numbers(name, 2, 1), numbers(name, 3, 2)
    picked = torch.eye(3, dtype=torch.float64)[[2, 0]].expand(3, -1, -1)
    torch.testing.assert_close(known(student, teacher, picked, MASK), known(student, teacher[:, [2, 0]], None, MASK))


@every
def test_either_slot_counts(name: str) -> None:
    known, student, teacher = KNOWLEDGE[name][0](), numbers(name, 2, 1), numbers(name, 2, 2)
    before = known(student, teacher, None, MASK).sum(dim=1)
    for slot in range(2):
        other = teacher.clone()
        other[:, slot] = numbers(name, 1, 3)[:, 0]
        assert (known(student, other, None, MASK).sum(dim=1) != before).all()


@every
def test_weights_take_a_finite_gradient(name: str) -> None:
    """Also where a distribution of the teacher underflows to zero."""
    known, student, teacher = KNOWLEDGE[name][0](), numbers(name, 2, 1), numbers(name, 3, 2)
    student.requires_grad_()
    weights = torch.rand(3, 2, 3, dtype=torch.float64).softmax(dim=-1).requires_grad_()
    known(student, teacher * (1e3 if name == "attention" else 1), weights, MASK).sum().backward()
    for gradient in (student.grad, weights.grad):
        assert gradient.isfinite().all()
        assert gradient.any()


def test_sentences_by_hand() -> None:
    student, teacher = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[0.0, 2.0]]])
    for normalise, value in ((True, 0.4), (False, 6.5)):
        distance = Sentences("cls", AS_THEY_ARE, normalise)(student, teacher, None, None)
        torch.testing.assert_close(distance, torch.tensor([[value]]))


def test_a_mixture_of_directions_is_mixed_before_it_is_scaled() -> None:
    student, teacher = torch.randn(3, 1, 6), torch.randn(3, 2, 6) * torch.tensor([1.0, 9.0])[:, None]
    mixed = Sentences("mean", AS_THEY_ARE, True)(student, teacher, torch.full((3, 1, 2), 0.5), None)
    torch.testing.assert_close(mixed[:, 0], squared_distance(unit(student[:, 0]), unit(teacher.mean(dim=1))))


def test_states_are_mapped_before_they_are_mixed_and_compared() -> None:
    maps = Maps(Projection(4, 5, normalise=False), Projection(6, 5, normalise=False)).double()
    student, teacher = torch.randn(3, 2, 4, dtype=torch.float64), torch.randn(3, 3, 6, dtype=torch.float64)
    weights = torch.rand(3, 2, 3, dtype=torch.float64).softmax(dim=-1)
    (ours,), (theirs,) = maps.student.maps, maps.teacher.maps
    expected = squared_distance(ours(student), weights @ theirs(teacher)) / 5
    torch.testing.assert_close(Sentences("cls", maps, False)(student, teacher, weights, None), expected)


def test_token_states_are_mapped_one_by_one() -> None:
    maps = Maps(Projection(4, 6, normalise=False), nn.Identity()).double()
    student, teacher = torch.randn(3, 2, 4, 4, dtype=torch.float64), torch.randn(3, 2, 4, 6, dtype=torch.float64)
    (linear,) = maps.student.maps
    expected = torch.stack([hidden_distance(linear(student[:, i]), teacher[:, i], MASK) for i in range(2)], dim=1)
    torch.testing.assert_close(Tokens(maps)(student, teacher, None, MASK), expected)


@pytest.mark.parametrize("tokens", [(), (4,)], ids=["sentences", "tokens"])
def test_blocks_are_joined_in_the_order_of_their_layers(tokens: tuple[int, ...]) -> None:
    blocks = BlockMaps(((2, 5), (5, 7, 2)), candidates=(2, 5, 7), inputs=3, width=4, bias=True)
    assert [linear.maps[0].in_features for linear in blocks.maps] == [6, 9]
    student, teacher = torch.randn(2, 2, *tokens, 4), torch.randn(2, 3, *tokens, 3)
    same, joined = blocks(student, teacher, None)
    assert same is student
    assert joined.shape == student.shape
    two, five, seven = teacher.unbind(dim=1)
    for slot, layers in enumerate(((two, five), (five, seven, two))):
        expected = blocks.maps[slot].maps[0](torch.cat(layers, dim=-1))
        torch.testing.assert_close(joined[:, slot], expected)


def test_attention_is_mixed_as_distributions() -> None:
    student, teacher = numbers("attention", 1, 1), numbers("attention", 2, 2)
    mean = probabilities(teacher, MASK).mean(dim=1)
    weights = torch.full((3, 1, 2), 0.5, dtype=torch.float64)
    torch.testing.assert_close(Attention()(student, teacher, weights, MASK)[:, 0],
                               attention_divergence(student[:, 0], mean, MASK))
    torch.testing.assert_close(Scores()(student, teacher, weights, MASK)[:, 0],
                               score_distance(student[:, 0], teacher.mean(dim=1), MASK))


def test_relations_cut_heads_anew_where_counts_and_widths_differ() -> None:
    student, teacher = torch.randn(3, 1, 2, 4, 4), torch.randn(3, 1, 4, 4, 3)
    whole = [x[:, 0].transpose(1, 2).flatten(2)[:, None] for x in (student, teacher)]  # [b, 1, t, 8 or 12]
    expected = attention_divergence(*(f(relation_scores(x, MASK)) for f, x in
                                      ((lambda s: s, whole[0]), (lambda s: probabilities(s, MASK), whole[1]))), MASK)
    torch.testing.assert_close(Relations("value", 1)(student, teacher, None, MASK)[:, 0], expected)
    assert Relations("value", 2)(student, teacher, None, MASK).shape == (3, 1)


@pytest.mark.parametrize("content", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [name for name in KNOWLEDGE if KNOWLEDGE[name][1] != (6,)])
def test_what_padding_holds_reaches_no_weight(name: str, content: float) -> None:
    maps = Maps(nn.Linear(6, 6), nn.Linear(6, 6)).double()
    known = Tokens(maps) if name == "hidden" else KNOWLEDGE[name][0]()
    student, teacher = numbers(name, 2, 1), numbers(name, 3, 2)
    tokens = MASK[:, None, :, None] if name == "hidden" else MASK[:, None, None, :, None]
    real = tokens if name in ("hidden", "value_relations") else tokens * tokens.mT
    weights = torch.rand(3, 2, 3, dtype=torch.float64).softmax(dim=-1).requires_grad_()
    gradients = []
    for filling in (0.0, content):
        sides = [side.masked_fill(real == 0, filling).requires_grad_() for side in (student, teacher)]
        learned = [weights, *sides, *(maps.parameters() if name == "hidden" else ())]
        gradients.append(torch.autograd.grad(known(*sides, weights, MASK).sum(), learned))
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("known", [Tokens(AS_THEY_ARE), Scores(), Attention(), Relations("value", 2)],
                         ids=lambda known: type(known).__name__)
def test_token_level_features_need_a_mask(known: Knowledge) -> None:
    values = torch.randn(3, 1, 2, 4, 4) if known.kind != "hidden" else torch.randn(3, 1, 4, 4)
    with pytest.raises(ValueError, match="without a mask"):
        known(values, values, None, None)
