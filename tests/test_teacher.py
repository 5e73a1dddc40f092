"""Stored, live and mixed teachers say the same; none can be trained, put in train mode, or used stale."""

import gc
import json
import shutil
import weakref

import pytest
import torch
from torch import nn

from kdcore.config import StoredFeatures
from kdcore.data.batching import Examples
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey
from kdcore.models.loading import load_finetuned
from kdcore.store_building import build
from kdcore.teacher import Teacher, manifest
from kdcore.training.precision import Precision
from tests.tiny import FAMILIES, SENTIMENT, save_tiny, tiny_model, tiny_prepared

CPU = torch.device("cpu")
FP32 = Precision("fp32", "cpu")
KEYS = frozenset({LOGITS, FeatureKey("mean", 1), FeatureKey("mean", 2), FeatureKey("cls", 2)})
NLI = ("entailment", "neutral", "contradiction")


class World:
    """A prepared dataset, a teacher with dropout and its store, in one folder."""

    def __init__(self, root, family="bert", labels=SENTIMENT, student=None, precision="fp32", dtype="float32", rows=40):
        self.settings = StoredFeatures(kinds=("logits", "mean", "cls"), dtype=dtype, batch_size=8, precision=precision)
        self.prepared = tiny_prepared(root / "prepared" / "toy", family, student, rows, labels)
        self.folder = save_tiny(root / "teacher" / "toy", family, layers=3, labels=labels, seed=1)
        self.store = root / "knowledge" / "toy" / "features"
        self.labels = labels
        self.store_features()

    @property
    def live(self):
        return Teacher(self.folder, self.labels, CPU, Precision(self.settings.precision, "cpu"))

    def store_features(self):
        plan, teacher = manifest(self.prepared, self.folder, self.settings, self.settings.precision), self.live
        build(self.store, self.store.with_name("scratch"), plan, self.prepared.tokens("train", "teacher"),
              lambda inputs: teacher.compute(inputs, frozenset(plan.keys)), 8, CPU, "toy")

    def open(self, needs=KEYS, settings=None):
        return Teacher.open(self.prepared, self.folder, self.store, settings or self.settings, needs, CPU)

    def batch(self, *rows):
        return Examples(self.prepared, "train", teacher_inputs=True).__getitems__(rows or [7, 3, 0, 21])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.mark.parametrize(("family", "dtype"), [*((family, "float32") for family in FAMILIES),
                                               ("bert", "float16"), ("mpnet", "bfloat16")])
def test_stored_equals_live_within_the_rounding_of_the_stored_type(tmp_path, family, dtype):
    world = World(tmp_path, family, dtype=dtype, rows=24)
    stored, live = world.open().features(world.batch(), KEYS), world.live.features(world.batch(), KEYS)
    assert set(stored) == set(live) == KEYS
    for key in KEYS:
        assert stored[key].dtype == live[key].dtype == torch.float32
        torch.testing.assert_close(stored[key], live[key], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_a_mixed_teacher_is_one_call(world):
    keys = KEYS | {FeatureKey("hidden", 1), FeatureKey("scores", 3), FeatureKey("mean", 0)}
    teacher = world.open(keys)
    mixed, live = teacher.features(world.batch(), keys), world.live.features(world.batch(), keys)
    assert set(mixed) == keys
    for key in keys:
        torch.testing.assert_close(mixed[key], live[key], rtol=1e-5, atol=1e-5)
    assert torch.equal(mixed.mask, world.batch()["teacher"]["attention_mask"])


def test_bf16_forward_is_stored_and_repeated_live(tmp_path):
    world = World(tmp_path, precision="bf16")
    assert world.open().live.precision.name == "bf16"
    assert json.loads((world.store / "manifest.json").read_text())["precision"] == "bf16"
    stored, live = world.open().features(world.batch(), KEYS), world.live.features(world.batch(), KEYS)
    exact = Teacher(world.folder, SENTIMENT, CPU, FP32).features(world.batch(), KEYS)
    for key in KEYS:
        torch.testing.assert_close(stored[key], live[key], rtol=0.03, atol=0.03)
        assert not torch.equal(live[key], exact[key])
    auto = world.settings.model_copy(update={"precision": "auto"})
    assert world.open(settings=auto).live.precision.name == "bf16", "live features follow the store"


def test_nothing_is_loaded_when_everything_is_stored(world):
    teacher = world.open()
    teacher.features(world.batch(), KEYS)
    assert not teacher.is_loaded
    assert teacher.features(world.batch(), frozenset({LOGITS})).mask is None
    assert (teacher.dims.layers, teacher.dims.width, teacher.dims.heads) == (3, 32, 4)
    teacher.features(world.batch(), frozenset({FeatureKey("hidden", 2)}))
    assert teacher.is_loaded


def test_shuffled_batches_get_their_own_rows(world):
    """Lesson A35."""
    teacher, every = world.open(), world.live.features(world.batch(*range(40)), KEYS)
    for rows in ([5, 1], [39, 0, 20], [1, 5]):
        got = teacher.features(world.batch(*rows), KEYS)
        for key in KEYS:
            torch.testing.assert_close(got[key], every[key][rows], rtol=1e-5, atol=1e-5)


class TestTheTeacherStaysAsItIs:
    """Lessons A18 to A24, B16, B20, B36."""

    def test_train_mode_set_by_hand_is_undone(self, world):
        teacher = world.live
        first = teacher.features(world.batch(), KEYS)
        teacher.live.model.train()
        teacher.live.model.base_model.encoder.layer[1].train()
        second = teacher.features(world.batch(), KEYS)
        assert not any(module.training for module in teacher.live.model.modules())
        for key in KEYS:
            assert torch.equal(first[key], second[key])

    def test_a_module_that_holds_it_does_not_contain_it(self, world):
        class Holder(nn.Module):
            def __init__(self):
                super().__init__()
                self.student = tiny_model("bert")
                self.teacher = world.live

        holder = Holder()
        holder.teacher.features(world.batch(), KEYS)
        holder.train()
        assert holder.student.training
        assert not holder.teacher.live.model.training
        own = dict(holder.student.named_parameters())
        assert len(list(holder.parameters())) == len(own)
        assert not any("teacher" in name for name in holder.state_dict())

    def test_no_gradients_and_no_changes_by_training_a_student(self, world):
        teacher, student = world.live, tiny_model("bert").train()
        batch = world.batch()
        teacher.features(batch, KEYS)
        before = {name: value.clone() for name, value in teacher.live.model.state_dict().items()}
        optimiser = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(3):
            target = teacher.features(batch, KEYS)
            assert all(value.grad_fn is None and not value.requires_grad for value in target.values())
            logits = student(**batch["student"]).logits
            (logits * target.logits + (logits - target.logits) ** 2).sum().backward()  # autograd keeps the target
            optimiser.step()
        assert all(not p.requires_grad and p.grad is None for p in teacher.live.model.parameters())
        for name, value in teacher.live.model.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_outputs_are_freed_after_the_step(self, world):
        """Lessons A47, A48."""
        for teacher in (world.live, world.open()):
            features = teacher.features(world.batch(), KEYS)
            alive = [weakref.ref(value) for value in features.values()]
            del features
            gc.collect()
            assert not any(reference() is not None for reference in alive)

    def test_outer_autocast_changes_nothing(self, world):
        plain = world.live.features(world.batch(), KEYS)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = world.live.features(world.batch(), KEYS)
        for key in KEYS:
            assert torch.equal(plain[key], inside[key])


class TestLabels:
    """Lesson A55: columns by name, stored and live alike."""

    def rename(self, folder, *names):
        path = folder / "config.json"
        content = json.loads(path.read_text()) | {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)}}
        path.write_text(json.dumps(content))

    def test_permuted_names_permute_the_logits_back(self, tmp_path):
        world = World(tmp_path, labels=NLI)
        straight = world.live.features(world.batch(), KEYS)
        self.rename(world.folder, "Neutral", "CONTRADICTION", "entailment")
        world.store_features()
        for teacher in (world.live, world.open()):
            turned = teacher.features(world.batch(), KEYS)
            torch.testing.assert_close(turned.logits, straight.logits[:, [2, 0, 1]], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(turned[FeatureKey("mean", 1)], straight[FeatureKey("mean", 1)], rtol=1e-5,
                                       atol=1e-5)

    @pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1", "LABEL_2"), ("a", "b", "c")])
    def test_other_names_are_refused(self, tmp_path, names):
        world = World(tmp_path, labels=NLI)
        self.rename(world.folder, *names)
        with pytest.raises(UserError, match="id2label"):
            world.live.features(world.batch(), KEYS)

    def test_regression(self, tmp_path):
        world = World(tmp_path, labels=None)
        assert world.open().features(world.batch(), KEYS).logits.shape == (4, 1)


class TestStale:
    """Lessons A50, B35: whatever the store was made from has changed."""

    @pytest.fixture
    def own(self, tmp_path):
        return World(tmp_path)

    def refused(self, world, *says, settings=None):
        with pytest.raises(UserError) as caught:
            world.open(settings=settings)
        message = str(caught.value)
        assert all(part in message for part in ("stale", "run `kdflow features toy` again", *says)), message

    def test_other_weights(self, own):
        save_tiny(own.folder, layers=3, seed=2)
        self.refused(own, "teacher weights")

    def test_other_configuration(self, own):
        path = own.folder / "config.json"
        path.write_text(path.read_text().replace('"layer_norm_eps": 1e-12', '"layer_norm_eps": 1e-5'))
        self.refused(own, "teacher weights")

    def test_other_data(self, own):
        own.prepared = tiny_prepared(own.prepared.folder, seed=5)
        self.refused(own, "prepared data")

    def test_other_tokenizer(self, own):
        shutil.rmtree(own.prepared.folder)
        own.prepared = tiny_prepared(own.prepared.folder, "roberta")
        self.refused(own, "tokenizer")

    def test_other_length(self, own):
        shutil.rmtree(own.prepared.folder)
        own.prepared = tiny_prepared(own.prepared.folder, max_length=12)
        own.prepared.__dict__["fingerprint"] = json.loads((own.store / "manifest.json").read_text())["prepared"]
        self.refused(own, "max_length 24", "now it is 12")

    def test_other_dtype(self, own):
        self.refused(own, "features.dtype float32", "now it is float16",
                     settings=own.settings.model_copy(update={"dtype": "float16"}))

    def test_other_precision(self, own):
        self.refused(own, "features.precision fp32", "now it is bf16",
                     settings=own.settings.model_copy(update={"precision": "bf16"}))

    def test_nothing_changed(self, own):
        own.open()


class TestMistakes:
    def test_token_level_features_across_tokenizers(self, tmp_path):
        """Lessons A71, A72."""
        world = World(tmp_path, "bert", student="roberta")
        prints = world.prepared.info.tokenizers
        with pytest.raises(UserError) as caught:
            world.open(KEYS | {FeatureKey("hidden", 1)})
        assert prints["teacher"] in str(caught.value)
        assert prints["student"] in str(caught.value)
        assert world.open(KEYS).features(world.batch(), KEYS).logits.shape == (4, 2)

    def test_a_bare_encoder_is_no_teacher(self, tmp_path):
        tiny_model("bert").bert.save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": {"0": "negative", "1": "positive"}}))
        with pytest.raises(UserError, match="not fine-tuned: its weights lack classifier"):
            load_finetuned(tmp_path, SENTIMENT)

    def test_layers_beyond_the_teachers(self, world):
        with pytest.raises(UserError, match=r"layers are 0 \(embeddings\) to 3"):
            world.live.features(world.batch(), frozenset({FeatureKey("mean", 4)}))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_stored_on_cuda_equals_live_on_cpu(tmp_path, dtype):
    """Batches are written while the next one runs: none may be lost, doubled or swapped."""
    world, cuda = World(tmp_path, dtype=dtype), torch.device("cuda")
    teacher = Teacher(world.folder, SENTIMENT, cuda, Precision("fp32", "cuda"))
    plan = manifest(world.prepared, world.folder, world.settings, "fp32")
    build(world.store, world.store.with_name("scratch"), plan, world.prepared.tokens("train", "teacher"),
          lambda inputs: teacher.compute(inputs, frozenset(plan.keys)), 8, cuda, "toy")
    stored = Teacher.open(world.prepared, world.folder, world.store, world.settings, KEYS, cuda)
    batch = world.batch(*range(40))
    got, expected = stored.features(batch, KEYS), world.live.features(batch, KEYS)
    for key in KEYS:
        assert got[key].device.type == "cuda"
        torch.testing.assert_close(got[key].cpu(), expected[key], rtol=2e-3, atol=2e-3)
