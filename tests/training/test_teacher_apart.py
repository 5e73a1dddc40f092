"""The teacher is looked at, never trained: eval mode, no gradients, no part of what learns (A18-A24, B36, A48)."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kdcore.data.prepared import Prepared
from kdcore.features import FeatureKey, Features
from kdcore.teacher import Teacher
from kdcore.training.datasets import OfDataset
from kdcore.training.distiller import Distiller
from kdcore.training.journal import Journal
from kdcore.training.precision import Precision
from kdcore.training.run import train
from tests.tiny import save_tiny
from tests.training.problem import phases_of, settings, tiny_student

FP32 = Precision("fp32", "cpu")


class Spy:
    """Passes on what the teacher says and notes its state."""

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self.alive: list[weakref.ref[torch.Tensor]] = []
        self.asked: set[str] = set()

    def features(self, batch: dict[str, Any], keys: frozenset[FeatureKey]) -> Features:
        assert not [output for output in self.alive if output() is not None]  # outputs go with their step (A48)
        model = self.teacher.live.model.train()  # whatever was done to it between calls
        again = self.teacher.features(batch, keys)
        result = self.teacher.features(batch, keys)
        assert not any(module.training for module in model.modules())
        for key in keys:
            assert torch.equal(again[key], result[key])  # no dropout
            assert result[key].grad_fn is None
            assert not result[key].requires_grad
        self.asked |= {key.name for key in keys}
        self.alive += [weakref.ref(result[key]) for key in keys]
        return result


@pytest.fixture
def teacher(prepared: Prepared, tmp_path: Path) -> Teacher:
    folder = save_tiny(tmp_path / "teacher", layers=4, labels=prepared.info.labels, seed=3)
    return Teacher(folder, prepared.info.labels, torch.device("cpu"), FP32)


def test_training_leaves_the_teacher_alone(prepared: Prepared, teacher: Teacher, folder: Path) -> None:
    model = teacher.live.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    spy = Spy(teacher)
    train(tiny_student(prepared), phases_of("rail_kd_l", prepared), OfDataset(prepared), settings(epochs=2), 1, folder,
          Journal(folder / "journal.jsonl"), "toy", spy)
    assert spy.asked > {"logits"}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
    gc.collect()
    assert not any(output() is not None for output in spy.alive)


def test_the_teacher_is_no_part_of_the_distiller(prepared: Prepared, teacher: Teacher) -> None:
    (phase,) = phases_of("rail_kd_l", prepared)
    distiller = Distiller(tiny_student(prepared), phase.objective, FP32)
    distiller.train()
    assert distiller.student.training
    assert not teacher.live.model.training
    assert not isinstance(teacher, nn.Module)
    own = {id(module) for module in distiller.modules()}
    assert not own & {id(module) for module in teacher.live.model.modules()}


def test_a_method_that_needs_a_teacher_says_so(prepared: Prepared, folder: Path) -> None:
    with pytest.raises(ValueError, match="reads 3 features of a teacher, but there is none"):
        train(tiny_student(prepared), phases_of("rail_kd_l", prepared), OfDataset(prepared), settings(), 1, folder,
              Journal(folder / "journal.jsonl"), "toy")
