"""A model that is run for every batch is looked at, never trained (A18-A24, A48)."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from kdcore.features import MLM_LOGITS, FeatureKey
from kdcore.live_model import LiveModel
from kdcore.models.loading import load_encoder, load_masked_lm
from kdcore.training.precision import Precision
from tests.tiny import tiny_inputs
from tests.training.corpus_problem import save_encoder

KEYS = frozenset({FeatureKey("hidden", 4), FeatureKey("value", 3)})
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("teacher"))


def live(folder: Path, precision: str = "fp32") -> LiveModel:
    return LiveModel(lambda: load_encoder(str(folder)), CPU, Precision(precision, "cpu"))


def test_it_is_loaded_when_it_is_first_run(folder: Path) -> None:
    model = live(folder)
    assert not model.is_loaded
    model.compute(tiny_inputs("bert"), KEYS)
    assert model.is_loaded


def test_dropout_stays_off_whatever_was_done_to_it(folder: Path) -> None:
    model = live(folder)
    model.model.train()
    first, second = (model.features({"teacher": tiny_inputs("bert")}, KEYS) for _ in range(2))
    assert not any(module.training for module in model.model.modules())
    assert all(torch.equal(first[key], second[key]) for key in KEYS)


def test_its_features_take_no_gradient_but_give_one_to_others(folder: Path) -> None:
    """Inference tensors would be refused where a loss keeps them for the student's gradient."""
    model = live(folder)
    features = model.compute(tiny_inputs("bert"), KEYS)
    bridge = nn.Linear(32, 32)
    key = FeatureKey("hidden", 4)
    (bridge(features[key]) * features[key]).sum().backward()
    assert features[key].grad_fn is None
    assert bridge.weight.grad is not None
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in model.model.parameters())
    kept = weakref.ref(features[key])
    del features
    bridge.zero_grad()
    gc.collect()
    assert kept() is None


def test_half_precision_comes_out_wide(folder: Path) -> None:
    exact, half = (live(folder, name).compute(tiny_inputs("bert"), KEYS) for name in ("fp32", "bf16"))
    for key in KEYS:
        assert half[key].dtype == torch.float32
        assert not torch.equal(half[key], exact[key])
        torch.testing.assert_close(half[key], exact[key], rtol=0.05, atol=0.05)


def test_with_a_language_model_head(folder: Path) -> None:
    inputs = {name: value for name, value in tiny_inputs("bert").items() if name != "token_type_ids"}
    model = LiveModel(lambda: load_masked_lm(str(folder)), CPU, Precision("fp32", "cpu"))
    with torch.no_grad():
        expected = load_masked_lm(str(folder))(**inputs).logits
    torch.testing.assert_close(model.compute(inputs, frozenset({MLM_LOGITS}))[MLM_LOGITS], expected)
