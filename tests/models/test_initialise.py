"""Students start from exactly the layers that were asked for, and load without anything of ours."""

import json
import subprocess
import sys
from typing import get_args

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey
from kdcore.models import reading
from kdcore.models.initialise import build_student, choose_layers, student_config
from kdcore.models.loading import load_config
from kdcore.pair_config import StudentModel
from tests.tiny import FAMILIES, SENTIMENT, save_tiny, tiny_config, tiny_inputs, tiny_model

NLI = ("entailment", "neutral", "contradiction")


@pytest.mark.parametrize(("depth", "rule", "wanted", "layers"), [
    (6, "first", 3, (1, 2, 3)),
    (6, "last", 3, (4, 5, 6)),
    (6, "even", 3, (2, 4, 6)),
    (12, "even", 6, (2, 4, 6, 8, 10, 12)),
    (12, "even", 3, (4, 8, 12)),
    (12, "even", 5, (2, 5, 7, 10, 12)),
    (3, "even", 2, (2, 3)),
    (4, "even", 1, (4,)),
    (4, "even", 4, (1, 2, 3, 4)),
])
def test_rules_choose_layers(depth, rule, wanted, layers):
    assert choose_layers(depth, rule, wanted, "it") == layers


def test_every_family_can_be_named_as_the_students():
    (names, _) = get_args(StudentModel.model_fields["architecture"].annotation)
    assert set(get_args(names)) == set(reading.FAMILIES) == set(FAMILIES)


@pytest.mark.parametrize("layers", [None, (2, 3), "even"], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["bare", "masked-lm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_general_student_gets_a_new_head(tmp_path, family, masked, layers):
    """Distilled as a bare encoder or with a masked-language-model head, whole or in part."""
    config = tiny_config(family, layers=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        general = (AutoModelForMaskedLM if masked else AutoModel).from_config(config)
    general.save_pretrained(tmp_path)
    model = StudentModel(source=str(tmp_path), layers=layers, depth=2 if layers == "even" else None)
    student, said = build_student(model, tmp_path / "none", NLI, seed=1)
    chosen = {None: (1, 2, 3, 4), (2, 3): (2, 3), "even": (2, 4)}[layers]
    assert student.config.num_hidden_layers == len(chosen)
    assert student.config.id2label == dict(enumerate(NLI))
    assert "head (seed 1)" in said
    encoder = general.base_model.state_dict()
    stem = f"{reading.family(config).layers}."
    own = student.base_model.state_dict()
    folded = {"layers.0.attn.Wqkv.weight"} if family == "modernbert" and chosen[0] > 1 else set()
    for place, layer in enumerate(chosen):
        for name in (name for name in encoder if name.startswith(f"{stem}{layer - 1}.")):
            mine = name.replace(f"{stem}{layer - 1}.", f"{stem}{place}.")
            assert mine in folded | own.keys() or "attn_norm" in mine
            assert mine in folded or mine not in own or torch.equal(own[mine], encoder[name]), name
    with torch.no_grad():
        assert student(**tiny_inputs(family)).logits.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_chosen_layers_of_the_fine_tuned_teacher_with_its_head(tmp_path, family):
    save_tiny(tmp_path, family, layers=4, labels=NLI, seed=5)
    teacher = tiny_model(family, layers=4, labels=NLI, seed=5)
    student, said = build_student(StudentModel(layers=(2, 4)), tmp_path, NLI, seed=1)
    folded = "norm of layer 2 folded into its attention, " if family == "modernbert" else ""
    assert said == f"layers 2, 4 of the fine-tuned teacher (4 layers), {folded}its head"
    assert student.config.num_hidden_layers == 2
    assert student.config.id2label == dict(enumerate(NLI))
    stem = f"{teacher.base_model_prefix}.{reading.family(teacher.config).layers}."
    origin = teacher.state_dict()
    changed = {"model.layers.0.attn.Wqkv.weight"} if family == "modernbert" else set()
    for name, value in student.state_dict().items():
        if name in changed:
            continue
        for ours, theirs in (("0", "1"), ("1", "3")):
            if name.startswith(f"{stem}{ours}."):
                assert torch.equal(value, origin[name.replace(f"{stem}{ours}.", f"{stem}{theirs}.")]), name
                break
        else:
            assert torch.equal(value, origin[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_export_loads_with_transformers_alone_and_gives_the_same_logits(tmp_path, family):
    save_tiny(tmp_path / "teacher", family, layers=3)
    student, _ = build_student(StudentModel(layers="first", depth=2), tmp_path / "teacher", SENTIMENT, seed=1)
    student.save_pretrained(tmp_path / "student")
    assert json.loads((tmp_path / "student" / "config.json").read_text())["id2label"] == {"0": "negative",
                                                                                         "1": "positive"}
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "student").eval()
    inputs = tiny_inputs(family)
    with torch.no_grad():
        ours, theirs = (reading.read(m, inputs, frozenset({LOGITS})).logits for m in (student, again))
    assert torch.equal(ours, theirs)


def test_the_first_layers_of_the_student_compute_what_the_source_computes(tmp_path):
    save_tiny(tmp_path, layers=4)
    source, inputs = tiny_model("bert", layers=4), tiny_inputs("bert")
    student, _ = build_student(StudentModel(source=str(tmp_path), layers="first", depth=2), tmp_path,
                               SENTIMENT, seed=1)
    keys = frozenset(FeatureKey("hidden", layer) for layer in range(3))
    with torch.no_grad():
        ours, theirs = reading.read(student, inputs, keys), reading.read(source, inputs, keys)
    for key in keys:
        assert torch.equal(ours[key], theirs[key])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_student_has_nothing_of_its_source_but_sizes(tmp_path, family):
    save_tiny(tmp_path, family, layers=4)
    model = StudentModel(source=str(tmp_path), layers="random", depth=2)
    before = torch.get_rng_state()
    student, said = build_student(model, tmp_path, SENTIMENT, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert f"2 random {student.config.model_type} layers and embeddings" in said
    source, theirs = tiny_model(family, layers=4), student.state_dict()
    same, again = (build_student(model, tmp_path, SENTIMENT, seed=seed)[0].state_dict() for seed in (1, 2))
    drawn = [name for name, weight in theirs.items() if weight.is_floating_point() and weight.std() > 0]
    assert f"{student.base_model_prefix}.embeddings.word_embeddings.weight" in drawn or family == "modernbert"
    for name in drawn:
        assert theirs[name].shape == source.state_dict()[name].shape
        assert torch.equal(theirs[name], same[name])
        assert not torch.equal(theirs[name], again[name])
        assert not torch.equal(theirs[name], source.state_dict()[name])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("model", [StudentModel(), StudentModel(layers="last", depth=3), StudentModel(layers=(1, 3)),
                                   StudentModel(layers="even", depth=2, architecture="distilbert"),
                                   StudentModel(layers="random", depth=2)])
def test_the_configuration_alone_tells_what_the_student_will_be(tmp_path, family, model):
    save_tiny(tmp_path, family, layers=4)
    start = load_config(str(tmp_path))
    if model.architecture and family not in ("bert", "distilbert"):
        with pytest.raises(UserError, match="cannot take layers"):
            student_config(model, start, "it")
        return
    student, _ = build_student(model, tmp_path, SENTIMENT, seed=1)
    told, is_so = student_config(model, start, "it").to_dict(), student.config.to_dict()
    for name in ("architectures", "dtype", "id2label", "label2id", "problem_type"):
        told.pop(name, None), is_so.pop(name, None)
    assert told == is_so


@pytest.mark.parametrize("family", FAMILIES)
def test_first_layers_of_every_family_compute_what_they_computed(tmp_path, family):
    """Nothing that a layer needs lies elsewhere: tables of relative positions, windows and rotations come along."""
    save_tiny(tmp_path, family, layers=6)
    inputs = tiny_inputs(family, longest=30)
    student, _ = build_student(StudentModel(layers="first", depth=5), tmp_path, SENTIMENT, seed=1)
    keys = frozenset(FeatureKey("hidden", layer) for layer in range(5))
    with torch.no_grad():
        ours, theirs = reading.read(student, inputs, keys), reading.read(tiny_model(family, layers=6), inputs, keys)
    for key in keys:
        assert torch.equal(ours[key], theirs[key]), key.name


class TestModernBert:
    """Layers differ by their place: every third sees all tokens, the others a window, and the first has no norm."""

    @pytest.mark.parametrize(("layers", "reach"), [
        ((1, 4, 7), ("full_attention",) * 3),
        ((2, 4, 6), ("sliding_attention", "full_attention", "sliding_attention")),
        ((2, 3), ("sliding_attention",) * 2)])
    def test_layers_keep_their_reach_and_rotation(self, tmp_path, layers, reach):
        save_tiny(tmp_path / "teacher", "modernbert", layers=7)
        student, _ = build_student(StudentModel(layers=layers), tmp_path / "teacher", SENTIMENT, seed=1)
        student.save_pretrained(tmp_path / "student")
        again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "student").eval()
        source, inputs = tiny_model("modernbert", layers=7), tiny_inputs("modernbert", longest=30)
        assert tuple(again.config.layer_types) == reach
        for ours, theirs in zip(again.model.layers, (source.model.layers[layer - 1] for layer in layers), strict=True):
            assert ours.attn.sliding_window == theirs.attn.sliding_window
        with torch.no_grad():
            last = FeatureKey("hidden", len(layers))
            ours, read = (reading.read(model, inputs, frozenset({last}))[last] for model in (student, again))
            theirs = self.by_hand(source, layers, inputs)
        assert torch.equal(ours, read)
        error = 0.0 if layers[0] == 1 else 1e-3  # a norm of what is normed already differs by its epsilon
        assert (ours - theirs).norm() <= error * theirs.norm()

    def by_hand(self, source, layers, inputs):
        """The source's own modules, in another order."""
        base = source.model
        kept = base.layers
        base.layers = torch.nn.ModuleList(kept[layer - 1] for layer in layers)
        states = base(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state
        base.layers = kept
        return states

    def test_a_norm_that_becomes_the_first_is_folded_as_well_as_can_be(self, tmp_path):
        """Exactly where the embedding norm scales all alike, closely elsewhere, and never as if it were not there."""
        teacher = tiny_model("modernbert", layers=3, width=64)
        torch.manual_seed(0)
        teacher.model.layers[1].attn_norm.weight.data.uniform_(0.2, 2)
        for spread, error in ((0.0, 1e-4), (0.3, 0.2)):
            teacher.model.embeddings.norm.weight.data.uniform_(0.4 * (1 - spread), 0.4 * (1 + spread))
            teacher.save_pretrained(tmp_path)
            student, _ = build_student(StudentModel(layers=(2, 3)), tmp_path, SENTIMENT, seed=1)
            with torch.no_grad():
                states = teacher.model.embeddings(tiny_inputs("modernbert")["input_ids"])
                layer = teacher.model.layers[1]
                expected = layer.attn.Wqkv(layer.attn_norm(states))
                assert (student.model.layers[0].attn.Wqkv(states) - expected).norm() <= error * expected.norm()
                assert (layer.attn.Wqkv(states) - expected).norm() > 0.5 * expected.norm()

    def test_norms_with_biases_are_not_folded(self, tmp_path):
        config = tiny_config("modernbert", layers=3)
        config.norm_bias = True
        AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
        with pytest.raises(UserError, match="norms have biases"):
            build_student(StudentModel(layers="last", depth=2), tmp_path, SENTIMENT, seed=1)
        student, _ = build_student(StudentModel(layers="first", depth=2), tmp_path, SENTIMENT, seed=1)
        assert student.config.num_hidden_layers == 2


@pytest.mark.parametrize(("layers", "kernel", "said"), [
    ((1, 3), 3, "layers 1, 3 of the fine-tuned teacher (4 layers), its head"),
    ((2, 4), 0, "layers 2, 4 of the fine-tuned teacher (4 layers), without the convolution of layer 1, its head")])
def test_debertas_convolution_goes_with_layer_1(tmp_path, layers, kernel, said):
    config = tiny_config("deberta-v2", layers=4)
    config.update({"conv_kernel_size": 3, "conv_act": "gelu"})
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    student, remark = build_student(StudentModel(layers=layers), tmp_path, SENTIMENT, seed=1)
    assert remark == said
    assert student.config.conv_kernel_size == kernel
    assert (student.deberta.encoder.conv is not None) == (kernel > 0)
    student.save_pretrained(tmp_path / "student")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "student")
    assert {name for name, _ in again.named_parameters()} == {name for name, _ in student.named_parameters()}


def test_another_label_set_gets_a_new_head_that_follows_the_seed(tmp_path):
    save_tiny(tmp_path, layers=3)
    model = StudentModel(source=str(tmp_path), layers="even", depth=2)
    (a, said), (b, _), (c, _) = (build_student(model, tmp_path, NLI, seed) for seed in (1, 1, 2))
    assert said == f"layers 2, 3 of {tmp_path} (3 layers), new head (seed 1)"
    assert torch.equal(a.classifier.weight, b.classifier.weight)
    assert not torch.equal(a.classifier.weight, c.classifier.weight)


def test_a_source_without_layers_is_taken_whole(tmp_path):
    save_tiny(tmp_path, layers=3)
    student, said = build_student(StudentModel(source=str(tmp_path)), tmp_path, SENTIMENT, seed=1)
    assert student.config.num_hidden_layers == 3
    assert said == f"all of {tmp_path}, its head"


def test_bert_layers_make_a_distilbert_that_computes_the_same_states(tmp_path):
    save_tiny(tmp_path, layers=2)
    student, said = build_student(StudentModel(architecture="distilbert"), tmp_path, SENTIMENT, seed=1)
    assert type(student).__name__ == "DistilBertForSequenceClassification"
    assert "converted from bert to distilbert" in said
    assert "new head (seed 1)" in said
    assert "its head" not in said
    keys = frozenset(FeatureKey("mean", layer) for layer in range(3))
    inputs = tiny_inputs("bert")
    with torch.no_grad():
        ours, theirs = reading.read(student, inputs, keys), reading.read(tiny_model("bert"), inputs, keys)
    for key in keys:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-5)
    student.save_pretrained(tmp_path / "student")
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "student").config.id2label[1] == "positive"


@pytest.mark.parametrize(("own", "other"), [("roberta", "xlm-roberta"), ("xlm-roberta", "roberta")])
def test_roberta_and_xlm_r_share_everything(tmp_path, own, other):
    save_tiny(tmp_path, own, layers=3)
    student, said = build_student(StudentModel(architecture=other, layers=(1, 2, 3)), tmp_path, SENTIMENT, seed=1)
    assert student.config.model_type == other
    assert said == f"layers 1, 2, 3 of the fine-tuned teacher (3 layers), converted from {own} to {other}, its head"
    inputs = tiny_inputs(own)
    with torch.no_grad():
        torch.testing.assert_close(reading.read(student, inputs, frozenset({LOGITS})).logits,
                                   reading.read(tiny_model(own, layers=3), inputs, frozenset({LOGITS})).logits)


@pytest.mark.parametrize(("own", "other"), [("mpnet", "bert"), ("electra", "bert"), ("bert", "roberta"),
                                            ("distilbert", "bert"), ("roberta", "distilbert"), ("deberta-v2", "bert"),
                                            ("bert", "deberta-v2"), ("modernbert", "bert"),
                                            ("modernbert", "deberta-v2")])
def test_families_that_do_not_correspond_are_refused(tmp_path, own, other):
    save_tiny(tmp_path, own)
    with pytest.raises(UserError) as caught:
        build_student(StudentModel(architecture=other), tmp_path, SENTIMENT, seed=1)
    assert f"a {other} student cannot take layers from a {own} model" in str(caught.value)


@pytest.mark.parametrize(("model", "says"), [
    (StudentModel(layers="even", depth=5), "depth is 5, but the fine-tuned teacher has 3 layers; use 1..3"),
    (StudentModel(layers=(1, 4)), "names layer 4, but the fine-tuned teacher has layers 1 to 3"),
    (StudentModel(layers=(0, 1)), "names layer 0"),
    (StudentModel(layers=(2, 2)), "repeats a layer"),
    (StudentModel(layers=(3, 1)), "out of order"),
    (StudentModel(layers=()), "is empty"),
])
def test_layers_that_are_not_there(tmp_path, model, says):
    save_tiny(tmp_path, layers=3)
    with pytest.raises(UserError) as caught:
        build_student(model, tmp_path, SENTIMENT, seed=1)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_same_seed_gives_the_same_bytes_in_another_process(tmp_path):
    source = save_tiny(tmp_path / "source", layers=3)
    student, _ = build_student(StudentModel(source=str(source), layers="last", depth=2), tmp_path, NLI, 3)
    student.save_pretrained(tmp_path / "here")
    code = ("import sys; from pathlib import Path; from kdcore.pair_config import StudentModel; "
            "from kdcore.models.initialise import build_student; "
            "m, _ = build_student(StudentModel(source=sys.argv[1], layers='last', depth=2), Path('.'), "
            "('entailment', 'neutral', 'contradiction'), 3); m.save_pretrained(sys.argv[2])")
    subprocess.run([sys.executable, "-c", code, str(source), str(tmp_path / "there")], check=True, capture_output=True)
    here, there = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("here", "there"))
    assert here == there


@pytest.mark.slow
def test_even_layers_of_a_real_encoder(shared):
    source = str(shared / "models" / "e5-small-12x384")
    student, said = build_student(StudentModel(source=source, layers="even", depth=3), shared, NLI, seed=1)
    assert "layers 4, 8, 12" in said
    assert student.config.num_hidden_layers == 3
