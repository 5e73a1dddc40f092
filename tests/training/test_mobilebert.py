"""MobileBERT's progressive transfer on a corpus: what stands still, what learns, and a resume in the middle of it."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from kdcore.data.corpus import Corpus
from kdcore.features import Features
from kdcore.models.loading import load_encoder
from kdcore.objective import Batch, Loss, Objective, Phase, Progress
from kdcore.training import checkpoint
from tests.corpora import tiny_corpus
from tests.training.corpus_problem import phases_of, run, save_encoder
from tests.training.doubles import Stop
from tests.training.problem import lines, same_weights

LAYERS = 3
STEPS = 12
"""Two of each layer, six of words."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Forty rows: five steps of eight rows an epoch."""
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("teacher"), layers=LAYERS)


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Narrower, and with dropout."""
    return save_encoder(tmp_path_factory.mktemp("student"), layers=LAYERS, width=16, seed=5)


class Crashing(Objective):
    """Crashes at a step of its phase."""

    masks_tokens = True

    def __init__(self, inner: Objective, step: int) -> None:
        super().__init__()
        self.inner, self.step, self.needs = inner, step, inner.needs

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        if progress.step == self.step:
            raise Stop
        return self.inner(student, teacher, batch, progress)


def phases(corpus: Corpus, teacher: Path, student: Path, crash: tuple[int, int] = (-1, -1),
           **options: Any) -> tuple[Phase, ...]:
    """Progressive ones, half of the time for layers; they crash at (phase, step)."""
    found = phases_of("mobilebert", corpus, teacher, student, transfer_share=0.5, freeze_embeddings=True, **options)
    return tuple(replace(phase, objective=Crashing(phase.objective, crash[1] if number == crash[0] else -1))
                 for number, phase in enumerate(found))


def layer_of(name: str) -> int:
    """0 embeddings, 1..m; m + 1 is the head."""
    if "embeddings" in name:
        return 0
    return int(name.split("encoder.layer.")[1].split(".")[0]) + 1 if "encoder.layer." in name else LAYERS + 1


def test_each_phase_teaches_its_layer(corpus: Corpus, teacher: Path, student: Path, tmp_path: Path) -> None:
    record = run("mobilebert", corpus, teacher, student, tmp_path, phases(corpus, teacher, student), steps=60,
                 learning_rate=3e-3).record
    for number in (1, 2, 3):
        own = [entry for entry in record["history"] if entry["phase"] == f"layer-{number}"]
        assert set(own[0]["diagnostics"]) == {f"feature_map/{number}", f"attention/{number}"}
        assert own[-1]["loss"] < own[0]["loss"]
    words = [entry for entry in record["history"] if entry["phase"] == "pretrain"]
    assert set(words[0]["parts"]) == {"mlm", "kd"}
    assert words[-1]["loss"] < words[0]["loss"]
    assert [phase["steps"] for phase in record["phases"]] == [10, 10, 10, 30]
    assert [phase.get("layer_rates") for phase in record["phases"]] == [
        [0, 1, 0, 0], [0, 0.1, 1, 0], [0, 0.1, 0.1, 1], None]
    assert max(line["step"] for line in lines(tmp_path)) == 60


@pytest.mark.parametrize("lower", [0.1, 0.0])
def test_what_is_frozen_keeps_its_bytes(lower: float, corpus: Corpus, teacher: Path, student: Path,
                                        tmp_path: Path) -> None:
    """In the phase of layer 1 all else does; in that of layer 2 layer 1 too in the strict variant."""
    states = [load_encoder(str(student)).state_dict()]
    for number in (1, 2):
        first = phases(corpus, teacher, student, lower_rate=lower)[:number]
        result = run("mobilebert", corpus, teacher, student, tmp_path / str(number), first, steps=STEPS)
        states.append(result.student.state_dict())
    for name in states[0]:
        moved = [not torch.equal(before[name], after[name]) for before, after in pairwise(states)]
        assert moved == [layer_of(name) == 1, layer_of(name) in ((1, 2) if lower else (2,))], name


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize("crash", [(1, 1), (2, 0)], ids=str)
def test_resumed_equals_uninterrupted(crash: tuple[int, int], corpus: Corpus, teacher: Path, student: Path,
                                      tmp_path: Path) -> None:
    straight = run("mobilebert", corpus, teacher, student, tmp_path / "a", phases(corpus, teacher, student),
                   steps=STEPS)
    with pytest.raises(Stop):
        run("mobilebert", corpus, teacher, student, tmp_path / "b", phases(corpus, teacher, student, crash),
            steps=STEPS)
    assert checkpoint.step_of(checkpoint.latest(tmp_path / "b")) == 2 * crash[0] + crash[1]
    resumed = run("mobilebert", corpus, teacher, student, tmp_path / "b", phases(corpus, teacher, student), steps=STEPS)
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record
