"""The snippets with mean human ratings of Hutto and Gilbert (2014): one text file per domain.

Each line is id, mean rating in -4..4 and text, separated by tabs. The files are UTF-8 (checked: every byte sequence
in them is valid, and names such as "Lucía" come out right). They have no splits: these are cut by a hash of the text,
so that they stay the same for every margin and for both datasets made of them.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from kdcore.data.checks import Columns, Rows, clean
from kdcore.data.raw import Raw
from kdcore.data.splitting import shares, take
from kdcore.errors import UserError
from kdcore.sources import resolve

SCALE = (-4.0, 4.0)
VALIDATION_SHARE, TEST_SHARE = 0.1, 0.15


def rows(source: str, domain: str, labels: tuple[str, ...] | None, margin: float | None) -> tuple[Rows, str]:
    """The snippets of one domain with their mean rating (`labels` None), or with its sign as class.

    Classes are `labels[0]` below zero and `labels[1]` above; ratings nearer to zero than `margin`, and zero itself,
    are dropped.

    Returns:
        The rows, and a note that says what was dropped.

    Raises:
        UserError: as `read`, or a margin that leaves nothing.
    """
    rated = clean(read(source, domain), Columns("text", None, "rating", None, SCALE, row_id="idx"))
    if labels is None or margin is None:
        return rated, ""
    ratings = rated.table.column("label").to_numpy()
    clear = (np.abs(ratings) >= margin) & (ratings != 0)
    if not clear.any():
        raise UserError(f"margin {margin:g} leaves no snippet of {domain}; ratings lie in {SCALE[0]:g}..{SCALE[1]:g}, "
                        f"use e.g. 0.5")
    signs = pa.array((ratings[clear] > 0).astype(np.int64))
    table = take(rated.table, clear)
    table = table.set_column(table.column_names.index("label"), "label", signs)
    return Rows(table, hidden=False), (f"{clear.sum():,} of {len(clear):,} snippets: ratings nearer to zero than "
                                       f"{margin:g} dropped")


def cut(table: pa.Table) -> dict[str, np.ndarray]:
    """Split name -> mask of its rows: test 15 %, validation 10 %, the rest trains."""
    share = shares(table, "split")
    return {"train": share >= TEST_SHARE + VALIDATION_SHARE,
            "validation": (share >= TEST_SHARE) & (share < TEST_SHARE + VALIDATION_SHARE), "test": share < TEST_SHARE}


def read(source: str, domain: str) -> Raw:
    """Read `<domain>_GroundTruth.txt`: columns idx (string), rating (float64), text.

    Raises:
        UserError: the file is missing, not UTF-8, or a line is malformed.
    """
    path = Path(resolve(source)) / f"{domain}_GroundTruth.txt"
    if not path.is_file():
        raise UserError(f"{source} holds no {path.name} in {path.parent}; delete that folder to fetch it again")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line} is not UTF-8; delete the folder to fetch it again") from None
    rows = []
    for line, row in enumerate(text.removesuffix("\n").split("\n"), start=1):
        fields = row.removesuffix("\r").split("\t")
        try:
            key, rating, snippet = fields
            rows.append((key, float(rating), snippet))
        except ValueError:
            raise UserError(f"{path}, line {line} is not id, rating and text separated by tabs; delete the folder to "
                            f"fetch it again") from None
    keys, ratings, texts = zip(*rows, strict=True)
    return Raw(f"{source} {domain}", pa.table({"idx": pa.array(keys), "rating": pa.array(ratings, pa.float64()),
                                               "text": pa.array(texts)}), {}, list(range(1, len(rows) + 1)))
