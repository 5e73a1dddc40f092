"""What a step of general distillation costs: relative to a bare forward of the teacher and a bare step of the student.

Random encoders, random tokens, rows packed to their full length as in a corpus. Bare are the encoders alone: no
features are read, no language-model head runs, and the student's loss is the mean of its last states.
"""

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel

from kdcore import general
from kdcore.bench import models
from kdcore.bench.corpus import VOCABULARY
from kdcore.bench.steps import UNTIMED, Update, now
from kdcore.errors import UserError
from kdcore.general_students import has_language_model
from kdcore.live_model import LiveModel
from kdcore.models.loading import dims, load_config
from kdcore.objective import Objective, Progress, Setting, Step
from kdcore.training.distiller import Distiller
from kdcore.training.precision import device, resolve

MASKED_SHARE = 0.15


@dataclass(frozen=True)
class Work:
    """What is measured: `methods` on batches of `rows` by `tokens`, over so many `steps`, so many `rounds`."""

    size: str
    rows: int
    tokens: int
    steps: int
    rounds: int
    methods: tuple[str, ...]


class LiveStep:
    """Times whole steps of general methods, and what they are compared with."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work = work
        self.device = device()
        self.precision = resolve("auto", self.device)
        size = models.SIZES[work.size]
        self.configs = {who: load_config(str(models.write_config(folder / who, layers, size.width, size.heads)))
                        for who, layers in (("teacher", size.teacher_layers), ("student", size.student_layers))}
        generator = torch.Generator().manual_seed(0)
        self.batches = [self._batch(generator) for _ in range(UNTIMED + work.steps)]

    def measure(self) -> dict[str, Any]:
        """Milliseconds of the teacher's forward and of the student's step, and each method's step over their sum.
        The least of the rounds counts. Methods that refuse such a pair are left out."""
        rounds = range(self.work.rounds)
        forward = min(self._forward() for _ in rounds)
        bare = min(self._bare_step() for _ in rounds)
        ratios = {}
        for name in self.work.methods:
            try:
                (*_, phase) = general.load(name).phases(general.configure(name, {}), self._setting())
            except UserError:  # MobileBERT wants a student as deep as its teacher
                continue
            seconds = min(self._step(phase.objective) for _ in rounds)
            ratios[name] = seconds / (bare + forward * bool(phase.objective.needs.teacher))
        return {"rows": self.work.rows, "tokens": self.work.tokens, "teacher_forward_ms": 1e3 * forward,
                "student_step_ms": 1e3 * bare, "methods": ratios}

    def _forward(self) -> float:
        model = self._model("teacher", headed=False).eval()

        def run(batch: dict[str, Any]) -> None:
            with torch.no_grad(), self.precision.autocast():
                model(**batch["teacher"])

        return self._median(run)

    def _bare_step(self) -> float:
        model = self._model("student", headed=False).train()
        update = Update(model)

        def run(batch: dict[str, Any]) -> None:
            with self.precision.autocast():
                states = model(**batch["student"]).last_hidden_state
            update(states.float().mean(dim=(1, 2)))

        return self._median(run)

    def _step(self, objective: Objective) -> float:
        headed = has_language_model(objective.needs.student)
        teacher = LiveModel(lambda: self._model("teacher", headed), self.device, self.precision)
        distiller = Distiller(self._model("student", headed), objective.to(self.device), self.precision).train()
        update, progress = Update(distiller), Progress(0, 0, len(self.batches))
        needs = objective.needs_at(progress).teacher

        def run(batch: dict[str, Any]) -> None:
            seen = {name: value for name, value in batch.items() if name != "masked" or objective.masks_tokens}
            inputs = dict(seen["student"])
            if objective.masks_tokens:
                inputs["masked_positions"] = seen["masked"]["positions"]
            update(distiller(seen | {"student": inputs}, teacher.compute(inputs, needs), progress).total)

        return self._median(run)

    def _median(self, run: Callable[[dict[str, Any]], None]) -> float:
        seconds = []
        for batch in self.batches:
            start = now(self.device)
            run(batch)
            seconds.append(now(self.device) - start)
        return statistics.median(seconds[UNTIMED:])

    def _batch(self, generator: torch.Generator) -> dict[str, Any]:
        rows, tokens = self.work.rows, self.work.tokens
        ids = torch.randint(VOCABULARY, (rows, tokens), generator=generator)
        masked = round(MASKED_SHARE * tokens)
        positions = torch.rand(rows, tokens, generator=generator).argsort(dim=1)[:, :masked].sort(dim=1).values
        inputs = self._moved({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        return {"student": inputs, "teacher": inputs, "step": Step(torch.full((rows,), tokens),
                                                                  torch.full((rows,), masked)),
                "masked": self._moved({"positions": positions, "targets": ids.gather(1, positions)}),
                **self._moved({"ids": torch.arange(rows), "labels": torch.full((rows,), -1)})}

    def _moved(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def _setting(self) -> Setting:
        return Setting(dims(self.configs["teacher"]), dims(self.configs["student"]), classes=0, regression=False,
                       labels=torch.full((self.work.rows,), -1), batch_size=self.work.rows, seed=0)

    def _model(self, who: str, headed: bool) -> PreTrainedModel:
        family = AutoModelForMaskedLM if headed else AutoModel
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model: PreTrainedModel = family.from_config(self.configs[who], attn_implementation="sdpa")
        return model.to(self.device)  # type: ignore[arg-type]


def main() -> None:
    """`python -m kdcore.bench.live_step WORK FOLDER OUTPUT`: what `kdcore.bench` starts."""
    work, folder, output = sys.argv[1:]
    content = json.loads(work)
    measured = LiveStep(Work(**content | {"methods": tuple(content["methods"])}), Path(folder)).measure()
    Path(output).write_text(json.dumps(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
