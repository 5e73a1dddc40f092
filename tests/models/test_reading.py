"""Features equal what transformers reports, for every family, with nothing more computed than asked for."""

import math

import pytest
import torch
from torch import nn
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from kdcore.errors import UserError
from kdcore.features import LOGITS, MASKED_LOGITS, MLM_LOGITS, FeatureKey, at_positions
from kdcore.models import reading
from tests.tiny import FAMILIES, tiny_config, tiny_inputs, tiny_model

LAYERS = 3


def every_state(layers: int = LAYERS) -> frozenset[FeatureKey]:
    return frozenset(FeatureKey(kind, layer) for kind in ("cls", "mean", "hidden") for layer in range(layers + 1))


def accepted(model, inputs):
    return {name: value for name, value in inputs.items() if name in reading.accepts(model)}


@pytest.mark.parametrize("family", FAMILIES)
def test_states_equal_those_of_output_hidden_states(family):
    model, inputs = tiny_model(family, layers=LAYERS), tiny_inputs(family)
    with torch.no_grad():
        features = reading.read(model, inputs, every_state() | {LOGITS})
        reported = model(**accepted(model, inputs), output_hidden_states=True)
    assert len(reported.hidden_states) == LAYERS + 1
    mask = inputs["attention_mask"].bool()
    assert not mask.all(), "the batch must hold padding, or the mean is not tested"
    torch.testing.assert_close(features.logits, reported.logits, rtol=0, atol=0)
    for layer, states in enumerate(reported.hidden_states):
        torch.testing.assert_close(features[FeatureKey("hidden", layer)], states, rtol=0, atol=0)
        torch.testing.assert_close(features[FeatureKey("cls", layer)], states[:, 0], rtol=0, atol=0)
        for row in range(len(mask)):
            expected = states[row][mask[row]].mean(dim=0)
            torch.testing.assert_close(features[FeatureKey("mean", layer)][row], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(features.mask, inputs["attention_mask"])


@pytest.mark.parametrize("family", FAMILIES)
def test_layer_l_is_the_output_of_block_l_and_0_the_embeddings(family):
    """Lesson A1: a toy whose block k outputs the constant k."""
    model, inputs = tiny_model(family, layers=LAYERS), tiny_inputs(family)
    layers = list(model.base_model.get_submodule(reading.family(model.config).layers))
    if family == "modernbert":
        layers[-1] = model.base_model.final_norm  # which ends the last layer; the states before it are read by nobody

    def constant(k: int):
        def replace(module, args, output):
            states = output[0] if isinstance(output, tuple) else output
            return (torch.full_like(states, float(k)), *output[1:]) if isinstance(output, tuple) else torch.full_like(
                states, float(k))
        return replace

    for k, layer in enumerate(layers, start=1):
        layer.register_forward_hook(constant(k))
    with torch.no_grad():
        features = reading.read(model, inputs, every_state())
    for layer in range(1, LAYERS + 1):
        for kind in ("cls", "mean", "hidden"):
            value = features[FeatureKey(kind, layer)]
            torch.testing.assert_close(value, torch.full_like(value, float(layer)))
    assert features[FeatureKey("hidden", 0)].std() > 0.1


OUT = {"distilbert": "attention.out_lin", "mpnet": "attention.attn.o", "modernbert": "attn.Wo"}
"""The linear layer behind the attention, where it is not BERT's."""


def attended(model, inputs, layer, kinds):
    """The features of these kinds, and what transformers' own attention of the layer hands to the linear behind it."""
    inner = model.base_model.get_submodule(reading.family(model.config).layers)[layer - 1]
    seen = []
    inner.get_submodule(OUT.get(model.config.model_type, "attention.output.dense")).register_forward_pre_hook(
        lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        features = reading.read(model, inputs, frozenset(FeatureKey(kind, layer) for kind in kinds))
    return *(features[FeatureKey(kind, layer)] for kind in kinds), seen[0]


def assert_attention(scores, value, expected, mask, reach=1000):
    """That softmax(scores) @ value is what was expected for real tokens that see the real tokens within their reach."""
    place = torch.arange(mask.shape[1])
    seen = mask[:, None, None].bool() & ((place[:, None] - place).abs() <= reach)
    context = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ value
    real = mask.bool()
    torch.testing.assert_close(context.transpose(1, 2).flatten(2)[real], expected[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_projections_and_scores_rebuild_the_attention(family):
    """softmax(scores + mask) @ value is what transformers' own eager attention feeds to the output projection."""
    model, inputs = tiny_model(family, layers=2, heads=4), tiny_inputs(family, longest=14)
    query, key, value, scores, seen = attended(model, inputs, 2, ("query", "key", "value", "scores"))
    b, t = inputs["input_ids"].shape
    assert query.shape == key.shape == value.shape == (b, 4, t, 8)
    assert scores.shape == (b, 4, t, t)
    if family not in ("mpnet", "deberta-v2"):
        torch.testing.assert_close(scores, query @ key.transpose(-1, -2) / math.sqrt(8))
    assert_attention(scores, value, seen, inputs["attention_mask"])


@pytest.mark.parametrize("changes", [
    {}, {"share_att_key": False}, {"pos_att_type": ["c2p"]}, {"pos_att_type": ["p2c"], "share_att_key": False},
    {"relative_attention": False}, {"position_buckets": -1, "norm_rel_ebd": "none"}], ids=str)
def test_deberta_scores_have_all_terms_of_its_attention(changes):
    config = tiny_config("deberta-v2")
    config.update(changes)
    torch.manual_seed(1)
    model, inputs = AutoModelForSequenceClassification.from_config(config).eval(), tiny_inputs("deberta-v2")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    query, key, value, scores, seen = attended(model, inputs, 2, ("query", "key", "value", "scores"))
    assert_attention(scores, value, seen, inputs["attention_mask"])
    by_content = query @ key.transpose(-1, -2) / math.sqrt(8)
    assert not torch.allclose(scores, by_content, atol=0.1)


def test_deberta_scores_carry_gradients_to_contents_and_positions_and_no_dropout():
    model, inputs = tiny_model("deberta-v2", dropout=0.5), tiny_inputs("deberta-v2")
    key = FeatureKey("scores", 1)
    expected = reading.read(model, inputs, frozenset({key}))[key]
    model.train()
    model.deberta.embeddings.dropout.p = 0.0
    scores = reading.read(model, inputs, frozenset({key}))[key]
    torch.testing.assert_close(scores, expected)
    scores.square().mean().backward()
    assert model.deberta.encoder.rel_embeddings.weight.grad.abs().sum() > 0
    assert model.deberta.embeddings.word_embeddings.weight.grad.abs().sum() > 0


def test_layer_1_of_deberta_ends_with_its_convolution():
    config = tiny_config("deberta-v2", layers=3)
    config.update({"conv_kernel_size": 3, "conv_act": "gelu"})
    model, inputs = AutoModelForSequenceClassification.from_config(config).eval(), tiny_inputs("deberta-v2")
    with torch.no_grad():
        features = reading.read(model, inputs, every_state())
        reported = model(**accepted(model, inputs), output_hidden_states=True).hidden_states
    for layer, states in enumerate(reported):
        assert torch.equal(features[FeatureKey("hidden", layer)], states)


@pytest.mark.parametrize(("layer", "reach"), [(2, 15), (4, 1000)])
def test_modernbert_rotates_by_position_with_the_base_of_the_layer(layer, reach):
    model, inputs = tiny_model("modernbert", layers=4), tiny_inputs("modernbert", longest=30)
    query, key, value, seen = attended(model, inputs, layer, ("query", "key", "value"))
    assert query.shape[2] > 25, "the window must cut something off"
    assert_attention(query @ key.transpose(-1, -2) / math.sqrt(8), value, seen, inputs["attention_mask"], reach)


def test_scores_of_tokens_that_a_layer_never_compares_are_refused():
    model, inputs = tiny_model("modernbert", layers=5), tiny_inputs("modernbert", longest=30)
    length = inputs["input_ids"].shape[1]
    with pytest.raises(UserError) as caught:
        reading.read(model, inputs, frozenset({FeatureKey("scores", 3)}))
    assert str(caught.value) == (
        f"scores of layer 3 were asked for, but that layer of the modernbert model looks 15 tokens to each side, and "
        f"texts have up to {length}; set max_length to at most 16, or use layers with full attention: 1, 4")
    assert reading.read(model, inputs, frozenset({FeatureKey("scores", 4)}))
    with pytest.raises(UserError, match="at most 16"):
        reading.check(model.config, frozenset({FeatureKey("scores", 3)}), 17)
    reading.check(model.config, frozenset({FeatureKey("scores", 3)}), 16)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_logits_pool_what_its_last_layer_hands_on(pooling):
    model, inputs = tiny_model("modernbert"), tiny_inputs("modernbert")
    model.config.classifier_pooling = pooling
    with torch.no_grad():
        features = reading.read(model, inputs, every_state(2) | {LOGITS})
        expected = model.classifier(model.head(features[FeatureKey(pooling, 2)]))
    torch.testing.assert_close(features.logits, expected)


def test_deberta_logits_come_from_the_first_token_of_its_last_layer():
    model, inputs = tiny_model("deberta-v2"), tiny_inputs("deberta-v2")
    with torch.no_grad():
        features = reading.read(model, inputs, every_state(2) | {LOGITS})
        expected = model.classifier(nn.functional.gelu(model.pooler.dense(features[FeatureKey("cls", 2)])))
    torch.testing.assert_close(features.logits, expected)


def test_only_logits_adds_no_hooks(monkeypatch):
    def refuse(self, *args, **kwargs):
        raise AssertionError("a hook was registered")

    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    monkeypatch.setattr(nn.Module, "register_forward_hook", refuse)
    assert reading.read(model, inputs, frozenset({LOGITS})).logits.shape == (4, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_head_runs_where_no_logits_are_asked_for(family):
    """That of a language model costs as much as its layers."""
    model, inputs = AutoModelForMaskedLM.from_config(tiny_config(family, layers=LAYERS)).eval(), tiny_inputs(family)
    key = FeatureKey("hidden", LAYERS)
    with torch.no_grad():
        expected = reading.read(model, inputs, frozenset({key, MLM_LOGITS}))[key]
        model.forward = None
        torch.testing.assert_close(reading.read(model, inputs, frozenset({key}))[key], expected, rtol=0, atol=0)


def test_hooks_go_to_the_layers_in_need_only_and_leave_after_a_failure():
    model, inputs = tiny_model("bert", layers=3), tiny_inputs("bert")
    hooked = []
    model.bert.pooler.register_forward_pre_hook(lambda module, args: hooked.append(
        [name for name, m in model.named_modules() if m._forward_hooks]))
    reading.read(model, inputs, frozenset({FeatureKey("mean", 2), FeatureKey("cls", 2)}))
    assert hooked == [["bert.encoder.layer.1"]]
    with pytest.raises(Exception, match="index out of range"):
        reading.read(model, inputs | {"input_ids": inputs["input_ids"] + 10_000}, frozenset({FeatureKey("mean", 2)}))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_only_what_the_model_takes_reaches_it(family):
    """Lessons A68, A69, A73: segment ids go to BERT and ELECTRA, not to the rest."""
    model = tiny_model(family)
    inputs = tiny_inputs("bert") if family == "distilbert" else tiny_inputs(family)
    inputs["token_type_ids"] = torch.ones_like(inputs["input_ids"])
    inputs["something_else"] = torch.ones(1)
    with torch.no_grad():
        with_segments = reading.read(model, inputs, frozenset({LOGITS})).logits
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        without = reading.read(model, inputs, frozenset({LOGITS})).logits
    assert torch.equal(with_segments, without) == (family not in ("bert", "electra"))


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family):
    """Lessons A36, B22: more padding, and garbage under it, leave pooled features alone."""
    model, inputs = tiny_model(family), tiny_inputs(family)
    keys = every_state(2) - {FeatureKey("hidden", layer) for layer in range(3)} | {LOGITS}
    longer = {name: nn.functional.pad(value, (0, 30), value=0 if name == "attention_mask" else 1)
              for name, value in inputs.items()}
    with torch.no_grad():
        short, long = reading.read(model, inputs, keys), reading.read(model, longer, keys)
    for key in keys:
        torch.testing.assert_close(short[key], long[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_the_layers_below_in_train_mode(family):
    model, inputs = tiny_model(family, layers=3).train(), tiny_inputs(family)
    features = reading.read(model, inputs, frozenset({FeatureKey("mean", 2)}))
    features[FeatureKey("mean", 2)].square().sum().backward()
    layers = model.base_model.get_submodule(reading.family(model.config).layers)
    touched = [any(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters()) for layer in layers]
    assert touched == [True, True, False]


def test_embeddings_alone_can_be_read():
    """Lesson A3: a loss on layer 0 trains the embeddings and nothing above."""
    model, inputs = tiny_model("electra").train(), tiny_inputs("electra")
    reading.read(model, inputs, frozenset({FeatureKey("hidden", 0)}))[FeatureKey("hidden", 0)].sum().backward()
    base = model.base_model
    assert base.embeddings_project.weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in base.encoder.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_keeps_pooled_means_and_scores_in_float32(family):
    model, inputs = tiny_model(family), tiny_inputs(family)
    keys = frozenset({FeatureKey("mean", 1), FeatureKey("scores", 1), LOGITS})
    with torch.no_grad():
        full = reading.read(model, inputs, keys)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = reading.read(model, inputs, keys)
    for key in (FeatureKey("mean", 1), FeatureKey("scores", 1)):
        assert half[key].dtype == torch.float32
        assert (half[key] - full[key]).norm() < 0.03 * full[key].norm()


def language_model(family, **changes):
    config = tiny_config(family)
    config.update(changes)
    torch.manual_seed(3)
    model = AutoModelForMaskedLM.from_config(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


POSITIONS = torch.tensor([[1, 3, 4], [2, 0, 0], [1, 2, 0], [5, 1, 2]])
LANGUAGE_MODELS = [*((family, {}) for family in FAMILIES), ("deberta-v2", {"legacy": False})]
"""DeBERTa-v3's checkpoints have the head that is not legacy."""


@pytest.mark.parametrize(("family", "changes"), LANGUAGE_MODELS, ids=str)
def test_masked_logits_equal_mlm_logits_at_the_masked_positions(family, changes):
    """Also in their gradients, and when both are asked for at once; the head then runs at all positions."""
    model, inputs = language_model(family, **changes), tiny_inputs(family, longest=12)
    inputs["masked_positions"] = POSITIONS
    weights = torch.linspace(-1, 1, POSITIONS.numel()).view(*POSITIONS.shape, 1)
    sizes, results = [], []
    model.get_output_embeddings().register_forward_pre_hook(lambda module, args: sizes.append(args[0].shape[1]))
    for keys in ({MASKED_LOGITS}, {MLM_LOGITS}, {MASKED_LOGITS, MLM_LOGITS}):
        features = reading.read(model, inputs, frozenset(keys))
        assert set(features) == keys
        logits = features[MASKED_LOGITS] if MASKED_LOGITS in keys else at_positions(features[MLM_LOGITS], POSITIONS)
        gradients = torch.autograd.grad((weights * logits).sum(), model.parameters(), allow_unused=True)
        results.append((logits, [g for g in gradients if g is not None]))
    vocabulary = model.config.vocab_size
    assert results[0][0].shape == (*POSITIONS.shape, vocabulary)
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(results[2], results[1], rtol=0, atol=0)
    length = inputs["input_ids"].shape[1]
    assert sizes == [3, length, length]
    with torch.no_grad():
        expected = model(**accepted(model, inputs)).logits
    torch.testing.assert_close(results[0][0], at_positions(expected, POSITIONS), rtol=1e-4, atol=1e-4)


def test_masked_logits_go_with_states_and_leave_no_hook():
    model, inputs = language_model("bert"), tiny_inputs("bert") | {"masked_positions": POSITIONS}
    last = FeatureKey("hidden", 2)
    features = reading.read(model, inputs, frozenset({MASKED_LOGITS, last}))
    assert features[last].shape[:2] == inputs["input_ids"].shape
    torch.testing.assert_close(model.cls(at_positions(features[last], POSITIONS)), features[MASKED_LOGITS])
    assert not any(module._forward_pre_hooks for module in model.modules())
    inputs["masked_positions"] = POSITIONS[:, :0]
    assert reading.read(model, inputs, frozenset({MASKED_LOGITS}))[MASKED_LOGITS].shape[1] == 0


@pytest.mark.parametrize(("key", "says"), [
    (FeatureKey("mean", 3), "layers are 0 (embeddings) to 2"),
    (FeatureKey("scores", 3), "layers are 0 (embeddings) to 2"),
    (FeatureKey("query", 0), "layers are 1 to 2"),
    (FeatureKey("mlm_logits"), "mlm_logits were asked of a BertForSequenceClassification; load it as ...ForMaskedLM"),
    (FeatureKey("masked_logits"), "ForMaskedLM"),
])
def test_features_that_are_not_there_are_the_users_error(key, says):
    with pytest.raises(UserError) as caught:
        reading.read(tiny_model("bert"), tiny_inputs("bert"), frozenset({key}))
    assert says in str(caught.value)


def test_an_unknown_family_is_refused_by_name():
    model = tiny_model("bert")
    model.config.model_type = "distillbert"
    with pytest.raises(UserError, match=r"distillbert.*did you mean 'distilbert'"):
        reading.read(model, tiny_inputs("bert"), frozenset({LOGITS}))


def test_undeclared_features_are_not_given():
    features = reading.read(tiny_model("mpnet"), tiny_inputs("mpnet"), frozenset({FeatureKey("scores", 1)}))
    assert set(features) == {FeatureKey("scores", 1)}
    with pytest.raises(KeyError, match="query-01"):
        features[FeatureKey("query", 1)]
