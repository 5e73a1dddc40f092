"""Where a general student starts: random weights of any size, or layers of its teacher."""

import copy
from pathlib import Path

from transformers import AutoModel, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from kdcore.errors import UserError
from kdcore.general_config import Shape
from kdcore.models.initialise import choose_layers, drawn
from kdcore.models.loading import dims, load_config, load_encoder, load_masked_lm
from kdcore.models.transfer import converted, embeddings, transfer


def build(shape: Shape, teacher: Path, masked_lm: bool, seed: int, who: str) -> tuple[PreTrainedModel, str]:
    """A general student in float32 and eval mode, and one line for the record that says what it is.

    Its vocabulary and positions are the teacher's. What is random is drawn as the family does, N(0, initializer_range)
    with zero biases, from `seed` alone.

    Args:
        teacher: the folder of the teacher or assistant.
        masked_lm: with a masked-language-model head; a new one where layers come from a teacher without.
        who: where the shape stands in `params.yaml`, for messages.

    Raises:
        UserError: the teacher cannot be loaded, or sizes, layers or families do not fit.
    """
    source = str(teacher.absolute())
    if shape.layers is not None:
        start = load_masked_lm(source, new_head=seed) if masked_lm else load_encoder(source, seed=seed)
        depth = start.config.num_hidden_layers
        layers = choose_layers(depth, shape.layers, shape.depth, "the teacher", who)
        student, remark = transfer(start, layers, shape.architecture or start.config.model_type, seed)
        which = f"layers {', '.join(map(str, layers))} of the teacher ({depth} layers)"
        return student, f"{which}, {remark}" if remark else which
    config = student_config(shape, load_config(source), who)
    student = drawn(AutoModelForMaskedLM if masked_lm else AutoModel, config, seed)
    size, family = dims(config), config.model_type
    which = f"{size.layers} random {family} layers of width {size.width}, {size.heads} heads (seed {seed})"
    if shape.embeddings:
        own = embeddings(load_encoder(source), family)
        student.base_model.load_state_dict(own, strict=False)  # the layers, not among them, stay as they are
        which += ", embeddings of the teacher"
    return student, which


def student_config(shape: Shape, teacher: PretrainedConfig, who: str) -> PretrainedConfig:
    """The configuration of the student that `build` makes of a teacher with this one; no weights are read.

    Raises:
        UserError: as `build`.
    """
    architecture = shape.architecture or teacher.model_type
    if shape.layers is not None:
        layers = choose_layers(teacher.num_hidden_layers, shape.layers, shape.depth, "the teacher", who)
        return converted(teacher, layers, architecture)
    sized = _sized(teacher, shape, who)
    config = converted(sized, tuple(range(1, sized.num_hidden_layers + 1)), architecture)
    if shape.embeddings:
        _check_widths(teacher, config, who)
    return config


def _sized(teacher: PretrainedConfig, shape: Shape, who: str) -> PretrainedConfig:
    """The teacher's configuration with other numbers of layers, heads and units."""
    config = copy.deepcopy(teacher)
    before, inner = dims(teacher), "hidden_dim" if teacher.model_type == "distilbert" else "intermediate_size"
    width, heads = shape.width or before.width, shape.heads or before.heads
    if width % heads:
        raise UserError(f"{who}: a width of {width} cannot be cut into {heads} heads; set `heads` to a divisor of it")
    config.num_hidden_layers = depth = shape.depth or before.layers
    config.hidden_size, config.num_attention_heads = width, heads
    setattr(config, inner, shape.ffn or (4 * width if shape.width else getattr(teacher, inner)))
    match teacher.model_type:
        case "electra" if teacher.embedding_size == before.width:  # no bridge between embeddings and layers
            config.embedding_size = width
        case "deberta-v2":
            config.pooler_hidden_size = width
        case "modernbert":
            whole = [layer for layer, kind in enumerate(teacher.layer_types) if kind == "full_attention"]
            period = whole[1] if len(whole) > 1 else before.layers
            config.layer_types = [teacher.layer_types[layer % period] for layer in range(depth)]
    return config


def _check_widths(teacher: PretrainedConfig, student: PretrainedConfig, who: str) -> None:
    have, need = (getattr(config, "embedding_size", config.hidden_size) for config in (teacher, student))
    if have != need:
        raise UserError(f"{who}.embeddings is true, but the teacher's have width {have} and the student's {need}; "
                        "leave it out, or set the same width")
