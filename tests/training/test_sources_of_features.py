"""Stored, live and mixed teachers give the same training, for every method (design, section 6)."""

from pathlib import Path

import pytest
import torch

from kdcore import methods
from kdcore.config import StoredFeatures
from kdcore.data.prepared import Prepared
from kdcore.features import FeatureKey
from kdcore.store import FeatureStore
from kdcore.store_building import build
from kdcore.teacher import Teacher, manifest
from kdcore.training.datasets import OfDataset
from kdcore.training.journal import Journal
from kdcore.training.precision import Precision
from kdcore.training.run import TrainingResult, train
from tests.tiny import save_tiny
from tests.training.problem import phases_of, settings, tiny_student

FP32 = Precision("fp32", "cpu")
CPU = torch.device("cpu")
STORES: dict[str, tuple[tuple[str, ...], str, float]] = {
    "all": (("logits", "cls", "mean"), "float32", 1e-4),
    "logits": (("logits",), "float32", 1e-4),
    "half": (("logits", "cls", "mean"), "float16", 5e-3),
}
"""Kinds and type of what is stored, and how near to a live teacher's the training must be."""


@pytest.fixture(scope="module")
def teacher_folder(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("teacher"), layers=4, labels=prepared.info.labels, seed=3)


@pytest.fixture(scope="module")
def stores(prepared: Prepared, teacher_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The three stores, by name."""
    live = Teacher(teacher_folder, prepared.info.labels, CPU, FP32)
    places = {}
    for name, (kinds, dtype, _) in STORES.items():
        place = tmp_path_factory.mktemp(name)
        plan = manifest(prepared, teacher_folder, StoredFeatures(kinds=kinds, dtype=dtype, precision="fp32"), "fp32")
        build(place / "store", place / "building", plan, prepared.tokens("train", "teacher"),
              lambda inputs, keys=frozenset(plan.keys): live.compute(inputs, keys), 32, CPU, "toy")
        places[name] = place / "store"
    return places


def _teacher(prepared: Prepared, folder: Path, store: Path | None = None) -> Teacher:
    return Teacher(folder, prepared.info.labels, CPU, FP32, store and FeatureStore.open(store))


def _train(method: str, prepared: Prepared, teacher: Teacher, folder: Path) -> TrainingResult:
    return train(tiny_student(prepared), phases_of(method, prepared), OfDataset(prepared), settings(keep="last"), 1,
                 folder, Journal(folder / "journal.jsonl"), "toy", teacher)


@pytest.mark.parametrize("method", methods.names())
def test_the_same_training(method: str, prepared: Prepared, teacher_folder: Path, stores: dict[str, Path],
                           tmp_path: Path) -> None:
    live = _train(method, prepared, _teacher(prepared, teacher_folder), tmp_path / "live")
    for store, (_, _, tolerance) in STORES.items():
        stored = _train(method, prepared, _teacher(prepared, teacher_folder, stores[store]), tmp_path / store)
        for one, other in zip(live.record["history"], stored.record["history"], strict=True):
            assert one["diagnostics"].keys() == other["diagnostics"].keys()
            for name, value in one["parts"].items():
                assert other["parts"][name] == pytest.approx(value, rel=tolerance, abs=tolerance / 10), (store, name)
        theirs = stored.student.state_dict()
        for name, value in live.student.state_dict().items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=2 * tolerance, msg=f"{store}: {name}")


def test_a_teacher_that_is_all_stored_is_not_loaded(prepared: Prepared, teacher_folder: Path, stores: dict[str, Path],
                                                    tmp_path: Path) -> None:
    teacher = _teacher(prepared, teacher_folder, stores["half"])
    _train("rail_kd_l", prepared, teacher, tmp_path)
    assert not teacher.is_loaded
    only_logits = _teacher(prepared, teacher_folder, stores["logits"])
    assert FeatureKey("mean", 1) not in only_logits.store.keys
