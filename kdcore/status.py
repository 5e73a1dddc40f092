"""`kdflow status`: who works on a study, what is not current, and how good the students are so far.

It only looks, and answers while a study runs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from kdcore import config, general_config, strict
from kdcore.layout import Layout
from kdcore.tracking_store import process_is_alive, study_name

_FLOW = Path(".kdflow") / "flow"
"""Written by a flow while it holds the study: its process as `PID:START`, since when, on which host."""
_DVC_LOCKS = Path(".dvc") / "tmp" / "rwlock"
"""Written by DVC: per path who reads and writes it."""
_RUNS = "runs: "
SHOWN = 12


def tell(study: Path) -> Iterator[str]:
    """Lines about a study, as they become known.

    Raises:
        UserError: the folder is no study, or its params.yaml does not fit.
    """
    path = study / "params.yaml"
    if config.is_general(strict.read_yaml(path)):
        settings = None
        yield f"general study {study_name(study)}: students {', '.join(general_config.load(path).students)}"
    else:
        settings = config.load(path)
        chosen = settings.study
        entries = ", ".join(str(settings.method(name)) for name in chosen.methods)
        yield (f"study {study_name(study)}: datasets {', '.join(chosen.datasets)}; methods {entries}; seeds "
               f"{', '.join(map(str, chosen.seeds))}")
        if settings.selectors:
            trained = ", ".join(f"{name} by {wanted.method}" for name, wanted in settings.selectors.items())
            yield f"selectors: {trained}"
    working = [*_flow(study), *_stages(study)]
    # `dvc status` holds DVC's lock; a `dvc repro` whose stage ends meanwhile would wait for three seconds, then fail.
    dvc = None if any(line.startswith(_RUNS) for line in working) else _ask_dvc(study)
    yield from working or ["nothing runs"]
    results = list(_results(Layout(study), settings)) if settings else []
    yield from ["what is current is told when nothing runs"] if dvc is None else _stale(dvc)
    yield from results


def _ask_dvc(study: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "dvc", "status", "--json"], cwd=study, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def _flow(study: Path) -> Iterator[str]:
    try:
        holder = json.loads((study / _FLOW).read_text(encoding="utf-8"))
        process = holder["process"]
        text = f"PID {process.partition(':')[0]} on {holder['host']} since {holder['since']}"
    except (FileNotFoundError, ValueError, KeyError):
        return
    if process_is_alive(process):
        yield f"{_RUNS}a flow, {text}"
    else:
        yield f"a flow was killed ({text}); the next one goes on where it was"


def _stages(study: Path) -> Iterator[str]:
    """Stages that DVC runs now, by what they write."""
    try:
        written = json.loads((study / _DVC_LOCKS).read_text(encoding="utf-8")).get("write", {})
    except (FileNotFoundError, ValueError):
        return
    for path, writer in sorted(written.items()):
        if psutil.pid_exists(writer["pid"]):
            yield f"{_RUNS}{_inside(path, study)}, PID {writer['pid']} ({writer['cmd']})"


def _inside(path: str, study: Path) -> str:
    place = Path(path)
    return place.relative_to(study.resolve()).as_posix() if place.is_relative_to(study.resolve()) else path


def _stale(dvc: subprocess.Popen[str]) -> Iterator[str]:
    """What DVC says is not current, stage by stage."""
    out, error = dvc.communicate()
    if dvc.returncode:
        said = next((line for line in error.splitlines() if line.startswith("ERROR")), error.strip() or "no reason")
        yield f"DVC does not answer: {said.removeprefix('ERROR: ')}; `kdflow doctor` looks closer"
        return
    changes: dict[str, list[Any]] = json.loads(out or "{}")
    if not changes:
        yield "all stages are current"
        return
    yield f"{len(changes)} stage(s) are not current; `dvc repro` or the flow runs them:"
    for stage in list(changes)[:SHOWN]:
        yield f"  {stage}: {reason(changes[stage])}"
    if len(changes) > SHOWN:
        yield f"  and {len(changes) - SHOWN} more"


def reason(changes: Sequence[Any]) -> str:
    """DVC's changes of one stage in a few words: `pair, rte modified`."""
    words: list[str] = []
    for change in changes:
        if isinstance(change, str):
            words.append(change)
            continue
        for paths in change.values():
            for path, state in paths.items():
                # Settings are one file with many keys; its keys say more than its name.
                words += list(state) if isinstance(state, Mapping) else [f"{os.path.basename(path)} {state}"]
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def _results(layout: Layout, settings: config.Study) -> Iterator[str]:
    """Mean over seeds on the split that selects, of what is evaluated."""
    from kdcore.candidate import read_scores, selection_score
    from kdcore.data.prepared import Prepared

    for dataset in settings.study.datasets:
        runs = {method: read_scores(layout, dataset, method) for method in ("teacher", *settings.study.methods)}
        if not any(runs.values()):
            yield f"{dataset}: nothing evaluated yet"
            continue
        info = Prepared.load(layout.prepared(dataset)).info
        means = {method: [selection_score(scores, info) for scores in found.values() if info.select in scores]
                 for method, found in runs.items()}
        words = [f"{method} {100 * sum(values) / len(values):.1f}" for method, values in means.items() if values]
        yield f"{dataset} ({' and '.join(info.metrics)} on {info.select}, mean over seeds): {', '.join(words)}"
