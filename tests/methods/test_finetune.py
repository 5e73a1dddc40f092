"""Fine-tuning is the label loss and nothing else."""

import torch

from kdcore.features import LOGITS
from kdcore.methods import finetune
from kdcore.objective import Needs
from tests.methods.toys import CLASSIFICATION, batch, progress, toys


def test_is_cross_entropy_and_needs_no_teacher() -> None:
    (phase,) = finetune.phases(finetune.Config(), CLASSIFICATION)
    assert phase.objective.needs == Needs(student=frozenset({LOGITS}), teacher=frozenset())
    assert list(phase.objective.parameters()) == []
    student, teacher = toys(CLASSIFICATION)
    ids = torch.arange(6)
    features = student.features(ids, phase.objective.needs.student)
    loss = phase.objective(features, teacher.features(ids, frozenset()), batch(CLASSIFICATION, ids), progress(0))
    expected = torch.nn.functional.cross_entropy(features.logits, ids % 3, reduction="none")
    torch.testing.assert_close(loss.total, expected)
