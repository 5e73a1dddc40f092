"""Two gloo processes train as one does at the same global batch, and resume (lessons A14-A16, A80, A82, B33)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kdcore.data.prepared import Prepared
from kdcore.training import checkpoint
from tests.corpora import tiny_corpus
from tests.training import corpus_ranks, ranks
from tests.training.corpus_problem import save_encoder
from tests.training.problem import lines, steps

ROOT = Path(__file__).resolve().parents[2]


CASES = {
    "rail_kd_l": ("rail_kd_l", 1, "{}"),
    "rail_kd_c": ("rail_kd_c", 2, "{}"),
    "finetune": ("finetune", 1, "{}"),
    "codir": ("codir", 2, "{}"),
    "codir-refresh": ("codir", 1, '{"bank": "refresh"}'),
    "codir-two-sided": ("codir", 2, '{"objective": "nce_two_sided", "gamma": 0.01}'),
    "tinybert": ("tinybert", 2, '{"intermediate_epochs": 1, "prediction_epochs": 1}'),
    "knowledge_mix": ("knowledge_mix", 2,
                      '{"selection": "random_hard", "knowledge": {"label": 1, "codir": {}, "rail_kd_l": {}}}'),
}
"""Method, accumulation and hyperparameters by name."""
CORPUS_CASES = {"minilm": ("minilm", 1), "distilbert": ("distilbert", 2), "mobilebert": ("mobilebert", 1)}
RESUMED = ("rail_kd_l", "distilbert")
"""On the dataset and on the corpus."""
CRASH = 8
"""In the middle of an epoch of either."""


@pytest.fixture(scope="module")
def two(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases as two ranks train them, one after the other: a start of torchrun takes longer than any of them."""
    folder = tmp_path_factory.mktemp("two")
    _two_ranks("tests.training.ranks", prepared.folder, folder, CASES)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a teacher, and students without and with dropout."""
    folder = tmp_path_factory.mktemp("corpus")
    tiny_corpus(folder)
    save_encoder(folder / "teacher", layers=3)
    save_encoder(folder / "student", layers=3, width=16, seed=5, dropout=0.0)
    save_encoder(folder / "dropout", layers=3, width=16, seed=5)
    return folder


@pytest.fixture(scope="module")
def two_on_a_corpus(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    _two_ranks("tests.training.corpus_ranks", corpus, folder, CORPUS_CASES)
    return folder


@pytest.fixture(scope="module")
def interrupted(prepared: Prepared, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings of two ranks: `straight`, and `resumed` by processes other than those that crashed."""
    folder = tmp_path_factory.mktemp("interrupted")
    for starts in ({"straight": -1, "resumed": CRASH}, {"resumed": -1}):
        _torchrun("tests.training.resumed_ranks", prepared.folder, corpus, folder, json.dumps(starts))
        if "straight" in starts:
            for case in RESUMED:
                assert checkpoint.step_of(checkpoint.latest(folder / "resumed" / case)) == CRASH
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one(case: str, two: Path, prepared: Prepared, tmp_path: Path) -> None:
    """Memory banks too, which each rank fills with the examples of both."""
    ranks.main(prepared.folder, tmp_path, *CASES[case])
    _compare(tmp_path, two / case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CORPUS_CASES)
def test_two_ranks_equal_one_on_a_corpus(case: str, two_on_a_corpus: Path, corpus: Path, tmp_path: Path) -> None:
    """MiniLM gives the last layer's feed-forward part no gradient; DistilBERT masks, and averages over the tokens of
    both ranks; MobileBERT freezes layers for a while."""
    corpus_ranks.main(corpus, tmp_path, *CORPUS_CASES[case])
    _compare(tmp_path, two_on_a_corpus / case)


@pytest.mark.slow
@pytest.mark.parametrize("case", RESUMED)
def test_two_ranks_resume(case: str, interrupted: Path) -> None:
    """To the byte, each with dropout masks of its own. The first rank's record is the one that is kept; diagnostics are
    those of a rank, so that another one's are not in the checkpoint."""
    folders = interrupted / "straight" / case, interrupted / "resumed" / case
    straight, resumed = (_results(folder, 2) for folder in folders)
    for one, other in zip(straight, resumed, strict=True):
        for part in ("student", "objective"):
            assert one[part].keys() == other[part].keys()
            for name, value in one[part].items():
                assert torch.equal(value, other[part][name]), name
        histories = [result["record"]["history"] for result in (one, other)]
        assert [entry["parts"] for entry in histories[0]] == [entry["parts"] for entry in histories[1]]
        assert one["record"]["selected"] == other["record"]["selected"]
    assert straight[0]["record"] == resumed[0]["record"]
    assert lines(folders[0]) == lines(folders[1])


def _two_ranks(module: str, given: Path, folder: Path, cases: dict[str, tuple[Any, ...]]) -> None:
    for case in cases:
        (folder / case).mkdir()
    _torchrun(module, given, folder, json.dumps(cases))


def _torchrun(module: str, *arguments: Path | str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", module,
         *map(str, arguments)],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=400)
    assert said.returncode == 0, said.stderr


def _compare(one: Path, two: Path) -> None:
    """The results of one process and of two ranks."""
    (alone,), both = _results(one, 1), _results(two, 2)
    for part in ("student", "objective"):
        for name, value in alone[part].items():
            assert torch.equal(both[0][part][name], both[1][part][name]), name
            if not name.endswith("key.bias"):  # softmax ignores it: its gradient is rounding, which AdamW scales up
                torch.testing.assert_close(both[0][part][name], value, rtol=0, atol=2e-4, msg=name)
    for mine, theirs in zip(alone["record"]["history"], both[0]["record"]["history"], strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-4)
        assert theirs["diagnostics"].keys() == mine["diagnostics"].keys()
    assert both[0]["record"]["selected"] == both[1]["record"]["selected"]
    first = [line["gradient_norm"] for line in (steps(one)[0], steps(two)[0])]
    assert first[1] == pytest.approx(first[0], rel=1e-5)
    assert len(lines(one)) == len(lines(two))  # one process writes


def _results(folder: Path, ranks: int) -> list[dict[str, Any]]:
    return [torch.load(folder / f"result-{rank}.pt", weights_only=False) for rank in range(ranks)]
