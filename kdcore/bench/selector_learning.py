"""Does the selector of knowledge learn? Selection where one of the candidates is made of noise.

    python -m kdcore.bench.selector_learning [--seeds 5] [--settings NAME ...] [--output results/selector-learning.md]

A tiny BERT learns toy sentences (`kdcore/bench/cue_words.py`) and teaches a smaller one by `response`, `label` and
`feature`; the states of the teacher that `feature` compares with are Gaussian noise, drawn anew in each step. Method,
trainer and teacher are those of studies. Told are each seed's mean actions in the last episode, and how far the noise's
lies from the mean of the others', with the 95 % Student-t interval over the seeds. For Random-Soft, whose actions are
drawn, it is to hold 0. A seed of `ksm` takes about 20 seconds of a quiet core.
"""

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from kdcore import methods
from kdcore.analysis.statistics import interval
from kdcore.bench import cue_words
from kdcore.config import Training
from kdcore.data.prepared import Prepared
from kdcore.features import FeatureKey, Features
from kdcore.live_model import LiveModel
from kdcore.models.loading import dims
from kdcore.objective import Setting
from kdcore.training.datasets import OfDataset
from kdcore.training.journal import Journal
from kdcore.training.precision import Precision, device
from kdcore.training.run import TrainingResult, train
from kdcore.training.surroundings import FeatureSource

NOISE = "feature"
CANDIDATES = ("response", NOISE, "label")
TEACHER_LAYERS, STUDENT_LAYERS, WIDTH = 4, 2, 32
NOISY = FeatureKey("cls", 2)
KNOWLEDGE: dict[str, Any] = {"knowledge": {"response": 1.0, NOISE: 10.0, "label": 1.0},
                             "mapping": [[STUDENT_LAYERS, NOISY.layer]]}
"""The noise pulls at the student's last layer; with this weight, and an action as high as the others', it is most of
the gradient."""
ROWS, DEV_ROWS = 640, 256
EPISODES: dict[str, Any] = {"episodes": 5, "episode_patience": 5, "dev_rows": 128, "reward_steps": 8}
"""All of them are played; 512 rows are left to learn from, which are 32 steps an epoch."""
LEARNING = EPISODES | {"noise": 0.5, "exploration": False, "relative_rewards": True}
TRAINING = Training(epochs=8, batch_size=16, learning_rate=5e-4, schedule="constant", precision="fp32", keep="last")

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "learning": ("ksm", LEARNING),
    "random": ("knowledge_mix", {"selection": "random_soft"}),
    "paper": ("ksm", EPISODES),
    "without-noise": ("ksm", LEARNING | {"noise": 0.0}),
    "with-exploration": ("ksm", LEARNING | {"exploration": True}),
    "plain-rewards": ("ksm", LEARNING | {"relative_rewards": False}),
}
"""Methods and their hyper-parameters. The first two are compared; `paper` has the defaults of `ksm` and differs from
the first in three settings, the others in one each."""


@dataclass(frozen=True)
class Outcome:
    """Of one seed: mean action of each candidate over the last episode, or over the training where there are none; and
    the accuracy of the student at the end."""

    actions: dict[str, float]
    score: float

    @property
    def difference(self) -> float:
        """The noise's action minus the mean of the others'."""
        return self.actions[NOISE] - statistics.mean(self.actions[name] for name in CANDIDATES if name != NOISE)


class HalfNoise:
    """A teacher with one layer of Gaussian noise."""

    def __init__(self, teacher: FeatureSource, seed: int) -> None:
        self.teacher = teacher
        self.generator = torch.Generator().manual_seed(seed)

    def features(self, batch: dict[str, Any], keys: frozenset[FeatureKey]) -> Features:
        true = self.teacher.features(batch, keys - {NOISY})
        noise = torch.randn(len(batch["ids"]), WIDTH, generator=self.generator).to(device())
        return Features({**true, NOISY: noise} if NOISY in keys else true, true.mask)


class Experiment:
    """The dataset and its teacher, in a folder that the caller deletes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prepared: Prepared = cue_words.write(folder / "prepared", ROWS, DEV_ROWS)
        self.teacher = cue_words.model(TEACHER_LAYERS, WIDTH, seed=0)
        self.teacher_score = self._train(self.teacher, "finetune", {}, 0, None).record["selected"]["score"]

    def play(self, settings: str, seed: int) -> Outcome:
        """Train a student, and its selector if it has one."""
        method, options = SETTINGS[settings]
        live = LiveModel(lambda: self.teacher, device(), Precision("fp32", device().type))
        record = self._train(cue_words.model(STUDENT_LAYERS, WIDTH, seed), method, KNOWLEDGE | options, seed,
                             HalfNoise(live, seed)).record
        history = record["history"]
        last = [entry["phase"] for entry in history if entry["phase"] != "distill"][-1:] or ["distill"]
        epochs = [entry["diagnostics"] for entry in history if [entry["phase"]] == last]
        return Outcome({name: statistics.mean(epoch[f"action/{name}"] for epoch in epochs) for name in CANDIDATES},
                       record["selected"]["score"])

    def _train(self, student: PreTrainedModel, method: str, options: dict[str, Any], seed: int,
               teacher: FeatureSource | None) -> TrainingResult:
        setting = Setting(dims(self.teacher), dims(student), len(cue_words.LABELS), False,
                          self.prepared.labels("train"), TRAINING.batch_size, seed)
        phases = methods.load(method).phases(methods.configure(method, options), setting)
        with (tempfile.TemporaryDirectory(dir=self.folder) as work, contextlib.redirect_stdout(io.StringIO()),
              contextlib.redirect_stderr(io.StringIO())):
            return train(student, phases, OfDataset(self.prepared), TRAINING, seed, Path(work),
                         Journal(Path(work) / "journal.jsonl"), method, teacher)


def markdown(settings: str, outcomes: list[Outcome]) -> str:
    """A table of the seeds, and under it the mean difference with its interval."""
    method, options = SETTINGS[settings]
    lines = [f"### {settings}: `{method}` with {options}", "",
             f"| seed | {' | '.join(CANDIDATES)} | noise minus others | accuracy |",
             "|---" * (len(CANDIDATES) + 3) + "|"]
    for seed, outcome in enumerate(outcomes, 1):
        actions = " | ".join(f"{outcome.actions[name]:.2f}" for name in CANDIDATES)
        lines.append(f"| {seed} | {actions} | {outcome.difference:+.2f} | {100 * outcome.score:.1f} |")
    differences, scores = ([getattr(outcome, key) for outcome in outcomes] for key in ("difference", "score"))
    low, high = interval(differences)
    return "\n".join([*lines, "", f"noise minus others {statistics.mean(differences):+.3f} [{low:+.3f}, {high:+.3f}], "
                      f"accuracy {100 * statistics.mean(scores):.1f}"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kdcore.bench.selector_learning",
                                     description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many, two at least")
    parser.add_argument("--settings", nargs="+", choices=tuple(SETTINGS), default=tuple(SETTINGS)[:2])
    parser.add_argument("--output", type=Path, help="the tables as Markdown")
    options = parser.parse_args()
    torch.set_num_threads(1)  # for models this small more would only wait for each other
    tables = []
    with tempfile.TemporaryDirectory(prefix="kdflow-selector-") as folder:
        experiment = Experiment(Path(folder))
        for settings in options.settings:
            tables.append(markdown(settings, [experiment.play(settings, seed)
                                              for seed in range(1, options.seeds + 1)]))
            print(tables[-1], end="\n\n", flush=True)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n\n".join(tables) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
