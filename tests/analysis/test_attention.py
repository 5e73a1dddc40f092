"""Mean attention over a training set, against one example at a time."""

import pytest
import torch

from kdcore.analysis.attention import mean_attention
from kdcore.features import LOGITS, Features
from kdcore.methods.alp_kd import AlpKd, Config
from kdcore.models.loading import dims
from kdcore.models.reading import read
from kdcore.objective import Setting
from tests.tiny import tiny_model, tiny_prepared

STUDENT = tiny_model("bert", layers=3, seed=1, dropout=0.5)
TEACHER = tiny_model("bert", layers=4, seed=2)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return tiny_prepared(tmp_path_factory.mktemp("tiny") / "toy", rows=70)


def objective(prepared):
    info = prepared.info
    return AlpKd(Config(), Setting(dims(TEACHER), dims(STUDENT), info.classes, False, prepared.labels("train"), 16, 1))


class Live:
    """A teacher that is run for every batch; `change` is applied to its features."""

    def __init__(self, change=lambda features: features):
        self.change = change

    def features(self, batch, keys):
        assert LOGITS not in keys
        return self.change(read(TEACHER, batch["teacher"], keys))


def test_it_is_the_mean_over_single_examples(prepared):
    method = objective(prepared)
    found = mean_attention(method, STUDENT.train(), Live(), prepared, "toy")
    tokens = prepared.tokens("train", "student")
    with torch.no_grad():
        single = [method.attention(read(STUDENT.eval(), tokens.pad(torch.tensor([row])), method.needs.student),
                                   read(TEACHER, tokens.pad(torch.tensor([row])), method.needs.teacher))
                  for row in range(70)]
    torch.testing.assert_close(found, torch.cat(single).double().mean(dim=0), atol=1e-5, rtol=0)
    assert found.shape == (2, 3)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2, dtype=torch.float64))


def test_equal_teacher_layers_get_equal_weights(prepared):
    def same(features):
        first = features[min(features)]
        return Features(dict.fromkeys(features, first), features.mask)

    found = mean_attention(objective(prepared), STUDENT, Live(same), prepared, "toy")
    torch.testing.assert_close(found, torch.full((2, 3), 1 / 3, dtype=torch.float64))
