"""Where a result comes from: the git revision of the code and the DVC hashes of the data.

Read only, and cheap: no DVC import, one pass over `dvc.lock`.
"""

import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, YAMLError

from kdcore.errors import UserError


@dataclass(frozen=True)
class Revision:
    """A git commit; `dirty` when a file other than a `dvc.lock` differs from it. Empty outside git."""

    commit: str
    dirty: bool

    def __str__(self) -> str:
        return self.commit + ("-dirty" if self.dirty else "")


def record_key(record: Mapping[str, Any]) -> str:
    """A short hash of how a model came about; what is measured of a model names by it which one it was."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def revision(folder: Path) -> Revision:
    """The git revision of the repository around `folder`; empty without git or outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    # dvc.lock changes while the pipeline runs, as it should: only code and settings count.
    changes = _git(folder, "status", "--porcelain", "--", ":/", ":(top,exclude,glob)**/dvc.lock") if commit else ""
    return Revision(commit, bool(changes))


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "--no-optional-locks", *arguments], cwd=folder, capture_output=True, text=True,
                              timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def read_lock(study: Path) -> dict[str, Any]:
    """The stages of a study's `dvc.lock`: stage name to its record; empty before the first run.

    Raises:
        UserError: the file is no YAML mapping, for instance truncated by a kill.
    """
    path = study / "dvc.lock"
    remedy = f"restore it with `git checkout {path.name}`, or delete it: the run cache gives finished stages back"
    try:
        content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({str(error).splitlines()[0]}); {remedy}") from None
    if not isinstance(content, dict) or not isinstance(content.get("stages", {}), dict):
        raise UserError(f"{path} is damaged (no stages in it, {path.stat().st_size} bytes); {remedy}")
    return content.get("stages", {})


def locked_outputs(study: Path) -> dict[str, str]:
    """DVC hash of every recorded output, by path relative to the study folder."""
    return {out["path"]: out["md5"] for stage in read_lock(study).values() for out in stage.get("outs", ())
            if "md5" in out}


def hash_folder(folder: Path) -> str:
    """The hash that DVC gives a folder: of the sorted list of its files and their MD5."""
    entries = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            entries.append({"md5": hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest(),
                            "relpath": path.relative_to(folder).as_posix()})
    entries.sort(key=lambda entry: entry["relpath"])
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"
