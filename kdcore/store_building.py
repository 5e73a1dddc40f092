"""Fill a teacher store: one pass over the rows, longest first, each batch written to its rows' places at once.

The files are laid out in full before the first row, so that rows come in the order that is fastest to compute and
nothing is kept in memory or copied at the end. A killed pass goes on from its last note of progress and ends with
the same bytes. Rounding happens on the device; writing overlaps with the device's next batch.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from kdcore.data.batching import sorted_batches
from kdcore.data.tokens import TokenTable
from kdcore.errors import UserError
from kdcore.features import FeatureKey
from kdcore.progress import RowProgress
from kdcore.store import MANIFEST, Column, Manifest, allocate, as_stored, feature_file, open_column, torch_dtype

NOTE = "progress.json"
SECONDS_BETWEEN_NOTES = 20.0
"""About this much work is lost to a kill."""
RELEASE_BYTES = 64 * 2**20
"""Written pages count as memory of this process until they are given back, every so many bytes."""

Compute = Callable[[dict[str, Tensor]], Mapping[FeatureKey, Tensor]]


def build(folder: Path, scratch: Path, manifest: Manifest, tokens: TokenTable, compute: Compute, batch_size: int,
          device: torch.device, title: str) -> dict[str, float]:
    """Compute and write every feature of the manifest, and put the finished store in place of `folder`.

    `compute` takes the padded inputs of a batch on `device` and returns its features [b, *shape]. `scratch` holds
    the unfinished store and is gone afterwards; what an unfinished pass for another manifest or batch size left
    there is not used. Only one process may work in it.

    Returns:
        rows and seconds of this process (a resumed pass has fewer rows to do), and the store's bytes.

    Raises:
        UserError: the disk is too small, or a feature is not finite in the stored type.
    """
    batches = sorted_batches(tokens.lengths, batch_size)
    done = _lay_out(scratch, manifest, batch_size)
    columns = [open_column(feature_file(scratch, key), key, manifest, writable=True) for key in manifest.keys]
    rows_before = sum(map(len, batches[:done]))
    start, written = time.monotonic(), 0
    with RowProgress(title, manifest.rows, rows_before) as progress, _Notes(scratch, columns, batch_size) as notes:
        for number, batch in enumerate(_computed(batches[done:], manifest, tokens, compute, device), done + 1):
            written += _write(batch, manifest, columns)
            if written >= RELEASE_BYTES:
                written = 0
                for column in columns:
                    column.release()
            progress.advance(len(batch.rows))
            notes.offer(number)
    seconds = time.monotonic() - start
    (scratch / NOTE).unlink(missing_ok=True)
    _put_in_place(scratch, folder)
    return {"rows": manifest.rows - rows_before, "seconds": seconds, "bytes": manifest.bytes}


def write(folder: Path, scratch: Path, manifest: Manifest, values: Mapping[FeatureKey, Tensor]) -> None:
    """Write a store of known features [rows, *shape] of every example, and put it in place of `folder`.

    Raises:
        UserError: the disk is too small, or a feature is not finite in the stored type.
    """
    _lay_out(scratch, manifest, manifest.rows)
    columns = [open_column(feature_file(scratch, key), key, manifest, writable=True) for key in manifest.keys]
    exact = torch.cat([values[key].reshape(manifest.rows, -1) for key in manifest.keys], dim=1)
    stored = exact.to(torch_dtype(manifest.dtype))
    _write(_Batch(list(range(manifest.rows)), stored, exact, torch.isfinite(stored).all()), manifest, columns)
    for column in columns:
        column.sync()
    _put_in_place(scratch, folder)


def describe(manifest: Manifest) -> str:
    """How big a store will be, in words: rows x numbers per row x bytes."""
    kinds: dict[tuple[str, int], int] = {}
    for key in manifest.keys:
        shape = (key.kind, torch.Size(manifest.features[key.name]).numel())
        kinds[shape] = kinds.get(shape, 0) + 1
    parts = ", ".join(f"{kind} {count} x {width}" for (kind, width), count in kinds.items())
    return f"{manifest.rows:,} rows x ({parts}) in {manifest.dtype} = {_megabytes(manifest.bytes)}"


@dataclass(frozen=True)
class _Batch:
    """stored: [b, numbers per row] on the host, all features side by side; exact: the same before rounding, where
    it was computed; finite: whether all of `stored` is, on the host."""

    rows: list[int]
    stored: Tensor
    exact: Tensor
    finite: Tensor


def _lay_out(scratch: Path, manifest: Manifest, batch_size: int) -> int:
    """Write the files where they are not there yet; returns how many batches are finished."""
    plan = scratch / MANIFEST
    if not plan.is_file() or plan.read_text(encoding="utf-8") != manifest.to_json():
        shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True, exist_ok=True)
    missing = [key for key in manifest.keys if not feature_file(scratch, key).is_file()]
    if missing:
        needed, free = manifest.bytes * len(missing) // len(manifest.keys), shutil.disk_usage(scratch).free
        if needed > free:
            raise UserError(f"teacher features need {_megabytes(needed)} ({needed:,} bytes), but {scratch} has "
                            f"{_megabytes(free)} ({free:,} bytes) free; free space, store fewer `features.kinds`, "
                            "or use a 16-bit features.dtype")
        (scratch / NOTE).unlink(missing_ok=True)
        plan.write_text(manifest.to_json(), encoding="utf-8")
        for key in missing:
            allocate(feature_file(scratch, key), key, manifest)
    if not (scratch / NOTE).is_file():
        return 0
    note = json.loads((scratch / NOTE).read_text(encoding="utf-8"))
    return int(note["batches"]) if note["batch_size"] == batch_size else 0


def _put_in_place(scratch: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.replace(scratch, folder)


def _computed(batches: list[list[int]], manifest: Manifest, tokens: TokenTable, compute: Compute,
              device: torch.device) -> Iterator[_Batch]:
    """The batches, computed; on CUDA each is handed out after the next one was launched."""
    waiting: tuple[_Batch, Any] | None = None
    for rows in batches:
        inputs = {name: value.to(device, non_blocking=True) for name, value in tokens.pad(torch.tensor(rows)).items()}
        features = compute(inputs)
        exact = torch.cat([features[key].reshape(len(rows), -1) for key in manifest.keys], dim=1)
        stored = exact.to(torch_dtype(manifest.dtype))
        finite = torch.isfinite(stored).all()
        if device.type != "cuda":
            yield _Batch(rows, stored, exact, finite)
            continue
        batch = _Batch(rows, _to_host(stored), exact, _to_host(finite))
        copied = torch.cuda.Event()
        copied.record()
        if waiting:
            waiting[1].synchronize()
            yield waiting[0]
        waiting = batch, copied
    if waiting:
        waiting[1].synchronize()
        yield waiting[0]


def _to_host(value: Tensor) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)


def _write(batch: _Batch, manifest: Manifest, columns: list[Column]) -> int:
    """Put the numbers into the rows' places; returns their bytes."""
    if not batch.finite:
        _refuse(batch, manifest)
    stored = as_stored(batch.stored)
    start = 0
    for column in columns:
        stop = start + column.values.shape[1]
        column.values[batch.rows] = stored[:, start:stop]
        start = stop
    return stored.nbytes


def _refuse(batch: _Batch, manifest: Manifest) -> NoReturn:
    """Say which feature is not finite, and whether the teacher or the stored type is to blame."""
    start = 0
    for key in manifest.keys:
        stop = start + torch.Size(manifest.features[key.name]).numel()
        exact, stored, start = batch.exact[:, start:stop], batch.stored[:, start:stop], stop
        if not exact.isfinite().all():
            row = batch.rows[int(exact.isfinite().all(dim=1).logical_not().nonzero()[0])]
            raise UserError(f"the teacher gives a {key.name} that is not finite for training row {row}; its training "
                            "diverged or its weights are damaged: train it again")
        if not stored.isfinite().all():
            raise UserError(f"the teacher's {key.name} reaches {float(exact.abs().max()):.6g}, beyond the largest "
                            f"{manifest.dtype}; set features.dtype to bfloat16 or float32")
    raise AssertionError("all features are finite")


class _Notes:
    """Notes of progress, made in a thread: what was written is safe on the disk before it is noted as done."""

    def __init__(self, scratch: Path, columns: list[Column], batch_size: int) -> None:
        self._scratch = scratch
        self._columns = columns
        self._batch_size = batch_size
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._saving: Future[None] | None = None
        self._saved = time.monotonic()

    def __enter__(self) -> "_Notes":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Write everything to the disk when the pass is complete; wait for a note under way in any case."""
        self._pool.shutdown()
        if self._saving:
            self._saving.result()
        if kind is None:
            for column in self._columns:
                column.sync()

    def offer(self, batches: int) -> None:
        """Note that so many batches are written, if the last note is old enough."""
        if time.monotonic() - self._saved < SECONDS_BETWEEN_NOTES or (self._saving and not self._saving.done()):
            return
        self._saved = time.monotonic()
        self._saving = self._pool.submit(self._save, batches)

    def _save(self, batches: int) -> None:
        for column in self._columns:
            column.sync()
        temporary = self._scratch / f"{NOTE}.partial"
        temporary.write_text(json.dumps({"batches": batches, "batch_size": self._batch_size}), encoding="utf-8")
        os.replace(temporary, self._scratch / NOTE)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
