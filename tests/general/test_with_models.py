"""General methods on real architectures: what is read of each family, and where gradients go."""

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel

from kdcore import general
from kdcore.models.loading import dims
from kdcore.models.reading import check, read
from kdcore.objective import Batch, Masked, Step
from tests.general.toys import corpus, phases_of
from tests.methods.toys import progress
from tests.tiny import FAMILIES, tiny_config, tiny_inputs

POSITIONS = torch.tensor([[1], [1], [0], [1]])
TARGETS = torch.tensor([[7], [9], [-100], [8]])
"""The third text counts as one without masked tokens."""


def model(family: str, head: bool, seed: int) -> PreTrainedModel:
    """With a masked-language-model head, or bare."""
    torch.manual_seed(seed)
    config = tiny_config(family, layers=3, width=48, dropout=0.0)
    return (AutoModelForMaskedLM if head else AutoModel).from_config(config)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", general.names())
def test_every_family_can_be_distilled(name: str, family: str) -> None:
    """Teacher and student of one family, of the heads that the objective asks for."""
    sizes = dims(tiny_config(family, layers=3, width=48))
    inputs = tiny_inputs(family, longest=10) | {"masked_positions": POSITIONS}
    mask = inputs["attention_mask"]
    step = Step(mask.sum(dim=1), (TARGETS != -100).sum(dim=1))
    batch = Batch(torch.arange(4), torch.full((4,), -1), step, Masked(POSITIONS, TARGETS))
    for phase in phases_of(name, corpus(sizes, sizes), torch.float32):
        needs = phase.objective.needs
        head = any(key.kind in ("mlm_logits", "masked_logits") for key in needs.student | needs.teacher)
        student, teacher = (model(family, head, seed) for seed in (1, 2))
        check(student.config, needs.student | needs.teacher, mask.shape[1])
        with torch.no_grad():
            theirs = read(teacher.eval(), inputs, phase.objective.needs_at(progress(0)).teacher)
        ours = read(student.train(), inputs, phase.objective.needs_at(progress(0)).student)
        loss = phase.objective(ours, theirs, batch, progress(0)).total
        assert loss.shape == (4,)
        assert loss.isfinite().all()
        assert loss.mean() > 0
        loss.mean().backward()
        gradients = [p.grad for p in student.base_model.parameters() if p.grad is not None]
        assert gradients
        assert all(g.isfinite().all() for g in gradients)
        assert any(g.any() for g in gradients)
