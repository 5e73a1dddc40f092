"""Stage `selector`: train the selector of knowledge of a dataset, once for all students that use it as it is.

It runs the episodes of a method (Algorithm 2 of Wang et al. 2022, see `kdcore/methods/ksm.py`) and keeps the selector;
students who take it (`selector: study`) skip the episodes, whatever their seed. An interrupted run goes on at its last
checkpoint, also in the middle of an episode. The students of the episodes are not kept.
"""

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kdcore import config, methods, scratch, selector_folder
from kdcore.layout import Layout
from kdcore.models.initialise import build_student
from kdcore.models.loading import dims
from kdcore.objective import Dims
from kdcore.selector_training import Learning
from kdcore.stages import distill
from kdcore.tracking import Run
from kdcore.tracking_store import study_name
from kdcore.training.datasets import OfDataset
from kdcore.training.journal import Journal
from kdcore.training.run import train


def run(study: config.Study, layout: Layout, dataset: str) -> None:
    """Train the selector of a dataset and publish it.

    Raises:
        UserError: the study asks for none, its method trains none, an earlier stage was not run, a setting does not
            fit, or training diverges.
        BusyError: another process trains the same selector.
    """
    work = Work(study, layout, dataset)
    folder = layout.scratch / f"selector-{dataset}"
    with scratch.claim(folder):
        place = folder / scratch.key("selector", work.identity)
        finished = scratch.once(place, lambda out: work.train(place, out))
        scratch.publish({".": finished}, layout.selector(dataset), folder / "publishing")
        layout.measured.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place / "measured.json", layout.measured / f"selector@{dataset}.json")
        shutil.rmtree(folder)
    record = json.loads((layout.selector(dataset) / selector_folder.RECORD).read_text(encoding="utf-8"))
    print(f"the selector of {dataset} is {record['lineage']['fingerprint']}")


@dataclass(frozen=True)
class Work:
    """The selector of one dataset."""

    study: config.Study
    layout: Layout
    dataset: str

    @cached_property
    def wanted(self) -> config.SelectorTraining:
        """What the study says of it."""
        return self.study.selector(self.dataset)

    @cached_property
    def students(self) -> distill.Work:
        """Those whom it learns from, as its method would train them."""
        return distill.Work(self.study, self.layout, self.dataset, self.wanted.method)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that it depends on, as JSON values."""
        own = scratch.hash_code("selector_folder.py", "stages/selector.py")
        return self.students.identity(self.wanted.seed) | {"selector_code": own}

    def train(self, place: Path, out: Path) -> None:
        """Train with checkpoints in `place`, and write the selector to `out`."""
        students, seed, method = self.students, self.wanted.seed, self.wanted.method
        pair, identity = self.study.pair, self.identity
        start, name = students.first_model
        student, init = build_student(pair.student, start, students.prepared.info.labels, seed, name)
        learning = self.learning(dims(student))
        title, data = f"{self.dataset} selector", OfDataset(students.prepared)
        journal = self.layout.logs / f"selector@{self.dataset}.jsonl"
        settings = {name: identity[name] for name in ("training", "precision", "method", "student")}
        lineage = {"study": study_name(self.layout.study), "dataset": self.dataset, "method": method, "seed": seed,
                   "teacher": identity["teacher"], "prepared": identity["prepared"]}
        with Run.start("selector", self.layout, self.dataset, seed=seed, params=settings,
                       tags={"kdflow.method": method, "kdflow.method_file": students.entry.file}) as tracked:
            result = train(student, learning.phases, data, students.settings, seed, place / "checkpoints",
                           Journal(journal, tracked), title, students.teacher(learning.phases, title))
            record = {name: value for name, value in result.record.items() if name != "selected"}  # of a student
            fingerprint = selector_folder.write(
                learning.best.state_dict(), learning.made_for, lineage,
                record | settings | {"init": init, "origin": identity["origin"]}, out)
            tracked.tag("kdflow.selector", fingerprint)
            tracked.artifact(journal)
            tracked.artifact(out / selector_folder.RECORD)
            measured = result.measured | ({"mlflow_run": tracked.id} if tracked.id else {})
        (place / "measured.json").write_text(json.dumps(measured, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        shutil.rmtree(place / "checkpoints", ignore_errors=True)

    def learning(self, student: Dims) -> Learning:
        """The episodes with new objectives; raises UserError when the method trains no selector, or does not fit."""
        students, seed = self.students, self.wanted.seed
        module = methods.trains_selectors(students.entry, f"selectors.{self.dataset}.method")
        with methods.naming(students.method, students.entry.file):
            learning: Learning = module.learning(students.method_config, students.setting(student, seed))
        return learning
