"""Names of features and the refusal of what was not declared."""

import pytest
import torch

from kdcore.features import KINDS, LOGITS, FeatureKey, Features, layer_keys


@pytest.mark.parametrize("kind", KINDS)
def test_name_and_parse_are_inverse(kind: str) -> None:
    key = FeatureKey(kind, 0 if kind in ("logits", "mlm_logits") else 12)
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
