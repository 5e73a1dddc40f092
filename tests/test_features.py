"""Names of features and the refusal of what was not declared."""

import math

import pytest
import torch

from kdcore.features import KINDS, LOGITS, FeatureKey, Features, layer_keys, masked_mean


@pytest.mark.parametrize("kind", KINDS)
def test_name_and_parse_are_inverse(kind: str) -> None:
    key = FeatureKey(kind, 0 if kind.endswith("logits") else 12)
    assert FeatureKey.parse(key.name) == key


def test_names_sort_like_layers_and_are_fit_for_files() -> None:
    keys = layer_keys("mean", range(12))
    assert [key.name for key in keys] == sorted(key.name for key in keys)
    assert layer_keys("mean", (3,))[0].name == "mean-03"
    assert LOGITS.name == "logits"


def test_only_pooled_kinds_need_no_tokens() -> None:
    assert {kind for kind in KINDS if FeatureKey(kind).is_sentence_level} == {"logits", "cls", "mean"}


@pytest.mark.parametrize(("kind", "layer"), [("heads", 1), ("mean", -1)])
def test_nonsense_is_refused(kind: str, layer: int) -> None:
    with pytest.raises((ValueError, TypeError), match=r"heads|layers count from 0"):
        FeatureKey(kind, layer)


def test_undeclared_feature_is_refused_and_names_the_declared_ones() -> None:
    features = Features({LOGITS: torch.zeros(2, 3), FeatureKey("mean", 2): torch.zeros(2, 4)})
    with pytest.raises(KeyError, match=r"mean-01 was not declared.*logits, mean-02"):
        features[FeatureKey("mean", 1)]
    assert features.logits.shape == (2, 3)
    assert set(features) == {LOGITS, FeatureKey("mean", 2)}
    assert len(features) == 2
    with pytest.raises(KeyError, match="declared: nothing"):
        Features({})[LOGITS]


def test_layers_are_stacked_in_the_order_asked_for() -> None:
    features = Features({FeatureKey("cls", layer): torch.full((2, 4), float(layer)) for layer in (1, 2, 3)})
    stacked = features.stack(layer_keys("cls", (3, 1)))
    assert stacked.shape == (2, 2, 4)
    assert stacked[:, :, 0].tolist() == [[3.0, 1.0], [3.0, 1.0]]
    with pytest.raises(KeyError, match="cls-04 was not declared"):
        features.stack(layer_keys("cls", (1, 4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_masked_mean_sums_half_precision_in_float32(dtype: torch.dtype) -> None:
    mean = masked_mean(torch.full((1, 3000, 1), 1.0, dtype=dtype), torch.ones(1, 3000, dtype=torch.int64))
    assert mean.dtype == torch.float32
    assert mean.item() == 1.0


def test_masked_mean_by_hand_ignores_whatever_padding_holds() -> None:
    states = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]], [[5.0, 7.0], [0.0, 0.0], [0.0, 0.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    hand = torch.tensor([[2.0, 4.0], [5.0, 7.0]])
    torch.testing.assert_close(masked_mean(states, mask), hand)
    for garbage in (1e30, math.inf, math.nan):
        torch.testing.assert_close(masked_mean(states.masked_fill(mask[:, :, None] == 0, garbage), mask), hand)
    longer = torch.cat([states, torch.full((2, 4, 2), 1e9)], 1)
    torch.testing.assert_close(masked_mean(longer, torch.cat([mask, torch.zeros(2, 4, dtype=mask.dtype)], 1)), hand)
