"""Loading: what is kept, what is new, what is refused."""

import json
import logging
import shutil
from contextlib import nullcontext
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, DebertaV2Tokenizer

from kdcore.errors import UserError
from kdcore.models import files, loading
from tests.tiny import FAMILIES, POSITIONS, WORDS, save_tiny, tiny_config, tiny_inputs, tiny_model, tiny_tokenizer

NLI = ("entailment", "neutral", "contradiction")


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_with_the_same_names_keeps_its_head(tmp_path, family):
    save_tiny(tmp_path, family, labels=NLI, seed=3)
    model = loading.load_classifier(str(tmp_path), None, NLI, seed=9)
    original = tiny_model(family, labels=NLI, seed=3)
    assert not model.training
    for name, value in original.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize("family", FAMILIES)
def test_another_order_of_the_same_names_reorders_the_outputs(tmp_path, family):
    save_tiny(tmp_path, family, labels=("Contradiction", "entailment", "neutral"))
    inputs = {k: v for k, v in tiny_inputs(family).items() if k != "token_type_ids"}
    with torch.no_grad():
        expected = AutoModelForSequenceClassification.from_pretrained(tmp_path)(**inputs).logits[:, [1, 2, 0]]
        model = loading.load_classifier(str(tmp_path), None, NLI, seed=0)
        torch.testing.assert_close(model(**inputs).logits, expected)
    assert model.config.id2label == dict(enumerate(NLI))
    assert model.config.label2id == {name: place for place, name in enumerate(NLI)}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_names_get_a_new_head_that_depends_on_the_seed_only(tmp_path, family):
    save_tiny(tmp_path, family, labels=("red", "green"))
    first, again, other = (loading.load_classifier(str(tmp_path), None, NLI, seed) for seed in (1, 1, 2))
    old = tiny_model(family, labels=("red", "green"))
    prefix = first.base_model_prefix + "."
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        if name.startswith(prefix):
            assert torch.equal(value, old.state_dict()[name]), name
        elif family == "modernbert" and name.startswith("head."):
            assert torch.equal(value, old.state_dict()[name]), name  # pre-trained, as BERT's pooler is
        elif name.endswith("weight"):
            assert not torch.equal(value, other.state_dict()[name]), name
            assert 0.5 < value.std() / first.config.initializer_range < 2
    assert first.config.num_labels == 3
    assert first.config.problem_type == "single_label_classification"


def test_the_callers_random_state_is_left_alone(tmp_path):
    save_tiny(tmp_path, labels=("red", "green"))
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    loading.load_classifier(str(tmp_path), None, NLI, seed=1)
    assert torch.equal(torch.rand(1), expected)


def test_regression_has_one_output_called_score(tmp_path):
    save_tiny(tmp_path, labels=("red", "green"))
    config = loading.load_classifier(str(tmp_path), None, None, seed=0).config
    assert (config.num_labels, config.id2label, config.problem_type) == (1, {0: "score"}, "regression")
    save_tiny(tmp_path / "scores", labels=None, seed=4)
    kept = loading.load_classifier(str(tmp_path / "scores"), None, None, seed=0)
    assert torch.equal(kept.classifier.weight, tiny_model("bert", labels=None, seed=4).classifier.weight)


def test_a_bare_encoder_in_half_precision_becomes_a_float32_classifier_and_its_new_pooler_is_said(tmp_path, caplog,
                                                                                                 capfd):
    encoder = tiny_model("bert").bert
    encoder.pooler = None
    encoder.half().save_pretrained(tmp_path)
    capfd.readouterr()
    with caplog.at_level(logging.WARNING):
        model = loading.load_classifier(str(tmp_path), None, NLI, seed=7)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.dtype == torch.float32
    assert [r.message for r in caplog.records] == [f"{tmp_path} has no pooler: a new one is drawn with seed 7"]
    printed = "".join(capfd.readouterr())
    assert "Loading weights" not in printed
    assert "LOAD REPORT" not in printed
    again = loading.load_classifier(str(tmp_path), None, NLI, seed=7)
    assert torch.equal(model.bert.pooler.dense.weight, again.bert.pooler.dense.weight)
    assert 0.01 < model.bert.pooler.dense.weight.std() < 0.03


def test_a_pooler_in_the_checkpoint_stays_when_the_head_is_new(tmp_path):
    save_tiny(tmp_path, labels=("red", "green"), seed=2)
    model = loading.load_classifier(str(tmp_path), None, NLI, seed=0)
    assert torch.equal(model.bert.pooler.dense.weight, tiny_model("bert", seed=2).bert.pooler.dense.weight)


def test_quiet_puts_transformers_settings_back():
    from transformers.utils import logging as log

    before = log.get_verbosity(), log.is_progress_bar_enabled()
    with loading.quiet():
        assert not log.is_progress_bar_enabled()
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == before


def test_modernbert_keeps_the_head_of_its_masked_language_model_and_says_where_it_lacks_one(tmp_path, caplog):
    """Its encoder and its prediction head are pre-trained together; the decoder to words is not the classifier's."""
    torch.manual_seed(2)
    masked = AutoModelForMaskedLM.from_config(tiny_config("modernbert"))
    masked.save_pretrained(tmp_path / "masked")
    model, said = loading.load_described(str(tmp_path / "masked"), None, NLI, seed=7)
    assert said == "new head (seed 7)"
    assert torch.equal(model.head.dense.weight, masked.head.dense.weight)
    assert torch.equal(model.model.layers[1].attn.Wqkv.weight, masked.model.layers[1].attn.Wqkv.weight)
    masked.model.save_pretrained(tmp_path / "bare")
    caplog.clear()
    model, said = loading.load_described(str(tmp_path / "bare"), None, NLI, seed=7)
    assert said == "new pooler and head (seed 7)"
    assert [r.message for r in caplog.records] == [f"{tmp_path / 'bare'} has no pooler: a new one is drawn with seed 7"]
    assert 0.01 < model.head.dense.weight.std() < 0.03


def test_deberta_without_a_fine_tuned_head_gets_its_pooler_and_classifier_new(tmp_path):
    tiny_model("deberta-v2").deberta.save_pretrained(tmp_path)
    (model, said), (again, _) = (loading.load_described(str(tmp_path), None, NLI, seed=7) for _ in range(2))
    assert said == "new head (seed 7)"
    for linear in (model.pooler.dense, model.classifier):
        assert 0.01 < linear.weight.std() < 0.03
        assert linear.bias.abs().max() == 0
    assert torch.equal(model.pooler.dense.weight, again.pooler.dense.weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_usable_length_is_what_runs_and_one_more_does_not(family):
    model = tiny_model(family)
    if family == "deberta-v2":
        model.config.position_biased_input = True
        model = AutoModelForSequenceClassification.from_config(model.config).eval()
    usable = loading.usable_length(model.config)
    assert usable == POSITIONS
    full = {"input_ids": torch.full((1, usable), 8), "attention_mask": torch.ones(1, usable, dtype=torch.int64)}
    with torch.no_grad():
        model(**full)
        with nullcontext() if family == "modernbert" else pytest.raises((IndexError, RuntimeError)):
            model(**{name: torch.cat([value, value[:, :1]], dim=1) for name, value in full.items()})
    loading.check_length(model.config, POSITIONS, "the student")
    with pytest.raises(UserError, match=f"max_length {POSITIONS + 1} is beyond the {POSITIONS} tokens"):
        loading.check_length(model.config, POSITIONS + 1, "the student")


def test_deberta_without_positions_in_its_input_takes_any_length():
    model = tiny_model("deberta-v2")
    loading.check_length(model.config, 100_000, "the teacher")
    inputs = {"input_ids": torch.full((1, 5 * POSITIONS), 8), "attention_mask": torch.ones(1, 5 * POSITIONS).long()}
    assert model(**inputs).logits.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_dims_come_from_the_configuration(family):
    sizes = loading.dims(tiny_model(family, layers=3, width=24, heads=2))
    assert (sizes.layers, sizes.width, sizes.heads) == (3, 24, 2)
    assert sizes.vocabulary == tiny_config(family).vocab_size


def test_tokenizer_fingerprint_follows_the_content_not_the_place(tmp_path):
    for name, words in (("a", WORDS), ("b", WORDS), ("c", (*WORDS, "extra"))):
        tiny_tokenizer("bert", words).save_pretrained(tmp_path / name)
    a, b, c = (loading.tokenizer_fingerprint(loading.load_tokenizer(str(tmp_path / name))) for name in "abc")
    assert a == b != c
    assert len(a) == 12
    used = loading.load_tokenizer(str(tmp_path / "a"))
    used("some text", truncation=True, max_length=4, padding="max_length")
    assert loading.tokenizer_fingerprint(used) == a
    assert loading.tokenizer_fingerprint(tiny_tokenizer("roberta")) != a


def test_tokenizer_fingerprint_sees_normaliser_and_special_tokens(tmp_path):
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    plain = loading.tokenizer_fingerprint(loading.load_tokenizer(str(tmp_path)))
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"] = None
    path.write_text(json.dumps(content))
    cased = loading.tokenizer_fingerprint(loading.load_tokenizer(str(tmp_path)))
    assert cased != plain


def test_debertas_own_tokenizer_is_the_same_after_saving(tmp_path):
    own = tiny_tokenizer("deberta-v2")
    for name in ("first", "second"):
        own.save_pretrained(tmp_path / name)
        tiny_config("deberta-v2").save_pretrained(tmp_path / name)
        again = loading.load_tokenizer(str(tmp_path / name))
        assert isinstance(again, DebertaV2Tokenizer)
        assert loading.tokenizer_fingerprint(again) == loading.tokenizer_fingerprint(own)
        assert again("the film xyz", "the 9").data == own("the film xyz", "the 9").data
        own = again


class TestHub:
    """Hub ids go through the hub's own cache, filled here by hand as the hub lays it out."""

    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        repository = tmp_path / "models--someone--tiny"
        save_tiny(repository / "snapshots" / "0123abcd", labels=NLI, seed=6)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0123abcd")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        return repository

    def test_model_and_tokenizer_come_from_the_cache(self, cache):
        model = loading.load_classifier("someone/tiny", None, NLI, seed=0)
        assert torch.equal(model.classifier.weight, tiny_model("bert", labels=NLI, seed=6).classifier.weight)
        assert len(loading.load_tokenizer("someone/tiny")) == len(tiny_tokenizer("bert"))
        assert loading.load_config("someone/tiny").num_hidden_layers == 2

    def test_a_revision_that_is_not_there(self, cache):
        with pytest.raises(UserError, match="someone/tiny cannot be fetched"):
            loading.load_classifier("someone/tiny", "v2", NLI, seed=0)

    def test_a_source_that_lies_elsewhere(self, tmp_path, monkeypatch):
        folder = save_tiny(tmp_path / "local", labels=NLI, seed=6)
        monkeypatch.setenv("KDFLOW_SOURCES", f"someone/other={folder}")
        model = loading.load_classifier("someone/other", None, NLI, seed=0)
        assert torch.equal(model.classifier.weight, tiny_model("bert", labels=NLI, seed=6).classifier.weight)


class TestRevisionOfAFolder:
    """It is the fingerprint of its weights."""

    @pytest.fixture
    def folder(self, tmp_path):
        return save_tiny(tmp_path / "student", labels=NLI, seed=6)

    def test_the_right_one(self, folder):
        own = files.weights_fingerprint(folder)
        assert loading.load_classifier(str(folder), own, NLI, seed=0).config.num_hidden_layers == 2
        assert loading.load_config(str(folder), own).num_hidden_layers == 2
        assert len(loading.load_tokenizer(str(folder), own)) == len(tiny_tokenizer("bert"))
        assert files.source_fingerprint(str(folder), own) == own

    @pytest.mark.parametrize("load", [loading.load_config, loading.load_tokenizer, loading.load_encoder,
                                      files.source_fingerprint])
    def test_another_one_is_one_line_with_both_and_the_remedy(self, folder, load):
        before = files.weights_fingerprint(folder)
        edit_config(folder, layer_norm_eps=1e-3)
        own = files.weights_fingerprint(folder)
        with pytest.raises(UserError) as caught:
            load(str(folder), before)
        assert str(caught.value).startswith(f"{folder} holds the weights {own}, but its revision says {before}; set "
                                            f"`revision: {own}` if")
        assert "\n" not in str(caught.value)

    def test_a_branch_is_no_fingerprint(self, folder):
        with pytest.raises(UserError, match="its revision says main; set `revision: "):
            loading.load_config(str(folder), "main")

    def test_relative_to_the_study(self, folder, monkeypatch):
        monkeypatch.chdir(folder.parent)
        own = files.weights_fingerprint(folder)
        assert loading.load_config("./student", own).num_hidden_layers == 2
        with pytest.raises(UserError, match=r"\./student holds the weights"):
            loading.load_config("./student", "0" * 16)

    def test_a_folder_in_place_of_a_hub_id(self, folder, monkeypatch):
        """A revision of the hub says nothing of the folder; a fingerprint does."""
        monkeypatch.setenv("KDFLOW_SOURCES", f"general/tiny={folder}")
        for revision in ("main", "0" * 40, files.weights_fingerprint(folder)):
            assert loading.load_config("general/tiny", revision).num_hidden_layers == 2
        with pytest.raises(UserError, match="general/tiny holds the weights"):
            loading.load_config("general/tiny", "0" * 16)


class TestFineTuned:
    def test_fingerprint_follows_weights_and_configuration(self, tmp_path):
        prints = [files.weights_fingerprint(save_tiny(tmp_path / str(seed), seed=seed)) for seed in (1, 2)]
        shutil.copytree(tmp_path / "1", tmp_path / "copy")
        assert files.weights_fingerprint(tmp_path / "copy") == prints[0] != prints[1]
        edit_config(tmp_path / "copy", layer_norm_eps=1e-3)
        assert files.weights_fingerprint(tmp_path / "copy") != prints[0]

    def test_columns_are_in_the_datasets_order(self, tmp_path):
        save_tiny(tmp_path, labels=("neutral", "contradiction", "entailment"), seed=1)
        own = tiny_model("bert", labels=NLI, seed=1).classifier.weight
        assert torch.equal(loading.load_finetuned(tmp_path, NLI).classifier.weight, own[[2, 0, 1]])


class TestMistakes:
    """Each is one line that names the thing and the remedy."""

    def refused(self, source, *says, labels=NLI):
        with pytest.raises(UserError) as caught:
            loading.load_classifier(str(source), None, labels, seed=0)
        message = str(caught.value)
        assert "\n" not in message
        assert all(part in message for part in says), message

    def test_no_config(self, tmp_path):
        save_tiny(tmp_path)
        (tmp_path / "config.json").unlink()
        self.refused(tmp_path, str(tmp_path), "no config.json")

    def test_config_is_no_json(self, tmp_path):
        save_tiny(tmp_path)
        (tmp_path / "config.json").write_text("{")
        self.refused(tmp_path, "config.json", "not a JSON mapping")

    def test_unknown_family(self, tmp_path):
        save_tiny(tmp_path)
        edit_config(tmp_path, model_type="bart")
        self.refused(tmp_path, "'bart'", "bert")

    def test_impossible_sizes(self, tmp_path):
        save_tiny(tmp_path)
        edit_config(tmp_path, num_attention_heads=5)
        self.refused(tmp_path, "5")

    def test_pickled_weights_only(self, tmp_path):
        save_tiny(tmp_path)
        torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
        self.refused(tmp_path, "pytorch_model.bin", "safetensors")

    def test_no_weights(self, tmp_path):
        save_tiny(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        self.refused(tmp_path, "no model.safetensors")

    def test_truncated_weights(self, tmp_path):
        save_tiny(tmp_path)
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:1000])
        self.refused(tmp_path, "weights of", "cannot be read")

    def test_weights_of_another_width(self, tmp_path):
        save_tiny(tmp_path / "wide", width=64)
        save_tiny(tmp_path / "narrow", width=32)
        shutil.copy(tmp_path / "wide" / "model.safetensors", tmp_path / "narrow")
        self.refused(tmp_path / "narrow", "do not fit", "64", "32")

    def test_weights_of_another_family(self, tmp_path):
        save_tiny(tmp_path / "bert")
        save_tiny(tmp_path / "distilbert", "distilbert")
        shutil.copy(tmp_path / "bert" / "model.safetensors", tmp_path / "distilbert")
        self.refused(tmp_path / "distilbert", "lack", "distilbert encoder")

    def test_a_layer_is_missing(self, tmp_path):
        save_tiny(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        kept = {name: value for name, value in weights.items() if ".layer.1." not in name}
        save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
        self.refused(tmp_path, "lack 16 tensors", "layer.1")

    def test_no_such_hub_model_offline(self):
        self.refused("nobody/no-such-model-here", "nobody/no-such-model-here", "local folder")

    @pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="sentencepiece can read it")
    def test_a_sentencepiece_model_alone_asks_for_its_package(self, tmp_path):
        tiny_config("deberta-v2").save_pretrained(tmp_path)
        (tmp_path / "spm.model").write_bytes(b"pieces")
        with pytest.raises(UserError, match=r"in spm\.model only, which takes the Python package sentencepiece"):
            loading.load_tokenizer(str(tmp_path))

    def test_no_tokenizer(self, tmp_path):
        tiny_model("bert").save_pretrained(tmp_path)
        with pytest.raises(UserError, match="holds no tokenizer"):
            loading.load_tokenizer(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["e5-small-12x384", "paraphrase-minilm-3x384"])
def test_real_encoders_load_as_float32_and_equal_the_bare_model(shared, name):
    folder = shared / "models" / name
    model = loading.load_classifier(str(folder), None, NLI, seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    tokenizer = loading.load_tokenizer(str(folder))
    inputs = tokenizer(["A good film.", "Not my kind of film, at all."], padding=True, return_tensors="pt")
    bare = AutoModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False).eval()
    with torch.no_grad():
        torch.testing.assert_close(model.bert(**inputs).last_hidden_state, bare(**inputs).last_hidden_state)
