"""Types of knowledge: they are the losses of the methods that are made of one of them; what they read; refusals."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kdcore import methods
from kdcore.errors import UserError
from kdcore.features import LOGITS, Features, layer_keys
from kdcore.knowledge_types import TYPES, KnowledgeConfig, KnowledgeTypes
from kdcore.objective import Loss, Setting
from tests.methods.toys import CLASSIFICATION, REGRESSION, batch, progress, toys

SOME = torch.tensor([3, 0, 9, 14])
EQUAL = replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, width=24))


def types_of(setting: Setting = EQUAL, **settings: Any) -> KnowledgeTypes:
    return KnowledgeTypes(KnowledgeConfig(**settings), setting).double()


def features_of(knowledge: KnowledgeTypes, setting: Setting, types: tuple = TYPES) -> tuple[Features, Features]:
    needs, (student, teacher) = knowledge.needs(types), toys(setting)
    return student.features(SOME, needs.student), teacher.features(SOME, needs.teacher)


def losses(knowledge: KnowledgeTypes, setting: Setting = EQUAL, types: tuple = TYPES) -> dict[str, torch.Tensor]:
    return knowledge(*features_of(knowledge, setting, types), batch(setting, SOME), types)


def method_loss(name: str, setting: Setting, **settings: Any) -> Loss:
    (phase,) = methods.load(name).phases(methods.configure(name, settings), setting)
    needs, (student, teacher) = phase.objective.needs, toys(setting)
    return phase.objective.double()(student.features(SOME, needs.student), teacher.features(SOME, needs.teacher),
                                    batch(setting, SOME), progress(0))


@pytest.mark.parametrize("setting", [EQUAL, CLASSIFICATION, replace(REGRESSION, student=EQUAL.student)],
                         ids=["equal widths", "unequal", "scores"])
@pytest.mark.parametrize("mapping", ["skip", "last"])
def test_they_are_the_losses_of_methods(setting: Setting, mapping: str) -> None:
    found = losses(types_of(setting, temperature=3, mapping=mapping), setting)
    one = method_loss("vanilla_kd", setting, temperature=3)
    torch.testing.assert_close(found["response"], one.parts["kd"])
    torch.testing.assert_close(found["label"], one.parts["label"])
    if setting is not CLASSIFICATION:  # with maps, each type has one of its own
        pkd = method_loss("pkd", setting, reduction="sum", mapping=mapping)
        torch.testing.assert_close(found["feature"], pkd.parts["pkd"])
        torch.testing.assert_close(found["relation"], method_loss("fsp", setting, mapping=mapping).parts["fsp"])


def test_what_is_read() -> None:
    knowledge = types_of()
    cls = frozenset(layer_keys("cls", (1, 2))), frozenset(layer_keys("cls", (2, 4)))
    for types, student, teacher in (
            (("label",), {LOGITS}, set()), (("response",), {LOGITS}, {LOGITS}), (("feature",), cls[0], cls[1]),
            (("relation", "label"), {LOGITS, *cls[0]}, cls[1]), (TYPES, {LOGITS, *cls[0]}, {LOGITS, *cls[1]})):
        needs = knowledge.needs(types)
        assert (needs.student, needs.teacher) == (student, teacher)
        assert tuple(losses(knowledge, types=types)) == types


def test_the_order_is_the_papers() -> None:
    config = KnowledgeConfig(knowledge={"label": 1, "response": 2})
    assert config.types == ("response", "label")
    assert KnowledgeConfig().types == TYPES


def test_maps_learn_and_go_back() -> None:
    knowledge = types_of(CLASSIFICATION)
    before = {name: parameter.clone() for name, parameter in knowledge.named_parameters()}
    assert len(before) == 2
    optimiser = torch.optim.SGD(knowledge.parameters(), lr=0.1)
    sum(value.sum() for value in losses(knowledge, CLASSIFICATION).values()).backward()
    optimiser.step()
    assert all(not torch.equal(parameter, before[name]) for name, parameter in knowledge.named_parameters())
    knowledge.reset()
    assert all(torch.equal(parameter, before[name]) for name, parameter in knowledge.named_parameters())


@pytest.mark.parametrize(("settings", "depth", "message"), [
    ({}, 2, r"relation relates two layers .* student of 2 layers matches one; .* \[\[1, 1\], \[2, 6\]"),
    ({}, 1, "no intermediate layer"),
    ({"mapping": [[1, 9]]}, 3, "expected 1..6"),
], ids=str)
def test_what_does_not_fit(settings: dict[str, Any], depth: int, message: str) -> None:
    setting = replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, layers=depth))
    with pytest.raises(UserError, match=message) as caught:
        types_of(setting, **settings)
    assert "\n" not in str(caught.value)
    assert list(types_of(setting, knowledge={"response": 1, "label": 1}).parameters()) == []
