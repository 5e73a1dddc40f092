"""Encoders without a classifier, with and without a language-model head, and what general students start from."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel

from kdcore.errors import UserError
from kdcore.general_config import Shape
from kdcore.models import general
from kdcore.models.loading import dims, load_encoder, load_masked_lm, output_layer
from tests.tiny import FAMILIES, save_tiny, tiny_config, tiny_inputs


def save(folder: Path, family: str = "bert", layers: int = 4, head: bool = True, **sizes: int) -> Path:
    """An encoder as it comes from pre-training."""
    auto = AutoModelForMaskedLM if head else AutoModel
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        auto.from_config(tiny_config(family, layers=layers, **sizes), dtype=torch.float32).save_pretrained(folder)
    return folder


def states(model: PreTrainedModel, family: str) -> torch.Tensor:
    inputs = {name: value for name, value in tiny_inputs(family).items() if name != "token_type_ids"}
    with torch.no_grad():
        return model.eval().base_model(**inputs).last_hidden_state


@pytest.mark.parametrize("family", FAMILIES)
def test_encoders_load_as_they_are(tmp_path: Path, family: str) -> None:
    save(tmp_path / "mlm", family)
    whole, bare = load_masked_lm(str(tmp_path / "mlm")), load_encoder(str(tmp_path / "mlm"))
    raw = AutoModelForMaskedLM.from_pretrained(tmp_path / "mlm").eval()
    assert not whole.training
    for name, value in raw.state_dict().items():
        assert torch.equal(whole.state_dict()[name], value), name
    assert torch.equal(states(bare, family), states(raw, family))
    again = load_encoder(str(tmp_path / "mlm")).state_dict()
    assert all(torch.equal(again[name], value) for name, value in bare.state_dict().items())  # a new pooler, too


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_is_missing(tmp_path: Path, family: str) -> None:
    """It is refused where it should teach; a student's is new, and the words that it shares stay."""
    save(tmp_path, family, head=False)
    with pytest.raises(UserError, match=r"has no masked-language-model head: .* by the method `mlm`"):
        load_masked_lm(str(tmp_path))
    one, again, other = (load_masked_lm(str(tmp_path), new_head=seed) for seed in (1, 1, 2))
    bare = load_encoder(str(tmp_path))
    assert torch.equal(one.get_input_embeddings().weight, bare.get_input_embeddings().weight)
    mine, theirs = one.state_dict(), again.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    assert any(not torch.equal(value, mine[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("masked_lm", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_random_layers_of_any_size(tmp_path: Path, family: str, masked_lm: bool) -> None:
    save(tmp_path, family, head=masked_lm)
    shape = Shape(depth=2, width=24, heads=2)
    one, what = general.build(shape, tmp_path, masked_lm, 1, "students.x.model")
    again, other = (general.build(shape, tmp_path, masked_lm, seed, "students.x.model")[0] for seed in (1, 2))
    assert what == f"2 random {family} layers of width 24, 2 heads (seed 1)"
    assert (dims(one).layers, dims(one).width, dims(one).heads) == (2, 24, 2)
    assert dims(one).vocabulary == dims(load_encoder(str(tmp_path))).vocabulary
    assert dims(general.student_config(shape, load_encoder(str(tmp_path)).config, "")) == dims(one)
    assert torch.equal(states(one, family), states(again, family))
    assert not torch.equal(states(one, family), states(other, family))
    assert type(one).__name__.endswith("ForMaskedLM") == masked_lm
    feed_forward = [m for m in one.modules() if isinstance(m, torch.nn.Linear) and 4 * 24 in m.weight.shape]
    assert len(feed_forward) >= 2
    std = one.get_input_embeddings().weight.std().item()
    assert std == pytest.approx(one.config.initializer_range, rel=0.15)  # ModernBERT cuts the tails off


@pytest.mark.parametrize("masked_lm", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_the_teacher(tmp_path: Path, family: str, masked_lm: bool) -> None:
    save(tmp_path, family, head=masked_lm)
    student, what = general.build(Shape(layers="first", depth=2), tmp_path, masked_lm, 0, "students.x.model")
    teacher = (load_masked_lm if masked_lm else load_encoder)(str(tmp_path))
    assert what.startswith("layers 1, 2 of the teacher (4 layers)")
    mine, theirs = student.state_dict(), teacher.state_dict()
    assert mine.keys() < theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


@pytest.mark.parametrize("masked_lm", [False, True])
def test_distilbert_starts_from_layers_of_bert(tmp_path: Path, masked_lm: bool) -> None:
    """With head, as the paper's student: of equal layers it computes what the teacher does."""
    save(tmp_path, "bert", layers=4, head=masked_lm)
    shape = Shape(layers=(1, 2, 3, 4), architecture="distilbert")
    student, _ = general.build(shape, tmp_path, masked_lm, 0, "students.x.model")
    teacher = (load_masked_lm if masked_lm else load_encoder)(str(tmp_path))
    torch.testing.assert_close(states(student, "bert"), states(teacher, "bert"))
    if masked_lm:
        inputs = {name: value for name, value in tiny_inputs("bert").items() if name != "token_type_ids"}
        with torch.no_grad():
            torch.testing.assert_close(student(**inputs).logits, teacher(**inputs).logits)
    fewer, what = general.build(Shape(layers=(1, 3), architecture="distilbert"), tmp_path, masked_lm, 0, "x")
    assert what == ("layers 1, 3 of the teacher (4 layers), converted from bert to distilbert: segment 0 added to the "
                    "positions")
    third = dict(teacher.base_model.named_parameters())["encoder.layer.2.intermediate.dense.weight"]
    assert torch.equal(fewer.base_model.state_dict()["transformer.layer.1.ffn.lin1.weight"], third)


def test_a_head_of_its_own_does_not_become_the_embeddings(tmp_path: Path) -> None:
    """Of a BERT whose head does not share its words with the embeddings; the student's does not either."""
    config = tiny_config("bert", layers=2)
    config.tie_word_embeddings = False
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    teacher = load_masked_lm(str(tmp_path))
    student, _ = general.build(Shape(layers=(1, 2), architecture="distilbert"), tmp_path, True, 0, "x")
    for mine, theirs in ((student.get_input_embeddings(), teacher.get_input_embeddings()),
                         (student.get_output_embeddings(), teacher.get_output_embeddings())):
        assert torch.equal(mine.weight, theirs.weight)
    assert not torch.equal(student.get_input_embeddings().weight, student.get_output_embeddings().weight)


def test_embeddings_of_the_teacher_under_random_layers(tmp_path: Path) -> None:
    save(tmp_path, width=32)
    shape = Shape(depth=2, embeddings=True)
    student, what = general.build(shape, tmp_path, False, 1, "students.x.model")
    teacher, alone = load_encoder(str(tmp_path)), general.build(Shape(depth=2), tmp_path, False, 1, "x")[0]
    assert what.endswith("(seed 1), embeddings of the teacher")
    for name, value in student.state_dict().items():
        like = teacher if name.startswith("embeddings") else alone
        assert torch.equal(value, like.state_dict()[name]), name
    small, _ = general.build(shape.model_copy(update={"architecture": "distilbert"}), tmp_path, False, 1, "x")
    assert torch.equal(small.get_input_embeddings().weight, teacher.get_input_embeddings().weight)


@pytest.mark.parametrize(("shape", "message"), [
    (Shape(depth=2, width=24, embeddings=True), r"students.x.model.embeddings is true, .* width 32 and .* 24; leave"),
    (Shape(width=30, heads=4), r"students.x.model: a width of 30 cannot be cut into 4 heads; set `heads`"),
    (Shape(layers=(1, 5)), r"students.x.model.layers names layer 5, but the teacher has layers 1 to 4"),
    (Shape(layers="even", depth=5), r"students.x.model.depth is 5, but the teacher has 4 layers"),
    (Shape(depth=2, architecture="mpnet"), "a mpnet student .* a bert model"),
])
def test_what_does_not_fit(tmp_path: Path, shape: Shape, message: str) -> None:
    save(tmp_path, width=32)
    with pytest.raises(UserError, match=message):
        general.build(shape, tmp_path, False, 0, "students.x.model")
    with pytest.raises(UserError, match=message):
        general.student_config(shape, load_encoder(str(tmp_path)).config, "students.x.model")


def test_a_general_student_becomes_a_classifier(tmp_path: Path) -> None:
    """Its encoder is taken as it is; nothing of its language-model head is left."""
    from kdcore.models.loading import load_described

    save(tmp_path)
    model, said = load_described(str(tmp_path), None, ("no", "yes"), seed=0)
    assert said == "new pooler and head (seed 0)"
    assert torch.equal(states(model, "bert"), states(load_encoder(str(tmp_path)), "bert"))
    assert output_layer(model).out_features == 2
    save_tiny(tmp_path / "classifier")
    assert load_encoder(str(tmp_path / "classifier")).config.num_hidden_layers == 2
