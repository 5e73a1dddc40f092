"""Where a student starts: a pre-trained checkpoint or layers of one or of the fine-tuned teacher, or nothing."""

import itertools
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel

from kdcore import mapping
from kdcore.errors import UserError
from kdcore.models.loading import Auto, load_described, quiet
from kdcore.models.transfer import converted, transfer
from kdcore.pair_config import StudentModel

FROM_TEACHER = "teacher"
RANDOM = "random"


def build_student(model: StudentModel, teacher_folder: Path, labels: tuple[str, ...] | None, seed: int,
                  teacher: str = "the fine-tuned teacher") -> tuple[PreTrainedModel, str]:
    """The student before training, in float32 and eval mode, and one line for the record that says what it is.

    Embeddings, the chosen layers and, where class names agree, the head are the source's (methods, section 16); with
    `layers: random` only its sizes are. Whatever is new depends on `seed` alone. `labels` None is regression. `teacher`
    names the model in `teacher_folder`.

    Raises:
        UserError: the source cannot be loaded, a layer is out of range, or families do not correspond.
    """
    from_teacher = model.source == FROM_TEACHER
    source = str(teacher_folder.absolute()) if from_teacher else model.source
    origin = teacher if from_teacher else model.source
    start, head = load_described(source, model.revision, labels, seed)
    depth = start.config.num_hidden_layers
    layers = choose_layers(depth, model.layers, model.depth, origin)
    if model.layers == RANDOM:
        config = converted(start.config, layers, model.architecture or start.config.model_type)
        said = f"{len(layers)} random {config.model_type} layers and embeddings, sized as in {origin} (seed {seed})"
        return drawn(AutoModelForSequenceClassification, config, seed), said
    which = f"layers {', '.join(map(str, layers))} of {origin} ({depth} layers)" if model.layers else f"all of {origin}"
    if model.layers is None and model.architecture is None:
        return start, f"{which}, {head}"
    student, conversion = transfer(start, layers, model.architecture or start.config.model_type, seed)
    return student, f"{which}, {conversion}" if "new head" in conversion else ", ".join(
        part for part in (which, conversion, head) if part)


def student_config(model: StudentModel, start: PretrainedConfig, origin: str) -> PretrainedConfig:
    """The configuration of the student that `build_student` makes of a source with the configuration `start`, but for
    its class names; no weights are read. `origin` names the source.

    Raises:
        UserError: a layer is out of range, or families do not correspond.
    """
    layers = choose_layers(start.num_hidden_layers, model.layers, model.depth, origin)
    if model.layers is None and model.architecture is None:
        return start
    return converted(start, layers, model.architecture or start.model_type)


def drawn(auto: Auto, config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """A model with random weights as its family draws them, from `seed` alone; in float32 and eval mode."""
    with torch.random.fork_rng(devices=[]), quiet():
        torch.default_generator.manual_seed(seed)
        return auto.from_config(config, dtype=torch.float32).eval()


def choose_layers(depth: int, layers: Literal["first", "last", "even", "random"] | tuple[int, ...] | None,
                  wanted: int | None, origin: str, who: str = "pair.student") -> tuple[int, ...]:
    """The source's layers, counted from 1, that become layers 1, 2, ... of the student.

    `first` and `last` are the lowest and highest; `even` spreads them as PKD-skip does and ends at the last layer:
    j n/m rounded half up for j = 1..m (12 to 6: 2, 4, ..., 12). Random layers are as large as the lowest.

    Args:
        depth: how many layers the source has.
        wanted: how many to take by such a rule.
        origin, who: the source, and where layers and depth stand in `params.yaml`, for messages.

    Raises:
        UserError: more layers than the source has, or an explicit list that is empty, repeats or is out of order.
    """
    if isinstance(layers, str):
        wanted = wanted or depth
        if wanted > depth:
            raise UserError(f"{who}.depth is {wanted}, but {origin} has {depth} layers; use 1..{depth}")
        match layers:
            case "first" | "random":
                return tuple(range(1, wanted + 1))
            case "last":
                return tuple(range(depth - wanted + 1, depth + 1))
            case "even":
                return (*(layer for _, layer in mapping.even(depth, wanted)), depth)
    if layers is None:
        return tuple(range(1, depth + 1))
    if not layers:
        raise UserError(f"{who}.layers is empty; name layers of {origin} from 1 to {depth}")
    for layer in layers:
        if not 1 <= layer <= depth:
            raise UserError(f"{who}.layers names layer {layer}, but {origin} has layers 1 to {depth} "
                            "(embeddings are always taken)")
    if any(above <= below for below, above in itertools.pairwise(layers)):
        raise UserError(f"{who}.layers {list(layers)} repeats a layer or is out of order; name each once, ascending")
    return layers
