"""The stand-ins of smoke profiles are what their names say, load as any encoder, and are the same bytes each time."""

import pytest
import torch

from kdcore.layout import ROOT
from kdcore.models import random_encoders
from kdcore.models.files import weights_fingerprint
from kdcore.models.loading import load_described, load_tokenizer, usable_length


@pytest.mark.parametrize("shape", random_encoders.SHAPES, ids=lambda shape: shape.name)
def test_it_is_an_encoder_of_its_shape(shape, tmp_path):
    folder = str(random_encoders.write(tmp_path, shape))
    model, head = load_described(folder, None, ("no", "yes"), seed=1)
    config = model.config
    assert (config.model_type, config.num_hidden_layers) == (shape.family, shape.layers)
    assert config.hidden_size == shape.width
    assert head.startswith("new head")
    tokenizer = load_tokenizer(folder)
    assert usable_length(config) == random_encoders.POSITIONS == tokenizer.model_max_length
    text = "Two cafés? 3 men: no!"
    inputs = tokenizer([text, text], ["no " * 200, "yes"], truncation=True, padding=True, return_tensors="pt")
    assert tokenizer.unk_token_id not in inputs["input_ids"]
    assert inputs["input_ids"].shape == (2, random_encoders.POSITIONS)
    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    assert (logits[0] - logits[1]).abs().max() > 1e-3, "texts must differ in something"


def test_names_stand_for_the_same_bytes(tmp_path):
    shape = random_encoders.SHAPES[0]
    first, second = (weights_fingerprint(random_encoders.write(tmp_path / str(turn), shape)) for turn in range(2))
    assert first == second


def test_the_command_says_where_they_lie_and_profiles_name_them(tmp_path, capsys):
    random_encoders.main([str(tmp_path)])
    said = capsys.readouterr().out.strip()
    places = dict(entry.split("=") for entry in said.removeprefix("KDFLOW_SOURCES=").split(","))
    assert set(places) == {shape.name for shape in random_encoders.SHAPES}
    assert all(place == str(tmp_path / name) for name, place in places.items())
    named = {line.split("source: ")[1].rstrip("}") for path in ROOT.glob("studies/rail-*/profiles/smoke.yaml")
             for line in path.read_text(encoding="utf-8").splitlines() if "source: " in line}
    assert named == set(places)
