"""What a training has besides the student and its loss."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from kdcore.features import FeatureKey, Features
from kdcore.training.data import Data, Judge, Rows
from kdcore.training.display import Display
from kdcore.training.interruption import Interruption
from kdcore.training.journal import Journal
from kdcore.training.record import Record
from kdcore.training.selected import Selected


class FeatureSource(Protocol):
    """What gives the teacher's features of a batch: `kdcore.teacher.Teacher`, stored, live or mixed, for a dataset;
    `kdcore.live_model.LiveModel` for a corpus."""

    def features(self, batch: dict[str, Any], keys: frozenset[FeatureKey]) -> Features:
        """The features `keys` of a batch on the host, without gradients, on the student's device."""


@dataclass
class Surroundings:
    """The same for all phases of a training.

    rows          those of `data`, with the teacher's token ids if any phase reads the teacher
    development   None where nothing selects
    modules       the student and the objectives of all phases, as they go into checkpoints
    """

    data: Data
    rows: Rows
    teacher: FeatureSource | None
    development: Judge | None
    record: Record
    journal: Journal
    display: Display
    interruption: Interruption
    modules: nn.Module
    selected: Selected = field(default_factory=Selected)
