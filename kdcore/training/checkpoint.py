"""Checkpoints on disk: complete or not there at all, the newest one only."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import nn

from kdcore.errors import UserError
from kdcore.training.record import Record
from kdcore.training.selected import Selected

_MODULES, _RECORD = "modules.pt", "record.json"


@contextmanager
def writing(folder: Path, step: int) -> Iterator[Path]:
    """Give a folder to write a checkpoint of a step into; it appears as `checkpoint-STEP` when the block is left.

    `step` counts over all phases. A process that dies inside leaves the earlier checkpoint; older ones go once
    this one is in place. In distributed training every rank enters, and each writes files of its own.
    """
    staging, final = folder / "unfinished", folder / f"checkpoint-{step}"
    first = _rank() == 0
    if first:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    _wait_for_all()
    yield staging
    _wait_for_all()
    if first:
        if final.exists():
            shutil.rmtree(final)
        os.replace(staging, final)
        for path, other in _found(folder):
            if other != step:
                shutil.rmtree(path)
    _wait_for_all()


def write_modules(folder: Path, modules: nn.Module, selected: Selected, record: Record) -> None:
    """Write weights, buffers and extra state, the selected student and the record."""
    torch.save(modules.state_dict(), folder / _MODULES)
    selected.save(folder)
    (folder / _RECORD).write_text(record.to_json(), encoding="utf-8")


def read_modules(folder: Path, modules: nn.Module, selected: Selected) -> Record:
    """Load what `write_modules` wrote into `modules` and `selected`, and return the record.

    Raises:
        UserError: a file is damaged or missing.
    """
    try:
        modules.load_state_dict(torch.load(folder / _MODULES, map_location="cpu", weights_only=True))
        selected.load(folder)
        return Record.from_json((folder / _RECORD).read_text(encoding="utf-8"))
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError, UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"checkpoint {folder} is damaged ({reason}); delete it to start this training anew") from None


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint."""
    return max(_found(folder), key=lambda found: found[1], default=(None, 0))[0]


def step_of(checkpoint: Path) -> int:
    """The step, counted over all phases, after which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def _found(folder: Path) -> list[tuple[Path, int]]:
    if not folder.is_dir():
        return []
    matches = ((path, re.fullmatch(r"checkpoint-(\d+)", path.name)) for path in folder.iterdir())
    return [(path, int(match[1])) for path, match in matches if match]


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _wait_for_all() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
