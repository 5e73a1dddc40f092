"""Where unfinished work waits: folders named by everything that the result depends on.

A folder is found again only by a process that would do the very same work, so nothing is ever resumed under other
settings, other data or other code. Finished parts stay until all of a stage is published, by renaming.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kdcore.errors import BusyError

PACKAGE = Path(__file__).parent


def key(name: str, content: Mapping[str, Any]) -> str:
    """`name` and 16 hex digits of `content`: settings and hashes of inputs and code, as JSON values."""
    text = json.dumps(content, sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def hash_files(paths: Iterable[Path], within: Path) -> str:
    """16 hex digits over names relative to `within` and bytes; folders count with all files in them."""
    digest = hashlib.sha256()
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    for path in sorted(files):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(within).as_posix().encode() + b"\0")
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def hash_code(*names: str) -> str:
    """`hash_files` of files and folders of this package."""
    return hash_files([PACKAGE / name for name in names], PACKAGE)


def library_versions() -> dict[str, str]:
    """Of the libraries whose changes may change numbers."""
    return {name: version(name) for name in ("torch", "transformers", "accelerate")}


@contextmanager
def claim(folder: Path) -> Iterator[Path]:
    """Make the folder and keep other processes out of it; the system lets go when this process dies.

    Raises:
        BusyError: another process works in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise BusyError(f"process {lock.read() or '?'} is at the same work already (in {folder}); wait for it, or "
                            "stop it and run this again: it goes on from there") from None
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        yield folder


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder `finished` in `folder`: made by `make`, which writes into a path given to it, or made before."""
    finished, unfinished = folder / "finished", folder / "unfinished"
    if not finished.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished)
        os.replace(unfinished, finished)
    return finished


def publish(parts: Mapping[str, Path], target: Path, staging: Path) -> None:
    """Put finished folders under `target`, each by its name, `.` for the target itself; all at once.

    `staging` is a folder of ours on the same file system. The parts stay where they are, as links to the same files.
    """
    shutil.rmtree(staging, ignore_errors=True)
    for name, folder in parts.items():
        shutil.copytree(folder, staging / name, copy_function=_link, dirs_exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    os.replace(staging, target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
