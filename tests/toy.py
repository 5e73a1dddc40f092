"""A study with the shape of a real one whose stages sleep and copy: for tests of everything around the stages.

A stage prints a line, waits, fails if it was told to, and writes its out: the text of its inputs and its name.
How it behaves stands in `behaviour.json`, which no stage depends on. Each start is noted in `starts.txt`, which is
no out, so that tests can count what really ran, and each end with its times in `spans.txt`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from copy import copy, deepcopy
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML

from kdcore.layout import ROOT

WORK = """\
import json, os, pathlib, sys, time
name, out, *inputs = sys.argv[1:]
seconds, fail = json.load(open("behaviour.json"))
given = [os.environ.get(variable) for variable in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")]
with open("starts.txt", "a") as starts:
    print(name, os.getpid(), *given, file=starts)
print(f"{name} begins", flush=True)
begin = time.monotonic()
while time.monotonic() - begin < seconds and not os.path.exists("go_on"):
    time.sleep(0.02)
if name in fail:
    print(f"kdflow: {name} was told to fail", file=sys.stderr)
    sys.exit(2)
text = "".join(sorted(p.read_text() for i in inputs for p in pathlib.Path(i).rglob("*.txt")))
folder = pathlib.Path(out)
folder.mkdir(parents=True, exist_ok=True)
(folder / "out.txt").write_text(text[-200:] + name + "\\n")
with open("spans.txt", "a") as spans:
    print(name, begin, time.monotonic(), file=spans)
"""

DVC = """\
vars:
  - selectors: {}
stages:
  prepare:
    matrix: &dataset
      dataset: ${study.datasets}
    cmd: python work.py prepare@${item.dataset} artifacts/prepared/${item.dataset} data
    params: ["datasets.${item.dataset}.data"]
    deps: [data]
    outs: ["artifacts/prepared/${item.dataset}"]
  teacher:
    matrix: *dataset
    cmd: python work.py teacher@${item.dataset} artifacts/teacher/${item.dataset}
      artifacts/prepared/${item.dataset}
    params: ["datasets.${item.dataset}.teacher"]
    deps: ["artifacts/prepared/${item.dataset}"]
    outs: ["artifacts/teacher/${item.dataset}"]
  features:
    matrix: *dataset
    cmd: python work.py features@${item.dataset} artifacts/knowledge/${item.dataset}/features
      artifacts/teacher/${item.dataset}
    deps: ["artifacts/teacher/${item.dataset}"]
    outs: ["artifacts/knowledge/${item.dataset}/features"]
  selector:
    foreach: ${selectors}
    do:
      cmd: python work.py selector@${key} artifacts/knowledge/${key}/selector artifacts/knowledge/${key}/features
      params: ["selectors.${key}"]
      deps: ["artifacts/knowledge/${key}/features"]
      outs: ["artifacts/knowledge/${key}/selector"]
  distill:
    matrix: &both
      dataset: ${study.datasets}
      method: ${study.methods}
    cmd: python work.py distill@${item.dataset}-${item.method}
      artifacts/student/${item.dataset}/${item.method} artifacts/knowledge/${item.dataset}
    params: ["methods.${item.method}"]
    deps: ["artifacts/knowledge/${item.dataset}"]
    outs: ["artifacts/student/${item.dataset}/${item.method}"]
  evaluate-teacher:
    matrix: *dataset
    cmd: python work.py evaluate-teacher@${item.dataset}
      artifacts/evaluation/${item.dataset}/teacher artifacts/teacher/${item.dataset}
    deps: ["artifacts/teacher/${item.dataset}"]
    outs: ["artifacts/evaluation/${item.dataset}/teacher"]
  evaluate:
    matrix: *both
    cmd: python work.py evaluate@${item.dataset}-${item.method}
      artifacts/evaluation/${item.dataset}/${item.method} artifacts/student/${item.dataset}/${item.method}
    deps: ["artifacts/student/${item.dataset}/${item.method}"]
    outs: ["artifacts/evaluation/${item.dataset}/${item.method}"]
  analyse:
    matrix: *dataset
    cmd: python work.py analyse@${item.dataset} artifacts/analysis/${item.dataset} artifacts/student/${item.dataset}
    deps: ["artifacts/student/${item.dataset}"]
    outs: ["artifacts/analysis/${item.dataset}"]
  report:
    cmd: python work.py report results/report artifacts/evaluation artifacts/analysis
    deps: [artifacts/evaluation, artifacts/analysis]
    outs: [results/report]
"""


class Toy:
    """A toy study in a folder of its own, outside git, with its own DVC cache."""

    def __init__(self, folder: Path, datasets: tuple[str, ...] = ("a", "b"),
                 methods: tuple[str, ...] = ("finetune", "vanilla_kd")) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "raw.txt").write_text("raw\n")
        (folder / "work.py").write_text(WORK)
        (folder / "dvc.yaml").write_text(DVC)
        (folder / ".dvc").mkdir()
        (folder / ".dvc" / "config").write_text("[core]\n    analytics = false\n    no_scm = true\n"
                                                "    check_update = false\n")
        self.params: dict[str, Any] = {
            "code": os.path.relpath(ROOT, folder),
            "study": {"datasets": list(datasets), "methods": list(methods), "seeds": [1]},
            "pair": {"teacher": {"source": "none"}},
            "training": {"teacher": {}, "student": {}},
            "datasets": {name: {"data": {}, "teacher": {}, "student": {}} for name in datasets},
            "methods": {name: {} for name in methods},
            "features": {}, "gate": {}, "evaluation": {},
        }
        self.write()
        self.behave()

    def copy(self, folder: Path) -> Self:
        """The same study, as far as it has come, in another folder."""
        shutil.copytree(self.folder, folder)
        twin = copy(self)
        twin.folder, twin.params = folder, deepcopy(self.params)
        return twin

    def behave(self, seconds: float = 0.0, fail: tuple[str, ...] = ()) -> None:
        """Set how long stages take from now on, and which fail."""
        (self.folder / "behaviour.json").write_text(json.dumps([seconds, fail]))

    def go_on(self) -> None:
        """No stage waits any longer, not even those that have begun."""
        (self.folder / "go_on").touch()

    def write(self) -> None:
        """Write the parameters down."""
        with (self.folder / "params.yaml").open("w") as file:
            YAML(typ="safe").dump(self.params, file)

    def dvc(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a DVC command in the study, as a user would."""
        env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=self.folder, env=env, text=True,
                              capture_output=True, check=False)

    def starts(self) -> Counter[str]:
        """How often each stage's command was started."""
        return Counter(line[0] for line in self.start_lines())

    def start_lines(self) -> list[list[str]]:
        """Stage, process, OMP_NUM_THREADS and CUDA_VISIBLE_DEVICES of each start."""
        path = self.folder / "starts.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def most_at_once(self) -> int:
        """How many of the stages that have ended ran at the same time, at most."""
        spans = [line.split()[1:] for line in (self.folder / "spans.txt").read_text().splitlines()]
        changes = sorted(change for begin, end in spans for change in ((float(begin), 1), (float(end), -1)))
        return max(accumulate(change for _, change in changes))

    def forget_starts(self) -> None:
        """Count from zero again."""
        (self.folder / "starts.txt").unlink(missing_ok=True)
