"""A trained selector of knowledge on disk: its weights, and beside them how it came about.

Equal selectors give equal bytes: no paths, times or names of runs.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from kdcore import sources
from kdcore.errors import UserError
from kdcore.method_config import SelectorSource
from kdcore.objective import ReadySelector

WEIGHTS = "selector.safetensors"
RECORD = "selector.json"
OF_THIS_STUDY = "study"
"""In the settings of a method, in place of a folder."""


@dataclass(frozen=True)
class Found:
    """A selector, ready for use, and for the record of who uses it where it came from.

    `lineage` has its `fingerprint`, names of the `study`, the `dataset` and the entry of `methods` (`method`) that
    trained it, the `seed`, and the fingerprints `teacher` and `prepared` of the weights that taught its students and of
    their data.
    """

    selector: ReadySelector
    lineage: dict[str, Any]


def write(weights: Mapping[str, torch.Tensor], made_for: Mapping[str, Any], lineage: Mapping[str, Any],
          record: Mapping[str, Any], folder: Path) -> str:
    """Write a new folder; returns the fingerprint.

    Args:
        made_for: as `kdcore.selector_training.made_for` tells.
        lineage: as `Found` has it, without the fingerprint.
        record: how its training went.
    """
    folder.mkdir(parents=True)
    save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, folder / WEIGHTS)
    own = _fingerprint(folder, made_for)
    content = {**record, "made_for": made_for, "lineage": {**lineage, "fingerprint": own}}
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")
    return own


def find(source: SelectorSource, own: Path, dataset: str) -> Found:
    """The selector that a source names; `own` is the folder of the study's own of the dataset.

    Raises:
        UserError: there is none, it has another fingerprint than `revision` says, or it is damaged.
    """
    if source.source == OF_THIS_STUDY:
        folder = own
        remedy = f"run `kdflow selector {dataset}` first"
    else:
        location = sources.locate(source.source)
        if not location.is_local:
            raise UserError(f"selector {source.source!r} is neither `{OF_THIS_STUDY}` nor a folder; folders are seen "
                            "from the study folder and begin with a dot or a slash")
        folder = Path(location.place)
        remedy = "expected the folder artifacts/knowledge/DATASET/selector of a study"
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        lineage = dict(record["lineage"])
        found = _fingerprint(folder, record["made_for"])
        weights = load_file(folder / WEIGHTS)
    except FileNotFoundError as error:
        raise UserError(f"no selector in {folder} ({Path(error.filename).name} is missing); {remedy}") from None
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise UserError(f"the selector in {folder} is damaged ({error!r}); {remedy}") from None
    if found != lineage["fingerprint"]:
        raise UserError(f"the selector in {folder} is damaged: it is {found}, but its record says "
                        f"{lineage['fingerprint']}; {remedy}")
    if source.revision not in (None, found):
        raise UserError(f"the selector in {folder} is {found}, but its revision says {source.revision}; set `revision: "
                        f"{found}` if this one is meant, else bring the folder back to what it was")
    return Found(ReadySelector(f"the selector in {folder}", record["made_for"], weights), lineage)


def _fingerprint(folder: Path, made_for: Mapping[str, Any]) -> str:
    """Sixteen hex digits of the weights and what they are made for."""
    digest = hashlib.sha256(json.dumps(made_for, sort_keys=True).encode())
    with (folder / WEIGHTS).open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
