"""What is evaluated: one exported model, several that are averaged, or answers in files. All give logits of splits."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from kdcore.data.answers import Answers
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.evaluation import cost
from kdcore.evaluation.predict import predict
from kdcore.models.loading import quiet
from kdcore.teacher_folder import Average, average, models
from kdcore.training.precision import resolve

Which = Literal["teacher", "student"]


class System(ABC):
    """Gives logits of whole splits, columns in the order of the dataset's labels."""

    @property
    @abstractmethod
    def splits(self) -> frozenset[str]:
        """The splits that it has logits of."""

    @abstractmethod
    def logits(self, split: str) -> Float[Tensor, "n c"]:
        """Its logits of one of `splits`, rows in the split's order, float32 on the CPU."""

    @property
    @abstractmethod
    def size(self) -> dict[str, int]:
        """Parameters and bytes, as `kdcore.evaluation.cost.size` counts them; empty where there is no model."""

    @abstractmethod
    def latency(self) -> dict[str, Any] | None:
        """As `kdcore.evaluation.cost.latency` measures it on the selecting split; None where there is no model."""


class Models(System):
    """One model, or several whose logits are averaged, run over every split but the training one."""

    def __init__(self, folders: Sequence[Path], prepared: Prepared, which: Which, batch_size: int,
                 how: Average | None) -> None:
        """Loads the models as any user would, by transformers alone."""
        self._folders = folders
        self._models = [_load(folder) for folder in folders]
        self._views = [prepared.for_teacher(place) for place in range(len(folders))] if how else [prepared]
        self._which = which
        self._batch_size = batch_size
        self._how = how
        self._info = prepared.info

    @property
    def splits(self) -> frozenset[str]:
        return frozenset(self._info.splits) - {self._info.train}

    def logits(self, split: str) -> Float[Tensor, "n c"]:
        found = []
        for model, view in zip(self._models, self._views, strict=True):
            with resolve("auto", model.device).autocast():
                found.append(predict(model, view, split, self._batch_size, self._which))
        return self._how(torch.stack(found), self._info.regression) if self._how else found[0]

    @property
    def size(self) -> dict[str, int]:
        sizes = [cost.size(model, folder) for model, folder in zip(self._models, self._folders, strict=True)]
        return {name: sum(size[name] for size in sizes) for name in sizes[0]}

    def latency(self) -> dict[str, Any]:
        return cost.latency(list(zip(self._models, self._views, strict=True)), self._info.select, self._which)


class Answered(System):
    """A teacher that is only files: what they answer, training rows too."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    @property
    def splits(self) -> frozenset[str]:
        return frozenset(self._answers.sources)

    def logits(self, split: str) -> Float[Tensor, "n c"]:
        return self._answers.logits(split)

    @property
    def size(self) -> dict[str, int]:
        return {}

    def latency(self) -> None:
        return None


def load(folder: Path, prepared: Prepared, which: Which, batch_size: int) -> System:
    """The system in an exported folder.

    Raises:
        UserError: a model, or what says what the folder holds, cannot be read.
    """
    if answers := Answers.find(folder):
        return Answered(answers)
    return Models(models(folder), prepared, which, batch_size, average(folder))


def _load(folder: Path) -> PreTrainedModel:
    """The model by transformers alone, on CUDA where there is one."""
    try:
        with quiet():
            model = AutoModelForSequenceClassification.from_pretrained(folder, use_safetensors=True,
                                                                       local_files_only=True)
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise UserError(f"the model in {folder} cannot be read ({str(error).splitlines()[0]}); delete the folder and "
                        "run the stage that made it again") from None
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
