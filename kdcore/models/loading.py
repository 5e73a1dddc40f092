"""Load tokenizers, encoders and sequence classifiers from a hub id, a local folder or a package.

Weights are safetensors only and no code of a checkpoint is ever run. Half-precision checkpoints become
float32. A classification head is taken from the checkpoint when its class names are the dataset's, and
is otherwise new and seeded.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kdcore.errors import UserError, did_you_mean
from kdcore.models.files import MODEL_FILES, TOKENIZER_FILES, check_weights, config_file, first_line, local_folder
from kdcore.models.labels import align, names_of, output_names, same_names
from kdcore.models.reading import FAMILIES
from kdcore.objective import Dims

logger = logging.getLogger(__name__)

Auto = type[AutoModel] | type[AutoModelForMaskedLM] | type[AutoModelForSequenceClassification]
"""A bare encoder, or one with a head."""

_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "mpnet")


def load_tokenizer(source: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model source.

    Raises:
        UserError: the source does not exist or holds no tokenizer that can be read.
    """
    folder = local_folder(source, revision, TOKENIZER_FILES)
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        if sentencepiece := sorted(folder.glob("*.model")):
            raise UserError(f"the tokenizer of {source} is in {sentencepiece[0].name} only, which takes the Python "
                            "package sentencepiece to read; install it, or add the tokenizer.json that save_pretrained "
                            "of its tokenizer writes") from None
        raise UserError(f"{source} holds no tokenizer that can be read ({first_line(error)}); "
                        "expected tokenizer.json and tokenizer_config.json") from None
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers makes up an empty one where files lack
        raise UserError(f"{source} holds no tokenizer; expected tokenizer.json and tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer of {source} has no padding token; set pad_token in its tokenizer_config.json")
    return tokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Twelve hex digits of what decides the token ids of a text: the whole pipeline and the special tokens.

    Equal for equal tokenizers in different folders. Truncation and padding, which callers set, do not count.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        pipeline = json.loads(backend.to_str())
        pipeline = {part: content for part, content in pipeline.items() if part not in ("truncation", "padding")}
    else:
        pipeline = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    content = {"pipeline": pipeline, "special": {name: str(token) for name, token in
                                                 tokenizer.special_tokens_map.items()}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def usable_length(config: PretrainedConfig) -> int:
    """The most tokens that a model takes, special tokens included.

    RoBERTa, XLM-R and MPNet number positions from `pad_token_id + 1`, so as many rows of their table are unused.
    DeBERTa-v3 knows distances alone, which it groups from afar: it takes any length. ModernBERT rotates by position
    and would run on, but was not trained beyond its number.
    """
    if config.model_type == "deberta-v2" and not config.position_biased_input:
        return sys.maxsize
    if config.model_type not in _OFFSET_POSITIONS:
        return config.max_position_embeddings
    return config.max_position_embeddings - config.pad_token_id - 1


def check_length(config: PretrainedConfig, max_length: int, who: str, setting: str = "pair.max_length") -> None:
    """Refuse a length that the model's positions do not reach; `setting` is where to lower it."""
    usable = usable_length(config)
    if max_length > usable:
        raise UserError(f"max_length {max_length} is beyond the {usable} tokens that {who} takes "
                        f"({config.model_type}); lower {setting} to at most {usable}")


def load_config(source: str, revision: str | None = None) -> PretrainedConfig:
    """The configuration of a model source, without its weights.

    Raises:
        UserError: no such source, no or broken config.json, or a family that is not known here.
    """
    return _read_config(local_folder(source, revision, TOKENIZER_FILES), source)


def load_classifier(source: str, revision: str | None, labels: tuple[str, ...] | None, seed: int) -> PreTrainedModel:
    """A sequence classifier in float32 and eval mode whose columns are the dataset's labels in order.

    `labels` None is regression with one output. The head comes from the checkpoint when it is a sequence
    classifier with the same class names (columns are then put in dataset order); otherwise it is new,
    drawn from a generator seeded by `seed`. A pooler that the checkpoint lacks is drawn likewise and said.

    Raises:
        UserError: no such source, no safetensors, unknown family, or weights that are not this family's.
    """
    return load_described(source, revision, labels, seed)[0]


def load_described(source: str, revision: str | None, labels: tuple[str, ...] | None,
                   seed: int) -> tuple[PreTrainedModel, str]:
    """As `load_classifier`, with a few words on where pooler and head come from, for the record."""
    folder = local_folder(source, revision, MODEL_FILES)
    config = _read_config(folder, source)
    keep_head = has_classes(config, labels)
    order = align(names_of(config), labels, source) if keep_head else ()
    name_outputs(config, labels)
    model, missing = _read_weights(folder, config, source)
    lacking = {_part(model, key) for key in missing}
    keep_head = keep_head and "head" not in lacking
    if keep_head:
        _reorder_outputs(model, order)
    lacks_pooler = "pooler" in lacking
    draw_new(model, seed, head=not keep_head, pooler=lacks_pooler)
    if lacks_pooler:
        logger.warning("%s has no pooler: a new one is drawn with seed %d", source, seed)
    new = [part for part, drawn in (("pooler", lacks_pooler), ("head", not keep_head)) if drawn]
    return model.eval(), f"new {' and '.join(new)} (seed {seed})" if new else "its head"


def load_finetuned(folder: Path, labels: tuple[str, ...] | None) -> PreTrainedModel:
    """A fine-tuned classifier for use as it is, in float32 and eval mode, its columns in the dataset's order.

    Raises:
        UserError: class names differ, or anything of the model is missing.
    """
    source = str(folder)
    config = _read_config(folder, source)
    order = align(names_of(config), labels, source)
    name_outputs(config, labels)
    model, missing = _read_weights(folder, config, source)
    if missing:
        raise UserError(f"{source} is not fine-tuned: its weights lack {min(missing)}; use the folder of a trained "
                        "sequence classifier")
    _reorder_outputs(model, order)
    return model.eval()


def load_encoder(source: str, revision: str | None = None, seed: int = 0) -> PreTrainedModel:
    """A bare encoder in float32 and eval mode. A pooler that the checkpoint lacks is drawn, seeded by `seed`.

    Raises:
        UserError: no such source, no safetensors, unknown family, or weights that are not this family's.
    """
    folder = local_folder(source, revision, MODEL_FILES)
    model, missing = _read_weights(folder, _read_config(folder, source), source, AutoModel)
    draw_new(model, seed, head=False, pooler=any(_part(model, key) == "pooler" for key in missing))
    return model.eval()


def load_masked_lm(source: str, revision: str | None = None, new_head: int | None = None) -> PreTrainedModel:
    """An encoder with its masked-language-model head, in float32 and eval mode.

    Args:
        new_head: seed of a head for a checkpoint that has none.

    Raises:
        UserError: as `load_encoder`, or the checkpoint has no such head and none is to be drawn.
    """
    folder = local_folder(source, revision, MODEL_FILES)
    model, missing = _read_weights(folder, _read_config(folder, source), source, AutoModelForMaskedLM)
    if missing and new_head is not None:
        draw_new(model, new_head, head=True, pooler=True)
    elif missing:
        raise UserError(f"{source} has no masked-language-model head: its weights lack {min(missing)}; train one by "
                        "the method `mlm` of a general study, with layers of this model as the student, and name that "
                        "student here")
    return model.eval()


def auto_of(model: PreTrainedModel) -> Auto:
    """How a model of the same kind, bare or with a head, is made."""
    name = type(model).__name__
    if name.endswith("ForMaskedLM"):
        return AutoModelForMaskedLM
    return AutoModelForSequenceClassification if name.endswith("ForSequenceClassification") else AutoModel


def has_classes(config: PretrainedConfig, labels: tuple[str, ...] | None) -> bool:
    """True when a checkpoint is a sequence classifier with the dataset's class names, in any order."""
    is_classifier = any(name.endswith("ForSequenceClassification") for name in config.architectures or ())
    return is_classifier and same_names(names_of(config), output_names(labels))


def dims(model: PreTrainedModel | PretrainedConfig) -> Dims:
    """The sizes of a model that objectives may depend on; the configuration alone tells them."""
    config = model.config if isinstance(model, PreTrainedModel) else model
    return Dims(layers=config.num_hidden_layers, width=config.hidden_size, heads=config.num_attention_heads,
                vocabulary=config.vocab_size)


def name_outputs(config: PretrainedConfig, labels: tuple[str, ...] | None) -> None:
    """Write the dataset's class names, their number and the kind of problem into a configuration."""
    names = output_names(labels)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: place for place, name in enumerate(names)}
    config.problem_type = "regression" if labels is None else "single_label_classification"


def draw_new(model: PreTrainedModel, seed: int, head: bool, pooler: bool) -> None:
    """Draw the weights of head and pooler afresh: N(0, initializer_range), zero biases, as the families do.

    ModernBERT has scales of its own for both; its norm between them undoes the difference. From a generator of its
    own, so that the result depends on `seed` and on nothing else.
    """
    generator = torch.Generator().manual_seed(seed)
    wanted = {part for part, drawn in (("head", head), ("pooler", pooler)) if drawn}
    words = model.get_input_embeddings().weight  # what a masked-language-model head may share is not its own
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and _part(model, name) in wanted and module.weight is not words:
            with torch.no_grad():
                module.weight.normal_(std=model.config.initializer_range, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' load reports and progress bars, and put its settings back afterwards."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _read_config(folder: Path, source: str) -> PretrainedConfig:
    path = config_file(folder, source)
    try:
        family = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"config.json of {source} is not a JSON mapping ({first_line(error)}); "
                        "fetch the file again") from None
    if family not in FAMILIES:
        raise UserError(f"{source} is of family {family!r}, which is not known here; "
                        f"{did_you_mean(str(family), FAMILIES)}")
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the configuration classes raise errors of several libraries for wrong values
        raise UserError(f"config.json of {source} cannot be used: {first_line(error)}") from None


def _read_weights(folder: Path, config: PretrainedConfig, source: str,
                  auto: Auto = AutoModelForSequenceClassification) -> tuple[PreTrainedModel, set[str]]:
    """The model with what the checkpoint has, and the names of what it lacks: head and pooler at most."""
    check_weights(folder, source)
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            model, found = auto.from_pretrained(
                folder, config=config, dtype=torch.float32, use_safetensors=True, trust_remote_code=False,
                ignore_mismatched_sizes=True, output_loading_info=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"the weights of {source} cannot be read: {first_line(error)}") from None
    _check_encoder(model, found, source)
    return model, set(found["missing_keys"]) | {key for key, *_ in found["mismatched_keys"]}


def _check_encoder(model: PreTrainedModel, found: dict, source: str) -> None:
    """Refuse weights that leave parts of the encoder at random values."""
    misfits = {key: sizes for key, *sizes in found["mismatched_keys"] if _part(model, key) != "head"}
    if misfits:
        key, (have, need) = next(iter(sorted(misfits.items())))
        raise UserError(f"weights of {source} do not fit its config.json: {key} has shape {tuple(have)}, "
                        f"the configuration says {tuple(need)}")
    missing = sorted(key for key in found["missing_keys"] if _part(model, key) == "encoder")
    if missing:
        raise UserError(f"weights of {source} lack {len(missing)} tensors of a {model.config.model_type} encoder, "
                        f"e.g. {missing[0]}; config.json and weights do not belong together")


def _part(model: PreTrainedModel, name: str) -> Literal["encoder", "pooler", "head"]:
    """Where a weight or module belongs.

    The pooler is what encoders are trained with before anyone fine-tunes them: BERT's dense layer over the first
    token, ModernBERT's prediction head, which its masked language model shares. The head is whatever else lies
    outside of the encoder: in BERT the classifier, elsewhere the dense layer before it as well, DeBERTa's `pooler` too.
    """
    whole = f"{model.base_model_prefix}.{name}" if model.base_model is model else name
    start, _, rest = whole.partition(".")
    if start != model.base_model_prefix:
        return "pooler" if model.config.model_type == "modernbert" and start == "head" else "head"
    return "pooler" if rest.partition(".")[0] == "pooler" else "encoder"


def output_layer(model: PreTrainedModel) -> nn.Linear:
    """The linear layer that makes the logits."""
    head = model.get_submodule("classifier")
    return cast(nn.Linear, head if isinstance(head, nn.Linear) else head.get_submodule("out_proj"))


def _reorder_outputs(model: PreTrainedModel, order: tuple[int, ...]) -> None:
    last = output_layer(model)
    with torch.no_grad():
        last.weight.copy_(last.weight[list(order)])
        last.bias.copy_(last.bias[list(order)])
