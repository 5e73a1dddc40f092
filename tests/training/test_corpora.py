"""The one trainer on corpora: nothing selects, tokens are masked, and cutting, resuming and padding change nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kdcore import general
from kdcore.data.batching import LengthGroupedBatches
from kdcore.data.corpus import Corpus
from kdcore.general_config import Masking
from kdcore.objective import Batch, Loss, Needs, Objective, Phase
from kdcore.training import checkpoint
from kdcore.training.batches import Parts, Shares
from kdcore.training.corpora import CorpusRows, OfCorpus
from kdcore.training.precision import Precision
from tests.corpora import tiny_corpus
from tests.training.corpus_problem import phases_of, run, save_encoder
from tests.training.doubles import Stop
from tests.training.problem import same_weights, steps

TOKENWISE = ("distilbert", "minilm", "tinybert", "mlm_kd")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Forty rows in three shards: five steps of eight rows an epoch."""
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("teacher"), layers=4)


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("student"), layers=2, seed=5, dropout=0.0)


class Watching(Objective):
    """Keeps the batches that it is shown; may crash at a step."""

    def __init__(self, inner: Objective, crash: int = -1) -> None:
        super().__init__()
        self.inner, self.needs, self.masks_tokens, self.crash = inner, inner.needs, inner.masks_tokens, crash
        self.batches: list[Batch] = []

    def forward(self, student: Any, teacher: Any, batch: Batch, progress: Any) -> Loss:
        if progress.step == self.crash:
            raise Stop
        self.batches.append(batch)
        return self.inner(student, teacher, batch, progress)


def watched(method: str, corpus: Corpus, teacher: Path, student: Path, crash: int = -1) -> tuple[Phase, ...]:
    (phase,) = phases_of(method, corpus, teacher, student)
    return (Phase(phase.name, Watching(phase.objective, crash)),)


@pytest.mark.parametrize("method", [name for name in general.names() if name != "mobilebert"])
def test_every_method_trains(method: str, corpus: Corpus, teacher: Path, student: Path, tmp_path: Path) -> None:
    """Eight steps of five an epoch; nothing is selected, and the loss falls."""
    result = run(method, corpus, teacher, student, tmp_path, steps=30, learning_rate=3e-3)
    record = result.record
    assert [(entry["epoch"], entry["step"]) for entry in record["history"]][-1] == (6.0, 30)
    assert record["selected"]["step"] == 30
    assert record["selected"]["score"] is None
    assert all("development" not in entry for entry in record["history"])
    assert all(phase["keep"] == "last" for phase in record["phases"])
    assert record["history"][-1]["loss"] < record["history"][0]["loss"]
    assert result.measured["tokens"] == 6 * corpus.info.tokens
    assert result.measured["tokens_per_second"] > 0


@pytest.mark.parametrize("method", TOKENWISE)
def test_micro_batches_equal_the_whole(method: str, corpus: Corpus, teacher: Path, student: Path,
                                       tmp_path: Path) -> None:
    """Averages over a step's tokens and masked tokens, of rows of unequal length (lesson A76)."""
    whole, parts = tmp_path / "1", tmp_path / "4"
    run(method, corpus, teacher, student, whole, steps=3)
    run(method, corpus, teacher, student, parts, steps=3, accumulation=4)
    assert len(steps(whole)) == 3
    for one, many in zip(steps(whole), steps(parts), strict=True):
        for name in ("loss", "gradient_norm"):
            assert many[name] == pytest.approx(one[name], rel=1e-4), (name, one["step"])


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize("method", ["minilm", "distilbert"])
@pytest.mark.parametrize("crash", [3, 5])  # in the middle of an epoch and of a shard, at the start of the next epoch
def test_resumed_equals_uninterrupted(method: str, crash: int, corpus: Corpus, teacher: Path, tmp_path: Path) -> None:
    student = save_encoder(tmp_path / "student", layers=2, seed=5)  # with dropout
    straight = run(method, corpus, teacher, student, tmp_path / "a", watched(method, corpus, teacher, student))
    with pytest.raises(Stop):
        run(method, corpus, teacher, student, tmp_path / "b", watched(method, corpus, teacher, student, crash))
    assert checkpoint.step_of(checkpoint.latest(tmp_path / "b")) == crash
    phases = watched(method, corpus, teacher, student)
    resumed = run(method, corpus, teacher, student, tmp_path / "b", phases)
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record
    assert len(phases[0].objective.batches) == 8 - crash


def test_batches_name_their_step_and_what_is_masked(corpus: Corpus, teacher: Path, student: Path,
                                                    tmp_path: Path) -> None:
    phases = watched("mlm_kd", corpus, teacher, student)
    run("mlm_kd", corpus, teacher, student, tmp_path, phases, steps=2, accumulation=2)
    batches = phases[0].objective.batches
    assert len(batches) == 4
    for first, second in (batches[:2], batches[2:]):
        ids = torch.cat([first.ids, second.ids])
        assert first.step.lengths.tolist() == second.step.lengths.tolist() == corpus.lengths[ids].tolist()
        counts = torch.cat([(part.masked.targets != -100).sum(dim=1) for part in (first, second)])
        assert first.step.masked.tolist() == counts.tolist() == np.maximum(
            1, np.rint(0.15 * (corpus.lengths[ids] - 2))).tolist()
        for part in (first, second):
            rows = corpus.tokens(part.ids)["input_ids"]
            there = part.masked.targets != -100
            assert torch.equal(rows.gather(1, part.masked.positions)[there], part.masked.targets[there])
            assert part.labels.tolist() == [-1] * len(part.ids)


def test_a_training_draws_and_masks_each_epoch_anew(corpus: Corpus, teacher: Path, student: Path,
                                                    tmp_path: Path) -> None:
    """The loop says which epoch it is (A81)."""
    phases = watched("mlm", corpus, teacher, student)
    run("mlm", corpus, teacher, student, tmp_path, phases, steps=10)
    batches = phases[0].objective.batches
    one, two = batches[:5], batches[5:]
    assert [batch.ids.tolist() for batch in one] != [batch.ids.tolist() for batch in two]
    for epoch in (one, two):
        assert torch.cat([batch.ids for batch in epoch]).sort().values.tolist() == list(range(40))
    masked = [{row: places[places > 0].tolist() for batch in epoch
               for row, places in zip(batch.ids.tolist(), batch.masked.positions, strict=True)} for epoch in (one, two)]
    assert masked[0] != masked[1]


def test_methods_that_mask_nothing_read_the_texts_as_they_are(corpus: Corpus, teacher: Path, student: Path,
                                                              tmp_path: Path) -> None:
    phases = watched("minilm", corpus, teacher, student)
    run("minilm", corpus, teacher, student, tmp_path, phases, steps=1)
    (batch,) = phases[0].objective.batches
    assert batch.masked is None
    assert not batch.step.masked.any()


def test_what_is_masked_depends_on_the_seed_and_the_epoch(corpus: Corpus) -> None:
    def read(seed: int, epoch: int) -> list[list[int]]:
        data = OfCorpus(corpus, Masking())
        shares = Shares(LengthGroupedBatches(corpus.lengths, 40, 1))
        shares.set_epoch(epoch)
        (share,) = shares
        batch = Parts(data.rows(True), data.masker(seed)).__getitems__(share)
        assert batch["teacher"] is batch["student"]
        return batch["student"]["input_ids"][batch["ids"].argsort()].tolist()

    assert read(1, 0) == read(1, 0)
    assert read(1, 0) != read(2, 0)
    assert read(1, 0) != read(1, 1)


def test_a_corpus_selects_nothing(corpus: Corpus, teacher: Path, student: Path, tmp_path: Path) -> None:
    assert OfCorpus(corpus, Masking()).development(Precision("fp32", "cpu"), 8) is None
    assert len(CorpusRows(corpus)) == 40
    assert len(OfCorpus(corpus, Masking()).held_back(0)) == 0
    with pytest.raises(ValueError, match="holds 8 labelled rows back, but a corpus has none"):
        OfCorpus(corpus, Masking()).held_back(8)

    class Asks(Watching):
        def before_steps(self, examine: Any) -> None:
            examine()

    inner = phases_of("mlm", corpus, teacher, student)[0].objective
    with pytest.raises(ValueError, match="development rows, but there are none"):
        run("mlm", corpus, teacher, student, tmp_path, (Phase("x", Asks(inner)),))


def test_a_dataset_masks_nothing(prepared: Any, folder: Path) -> None:
    from tests.training.problem import run as on_dataset

    class Masks(Objective):
        masks_tokens = True

        def __init__(self) -> None:
            super().__init__()
            self.needs = Needs(frozenset())

        def forward(self, student: Any, teacher: Any, batch: Batch, progress: Any) -> Loss:
            raise AssertionError

    with pytest.raises(ValueError, match="dataset toy is read as it is"):
        on_dataset(prepared, folder, phases=(Phase("x", Masks()),))
