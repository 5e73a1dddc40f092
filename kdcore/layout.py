"""Where the files of a study lie. Every stage reads and writes through these paths only."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(os.environ.get("KDFLOW_ROOT", Path(__file__).resolve().parents[1]))
"""The repository: `mlflow.db`, downloaded sources and the DVC cache lie here, whatever the current folder is."""

SOURCES = ROOT / ".kdflow" / "sources"
"""Downloaded packages, verified by checksum; safe to delete."""


def searched_by(name: str) -> str:
    """The name of the study whose search a folder of this name belongs to (`kdcore.study.trial`); any other folder's
    own."""
    return re.sub(r"\.trial-.*", "", name)


@dataclass(frozen=True)
class Layout:
    """The folders of one study. Outs of DVC lie under `artifacts/` and `results/report`."""

    study: Path

    @property
    def params(self) -> Path:
        return self.study / "params.yaml"

    def prepared(self, dataset: str) -> Path:
        return self.study / "artifacts" / "prepared" / dataset

    def method(self, name: str) -> Path:
        """Links to the file of the method that has this name in the study, and to those it borrows objectives of."""
        return self.study / "artifacts" / "method" / name

    def teacher(self, dataset: str) -> Path:
        return self.study / "artifacts" / "teacher" / dataset

    def knowledge(self, dataset: str) -> Path:
        """The features and, where the study asks for one, the selector; students depend on both as one folder."""
        return self.study / "artifacts" / "knowledge" / dataset

    def features(self, dataset: str) -> Path:
        return self.knowledge(dataset) / "features"

    def selector(self, dataset: str) -> Path:
        return self.knowledge(dataset) / "selector"

    def student(self, dataset: str, method: str) -> Path:
        """Holds one folder `seed-N` per seed, each a plain transformers model folder."""
        return self.study / "artifacts" / "student" / dataset / method

    def evaluation(self, dataset: str, method: str) -> Path:
        """`method` is `teacher` for the teacher's own evaluation."""
        return self.study / "artifacts" / "evaluation" / dataset / method

    def analysis(self, dataset: str) -> Path:
        return self.study / "artifacts" / "analysis" / dataset

    def export(self, name: str) -> Path:
        """A student as ONNX; no out of DVC, since it holds latencies."""
        return self.study / "artifacts" / "export" / name

    @property
    def corpus(self) -> Path:
        """Of a general study."""
        return self.study / "artifacts" / "corpus"

    @property
    def general_teacher(self) -> Path:
        """Of a general study, among its students: each can teach the others."""
        return self.study / "artifacts" / "general" / "teacher"

    def general_student(self, name: str) -> Path:
        """A plain transformers model folder."""
        return self.study / "artifacts" / "general" / name

    @property
    def report(self) -> Path:
        return self.study / "results" / "report"

    @property
    def measured(self) -> Path:
        """Times, throughput, latency: true of this machine only, hence no out of DVC."""
        return self.study / "results" / "measured"

    @property
    def search(self) -> Path:
        """What a search of the grid tried and proposes; no out of DVC."""
        return self.study / "search"

    @property
    def scratch(self) -> Path:
        """Resume state of unfinished stages; no out of DVC, safe to delete when nothing runs."""
        return self.study / ".kdflow" / "scratch"

    @property
    def kept(self) -> Path:
        """Finished members of averaged teachers and candidates of augmentation, by all that they depend on; no out of
        DVC, safe to delete."""
        return self.study / ".kdflow" / "kept"

    @property
    def logs(self) -> Path:
        """One file per stage run: what the stage's process printed."""
        return self.study / ".kdflow" / "logs"
