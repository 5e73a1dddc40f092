"""A graph answers as the model does, for any batch and length, and says nothing of this machine."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kdcore.errors import UserError
from kdcore.models.reading import accepts
from kdcore.portable import graph
from kdcore.portable.folder import Graph, encode, read_tokenizer, write_tokenizer
from tests.tiny import FAMILIES, tiny_model, tiny_texts, tiny_tokenizer

SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES if family != "bert"]
"""Every graph takes seconds to write."""


@pytest.mark.parametrize("family", ["bert", *SLOW])
def test_it_answers_as_the_model_whatever_the_batch(family: str, tmp_path: Path) -> None:
    """Pairs and single texts, one row without padding, and rows of two tokens."""
    model, tokenizer = tiny_model(family), tiny_tokenizer(family)
    graph.write(model, tmp_path / "model.onnx")
    graph.quantise(tmp_path / "model.onnx", tmp_path / "int8.onnx")
    write_tokenizer(tokenizer, 24, tmp_path / "tokenizer.json")
    exported, quantised = Graph(tmp_path / "model.onnx", 1), Graph(tmp_path / "int8.onnx", 1)
    assert exported.inputs == [name for name in graph.INPUTS if name in accepts(model)]
    assert ("token_type_ids" in exported.inputs) == (family in ("bert", "electra"))
    fast = read_tokenizer(tmp_path / "tokenizer.json")
    for texts in ((tiny_texts(1, 1),), (tiny_texts(7, 2), tiny_texts(7, 3)), (["a", ""],), (tiny_texts(3, 4, 60),)):
        inputs = encode(fast, *texts)
        wanted = tokenizer(*texts, padding=True, truncation=True, max_length=24, return_tensors="pt")
        assert all((inputs[name] == values.numpy()).all() for name, values in wanted.items())
        with torch.inference_mode():
            answer = model(**{name: wanted[name] for name in exported.inputs}).logits.numpy()
        assert np.abs(exported(inputs) - answer).max() < 1e-5
        coarse = np.abs(quantised(inputs) - answer).max()
        assert 1e-5 < coarse < 0.5 * np.abs(answer).max()
    assert b"/home" not in (tmp_path / "model.onnx").read_bytes()
    assert Path.cwd().as_posix().encode() not in (tmp_path / "model.onnx").read_bytes()
    assert (tmp_path / "int8.onnx").stat().st_size < (tmp_path / "model.onnx").stat().st_size


def test_what_does_not_fit_one_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "LARGEST", 1000)
    with pytest.raises(UserError, match="an ONNX file holds at most 1,000"):
        graph.write(tiny_model("bert"), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
