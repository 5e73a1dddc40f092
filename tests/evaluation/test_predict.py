"""Logits of a split: order, modes, labels by name, nothing beside logits."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from kdcore.errors import UserError
from kdcore.evaluation.metrics import score
from kdcore.evaluation.predict import predict
from tests.evaluation.synthetic import NLI, SENTIMENT, split, write_prepared
from tests.tiny import FAMILIES, save_tiny, tiny_model

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def permuted(folder, labels, order):
    """The model of `folder` with its outputs, and their names, in another order."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.weight.copy_(model.classifier.weight[list(order)])
        model.classifier.bias.copy_(model.classifier.bias[list(order)])
    model.config.id2label = {place: labels[old] for place, old in enumerate(order)}
    model.config.label2id = {name: place for place, name in model.config.id2label.items()}
    return model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_one_row_at_a_time_in_the_order_of_the_split(tmp_path, family, device):
    prepared = write_prepared(tmp_path / "toy")
    model = tiny_model(family).to(device)
    tokens = prepared.tokens("validation", "student")
    found = predict(model, prepared, "validation", batch_size=7)
    assert found.shape == (30, 2)
    assert found.dtype == torch.float32
    assert found.device.type == "cpu"
    for row in range(30):
        inputs = {k: v.to(device) for k, v in tokens.pad(torch.tensor([row])).items()}
        if family != "bert" and family != "electra":
            inputs.pop("token_type_ids")
        with torch.inference_mode():
            torch.testing.assert_close(found[row], model(**inputs).logits[0].cpu(), atol=1e-4, rtol=1e-4)


def test_batch_size_changes_nothing(tmp_path):
    prepared = write_prepared(tmp_path / "toy")
    model = tiny_model("bert")
    torch.testing.assert_close(predict(model, prepared, "validation", 64), predict(model, prepared, "validation", 1),
                               atol=1e-5, rtol=1e-5)


def test_dropout_is_off_and_every_modules_mode_comes_back(tmp_path):
    prepared = write_prepared(tmp_path / "toy")
    model = tiny_model("bert", dropout=0.5)
    calm = predict(model, prepared, "validation", 8)
    model.train()
    model.bert.embeddings.eval()
    before = [module.training for module in model.modules()]
    assert torch.equal(predict(model, prepared, "validation", 8), calm)
    assert [module.training for module in model.modules()] == before


def test_modes_come_back_when_the_forward_raises(tmp_path):
    prepared = write_prepared(tmp_path / "toy")
    model = tiny_model("bert").train()
    model.bert.embeddings.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predict(model, prepared, "validation", 8)
    assert model.training


def test_asks_for_logits_only_even_if_the_config_wants_everything(tmp_path):
    """Gathered hidden states made evaluations run out of memory."""
    prepared = write_prepared(tmp_path / "toy")
    model = tiny_model("bert")
    model.config.output_hidden_states = True
    seen = []
    model.register_forward_hook(lambda module, args, output: seen.append(output))
    predict(model, prepared, "validation", 8)
    assert seen
    assert all(output.hidden_states is None and output.attentions is None for output in seen)


def test_no_gradients_are_kept(tmp_path):
    prepared = write_prepared(tmp_path / "toy")
    assert not predict(tiny_model("bert"), prepared, "validation", 8).requires_grad


def test_columns_follow_the_datasets_names_not_the_models_order(tmp_path):
    prepared = write_prepared(tmp_path / "toy", NLI, splits=(split("validation", "select", 20, NLI),))
    folder = save_tiny(tmp_path / "model", labels=NLI)
    plain = predict(AutoModelForSequenceClassification.from_pretrained(folder), prepared, "validation", 8)
    shuffled = predict(permuted(folder, NLI, (2, 0, 1)), prepared, "validation", 8)
    torch.testing.assert_close(shuffled, plain)
    assert score(prepared, "validation", shuffled) == score(prepared, "validation", plain)


def test_three_unnamed_classes_are_refused(tmp_path):
    prepared = write_prepared(tmp_path / "toy", NLI, splits=(split("validation", "select", 20, NLI),))
    with pytest.raises(UserError, match="LABEL_0, LABEL_1, LABEL_2"):
        predict(tiny_model("bert", labels=("LABEL_0", "LABEL_1", "LABEL_2")), prepared, "validation", 8)


def test_another_number_of_outputs_is_refused(tmp_path):
    prepared = write_prepared(tmp_path / "toy")
    with pytest.raises(UserError, match="3 outputs"):
        predict(tiny_model("bert", labels=NLI), prepared, "validation", 8)


def test_one_row_of_regression_keeps_its_shape(tmp_path):
    prepared = write_prepared(tmp_path / "toy", None, ("pearson",), (split("validation", "select", 1, None),))
    assert predict(tiny_model("bert", labels=None), prepared, "validation", 8).shape == (1, 1)


def test_padding_inside_a_batch_is_small(tmp_path):
    prepared = write_prepared(tmp_path / "toy", splits=(split("validation", "select", 300, SENTIMENT),), longest=25)
    model, shapes = tiny_model("bert"), []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(kwargs["attention_mask"]), with_kwargs=True)
    predict(model, prepared, "validation", 16)
    hook.remove()
    assert 1 - sum(m.sum().item() for m in shapes) / sum(m.numel() for m in shapes) < 0.1
