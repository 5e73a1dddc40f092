"""Teacher features on disk: one Arrow IPC file per feature, memory-mapped, rows addressed by example id.

A frozen teacher in eval mode says the same in every epoch, so it runs once. `manifest.json` ties the numbers to
what they were made from; a store that was made from anything else is refused, never silently used.

Each file has one column `feature` of fixed-shape tensors in a single record batch: row i is example i, and the
whole column is one flat array in the file. bfloat16, which Arrow lacks, is stored as its bits in uint16 and named
in the file's metadata.
"""

import json
import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import FeatureKey

DType = Literal["float16", "bfloat16", "float32"]
MANIFEST = "manifest.json"
COLUMN = "feature"
_RELEASE_BYTES = 64 * 2**20

_STORED = {"float16": (np.float16, torch.float16), "bfloat16": (np.uint16, torch.bfloat16),
           "float32": (np.float32, torch.float32)}


@dataclass(frozen=True)
class Manifest:
    """What a store holds and what it was made from.

    teacher     fingerprint of the teacher's configuration and weights
    tokenizer   fingerprint of the tokenizer whose ids the teacher read
    prepared    fingerprint of the prepared dataset
    max_length  tokens per row at most
    rows        training examples; ids are 0..rows-1
    dtype       of the numbers on disk
    precision   of the teacher's forward; live features are computed alike
    features    feature name -> shape per example
    """

    teacher: str
    tokenizer: str
    prepared: str
    max_length: int
    rows: int
    dtype: DType
    precision: Literal["fp32", "bf16", "fp16"]
    features: dict[str, tuple[int, ...]]

    @property
    def keys(self) -> tuple[FeatureKey, ...]:
        """The stored features in the order of their names."""
        return tuple(FeatureKey.parse(name) for name in sorted(self.features))

    @property
    def bytes(self) -> int:
        """Size of the numbers on disk: rows x numbers per row x bytes per number."""
        return self.rows * sum(map(math.prod, self.features.values())) * np.dtype(_STORED[self.dtype][0]).itemsize

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`; raises KeyError, TypeError or ValueError for other content."""
        content = json.loads(text)
        content["features"] = {name: tuple(shape) for name, shape in content["features"].items()}
        if content["dtype"] not in _STORED:
            raise ValueError(f"unknown dtype {content['dtype']!r}")
        return cls(**content)

    def check(self, now: "Manifest", folder: Path) -> None:
        """Refuse a store that was made from something else than what is there `now`.

        Raises:
            UserError: the first field that differs, with both values.
        """
        for field in fields(self):
            have, want = getattr(self, field.name), getattr(now, field.name)
            if have != want and field.name != "features":
                raise UserError(f"teacher features in {folder} are stale: made with {_WORDS[field.name]} {have}, now "
                                f"it is {want}; run `kdflow features {folder.parent.name}` again")


_WORDS = {"teacher": "teacher weights", "tokenizer": "tokenizer", "prepared": "prepared data",
          "max_length": "max_length", "rows": "number of rows", "dtype": "features.dtype",
          "precision": "features.precision"}


class FeatureStore:
    """Read access to the features in a folder."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.keys = frozenset(manifest.keys)
        self._columns: dict[FeatureKey, Column] = {}
        self._gathered = 0

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a store written by the stage `features`.

        Raises:
            UserError: there is none, or its manifest is not ours.
        """
        try:
            manifest = Manifest.from_json((folder / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"no teacher features in {folder} ({MANIFEST} is missing); "
                            f"run `kdflow features {folder.parent.name}` first") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / MANIFEST} cannot be read ({error}); "
                            f"run `kdflow features {folder.parent.name}` again") from None
        return cls(folder, manifest)

    def gather(self, ids: Int[Tensor, " b"], keys: Iterable[FeatureKey],
               device: torch.device) -> dict[FeatureKey, Tensor]:
        """The features of some examples as float32 on `device`: [b, *shape] each.

        Features of one shape travel to the device together.

        Raises:
            KeyError: a feature that is not stored.
            IndexError: an id outside 0..rows-1.
            UserError: a file is missing, cut short or not as the manifest says.
        """
        rows = ids.cpu().numpy()
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.manifest.rows:
            raise IndexError(f"ids {rows.min()}..{rows.max()} of a store with rows 0..{self.manifest.rows - 1}")
        groups: dict[tuple[int, ...], list[FeatureKey]] = {}
        for key in sorted(keys):
            groups.setdefault(self.manifest.features[key.name], []).append(key)
        result: dict[FeatureKey, Tensor] = {}
        for shape, members in groups.items():
            block = np.stack([np.take(self._column(key).values, rows, axis=0) for key in members])
            moved = as_torch(block, self.manifest.dtype).to(device, non_blocking=True).float()
            result.update(zip(members, moved.view(len(members), len(rows), *shape).unbind(), strict=True))
            self._count(block.nbytes)
        return result

    def _column(self, key: FeatureKey) -> "Column":
        if key not in self._columns:
            self._columns[key] = open_column(feature_file(self.folder, key), key, self.manifest)
        return self._columns[key]

    def _count(self, size: int) -> None:
        """Give mapped pages back now and then; they stay in the system's cache, but do not count as our memory."""
        self._gathered += size
        if self._gathered >= _RELEASE_BYTES:
            self._gathered = 0
            for column in self._columns.values():
                column.release()


@dataclass(frozen=True)
class Column:
    """The numbers of one file, mapped: [rows, numbers per row] in the stored type."""

    values: np.ndarray
    memory: mmap.mmap
    path: Path

    def release(self) -> None:
        """Drop the mapped pages from this process; reading them again maps them again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED)

    def sync(self) -> None:
        """Wait until what was written lies on the disk."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())


def feature_file(folder: Path, key: FeatureKey) -> Path:
    """Where a feature lies in a store."""
    return folder / f"{key.name}.arrow"


def as_torch(block: np.ndarray, dtype: DType) -> Tensor:
    """The numbers as stored, as a tensor that shares their memory."""
    return torch.from_numpy(block).view(_STORED[dtype][1])


def as_stored(values: Tensor) -> np.ndarray:
    """Numbers of a stored type, as numpy has them."""
    return (values.view(torch.uint16) if values.dtype == torch.bfloat16 else values).numpy()


def torch_dtype(dtype: DType) -> torch.dtype:
    """The type that numbers are rounded to before they are stored."""
    return _STORED[dtype][1]


def allocate(path: Path, key: FeatureKey, manifest: Manifest) -> None:
    """Write the file of a feature with zeros in place of numbers, which `open_column` then fills in any order."""
    shape = manifest.features[key.name]
    zeros = np.zeros(manifest.rows * math.prod(shape), _STORED[manifest.dtype][0])  # untouched pages cost no memory
    storage = pa.FixedSizeListArray.from_arrays(pa.array(zeros), math.prod(shape))
    column = pa.ExtensionArray.from_storage(_arrow_type(manifest.dtype, shape), storage)
    schema = pa.schema([(COLUMN, column.type)], metadata={"feature": key.name, "dtype": manifest.dtype})
    partial = path.with_suffix(".partial")
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(pa.record_batch([column], schema=schema))
    partial.rename(path)


def open_column(path: Path, key: FeatureKey, manifest: Manifest, writable: bool = False) -> Column:
    """Map the numbers of one file.

    Raises:
        UserError: the file is missing, cut short or not as the manifest says.
    """
    shape, stored = manifest.features[key.name], _STORED[manifest.dtype][0]
    count = manifest.rows * math.prod(shape)
    again = f"run `kdflow features {path.parent.parent.name}` again"
    try:
        with pa.memory_map(str(path)) as source:
            start = source.read_buffer(1).address
            column = pa.ipc.open_file(source).read_all().column(COLUMN)
    except (FileNotFoundError, KeyError, pa.ArrowInvalid) as error:
        raise UserError(f"teacher features {path} are missing or damaged ({error}); {again}") from None
    if column.type != _arrow_type(manifest.dtype, shape) or len(column) != manifest.rows:
        raise UserError(f"teacher features {path} hold {len(column)} rows of {column.type}, the manifest says "
                        f"{manifest.rows} of shape {list(shape)} in {manifest.dtype}; {again}")
    offset = column.chunk(0).storage.values.buffers()[1].address - start
    with path.open("r+b" if writable else "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    return Column(np.frombuffer(memory, stored, count, offset).reshape(manifest.rows, -1), memory, path)


def _arrow_type(dtype: DType, shape: tuple[int, ...]) -> pa.DataType:
    return pa.fixed_shape_tensor(pa.from_numpy_dtype(_STORED[dtype][0]), shape)
