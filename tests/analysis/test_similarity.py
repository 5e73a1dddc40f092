"""Cosines of layers: by hand, on equal models, and without a trace of padding."""

import pytest
import torch

from kdcore.analysis.similarity import States, layer_cosines, read_states, similarity
from tests.tiny import tiny_model, tiny_prepared

BATCHES = [[3, 0, 7], [5, 1]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return tiny_prepared(tmp_path_factory.mktemp("tiny") / "toy")


def states(model, prepared, pooling="mean", batches=BATCHES):
    return read_states(model, prepared.tokens("train", "student"), batches, pooling)


def test_cosines_by_hand():
    teacher = torch.tensor([[[3.0, 0.0]], [[1.0, 1.0]], [[-2.0, 0.0]]])  # three layers, one example
    student = torch.tensor([[[5.0, 0.0]], [[0.0, 0.1]]])
    half = 0.5**0.5
    torch.testing.assert_close(layer_cosines(teacher, student, torch.ones(1, 4, dtype=torch.long))[..., 0],
                               torch.tensor([[1, 0], [half, half], [-1, 0]]))


def test_token_cosines_are_averaged_over_real_tokens_first():
    teacher = torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [torch.nan, 9.0]], [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]]])
    student = torch.tensor([[[[2.0, 0.0], [0.0, 3.0], [7.0, 7.0]], [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    torch.testing.assert_close(layer_cosines(teacher, student, mask), torch.tensor([[[0.5, 0.0]]]))
    mean = similarity([States(teacher, mask)], [States(student, mask)])
    torch.testing.assert_close(mean, torch.tensor([[0.25]], dtype=torch.float64))


@pytest.mark.parametrize("pooling", ["mean", "cls", "tokens"])
def test_equal_models_are_alike_on_the_diagonal_only(prepared, pooling):
    model = tiny_model("bert", layers=3)
    matrix = similarity(states(model, prepared, pooling), states(model, prepared, pooling))
    assert matrix.shape == (3, 3)
    torch.testing.assert_close(matrix.diagonal(), torch.ones(3, dtype=torch.float64))
    assert (matrix < 1 - 1e-4).sum() == 6
    torch.testing.assert_close(matrix, matrix.T)


def test_layers_are_rows_for_the_teacher_and_columns_for_the_student(prepared):
    teacher, student = tiny_model("bert", layers=4), tiny_model("bert", layers=4)
    del student.bert.encoder.layer[2:]
    student.config.num_hidden_layers = 2
    matrix = similarity(states(teacher, prepared), states(student, prepared))
    assert matrix.shape == (4, 2)
    torch.testing.assert_close(matrix.diagonal(), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("pooling", ["mean", "cls", "tokens"])
def test_batches_do_not_matter(prepared, pooling):
    """Rows of other lengths in a batch mean other padding."""
    teacher, student = tiny_model("bert", layers=2), tiny_model("bert", layers=2, seed=1)
    many, one = (similarity(states(teacher, prepared, pooling, batches), states(student, prepared, pooling, batches))
                 for batches in ([[3], [0], [7], [5], [1]], [[1, 5, 0, 7, 3]]))
    torch.testing.assert_close(many, one)


def test_dropout_is_off_and_nothing_needs_gradients(prepared):
    model = tiny_model("bert", dropout=0.5)
    one, other = states(model, prepared), states(model, prepared)
    assert all(torch.equal(a.values, b.values) for a, b in zip(one, other, strict=True))
    assert not one[0].values.requires_grad
