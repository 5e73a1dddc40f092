"""The teacher of a dataset as methods see it: features of a batch, stored, computed live, or some of each, in one call.

Its weights are loaded when a feature is first needed that is not stored, and not at all when none is.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from kdcore.config import StoredFeatures
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features, layer_keys
from kdcore.live_model import LiveModel
from kdcore.models.loading import dims, load_config, load_finetuned
from kdcore.models.reading import check
from kdcore.objective import Dims
from kdcore.store import DType, FeatureStore, Manifest
from kdcore.teacher_folder import fingerprint, gives_only_logits, models
from kdcore.training.precision import Precision


class Teacher:
    """A fine-tuned teacher on one device. Its logits are in the order of the dataset's labels, by name."""

    def __init__(self, folder: Path, labels: tuple[str, ...] | None, device: torch.device, precision: Precision,
                 store: FeatureStore | None = None) -> None:
        """Nothing is loaded yet. `labels` None is regression; without `store` everything is computed live."""
        self.folder = folder
        self.labels = labels
        self.device = device
        self.store = store
        self.live = LiveModel(partial(load_finetuned, folder, labels), device, precision)

    @classmethod
    def open(cls, prepared: Prepared, folder: Path, features: Path, settings: StoredFeatures,
             needs: frozenset[FeatureKey], device: torch.device) -> Self:
        """The teacher for distilling on a prepared dataset, with the stored features in the folder `features`.

        `needs` is everything that the objective may ever ask for. Live features are computed in the precision that
        the stored ones were.

        Raises:
            UserError: the store is missing, or stale against weights, tokenizer, data, length, dtype or precision;
                or features are needed that the teacher does not have, or token-level ones where teacher and student
                read different tokens.
        """
        refuse_unaligned_tokens(prepared, needs)
        if inner := needs - {LOGITS}:
            check(load_config(_first(folder)), inner, prepared.info.max_length)
        store = FeatureStore.open(features)
        precision = store.manifest.precision if settings.precision == "auto" else settings.precision
        store.manifest.check(manifest(prepared, folder, settings, precision), features)
        return cls(folder, prepared.info.labels, device, Precision(precision, device.type), store)

    @property
    def dims(self) -> Dims:
        """The teacher's sizes, without loading it."""
        return teacher_dims(self.folder)

    @property
    def is_loaded(self) -> bool:
        """True once a feature had to be computed live."""
        return self.live.is_loaded

    def features(self, batch: Mapping[str, Any], keys: frozenset[FeatureKey]) -> Features:
        """The features `keys` of a batch as float32 on the teacher's device, without gradients.

        Reads `batch["ids"]` [b] for what is stored and `batch["teacher"]` (model inputs [b, t]) for the rest; the
        result's mask is None where nothing was computed live. The model is in eval mode, whatever was done to it
        between calls.
        """
        stored = keys & self.store.keys if self.store else frozenset()
        values = self.store.gather(batch["ids"], stored, self.device) if self.store and stored else {}
        mask = None
        if live := keys - stored:
            computed = self.compute(batch["teacher"], live)
            values, mask = values | dict(computed), computed.mask
        return Features(values, mask)

    def compute(self, inputs: Mapping[str, Tensor], keys: frozenset[FeatureKey]) -> Features:
        """Run the teacher for these features, on inputs anywhere."""
        return self.live.compute(inputs, keys)


def teacher_dims(folder: Path) -> Dims:
    """The sizes of the teacher in a folder, of several the first one's, read from its configuration alone."""
    return dims(load_config(_first(folder)))


def _first(folder: Path) -> str:
    return str(models(folder)[0].absolute())


def manifest(prepared: Prepared, folder: Path, settings: StoredFeatures,
             precision: Literal["fp32", "bf16", "fp16"]) -> Manifest:
    """What a store of this teacher and dataset holds under these settings.

    Layers 1..n; the embedding output is computed live by the few methods that read it. Of an average or of answers
    the logits alone, whatever `kinds` says.
    """
    info, only_logits = prepared.info, gives_only_logits(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    for kind in ("logits",) if only_logits else settings.kinds:
        if kind == "logits":
            shapes[kind] = (info.classes,)
        else:
            sizes = teacher_dims(folder)
            shapes |= {key.name: (sizes.width,) for key in layer_keys(kind, range(1, sizes.layers + 1))}
    dtype: DType = settings.dtype
    return Manifest(fingerprint(folder), info.tokenizers["teacher"], prepared.fingerprint, info.max_length,
                    info.splits[info.train].rows, dtype, precision, shapes)


def refuse_unaligned_tokens(prepared: Prepared, needs: frozenset[FeatureKey]) -> None:
    """Refuse token-level features where teacher and student cut texts differently: their positions mean nothing to
    each other. Sentence-level ones need no alignment.

    Raises:
        UserError: with both tokenizers' fingerprints.
    """
    tokenwise = sorted(key.name for key in needs if not key.is_sentence_level)
    if tokenwise and not prepared.same_tokenizer:
        own = prepared.info.tokenizers
        raise UserError(f"this method compares {tokenwise[0]} token by token, but teacher (tokenizer {own['teacher']}) "
                        f"and student ({own['student']}) have different vocabularies; use a method that reads only "
                        "logits, cls and mean, or a student with the teacher's tokenizer")
