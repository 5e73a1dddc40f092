"""Make a study's DVC files readable again after a process was killed while it wrote one.

DVC writes `dvc.lock` and its list of files in use in place, so a kill can leave either cut off, and then every
command fails. Nothing is lost: the run cache knows every finished stage.
"""

import json
import subprocess
import time
from pathlib import Path

from ruamel.yaml import YAML, YAMLError

LOCK = "dvc.lock"


def lock_file(study: Path) -> str | None:
    """Replace a damaged `dvc.lock` by the committed one, or delete it; returns what was done, None if it is sound."""
    path = study / LOCK
    if not path.exists() or _sound(path.read_bytes()):
        return None
    size = path.stat().st_size
    committed = _committed(study)
    if committed is not None:
        path.write_bytes(committed)
        source = "took the committed one"
    else:
        path.unlink()
        source = "deleted it"
    return (f"{path} was damaged ({size} bytes, cut off by a kill): {source}; finished stages come back from the run "
            "cache, nothing is trained again")


def files_in_use(study: Path) -> str | None:
    """Delete DVC's list of files in use if it is damaged; returns what was done, None if it is sound."""
    path = study / ".dvc" / "tmp" / "rwlock"
    for _ in range(5):  # a DVC process may be writing it just now
        try:
            json.loads(path.read_text(encoding="utf-8"))
            return None
        except FileNotFoundError:
            return None
        except (json.JSONDecodeError, UnicodeDecodeError):
            time.sleep(0.2)
    path.unlink(missing_ok=True)
    return f"{path} was damaged (cut off by a kill): deleted it"


def _sound(content: bytes) -> bool:
    """Whether DVC takes it: a mapping with a schema whose stages each have a command."""
    try:
        parsed = YAML(typ="safe").load(content.decode("utf-8"))
    except (YAMLError, UnicodeDecodeError):
        return False
    if not isinstance(parsed, dict) or "schema" not in parsed:
        return False
    stages = parsed.get("stages", {})
    return isinstance(stages, dict) and all(isinstance(stage, dict) and "cmd" in stage for stage in stages.values())


def _committed(study: Path) -> bytes | None:
    try:
        shown = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], cwd=study, capture_output=True, timeout=20,
                               check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return shown.stdout if shown.returncode == 0 and _sound(shown.stdout) else None
