"""Train a student through all phases of a method, from the beginning or from the last checkpoint."""

import os
import resource
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from kdcore.config import Training
from kdcore.models.reading import check
from kdcore.objective import Phase
from kdcore.training import checkpoint
from kdcore.training.compiling import compiled
from kdcore.training.data import Data
from kdcore.training.display import Display
from kdcore.training.distiller import Distiller
from kdcore.training.interruption import Interruption
from kdcore.training.journal import Journal
from kdcore.training.optimiser import freezing
from kdcore.training.precision import device, resolve
from kdcore.training.record import Record
from kdcore.training.surroundings import FeatureSource, Surroundings
from kdcore.training.trainer import DistillationTrainer


@dataclass(frozen=True)
class TrainingResult:
    """A trained student and how it came about.

    student   with the selected weights, in eval mode, on the CPU
    record    what is a function of the inputs: settings of each phase, history, selection, warnings
    measured  what is true of this machine and run only: seconds, throughput, memory
    """

    student: PreTrainedModel
    record: dict[str, Any]
    measured: dict[str, Any]


def train(student: PreTrainedModel, phases: Sequence[Phase], data: Data, settings: Training, seed: int, folder: Path,
          journal: Journal, title: str, teacher: FeatureSource | None = None) -> TrainingResult:
    """Train `student` in place on a dataset or a corpus and return it with the selected weights.

    Checkpoints live in `folder`: a process that finds one there goes on from it and ends with the same weights
    (to the byte on a CPU in fp32) and the same record as one that was never interrupted. So the folder must be
    used for this student, these phases, data and settings only; `kdcore.scratch` gives such folders.

    Args:
        seed: of row order, masking and dropout; the objectives got theirs when they were made.
        teacher: gives the features that the objectives declare; None when they need none.

    Raises:
        UserError: an objective reads what the student does not have, the loss stays non-finite, the precision is not
            to be had, a checkpoint is damaged.
        KeyboardInterrupt, SystemExit: after SIGINT or SIGTERM, once a checkpoint is written.
    """
    objectives = list({id(phase.objective): phase.objective for phase in phases}.values())
    for objective in objectives:
        check(student.config, objective.needs.student, data.longest)
    modules = nn.ModuleDict({"student": student, "objectives": nn.ModuleList(objectives)})
    initial = _weights(student) if any(phase.fresh_student for phase in phases[1:]) else {}
    precision = resolve(settings.precision, device())
    development = data.development(precision, _evaluation_batch(settings))
    if development is None:
        settings = settings.model_copy(update={"keep": "last", "patience": None})
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with Display(title) as display, Interruption(int(os.environ.get("WORLD_SIZE", "1")) == 1) as interruption:
        around = Surroundings(
            data=data, rows=data.rows(any(objective.needs.teacher for objective in objectives)), teacher=teacher,
            development=development, record=Record(), journal=journal, display=display, interruption=interruption,
            modules=modules)
        resumed = checkpoint.latest(folder)
        if resumed is not None:
            around.record = checkpoint.read_modules(resumed, modules, around.selected)
        journal.resume(checkpoint.step_of(resumed) if resumed else 0)
        for number, phase in list(enumerate(phases))[around.record.phase:]:
            if number > around.record.phase:
                if phase.objective.done:
                    continue
                around.record.begin_phase(number)
                around.selected.forget()
                resumed = None
                if phase.fresh_student:
                    student.load_state_dict(initial)
            if not around.record.finished:
                distiller = Distiller(student, phase.objective, precision, data.tokens)
                evaluates = development is not None and (phase.keep != "last" or number == len(phases) - 1)
                wanted = effective(settings, phase)
                trainer = DistillationTrainer(distiller, phase.name, wanted, seed + 10_000 * number, folder, around,
                                              evaluates, phase.layer_rates)
                with (freezing(student, phase.layer_rates),
                      compiled(student, phase.objective.needs.student) if wanted.compile else nullcontext()):
                    trainer.run(resumed)
            around.selected.restore(student)
    return TrainingResult(student.cpu().eval(), _result(around.record, phases, data, settings, seed, precision.name),
                          _measured(around.record))


def effective(settings: Training, phase: Phase) -> Training:
    """The settings of a phase: those of the training, replaced where the phase says so."""
    own = {name: getattr(phase, name) for name in ("epochs", "learning_rate", "schedule", "keep")}
    given = {name: value for name, value in own.items() if value is not None}
    if phase.epochs is not None:
        given["steps"] = None
    elif phase.share is not None:
        given["epochs"] = phase.share * settings.epochs
        given["steps"] = settings.steps and max(1, round(phase.share * settings.steps))
    return settings.model_copy(update=given)


def _weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _evaluation_batch(settings: Training) -> int:
    """Evaluation keeps no activations for a backward pass, so twice a micro-batch fits for sure."""
    return max(32, 2 * settings.batch_size // settings.accumulation)


def _result(record: Record, phases: Sequence[Phase], data: Data, settings: Training, seed: int,
            precision: str) -> dict[str, Any]:
    last = record.history[-1]
    development = dict(last.get("development", {}))
    selected = {name: last[name] for name in ("phase", "epoch", "step")} | {
        "score": development.pop("score", None), "metrics": development}
    if effective(settings, phases[-1]).keep == "best" and record.best is not None:
        selected = asdict(record.best)
    run = {entry["phase"] for entry in record.history}  # an objective may have left some out
    return {"seed": seed, "precision": precision,
            "phases": [{"name": phase.name} | effective(settings, phase).deciding()
                       | ({} if phase.layer_rates is None else {"layer_rates": list(phase.layer_rates)})
                       | ({"held_back": len(data.held_back(rows))} if (rows := phase.objective.held_back) else {})
                       for phase in phases if phase.name in run],
            "selected": selected, "history": record.history, "curve": record.curve, "tokens": record.times.tokens,
            "skipped_steps": record.skipped, "warnings": record.warnings}


def _measured(record: Record) -> dict[str, Any]:
    times = record.times
    seconds = sum(times.epochs) + times.open_epoch
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    measured = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "train_seconds": seconds, "epoch_seconds": times.epochs, "evaluation_seconds": times.evaluation,
        "checkpoint_seconds": times.checkpoints, "examples_per_second": times.examples / seconds if seconds else None,
        "tokens": times.tokens, "tokens_per_second": times.tokens / seconds if seconds else None,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_available():
        measured["peak_cuda_bytes"] = torch.cuda.max_memory_allocated()
    return measured
