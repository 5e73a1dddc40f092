"""Tokenised rows of one split on disk, and their padding into batches.

One Arrow IPC file per split and tokenizer with a single record batch, so that a memory-mapped file is one flat
array of token ids and one of offsets: reading a batch is a vectorised gather without Python work per example.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int
from torch import Tensor

from kdcore.errors import UserError

SCHEMA = pa.schema([("id", pa.int64()), ("input_ids", pa.large_list(pa.int32())),
                    ("token_type_ids", pa.large_list(pa.int8()))])


@dataclass(frozen=True)
class TokenTable:
    """Token ids of n rows as flat values and offsets.

    values, types: [sum of lengths]; offsets: [n + 1], row i is `values[offsets[i]:offsets[i + 1]]`.
    `pad_id` and `pad_type` fill the right of shorter rows.
    """

    values: np.ndarray
    types: np.ndarray
    offsets: np.ndarray
    pad_id: int
    pad_type: int = 0

    @classmethod
    def open(cls, path: Path) -> "TokenTable":
        """Memory-map a file written by `save`.

        Raises:
            UserError: the file is missing, cut short or not of this format.
        """
        try:
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_file(source).read_all()
        except FileNotFoundError:
            raise UserError(f"token file {path} is missing; run `kdflow prepare` again") from None
        except pa.ArrowInvalid as error:
            raise UserError(f"token file {path} is damaged ({error}); run `kdflow prepare` again") from None
        metadata = table.schema.metadata or {}
        if not table.schema.equals(SCHEMA) or b"pad_id" not in metadata or table.column("id").num_chunks > 1:
            raise UserError(f"token file {path} has another format; run `kdflow prepare` again")
        if table.num_rows == 0:
            raise UserError(f"token file {path} holds no rows; run `kdflow prepare` again")
        ids, types = (table.column(name).chunk(0) for name in ("input_ids", "token_type_ids"))
        return cls(ids.values.to_numpy(), types.values.to_numpy(), ids.offsets.to_numpy(),
                   int(metadata[b"pad_id"]), int(metadata[b"pad_type"]))

    def save(self, path: Path) -> None:
        """Write the Arrow file; equal content gives equal bytes."""
        offsets = pa.array(self.offsets, pa.int64())
        columns = [
            pa.array(np.arange(len(self), dtype=np.int64)),
            pa.LargeListArray.from_arrays(offsets, pa.array(self.values, pa.int32())),
            pa.LargeListArray.from_arrays(offsets, pa.array(self.types, pa.int8())),
        ]
        schema = SCHEMA.with_metadata({"pad_id": str(self.pad_id), "pad_type": str(self.pad_type)})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, special tokens included: int64 [n]."""
        return np.diff(self.offsets)

    def pad(self, rows: Int[Tensor, " b"], multiple_of: int = 1) -> dict[str, Tensor]:
        """Return the rows as int64 tensors [b, t], t the longest of them rounded up to `multiple_of`.

        Keys: input_ids, attention_mask (1 at real tokens), token_type_ids.
        """
        chosen = rows.numpy()
        starts, lengths = self.offsets[chosen], self.lengths[chosen]
        longest = -(-int(lengths.max()) // multiple_of) * multiple_of
        columns = np.arange(longest)
        real = columns < lengths[:, None]
        places = np.where(real, starts[:, None] + columns, 0)
        return {
            "input_ids": torch.from_numpy(np.where(real, self.values[places], self.pad_id).astype(np.int64)),
            "attention_mask": torch.from_numpy(real.astype(np.int64)),
            "token_type_ids": torch.from_numpy(np.where(real, self.types[places], self.pad_type).astype(np.int64)),
        }
