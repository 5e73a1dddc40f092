"""Rows without labels in training: nothing where labels alone teach, the teacher's part where a teacher does."""

import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from kdcore.data.prepared import INFO_FILE, Prepared, split_file, token_file
from kdcore.data.tokenise import tokenise
from kdcore.methods import finetune
from kdcore.models.loading import dims
from kdcore.objective import Setting
from kdcore.stages.teacher import compare_with_constant
from kdcore.training.datasets import OfDataset
from kdcore.training.journal import Journal
from kdcore.training.run import train
from tests.tiny import tiny_tokenizer
from tests.training.problem import phases_of, run, same_weights, settings, steps, tiny_teacher, write_prepared

LABELLED, ALL = 50, 130


@pytest.fixture(scope="module", params=[False, True], ids=["classes", "scores"])
def regression(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, regression: bool) -> Prepared:
    """130 training rows, the last 80 of them without a label."""
    prepared = write_prepared(tmp_path_factory.mktemp("mixed"), ALL, regression)
    table = prepared.table("train")
    labels = table.column("label").to_pylist()[:LABELLED] + [float("nan") if regression else -1] * (ALL - LABELLED)
    return rewritten(prepared, table.set_column(2, "label", pa.array(labels, table.schema.field("label").type)),
                     unlabelled=ALL - LABELLED)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, regression: bool) -> Prepared:
    """The 50 rows with a label."""
    prepared = write_prepared(tmp_path_factory.mktemp("alone"), ALL, regression)
    return rewritten(prepared, prepared.table("train").slice(0, LABELLED))


def rewritten(prepared: Prepared, table: pa.Table, unlabelled: int = 0) -> Prepared:
    """With another training split."""
    pq.write_table(table, split_file(prepared.folder, "train"))
    tokenise(table, tiny_tokenizer("bert"), 32, lambda done: None).save(
        token_file(prepared.folder, prepared.info.tokenizers["student"], "train"))
    split = replace(prepared.info.splits["train"], rows=len(table), unlabelled=unlabelled)
    info = replace(prepared.info, splits=prepared.info.splits | {"train": split})
    (prepared.folder / INFO_FILE).write_text(info.to_json())
    return Prepared.load(prepared.folder)


def test_without_a_teacher_they_change_nothing(mixed: Prepared, alone: Prepared, tmp_path: Path) -> None:
    results = [run(prepared, tmp_path / name, "finetune", phases=phases_of("finetune", prepared))
               for name, prepared in (("mixed", mixed), ("alone", alone))]
    assert same_weights(results[0].student, results[1].student)
    assert results[0].record == results[1].record
    assert (tmp_path / "mixed/journal.jsonl").read_bytes() == (tmp_path / "alone/journal.jsonl").read_bytes()


def test_the_teachers_own_training_leaves_them_out(mixed: Prepared, alone: Prepared, tmp_path: Path) -> None:
    results = []
    for name, prepared in (("mixed", mixed), ("alone", alone)):
        model = tiny_teacher(prepared).model.requires_grad_(True)
        setting = Setting(dims(model), dims(model), prepared.info.classes, prepared.info.regression,
                          prepared.labels("train"), 16, 1)
        results.append(train(model, finetune.phases(finetune.Config(), setting), OfDataset(prepared, "teacher"),
                             settings(), 1, tmp_path / name, Journal(tmp_path / f"{name}.jsonl"), "toy"))
    assert same_weights(results[0].student, results[1].student)
    assert results[0].record == results[1].record


@pytest.mark.parametrize("method", ["vanilla_kd", "rail_kd_l", "codir"])
def test_with_a_teacher_all_rows_train(mixed: Prepared, tmp_path: Path, method: str) -> None:
    result = run(mixed, tmp_path, method, phases=phases_of(method, mixed))
    assert len(steps(tmp_path)) == 2 * 9  # 130 rows in batches of at most 16
    assert result.measured["train_seconds"] > 0
    first = result.record["history"][0]["parts"]
    assert first["kd"] > 0
    assert first["label"] > 0
    assert not result.record["skipped_steps"]


def test_the_teachers_check_counts_labelled_rows(mixed: Prepared, alone: Prepared) -> None:
    """Where a teacher of files answers nothing but training rows."""
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(ALL, mixed.info.classes, generator=draw)
    checks = [compare_with_constant(prepared, "train", 0.5, lambda: logits[:rows])  # noqa: B023 - called at once
              for prepared, rows in ((mixed, ALL), (alone, LABELLED))]
    assert checks[0] == checks[1]
    assert all(not isinstance(value, float) or math.isfinite(value) for value in checks[0].values())


def test_the_logged_label_loss_counts_them_as_zero(mixed: Prepared, tmp_path: Path) -> None:
    """At a rate of practically nothing and without dropout, the mean over all rows is that over the labelled ones
    times their share."""
    parts = []
    for name, method in (("all", "vanilla_kd"), ("labelled", "finetune")):
        found = run(mixed, tmp_path / name, method, dropout=0.0, phases=phases_of(method, mixed), learning_rate=1e-12,
                    epochs=1)
        parts.append(found.record["history"][0]["parts"]["label"])
    assert parts[0] == pytest.approx(parts[1] * LABELLED / ALL, rel=1e-4)


