"""Settings and features for tests of general methods: the toys of `tests/methods` on a corpus without labels."""

import torch

from kdcore import general
from kdcore.features import Features
from kdcore.objective import Batch, Dims, Loss, Needs, Objective, Phase, Progress, Setting
from tests.methods.toys import EXAMPLES, LENGTHS, Toy, batch, progress

ROWS = LENGTHS.clone()
ROWS[5], ROWS[11] = 1, 0
"""Real tokens of each row; one is a single token, one is nothing but padding."""


def corpus(teacher: Dims, student: Dims) -> Setting:
    """What a general method knows: no labels, no classes."""
    return Setting(teacher, student, classes=0, regression=False, labels=torch.full((EXAMPLES,), -1), batch_size=4,
                   seed=7)


SMALLER = corpus(Dims(layers=6, width=96, heads=4, vocabulary=31), Dims(layers=3, width=48, heads=4, vocabulary=31))
SAME_WIDTH = corpus(Dims(layers=4, width=48, heads=4, vocabulary=31), Dims(layers=2, width=48, heads=4, vocabulary=31))
SAME_SHAPE = corpus(Dims(layers=3, width=48, heads=4, vocabulary=31), Dims(layers=3, width=48, heads=4, vocabulary=31))

Toys = tuple[Toy, Toy]


def toys(setting: Setting) -> Toys:
    """Student and teacher of the same texts; the teacher takes no gradient."""
    return (Toy(setting.student, setting.classes, seed=1, lengths=ROWS),
            Toy(setting.teacher, setting.classes, seed=2, lengths=ROWS).requires_grad_(False))


def phases_of(name: str, setting: Setting, dtype: torch.dtype = torch.float64, **settings: object) -> tuple[Phase, ...]:
    """The phases of a general method, named in its errors as a run does."""
    config = general.configure(name, dict(settings))
    with general.naming(name):
        phases = general.load(name).phases(config, setting)
    for phase in phases:
        phase.objective.to(dtype)
    return phases


def features_of(models: Toys, needs: Needs, ids: torch.Tensor, padding: int = 0) -> tuple[Features, Features]:
    """What a step reads of both, with `padding` more columns of garbage."""
    student, teacher = models
    return student.features(ids, needs.student, padding), teacher.features(ids, needs.teacher, padding)


def batch_of(setting: Setting, ids: torch.Tensor, step: torch.Tensor | None = None) -> Batch:
    """These rows in a step of the rows `step`; None is a step of all."""
    return batch(setting, ids, ROWS, step)


def loss_of(objective: Objective, models: Toys, setting: Setting, ids: torch.Tensor, step: torch.Tensor | None = None,
            moment: Progress | None = None, padding: int = 0) -> Loss:
    """The loss of these rows in a step of the rows `step`."""
    moment = moment or progress(0)
    features = features_of(models, objective.needs_at(moment), ids, padding)
    return objective(*features, batch_of(setting, ids, step), moment)
