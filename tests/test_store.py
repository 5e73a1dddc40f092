"""The store gives back what was put in, by id, from files whose bytes depend on nothing but their content."""

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from kdcore import store_building
from kdcore.data.tokens import TokenTable
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey
from kdcore.store import FeatureStore, Manifest, feature_file
from kdcore.store_building import build, describe

MEAN = FeatureKey("mean", 3)
CPU = torch.device("cpu")
ROWS = 50
PLAN = Manifest("t" * 16, "k" * 12, "p" * 16, 24, ROWS, "float16", "fp32", {"logits": (2,), "mean-03": (5,)})


def table(rows: int = ROWS) -> TokenTable:
    """Row i holds tokens 1000 + i, between 1 and 9 of them."""
    lengths = 1 + (np.arange(rows) * 7) % 9
    values = np.repeat(1000 + np.arange(rows), lengths).astype(np.int32)
    return TokenTable(values, np.zeros_like(values, dtype=np.int8), np.concatenate([[0], lengths.cumsum()]), 0)


def known(inputs: dict[str, torch.Tensor]) -> dict[FeatureKey, torch.Tensor]:
    """Features that tell the row: logits (i, -i), mean i/8 + 0..4."""
    row = inputs["input_ids"][:, 0].float() - 1000
    return {LOGITS: torch.stack([row, -row], dim=1), MEAN: row[:, None] / 8 + torch.arange(5.0)}


def made(folder: Path, plan: Manifest = PLAN, compute=known, batch_size: int = 8) -> FeatureStore:
    build(folder, folder.with_name(folder.name + "-scratch"), plan, table(plan.rows), compute, batch_size, CPU, "toy")
    return FeatureStore.open(folder)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rows_come_back_by_id_in_any_order(tmp_path, dtype):
    """Lesson A35: rows are looked up by example id, whatever the order they were computed in."""
    store = made(tmp_path / "toy", replace(PLAN, dtype=dtype))
    ids = torch.tensor([49, 0, 17, 17, 3])
    values = store.gather(ids, {LOGITS, MEAN}, CPU)
    assert {key: tuple(value.shape) for key, value in values.items()} == {LOGITS: (5, 2), MEAN: (5, 5)}
    assert all(value.dtype == torch.float32 for value in values.values())
    torch.testing.assert_close(values[LOGITS], torch.stack([ids.float(), -ids.float()], dim=1), rtol=0, atol=0)
    torch.testing.assert_close(values[MEAN], ids[:, None] / 8 + torch.arange(5.0), rtol=2 ** -8, atol=0)


def test_features_of_one_shape_do_not_mix(tmp_path):
    shapes = {f"mean-{layer:02d}": (3,) for layer in (1, 2, 10)} | {"cls-02": (3,), "logits": (2,)}
    plan = replace(PLAN, features=shapes)
    keys = plan.keys

    def compute(inputs):
        row = inputs["input_ids"][:, :1].float() - 1000
        return {key: row.expand(-1, shapes[key.name][0]) + 100 * place for place, key in enumerate(keys)}

    values = made(tmp_path / "toy", plan, compute).gather(torch.tensor([5, 7]), keys, CPU)
    for place, key in enumerate(keys):
        assert values[key][:, 0].tolist() == [5 + 100 * place, 7 + 100 * place]


def test_files_are_plain_arrow_with_one_tensor_per_row(tmp_path):
    folder = made(tmp_path / "toy").folder
    assert sorted(path.name for path in folder.iterdir()) == ["logits.arrow", "manifest.json", "mean-03.arrow"]
    with pa.memory_map(str(folder / "mean-03.arrow")) as source:
        read = pa.ipc.open_file(source).read_all()
    assert read.num_rows == ROWS
    assert read.schema.field("feature").type == pa.fixed_shape_tensor(pa.float16(), (5,))
    assert read.schema.metadata[b"dtype"] == b"float16"
    np.testing.assert_array_equal(read["feature"].chunk(0).to_numpy_ndarray()[:, 0], np.arange(ROWS) / 8)


def test_bytes_do_not_depend_on_batches_or_process(tmp_path):
    first, second = made(tmp_path / "a").folder, made(tmp_path / "b", batch_size=3).folder
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_an_interrupted_pass_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(store_building, "SECONDS_BETWEEN_NOTES", 0.0)
    whole = made(tmp_path / "whole").folder
    seen = []

    def stops_after_four(inputs):
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(len(inputs["input_ids"]))
        return known(inputs)

    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "toy", compute=stops_after_four)
    assert not (tmp_path / "toy").exists()
    computed = []

    def counts(inputs):
        computed.append(len(inputs["input_ids"]))
        return known(inputs)

    resumed = made(tmp_path / "toy", compute=counts).folder
    assert 0 < sum(computed) < ROWS, "nothing was resumed, or nothing was left to do"
    assert not (tmp_path / "toy-scratch").exists()
    for path in whole.iterdir():
        assert path.read_bytes() == (resumed / path.name).read_bytes()


def test_another_batch_size_or_plan_does_not_resume(tmp_path, monkeypatch):
    """Notes count batches, so they mean nothing for batches of another size."""
    monkeypatch.setattr(store_building, "SECONDS_BETWEEN_NOTES", 0.0)

    seen = []

    def stops_after_six(inputs):
        if len(seen) == 6:
            raise KeyboardInterrupt
        seen.append(inputs)
        return known(inputs)

    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "toy", compute=stops_after_six, batch_size=2)
    assert (tmp_path / "toy-scratch" / store_building.NOTE).is_file()
    store = made(tmp_path / "toy", batch_size=8)
    assert store.gather(torch.arange(ROWS), [LOGITS], CPU)[LOGITS][:, 0].tolist() == list(range(ROWS))


def test_killed_at_any_moment_it_resumes(tmp_path):
    """SIGKILL, also while files are laid out; the bytes equal those of an undisturbed pass."""
    script = tmp_path / "pass.py"
    script.write_text("""
import os, sys, signal
from pathlib import Path
from kdcore import store_building
from tests.test_store import known, made
store_building.SECONDS_BETWEEN_NOTES = 0.0
left = int(sys.argv[2])
def compute(inputs):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return known(inputs)
if left < 0:
    allocate = store_building.allocate
    def dies_halfway(path, key, manifest):
        allocate(path, key, manifest)
        os.kill(os.getpid(), signal.SIGKILL)
    store_building.allocate = dies_halfway
made(Path(sys.argv[1]), compute=compute)
""")
    root = Path(__file__).resolve().parents[1]
    for moment in (-1, 3, 2):
        killed = subprocess.run([sys.executable, str(script), str(tmp_path / "toy"), str(moment)], cwd=root,
                                env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, check=False)
        assert killed.returncode == -9, killed.stderr.decode()
        assert not (tmp_path / "toy").exists()
    resumed, whole = made(tmp_path / "toy").folder, made(tmp_path / "whole").folder
    for path in whole.iterdir():
        assert path.read_bytes() == (resumed / path.name).read_bytes()


def test_a_store_that_is_there_is_replaced(tmp_path):
    made(tmp_path / "toy", replace(PLAN, features={"logits": (2,), "mean-03": (5,), "cls-01": (5,)}),
         lambda inputs: known(inputs) | {FeatureKey("cls", 1): torch.zeros(len(inputs["input_ids"]), 5)})
    assert made(tmp_path / "toy").keys == {LOGITS, MEAN}
    assert not feature_file(tmp_path / "toy", FeatureKey("cls", 1)).exists()


def test_size_is_told_exactly(tmp_path):
    folder = made(tmp_path / "toy").folder
    assert PLAN.bytes == ROWS * 7 * 2
    on_disk = sum(path.stat().st_size for path in folder.glob("*.arrow"))
    assert PLAN.bytes <= on_disk <= PLAN.bytes + 4096
    assert describe(replace(PLAN, rows=1_000_000)) == "1,000,000 rows x (logits 1 x 2, mean 1 x 5) in float16 = 14.0 MB"


def test_memory_given_back_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("kdcore.store._RELEASE_BYTES", 1)
    monkeypatch.setattr(store_building, "RELEASE_BYTES", 1)
    store = made(tmp_path / "toy")
    for row in (3, 4, 3):
        assert store.gather(torch.tensor([row]), [LOGITS], CPU)[LOGITS].tolist() == [[row, -row]]


class TestMistakes:
    def test_float16_overflow_names_the_feature_and_the_remedy(self, tmp_path):
        def large(inputs):
            return known(inputs) | {MEAN: known(inputs)[MEAN] * 20_000}

        with pytest.raises(UserError) as caught:
            made(tmp_path / "toy", compute=large)
        assert "mean-03" in str(caught.value)
        assert "float16" in str(caught.value)
        assert "bfloat16 or float32" in str(caught.value)
        assert not (tmp_path / "toy").exists()
        values = made(tmp_path / "toy", replace(PLAN, dtype="bfloat16"), large).gather(torch.tensor([40]), [MEAN], CPU)
        torch.testing.assert_close(values[MEAN][0, 0], torch.tensor(100_000.0), rtol=2 ** -8, atol=0)

    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    def test_a_teacher_that_is_not_finite_is_to_blame_itself(self, tmp_path, dtype):
        def broken(inputs):
            values = known(inputs)
            values[LOGITS][values[LOGITS][:, 0] == 17] = torch.nan
            return values

        with pytest.raises(UserError, match="logits that is not finite for training row 17"):
            made(tmp_path / "toy", replace(PLAN, dtype=dtype), broken)

    def test_a_full_disk_is_said_before_anything_is_written(self, tmp_path, monkeypatch):
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 500, 500))
        with pytest.raises(UserError) as caught:
            made(tmp_path / "toy")
        assert "700 bytes" in str(caught.value)
        assert "500 bytes) free" in str(caught.value)
        assert not list((tmp_path / "toy-scratch").glob("*.arrow"))

    @pytest.mark.parametrize(("field", "value", "says"), [
        ("teacher", "x" * 16, "teacher weights"), ("tokenizer", "x" * 12, "tokenizer"),
        ("prepared", "x" * 16, "prepared data"), ("max_length", 99, "max_length"), ("rows", 51, "number of rows"),
        ("dtype", "float32", "features.dtype"), ("precision", "bf16", "features.precision")])
    def test_every_stale_field_is_refused_with_both_values(self, tmp_path, field, value, says):
        """Lessons A50, B35."""
        with pytest.raises(UserError) as caught:
            PLAN.check(replace(PLAN, **{field: value}), tmp_path / "toy" / "features")
        message = str(caught.value)
        assert says in message
        assert str(getattr(PLAN, field)) in message
        assert str(value) in message
        assert "kdflow features toy" in message
        PLAN.check(PLAN, tmp_path / "toy")

    def test_no_store(self, tmp_path):
        with pytest.raises(UserError, match=r"no teacher features in .*toy.*run `kdflow features toy` first"):
            FeatureStore.open(tmp_path / "toy" / "features")

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"features": {}, "dtype": "int8"}'])
    def test_a_manifest_of_somebody_else(self, tmp_path, content):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(UserError, match=r"manifest.json cannot be read"):
            FeatureStore.open(tmp_path)

    def test_a_file_is_missing(self, tmp_path):
        store = made(tmp_path / "toy")
        feature_file(store.folder, MEAN).unlink()
        with pytest.raises(UserError, match=r"mean-03.arrow are missing or damaged"):
            store.gather(torch.tensor([1]), [MEAN], CPU)

    @pytest.mark.parametrize("size", [0, 100, 700])
    def test_a_file_is_cut_short(self, tmp_path, size):
        store = made(tmp_path / "toy")
        os.truncate(feature_file(store.folder, MEAN), size)
        with pytest.raises(UserError, match=r"mean-03.arrow are missing or damaged"):
            store.gather(torch.tensor([1]), [MEAN], CPU)

    def test_a_file_of_another_store(self, tmp_path):
        store = made(tmp_path / "toy")
        other = made(tmp_path / "other", replace(PLAN, rows=30))
        shutil.copy(feature_file(other.folder, MEAN), store.folder)
        with pytest.raises(UserError, match="hold 30 rows"):
            store.gather(torch.tensor([1]), [MEAN], CPU)

    @pytest.mark.parametrize("ids", [[0, ROWS], [-1]])
    def test_ids_outside_the_store(self, tmp_path, ids):
        """Lesson B19: neither wrapped around nor read from elsewhere."""
        with pytest.raises(IndexError):
            made(tmp_path / "toy").gather(torch.tensor(ids), [LOGITS], CPU)


def test_the_manifest_survives_the_disk(tmp_path):
    store = made(tmp_path / "toy")
    assert store.manifest == PLAN
    assert json.loads((store.folder / "manifest.json").read_text())["features"] == {"logits": [2], "mean-03": [5]}
