"""Texts to token ids, once, in preparation."""

import itertools
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from kdcore.data.tokens import TokenTable

CHUNK = 1000


def tokenise(table: pa.Table, tokenizer: PreTrainedTokenizerBase, max_length: int,
             progress: Callable[[int], object]) -> TokenTable:
    """Token ids of `text` (and `text_pair`), special tokens included.

    Longer rows are truncated to `max_length`, of pairs the longer text first. `progress` is called with the number
    of rows done since the last call. Models that know no segments get zeros for them here and never see them.
    """
    columns = [table.column(name) for name in ("text", "text_pair") if name in table.column_names]
    values, types, lengths = [], [], []
    for start in range(0, table.num_rows, CHUNK):
        texts = [column.slice(start, CHUNK).to_pylist() for column in columns]
        encoded = tokenizer(*texts, truncation="longest_first", max_length=max_length, padding=False,
                            return_attention_mask=False, return_token_type_ids=True)
        rows = encoded["input_ids"]
        lengths += [len(row) for row in rows]
        values.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
        types.append(np.fromiter(itertools.chain.from_iterable(encoded["token_type_ids"]), np.int8))
        progress(len(rows))
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return TokenTable(np.concatenate(values), np.concatenate(types), offsets, int(tokenizer.pad_token_id),
                      int(tokenizer.pad_token_type_id))
