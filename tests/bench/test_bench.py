"""The bench measures what it says, writes what other programs read, and holds it against the targets."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from kdcore.bench import corpus, models, report
from kdcore.bench.memory import PeakMemory, own_bytes
from kdcore.bench.size import Bench, Work

MEGABYTE = 2**20


def test_lengths_follow_the_deciles():
    drawn = corpus.lengths("mnli", 20_000, seed=1)
    np.testing.assert_allclose(np.quantile(drawn, np.linspace(0.1, 0.9, 9)), corpus.DECILES["mnli"][1:-1], atol=1)
    assert drawn.min() >= corpus.DECILES["mnli"][0]
    assert drawn.max() <= corpus.MAX_LENGTH


def test_the_corpus_is_a_prepared_dataset(tmp_path):
    prepared = corpus.write(tmp_path / "prepared", 50)
    tokens = prepared.tokens("train", "student")
    assert len(tokens) == 50 == prepared.info.splits["train"].rows
    batch = tokens.pad(torch.arange(50))
    assert (batch["input_ids"][:, 0] == corpus.CLS).all()
    ends = batch["input_ids"][torch.arange(50), batch["attention_mask"].sum(1) - 1]
    assert (ends == corpus.SEP).all()
    assert set(prepared.labels("train").tolist()) == {0, 1}
    assert prepared.same_tokenizer


def test_padding_stays_under_a_tenth_on_every_length_distribution():
    """The target, where it does not depend on the machine."""
    for name in corpus.DECILES:
        assert report.padding(name) < 0.10, name


def test_peak_memory_sees_what_is_held_and_not_what_is_mapped(tmp_path):
    path = tmp_path / "large.bin"
    path.write_bytes(b"\1" * (64 * MEGABYTE))
    before = own_bytes()
    with PeakMemory(torch.device("cpu")) as mapped:
        view = np.memmap(path, np.uint8)
        assert int(view.sum()) == 64 * MEGABYTE
        del view
    with PeakMemory(torch.device("cpu")) as held:
        block = np.ones(64 * MEGABYTE, np.uint8)
        assert int(block.sum()) == 64 * MEGABYTE
        del block
    assert held.host - before > 48 * MEGABYTE
    if sys.platform == "linux":
        assert mapped.host - before < 32 * MEGABYTE


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict:
    work = Work(rows=64, size="tiny", steps=2, rounds=2, build_rounds=1, methods=("vanilla_kd", "rail_kd_l"), live=True)
    return Bench(work, tmp_path_factory.mktemp("bench")).measure() | {"models": "tiny"}


def test_one_size_gives_all_figures(measured):
    assert set(measured["methods"]) == {"finetune", "vanilla_kd", "rail_kd_l"}
    assert measured["methods"]["finetune"]["teacher"] == "none"
    for name in ("vanilla_kd", "rail_kd_l"):
        figures = measured["methods"][name]
        assert figures["teacher"] == "stored"
        assert len(figures["epoch_ratios"]) == 2
        assert 0 < figures["epoch_ratio"] < 20
        assert figures["live"]["epoch_ratio"] > 0
    layers, width = models.SIZES["tiny"].teacher_layers, models.SIZES["tiny"].width
    assert measured["store"]["bytes"] >= 64 * (layers * width + 2) * 2  # float16
    assert measured["store"]["rows_per_second"] > 0
    assert measured["memory"]["training_peak_bytes"] > 100 * MEGABYTE


def test_the_report_has_the_keys_that_others_read_and_tells_a_missed_target(measured, capsys):
    grown = json.loads(json.dumps(measured)) | {"rows": 128}
    grown["memory"]["training_peak_bytes"] = 2 * measured["memory"]["training_peak_bytes"]
    machine = {"device": "cpu", "threads": 1, "torch": torch.__version__}
    content = report.merge(machine, True, [measured, grown])
    assert content["methods"]["rail_kd_l"]["epoch_ratio"] == measured["methods"]["rail_kd_l"]["epoch_ratio"]
    assert content["methods"]["rail_kd_l"]["teacher"] == "stored"
    assert 0 < content["padding_share"] < 0.10
    growth = next(t for t in content["targets"] if t["what"].startswith("memory of training"))
    assert growth["measured"] == pytest.approx(2)
    assert not growth["met"]
    report.show(content)
    shown = capsys.readouterr().out
    assert "rail_kd_l" in shown
    assert "MISSED" in shown


def test_the_median_of_paired_ratios_is_what_counts():
    """A method that takes twice as long has ratio 2, also when the machine slows down between rounds."""
    bench = object.__new__(Bench)
    bench._source = lambda method: "stored"  # type: ignore[method-assign]
    rates = {("finetune", "none"): [100.0, 50.0, 100.0], ("finetune again", "none"): [100.0, 50.0, 100.0],
             ("x", "stored"): [50.0, 25.0, 90.0]}
    compared = bench._compare(rates)
    assert compared["x"]["epoch_ratio"] == 2
    assert compared["finetune"]["epoch_ratio"] == 1


def test_cuda_is_refused_in_one_line_where_there_is_none(repository, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    done = subprocess.run([sys.executable, "-m", "kdcore.bench", "--device", "cuda", "--output", str(tmp_path / "b")],
                          cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_the_whole_bench_in_its_quick_size(repository, tmp_path):
    output = tmp_path / "bench.json"
    done = subprocess.run([sys.executable, "-m", "kdcore.bench", "--quick", "--device", "cpu", "--output", str(output)],
                          cwd=repository, capture_output=True, text=True, check=False,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    content = json.loads(output.read_text(encoding="utf-8"))
    assert set(content["by_rows"]) == {"128", "512"}
    assert {"finetune", "vanilla_kd", "rail_kd_l", "rail_kd_c"} <= set(content["methods"])
