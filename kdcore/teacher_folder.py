"""What lies in a teacher's folder: one model, several that are averaged, or answers.

    one model   a plain transformers folder
    several     `member-1`, `member-2`, ..., each such a folder, and `average.json`, which says how they are averaged
    answers     `answers`: the logits of every row (`kdcore.data.answers`)

Each has a `training.json` that tells how the teacher came about. An average and answers give logits and nothing else.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from kdcore.data.answers import FOLDER as ANSWERS
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey
from kdcore.models.files import weights_fingerprint
from kdcore.objective import Dims, Phase
from kdcore.scratch import hash_files

AVERAGE = "average.json"


@dataclass(frozen=True)
class Average:
    """How the outputs of several models become one. `weights` are positive and sum to 1, one per member."""

    of: Literal["logits", "probabilities"]
    weights: tuple[float, ...]

    def __call__(self, logits: Float[Tensor, "k n c"], regression: bool) -> Float[Tensor, "n c"]:
        """The average of the members' logits, columns of all in the same order.

        Of logits: sum of w_k z_k. Of probabilities: log of the sum of w_k softmax(z_k), so that softmax of the result
        is the mean distribution at temperature 1; at another temperature T, softmax(result / T) sharpens or flattens
        that mean and is not the mean of the members' softened distributions. Scores are averaged as they are.
        """
        weights = torch.tensor(self.weights, dtype=logits.dtype, device=logits.device).view(-1, 1, 1)
        if regression or self.of == "logits":
            return (weights * logits).sum(dim=0)
        return torch.logsumexp(functional.log_softmax(logits, dim=-1) + weights.log(), dim=0)

    def save(self, folder: Path) -> None:
        """Write it into a teacher's folder."""
        (folder / AVERAGE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def equal_or_given(weights: Sequence[float], count: int) -> tuple[float, ...]:
    """Weights with sum 1 for `count` members; equal ones where none are given."""
    total = sum(weights)
    return tuple(weight / total for weight in weights) if weights else (1 / count,) * count


def average(folder: Path) -> Average | None:
    """How the models in a folder are averaged; None where there is one, or none.

    Raises:
        UserError: what says so is damaged.
    """
    path = folder / AVERAGE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Average(content["of"], tuple(content["weights"]))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); run `kdflow teacher {folder.name}` again") from None


def member_name(place: int) -> str:
    """Name of a member's folder by its place, counted from 0."""
    return f"member-{place + 1}"


def models(folder: Path) -> tuple[Path, ...]:
    """The model folders of a teacher: several of an average, none of answers, else the folder itself."""
    if found := average(folder):
        return tuple(folder / member_name(place) for place in range(len(found.weights)))
    return () if (folder / ANSWERS).is_dir() else (folder,)


def gives_only_logits(folder: Path) -> bool:
    """True for an average and for answers: they have no layers that a student could be compared with."""
    return models(folder) != (folder,)


def fingerprint(folder: Path) -> str:
    """Sixteen hex digits of what decides the teacher's outputs: weights, how they are averaged, answers.

    Raises:
        UserError: a model folder without config.json or safetensors.
    """
    if not gives_only_logits(folder):
        return weights_fingerprint(folder)
    if members := models(folder):
        how = (folder / AVERAGE).read_text(encoding="utf-8")
        text = "\0".join([how, *(weights_fingerprint(member) for member in members)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    return hash_files([folder / ANSWERS], folder)


class WithoutLayers(Dims):
    """In place of a teacher's sizes where it has logits and nothing else: a method that asks for its `layers` reads
    them, and hears at once that there are none; the other sizes are the student's."""

    def __init__(self, student: Dims, method: str, dataset: str, members: int) -> None:
        """For a method on a dataset whose teacher is the average of `members` models, or files (0)."""
        vars(self).update({name: value for name, value in asdict(student).items() if name != "layers"})
        vars(self)["_for"] = method, dataset, members

    def __getattr__(self, name: str) -> NoReturn:
        if name != "layers":
            raise AttributeError(name)
        raise _refusal("layers of the teacher", *self._for)


def needs_of(phases: Sequence[Phase]) -> frozenset[FeatureKey]:
    """Everything that a method may ever read of the teacher."""
    return frozenset().union(*(phase.objective.needs.teacher for phase in phases))


def refuse_beyond_logits(method: str, needs: frozenset[FeatureKey], dataset: str, members: int) -> None:
    """Refuse a method that reads more than the logits of a teacher that has nothing else: of an average of `members`
    models, or of files (0).

    Raises:
        UserError: with the first feature that is too much.
    """
    if beyond := sorted(needs - {LOGITS}):
        raise _refusal(f"`{beyond[0].kind}` of the teacher", method, dataset, members)


def _refusal(what: str, method: str, dataset: str, members: int) -> UserError:
    who = f"the average of {members} models" if members else "only files"
    return UserError(f"methods.{method} reads {what}, but the teacher of {dataset} is {who}, which has logits and "
                     "nothing else; take the method out of study.methods (those that read only logits fit), or use one "
                     "model as teacher")
