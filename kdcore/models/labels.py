"""Class names of models against class names of datasets: columns are matched by name, never by position.

Public checkpoints order classes differently (MNLI has at least three orders in use), and a swapped order
looks like a bad model instead of a mistake.
"""

import logging
import re

from transformers import PretrainedConfig

from kdcore.errors import UserError

logger = logging.getLogger(__name__)

SCORE = "score"
"""Name of the single output of a regression model."""


def names_of(config: PretrainedConfig) -> tuple[str, ...]:
    """The class names of a model in column order."""
    names = {int(place): str(name) for place, name in (config.id2label or {}).items()}
    return tuple(names[place] for place in sorted(names))


def output_names(labels: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the output columns for a dataset's labels; None is regression with one column."""
    return labels if labels is not None else (SCORE,)


def same_names(own: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """True when both sets of names agree up to case, spaces, underscores and hyphens; order may differ."""
    return sorted(map(_plain, own)) == sorted(map(_plain, wanted))


def align(own: tuple[str, ...], labels: tuple[str, ...] | None, who: str) -> tuple[int, ...]:
    """Where each of the dataset's classes lies among a model's columns: `logits[:, align(...)]` is in dataset order.

    Case, spaces, underscores and hyphens do not count. Two columns that nobody named (`LABEL_0`, `LABEL_1`)
    are taken in dataset order, with a warning; three or more unnamed ones are an error, since their order
    is a guess. `who` names the model in messages.

    Raises:
        UserError: numbers of classes differ, a name is missing, or two names are the same.
    """
    wanted = output_names(labels)
    if len(own) != len(wanted):
        raise UserError(f"{who} has {len(own)} outputs ({', '.join(own)}), the dataset needs {len(wanted)} "
                        f"({', '.join(wanted)}); use a model fine-tuned on this dataset")
    if labels is None:
        return (0,)
    columns = {_plain(name): place for place, name in enumerate(own)}
    if len(columns) != len(own):
        raise UserError(f"{who} gives two outputs the same name ({', '.join(own)}); "
                        "correct id2label in its config.json")
    if same_names(own, wanted):
        return tuple(columns[_plain(name)] for name in wanted)
    if all(re.fullmatch(r"label\d+", _plain(name)) for name in own) and len(own) == 2:
        logger.warning("%s does not name its classes (%s); taken as %s in this order", who, ", ".join(own),
                       ", ".join(wanted))
        return (0, 1)
    raise UserError(f"{who} calls its classes {', '.join(own)}, the dataset {', '.join(wanted)}; "
                    "set id2label in its config.json to the dataset's names in the order of its outputs")


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()
