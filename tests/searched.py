"""A toy study with a grid whose `distill` notes evaluations, keeps a checkpoint and writes a record, as the real one.

The score of a point is its temperature / 100; after evaluation n of 3 it is the score - 3 + n hundredths, so that
higher temperatures lead from the beginning. `work.py` counts starts in the study, whichever trial runs it.
"""

from pathlib import Path

from tests.toy import DVC, Toy

WORK = """\
import json, os, pathlib, sys, time
name, out, *inputs = sys.argv[1:]
home = pathlib.Path(__file__).parent
seconds, fail = json.load(open(home / "behaviour.json"))
with open(home / "starts.txt", "a") as starts:
    print(name, os.getpid(), pathlib.Path.cwd().name, file=starts)
folder = pathlib.Path(out)
folder.mkdir(parents=True, exist_ok=True)
(folder / "out.txt").write_text(name)
if not name.startswith("distill"):
    sys.exit()
from ruamel.yaml import YAML
params = YAML(typ="safe").load(pathlib.Path("params.yaml"))
(dataset,), (method,), (seed,) = (params["study"][what] for what in ("datasets", "methods", "seeds"))
own = params["methods"][method]["datasets"][dataset]
if f"temperature {own['temperature']}" in fail:
    print(f"kdflow: temperature {own['temperature']} is too hot", file=sys.stderr)
    sys.exit(2)
place = pathlib.Path(".kdflow/logs") / f"distill@{dataset}-{method}-seed-{seed}.jsonl"
done = pathlib.Path(".kdflow/scratch/done")
done.parent.mkdir(parents=True, exist_ok=True)
before = int(done.read_text()) if done.exists() else 0
lines = place.read_text().splitlines(keepends=True)[:before] if before else []
place.write_text("".join(lines))
scores = [(own["temperature"] - 3 + n) / 100 for n in (1, 2, 3)]
for number in range(before + 1, 4):
    time.sleep(seconds)
    with open(place, "a") as journal:
        print(json.dumps({"step": number, "dev/score": scores[number - 1]}), file=journal)
    done.write_text(str(number))
    with open(home / "evaluations.txt", "a") as told:
        print(own["temperature"], number, file=told)
(folder / f"seed-{seed}").mkdir(exist_ok=True)
(folder / f"seed-{seed}" / "training.json").write_text(json.dumps({
    "selected": {"score": scores[-1]}, "history": [{"development": {"score": score}} for score in scores]}))
"""


class Searched(Toy):
    """One dataset, `vanilla_kd`, and a grid of its temperatures."""

    def __init__(self, folder: Path, temperatures: tuple[int, ...] = (10, 30, 20)) -> None:
        super().__init__(folder, ("a",), ("vanilla_kd",))
        (folder / "work.py").write_text(WORK)
        (folder / "dvc.yaml").write_text(DVC.replace("python work.py", f"python {folder / 'work.py'}"))
        (folder / ".dvc" / "config").write_text((folder / ".dvc" / "config").read_text()
                                                + "[cache]\n    dir = ../../cache\n")
        self.params["grid"] = {"methods.vanilla_kd.temperature": list(temperatures)}
        self.write()

    def evaluations(self) -> list[list[int]]:
        """Temperature and number of every evaluation that was computed."""
        path = self.folder / "evaluations.txt"
        return [[int(word) for word in line.split()] for line in path.read_text().splitlines()] if path.exists() else []
