"""An export is a plain transformers folder whose bytes depend on the model alone (lessons A11, A23, A25)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from kdcore.export import export
from kdcore.models.loading import load_classifier, load_tokenizer
from tests.tiny import FAMILIES, save_tiny, tiny_inputs

LABELS = ("negative", "positive")


@pytest.mark.parametrize("family", FAMILIES)
def test_it_loads_with_transformers_alone(family: str, tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "source", family)
    model, tokenizer = load_classifier(str(source), None, LABELS, 0), load_tokenizer(str(source))
    export(model, tokenizer, {"seed": 1}, tmp_path / "out")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    inputs = {name: value for name, value in tiny_inputs(family).items() if name != "token_type_ids"}
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, again(**inputs).logits)
    words = "a great film"
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(words)["input_ids"] == tokenizer(words)["input_ids"]
    assert {value.dtype for value in load_file(tmp_path / "out" / "model.safetensors").values()} <= {
        torch.float32, torch.int64}


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    """Wherever they were loaded from, and over whatever lay there before."""
    for name in ("one", "two"):
        source = save_tiny(tmp_path / name / "source")
        (tmp_path / name / "out").mkdir()
        (tmp_path / name / "out" / "left over").write_text("x")
        export(load_classifier(str(source), None, LABELS, 0), load_tokenizer(str(source)), {"b": 0.1, "a": None},
               tmp_path / name / "out")
    files = sorted(path.name for path in (tmp_path / "one" / "out").iterdir())
    assert files == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training.json"]
    for name in files:
        content = (tmp_path / "one" / "out" / name).read_bytes()
        assert content == (tmp_path / "two" / "out" / name).read_bytes()
        assert str(tmp_path).encode() not in content
    assert json.loads((tmp_path / "one" / "out" / "training.json").read_text()) == {"a": None, "b": 0.1}


def test_numbers_that_are_none_do_not_get_in(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "source")
    with pytest.raises(ValueError, match="JSON"):
        export(load_classifier(str(source), None, LABELS, 0), load_tokenizer(str(source)), {"loss": float("nan")},
               tmp_path / "out")
