"""The training loop of one phase: transformers' Trainer with our batches, loss, selection and checkpoints.

Losses come per example and are divided once by the number of examples of the whole optimiser step, over
micro-batches and devices, so that neither changes the gradient. transformers keeps the loop itself, gradient
scaling, data-parallel wrapping and schedules.
"""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, get_scheduler
from transformers.trainer_callback import PrinterCallback

from kdcore.config import Training
from kdcore.data.batching import LengthGroupedBatches
from kdcore.errors import UserError
from kdcore.features import FeatureKey, Features
from kdcore.objective import Progress, Standing, Step
from kdcore.training import checkpoint
from kdcore.training.batches import Parts, Shares, loader
from kdcore.training.distiller import Distiller
from kdcore.training.optimiser import parameter_groups
from kdcore.training.record import LOSS, StepSums, Sums, Window
from kdcore.training.surroundings import Surroundings

NON_FINITE_STEPS = 5
"""So many steps in a row without a finite loss end the training."""
SAVE_SECONDS = 30.0
"""Least time between two checkpoints where the settings say nothing: what a killed process loses."""
CURVE_POINTS = 50
"""Points of a phase's curve in the record."""
SAVING_SHARE = 0.02
"""Writing checkpoints takes at most about this share of the time."""


class DistillationTrainer(Trainer):
    """Trains a `Distiller` for one phase."""

    def __init__(self, distiller: Distiller, phase: str, settings: Training, seed: int, folder: Path,
                 around: Surroundings, evaluates: bool = True, layer_rates: tuple[float, ...] | None = None) -> None:
        """`settings` and `layer_rates` are those of the phase; checkpoints go to `folder`.

        Without `evaluates` the selection split is not looked at, and nothing is selected.

        Raises:
            UserError: accumulation times devices cuts a step's batch into more pieces than it has rows, or into
                pieces at all where the objective compares the examples of a batch with one another.
        """
        arguments = _arguments(settings, distiller, seed, folder)
        world = arguments.world_size
        if distiller.objective.couples_examples and settings.accumulation * world > 1:
            raise UserError(f"{phase}: this method compares the examples of a batch with one another, so a batch "
                            f"cannot be cut into {settings.accumulation * world} pieces; set accumulation: 1 and "
                            "train in one process")
        batches = LengthGroupedBatches(around.rows.lengths, settings.batch_size, seed, settings.accumulation * world,
                                       left_out=around.data.held_back(distiller.objective.held_back))
        arguments.max_steps = settings.steps or max(1, math.ceil(settings.epochs * batches.steps))
        self.phase = phase
        self.settings = settings
        self.folder = folder
        self.around = around
        self.evaluates = evaluates
        self.layer_rates = layer_rates
        self.steps_per_epoch = batches.steps
        self.epochs = arguments.max_steps / batches.steps if settings.steps else settings.epochs
        self.shares = Shares(batches, arguments.process_index, world)
        masks = distiller.objective.masks_tokens
        self.parts = Parts(around.rows, around.data.masker(seed) if masks else None)
        self._step_tokens = 0
        self._sums = StepSums()
        self._window = Window(max(1, min(100, arguments.max_steps // 200)))
        self._window_full = False
        self._applied = True
        self._save_wanted = False
        self._saving_took = 0.0
        self._saved_at = self._clock = time.monotonic()
        super().__init__(model=distiller, args=arguments, train_dataset=self.parts, callbacks=[_Events(self)])
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = True  # the loss is divided by `num_items_in_batch`: here, not by transformers
        if world > 1:  # ranks draw different dropout masks
            torch.manual_seed(seed * world + arguments.process_index)

    @property
    def distiller(self) -> Distiller:
        """The module in training, not wrapped."""
        assert isinstance(self.model, Distiller)
        return self.model

    @property
    def progress(self) -> Progress:
        """Where the step under way stands. Integers only, hence the same after a resume."""
        return self._progress_at(self.state.global_step)

    def run(self, resume_from: Path | None = None) -> None:
        """Train the phase to its end; modules and record of a checkpoint are loaded by the caller.

        Raises:
            UserError: the loss was not finite in five steps in a row.
        """
        begun = checkpoint.step_of(resume_from) - self.around.record.steps_before if resume_from else 0
        self.around.display.begin(self.phase, begun, self.args.max_steps)
        if resume_from is None:
            self.distiller.objective.before_steps(self.examine)
        self.train(resume_from_checkpoint=str(resume_from) if resume_from else None)

    def examine(self) -> Standing:
        """Loss and score on development rows, in eval mode; raises ValueError where there are none."""
        if self.around.development is None:
            raise ValueError(f"{self.phase} asks for the loss on development rows, but there are none")
        started = time.monotonic()
        standing = self.around.development.examine(self.distiller.student, self.distiller.objective.held_back)
        took = time.monotonic() - started
        self.around.record.times.evaluation += took
        self._clock += took
        return standing

    # What transformers' loop asks for.

    def get_train_dataloader(self) -> DataLoader:
        """This rank's micro-batches; not prepared by accelerate, which would deal them out a second time."""
        return loader(self.parts, self.shares)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """AdamW over the student and the objective's `main_parameters`, each parameter once."""
        if self.optimizer is None:
            # A fused optimiser would hide from accelerate that the gradient scaler skipped a step.
            self.optimizer = torch.optim.AdamW(
                parameter_groups(self.distiller, self.settings.weight_decay, self.settings.learning_rate,
                                 self.layer_rates),
                betas=self.settings.betas, eps=self.settings.epsilon, fused=not self.args.fp16)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Linear warm-up, then linear decay to zero or a constant rate."""
        if self.lr_scheduler is None:
            kind = "linear" if self.settings.schedule == "linear" else "constant_with_warmup"
            warm_up = math.ceil(self.settings.warmup_share * num_training_steps)
            self.lr_scheduler = get_scheduler(kind, optimizer or self.create_optimizer(), warm_up, num_training_steps)
        return self.lr_scheduler

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int,
                          device: torch.device) -> tuple[list[dict[str, Any]], int]:
        """The micro-batches of a step and the number of examples of the whole step, over all ranks."""
        samples = [next(epoch_iterator) for _ in range(num_batches)]
        step: Step = samples[0]["step"]
        self._step_tokens = int(step.lengths.sum())
        return samples, len(step.lengths)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch; returns its contribution to the step's mean loss."""
        model.train()
        progress = self.progress
        teacher = self._teacher_features(inputs, self.distiller.objective.needs_at(progress).teacher)
        read = ("ids", "labels", "step", "masked", self.around.data.tokens)
        moved = self._prepare_inputs({name: inputs[name] for name in read if name in inputs})
        loss = model(moved, teacher, progress)  # through the wrapper, which synchronises gradients
        total = loss.total
        self._sums.add(loss, total)
        # Data-parallel wrappers average gradients over the ranks; the step's loss is a sum over them.
        contribution = total.sum() * (self.args.world_size / num_items_in_batch)
        self.accelerator.backward(contribution)
        return contribution.detach()

    def _features_of(self, ids: Tensor, keys: frozenset[FeatureKey]) -> Features:
        """Teacher features of any training examples, outside of a step."""
        return self._teacher_features(self.around.rows.__getitems__(ids.tolist()), keys)

    def _teacher_features(self, batch: dict[str, Any], keys: frozenset[FeatureKey]) -> Features:
        if not keys:
            return Features({})
        if self.around.teacher is None:
            raise ValueError(f"{self.phase} reads {len(keys)} features of a teacher, but there is none")
        return self.around.teacher.features(batch, keys)

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip what the optimiser updates, and drop the gradients of a step that is not finite or teaches nothing.

        The step's numbers are read here: the one time in a step that the host waits for the device.
        """
        groups = self.create_optimizer().param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        norm = self.accelerator.clip_grad_norm_(parameters, self.settings.clip_norm)
        record = self.around.record
        due = self.args.process_index == 0 and self._checkpoint_is_due()
        step = self._sums.read(norm, due, over_ranks=self.args.world_size > 1)
        self._sums = StepSums()
        self._save_wanted = step.flag
        bad = step.sums.not_finite()
        if not bad and not math.isfinite(step.gradient_norm) and not self._scaler_will_help():
            bad = ["gradient"]
        self._applied = not bad
        record.times.examples += step.sums[LOSS][1]
        record.times.tokens += self._step_tokens
        if bad:
            self._count_skipped(bad)
            if self.accelerator.scaler is None:
                self._drop_gradients(parameters)
        else:
            record.skipped_in_a_row = 0
            record.open.include(step.sums)
            record.stretch.include(step.sums)
            self._window_full = self._window.add(step.sums, step.gradient_norm, groups[0]["lr"])
            if step.gradient_norm == 0:  # nothing was taught: momentum and decay shall not move the weights either
                self._drop_gradients(parameters)
        return norm

    @staticmethod
    def _drop_gradients(parameters: list[nn.Parameter]) -> None:
        """Without gradients AdamW leaves weights and its own state alone."""
        for parameter in parameters:
            parameter.grad = None

    def _scaler_will_help(self) -> bool:
        """fp16 gradients overflow now and then: the scaler skips the step and halves its scale. Below 1 it cannot."""
        scaler = self.accelerator.scaler
        return scaler is not None and scaler.get_scale() > 1

    def _count_skipped(self, bad: list[str]) -> None:
        record = self.around.record
        record.skipped += 1
        record.skipped_in_epoch += 1
        record.skipped_in_a_row += 1
        if record.skipped_in_a_row >= NON_FINITE_STEPS:
            names = " and ".join(name.removeprefix(f"{LOSS}/") for name in bad)
            raise UserError(f"{self.phase}: {names} not finite in {record.skipped_in_a_row} steps in a row (until step "
                            f"{self.state.global_step + 1} of {self.args.max_steps}, {self.distiller.precision.name}); "
                            f"lower learning_rate (now {self.settings.learning_rate:g}) or set precision: fp32")

    # Events of the loop.

    def epoch_begins(self) -> None:
        """Before the first batch of an epoch is drawn, also of one that a resume goes on with."""
        progress = self.progress
        self.shares.set_epoch(progress.epoch)
        self._clock = time.monotonic()
        if progress.step % self.steps_per_epoch == 0:
            self.distiller.objective.before_epoch(progress, self._features_of)

    def step_ends(self) -> bool:
        """After an optimiser step; True when a checkpoint is to be written now."""
        step, around = self.state.global_step, self.around
        if self._applied and not self.accelerator.optimizer_step_was_skipped:
            told = self.distiller.objective.after_step(self._progress_at(step - 1), self.examine)
            news = Sums({name: (value, 1) for name, value in told.items()})
            around.record.tell(news)
            self._window.tell(news)
        if self._window_full:
            self._window_full = False
            values = self._window.empty()
            around.journal.write(around.record.steps_before + step, values)
            around.display.step(step, step / self.steps_per_epoch, self.epochs, values[LOSS])
        if step % -(-self.args.max_steps // CURVE_POINTS) == 0 or step == self.args.max_steps:
            around.record.close_stretch(self.phase, step)
        # The end of an epoch is saved after its evaluation, see `epoch_ends`: a resume does not come back to it.
        ends = step % self.steps_per_epoch == 0 or step >= self.args.max_steps
        planned = self.settings.save_steps is not None and step % self.settings.save_steps == 0
        return not ends and (planned or self._save_wanted or around.interruption.received is not None)

    def epoch_ends(self) -> tuple[bool, bool]:
        """Evaluate, select, report; returns whether to write a checkpoint and whether the phase is over."""
        around, record, step = self.around, self.around.record, self.state.global_step
        self._stop_clock()
        entry = record.close_epoch(self.phase, step / self.steps_per_epoch, step)
        better = self._evaluate_student(entry) if self.evaluates else False
        patience = self.settings.patience if self.settings.keep == "best" else None
        record.finished = step >= self.args.max_steps or (patience is not None and record.stale >= patience)
        if record.finished:
            entry["diagnostics"] |= self.distiller.objective.after_steps(self.examine)
        self._ring_alarms(entry["diagnostics"])
        around.journal.write(record.steps_before + step, record.flat(entry))
        around.display.epoch(entry, self.epochs, record.times.epochs[-1], better)
        due = self._save_wanted or (self.args.world_size == 1 and self._checkpoint_is_due())
        return due or around.interruption.received is not None, record.finished

    def _evaluate_student(self, entry: dict[str, Any]) -> bool:
        started, around = time.monotonic(), self.around
        student = self.distiller.student
        assert around.development is not None
        metrics, score = around.development.evaluate(student)
        entry["development"] = metrics | {"score": score}
        better = around.record.consider(self.phase, entry["epoch"], entry["step"], score, metrics)
        if better and self.settings.keep == "best":
            around.selected.take(student)
        around.record.times.evaluation += time.monotonic() - started
        return better

    def _ring_alarms(self, diagnostics: dict[str, float]) -> None:
        warnings = self.around.record.warnings
        for alarm in self.distiller.objective.alarms:
            value = diagnostics.get(alarm.diagnostic)
            if value is not None and alarm.rings(value) and alarm.message not in warnings:
                warnings.append(alarm.message)
                self.around.display.note(f"warning: {alarm.diagnostic} is {value:.4g}: {alarm.message}")

    def _progress_at(self, step: int) -> Progress:
        return Progress(step // self.steps_per_epoch, step, self.args.max_steps)

    def _stop_clock(self) -> None:
        """Time training alone: the clock stands still while evaluating and saving."""
        now = time.monotonic()
        self.around.record.times.open_epoch += now - self._clock
        self._clock = now

    # Checkpoints.

    def _checkpoint_is_due(self) -> bool:
        minutes = self.settings.save_minutes
        wait = max(SAVE_SECONDS if minutes is None else 60 * minutes, self._saving_took / SAVING_SHARE)
        return time.monotonic() - self._saved_at >= wait

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write all that the rest of the training depends on; of a finished phase that is modules and record."""
        self._stop_clock()
        around, record = self.around, self.around.record
        with checkpoint.writing(self.folder, record.steps_before + self.state.global_step) as unfinished:
            if not record.finished:
                self._save_optimizer_and_scheduler(str(unfinished))
                self._save_scaler(str(unfinished))
                self._save_rng_state(str(unfinished))
            if self.args.should_save:
                checkpoint.write_modules(unfinished, around.modules, around.selected, record)
                self.state.save_to_json(str(unfinished / "trainer_state.json"))
        now = time.monotonic()
        self._saving_took = now - self._clock
        record.times.checkpoints += self._saving_took
        self._clock = self._saved_at = now

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Nothing: whoever calls `run` has loaded the modules, before the optimiser is made from them."""


class _Events(TrainerCallback):
    """Passes the loop's events on to the trainer."""

    def __init__(self, trainer: DistillationTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                       **others: Any) -> None:
        self.trainer.epoch_begins()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                    **others: Any) -> TrainerControl:
        control.should_save = self.trainer.step_ends()
        return control

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                     **others: Any) -> TrainerControl:
        control.should_save, control.should_training_stop = self.trainer.epoch_ends()
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        self.trainer.around.interruption.stop()


def _arguments(settings: Training, distiller: Distiller, seed: int, folder: Path) -> TrainingArguments:
    """What transformers must know; evaluation, logging and saving are ours."""
    on_cpu = distiller.precision.device == "cpu"
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    arguments = TrainingArguments(
        output_dir=str(folder), seed=seed, gradient_accumulation_steps=settings.accumulation,
        learning_rate=settings.learning_rate, max_grad_norm=settings.clip_norm, use_cpu=on_cpu,
        fp16=distiller.precision.name == "fp16", ddp_backend="gloo" if on_cpu and not alone else None,
        # Methods may leave parts of the student without a gradient, e.g. its last feed-forward layer.
        ddp_find_unused_parameters=True,
        # Buffers are equal on all ranks by themselves; a memory bank would be sent anew for every micro-batch.
        ddp_broadcast_buffers=False, eval_strategy="no", save_strategy="no", logging_strategy="no",
        report_to=[], disable_tqdm=True, remove_unused_columns=False, logging_nan_inf_filter=False)
    arguments.per_device_train_batch_size = max(
        1, settings.batch_size // (settings.accumulation * arguments.world_size))
    arguments._n_gpu = min(1, arguments.n_gpu)  # several GPUs are for torchrun, not for one process's threads
    return arguments
