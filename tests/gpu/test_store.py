"""A teacher store that CUDA builds holds what the CPU computes, in every stored type."""

import shutil
from pathlib import Path

import pytest
import torch

from kdcore.bench import corpus, models
from kdcore.config import StoredFeatures
from kdcore.data.prepared import Prepared
from kdcore.features import FeatureKey
from kdcore.models.loading import quiet
from kdcore.store import FeatureStore
from kdcore.store_building import build
from kdcore.teacher import Teacher, manifest
from kdcore.training.precision import resolve

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

ROWS = 300


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Prepared:
    return corpus.write(tmp_path_factory.mktemp("gpu") / "prepared", ROWS)


@pytest.fixture(scope="module")
def teacher_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    teacher = models.classifier(models.write_config(folder / "shape", layers=3, width=64, heads=4))
    with quiet():
        teacher.save_pretrained(folder / "teacher")
    return folder / "teacher"


def _build(folder: Path, prepared: Prepared, teacher_folder: Path, settings: StoredFeatures,
           device: torch.device) -> FeatureStore:
    precision = resolve(settings.precision, device)
    teacher = Teacher(teacher_folder, prepared.info.labels, device, precision)
    plan = manifest(prepared, teacher_folder, settings, precision.name)
    build(folder, folder.with_suffix(".scratch"), plan, prepared.tokens("train", "teacher"),
          lambda inputs: teacher.compute(inputs, frozenset(plan.keys)), settings.batch_size, device, "gpu test")
    return FeatureStore.open(folder)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_the_numbers_are_those_of_the_cpu(dtype, tolerance, tmp_path, prepared, teacher_folder):
    """Rounding on the device is the same; two neighbours of the stored type may differ by one step."""
    settings = StoredFeatures(dtype=dtype, precision="fp32", kinds=("logits", "cls", "mean"))
    both = [_build(tmp_path / device.type, prepared, teacher_folder, settings, device)
            for device in (torch.device("cuda"), torch.device("cpu"))]
    ids = torch.arange(ROWS)
    for key in both[0].keys:
        ours, theirs = (store.gather(ids, [key], torch.device("cpu"))[key] for store in both)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    shutil.rmtree(tmp_path)


def test_stored_features_arrive_on_the_device_and_equal_live_ones(tmp_path, prepared, teacher_folder):
    device = torch.device("cuda")
    settings = StoredFeatures(dtype="float32", precision="fp32")
    _build(tmp_path / "store", prepared, teacher_folder, settings, device)
    keys = frozenset({FeatureKey("logits"), FeatureKey("mean", 2)})
    stored = Teacher.open(prepared, teacher_folder, tmp_path / "store", settings, keys, device)
    live = Teacher(teacher_folder, prepared.info.labels, device, resolve("fp32", device))
    ids = torch.tensor([7, 0, 299, 12])
    batch = {"ids": ids, "teacher": prepared.tokens("train", "teacher").pad(ids)}
    ours, theirs = stored.features(batch, keys), live.features(batch, keys)
    assert not stored.is_loaded
    for key in keys:
        assert ours[key].device.type == "cuda"
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-5)
