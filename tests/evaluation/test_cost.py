"""Sizes by hand and by the papers' numbers, and the shape of what is measured."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig, DistilBertConfig

from kdcore.evaluation.cost import latency, size
from tests.evaluation.synthetic import write_prepared
from tests.tiny import FAMILIES, save_tiny, tiny_model


def on_meta(config):
    with torch.device("meta"):
        return AutoModelForSequenceClassification.from_config(config)


@pytest.mark.parametrize(("config", "millions"), [
    (BertConfig(), 109.48), (BertConfig(num_hidden_layers=6), 66.96), (BertConfig(num_hidden_layers=3), 45.69),
    (BertConfig(hidden_size=384, intermediate_size=1536), 33.36),
    (BertConfig(hidden_size=384, intermediate_size=1536, num_hidden_layers=6), 22.71), (DistilBertConfig(), 66.36)],
    ids=["BERT 12x768", "6x768", "3x768", "12x384", "6x384", "DistilBERT"])
def test_parameters_as_in_the_papers(tmp_path, config, millions):
    found = size(on_meta(config), tmp_path)
    assert round(found["parameters"] / 1e6, 2) == millions


def test_multilingual_parts_apart(tmp_path):
    """XLM-R's vocabulary on 12 layers of width 384: 21.3 M in the transformer, 96 M in the embeddings."""
    config = AutoConfig.for_model("xlm-roberta", vocab_size=250002, hidden_size=384, intermediate_size=1536,
                                  max_position_embeddings=514)
    found = size(on_meta(config), tmp_path)
    assert found["transformer_parameters"] / 1e6 == pytest.approx(21.3, abs=0.1)
    assert found["embedding_parameters"] / 1e6 == pytest.approx(96.2, abs=0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_add_up_to_what_is_exported(tmp_path, family):
    folder = save_tiny(tmp_path / "model", family)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    found = size(model, folder)
    whole = found["embedding_parameters"] + found["transformer_parameters"] + found["head_parameters"]
    assert whole == sum(p.numel() for p in model.parameters())
    assert found["weight_bytes"] == (folder / "model.safetensors").stat().st_size
    assert found["weight_bytes"] >= 4 * whole


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_latency(tmp_path, device):
    prepared = write_prepared(tmp_path / "toy")
    model, shapes = tiny_model("bert").to(device), []
    model.register_forward_pre_hook(lambda module, args, kwargs: shapes.append(kwargs["input_ids"].shape),
                                    with_kwargs=True)
    found = latency([(model, prepared)], "validation")
    for rows in (1, 32):
        part = found[f"batch_{rows}"]
        assert 0 < part["p50_ms"] <= part["p95_ms"]
        assert part["examples_per_second"] == pytest.approx(1000 * rows / part["p50_ms"])
        assert sum(shape[0] == rows for shape in shapes) > part["batches"], "warm-up batches are not counted"
    assert len({shape[1] for shape in shapes}) > 3, "lengths are the real ones"
    assert found["peak_memory_bytes"] > 0
    assert found["peak_memory_of"] == ("process" if device == "cpu" else "CUDA allocator")
