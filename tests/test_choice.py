"""Objectives of other methods as candidates: what they lose, read and remember is as alone; refusals."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kdcore import methods
from kdcore.choice import Choice
from kdcore.errors import UserError
from kdcore.features import Features
from kdcore.methods import vanilla_kd
from kdcore.objective import Loss, Objective, Phase, Progress, Setting
from tests.methods.toys import CLASSIFICATION, STEPS_PER_EPOCH, Toy, batch, examine, progress, toys

SOME = torch.tensor([3, 0, 9, 14])
EQUAL = replace(CLASSIFICATION, student=replace(CLASSIFICATION.student, width=24))


def choice(name: str = "knowledge_mix", setting: Setting = CLASSIFICATION, **settings: Any) -> Choice:
    objective = methods.load(name).phases(methods.configure(name, settings), setting)[0].objective
    assert isinstance(objective, Choice)
    return objective.double()


def alone(name: str, setting: Setting = CLASSIFICATION, **settings: Any) -> Objective:
    (phase,) = methods.load(name).phases(methods.configure(name, settings), setting)
    return phase.objective.double()


def loss_of(objective: Objective, moment: Progress, setting: Setting = CLASSIFICATION,
            ids: torch.Tensor = SOME, models: tuple[Toy, Toy] | None = None) -> Loss:
    needs, (student, teacher) = objective.needs_at(moment), models or toys(setting)
    return objective(student.features(ids, needs.student), teacher.features(ids, needs.teacher), batch(setting, ids),
                     moment)


@pytest.mark.parametrize(("name", "settings"), [
    ("rail_kd_l", {"width": 8, "rail_weight": 2}), ("rail_kd_c", {"resample": "step"}), ("codir", {"negatives": 3}),
    ("dkd", {}), ("ckd", {}), ("dynamic_kd", {"adapt": "supervision"}), ("rail_tinybert", {}),
], ids=str)
def test_a_candidate_is_its_method_without_the_label_loss(name: str, settings: dict[str, Any]) -> None:
    """In value, in what is read, in the layers that are drawn and in its parameters, step by step."""
    method = alone(name, **settings)
    mixed = choice(knowledge={"label": 2, "other": {"method": name, "weight": 3} | settings})
    for step in (0, 1, STEPS_PER_EPOCH, 5 * STEPS_PER_EPOCH):
        moment = progress(step, epochs=9)
        expected, found = loss_of(method, moment), loss_of(mixed, moment)
        assert mixed.needs_at(moment) == method.needs_at(moment)
        taught = expected.total - expected.weights["label"] * expected.parts["label"]
        torch.testing.assert_close(found.parts["other"], taught)
        torch.testing.assert_close(found.total, 3 * taught + 2 * expected.parts["label"])
        for key, value in expected.diagnostics.items():
            assert found.diagnostics[f"other/{key}"] == value
        for part in expected.parts.keys() - {"label"}:
            assert found.diagnostics[f"other/{part}"] == pytest.approx(expected.parts[part].detach().mean().item())
    assert len(list(mixed.main_parameters())) == len(list(method.main_parameters()))


def test_types_come_first_and_objectives_by_name() -> None:
    again = {"method": "rail_kd_l", "weight": 0.5}
    mixed = choice(knowledge={"rail_kd_l": {}, "label": 1, "again": again, "response": 1})
    assert tuple(mixed.weights.items()) == (("response", 1), ("label", 1), ("again", 0.5), ("rail_kd_l", 1))
    assert tuple(loss_of(mixed, progress(0)).parts) == ("response", "label", "again", "rail_kd_l")


def test_settings_are_told_in_full() -> None:
    told = methods.configure("ksm", {"knowledge": {"label": 2, "rail": {"method": "rail_kd_l", "width": 8}}})
    written = told.model_dump(mode="json")["knowledge"]
    assert written["label"] == 2
    assert {"method": "rail_kd_l", "weight": 1, "width": 8, "resample": "epoch"}.items() <= written["rail"].items()
    assert methods.configure("ksm", {"knowledge": written}) == told


def test_no_method_has_settings_by_the_names_that_stand_beside_them() -> None:
    for name in methods.names():
        assert not {"method", "weight"} & methods.load(name).Config.model_fields.keys(), name


# What is left out


def test_what_is_left_out_is_neither_read_nor_computed_and_hears_nothing() -> None:
    """CoDIR's bank moves after the steps that took it, and after no other."""
    mixed = choice(selection="random_hard", knowledge={"label": 1, "codir": {"negatives": 3}})
    bank, models, seen = mixed.objectives[0].contrast.bank.rows, toys(CLASSIFICATION), set()
    for step in range(20):
        moment, before = progress(step, epochs=9), bank.clone()
        taken = "codir" in mixed.taken(moment)
        loss = loss_of(mixed, moment, models=models)
        mixed.after_step(moment, examine)
        assert ("codir" in loss.parts) == taken == bool(mixed.needs_at(moment).teacher)
        assert torch.equal(bank, before) != taken
        seen.add(taken)
    assert seen == {True, False}


def test_hard_actions_of_a_selector_weigh_by_nought_and_one() -> None:
    """The action follows from the batch itself: nothing can be left out beforehand."""
    learning = choice("ksm", knowledge={"label": 1, "rail_kd_l": {"width": 8}}, actions="hard", threshold=0.99)
    loss = loss_of(learning, progress(0))
    assert loss.total.tolist() == [0, 0, 0, 0]
    assert loss.parts["rail_kd_l"].all()


# State


def stir(objective: Objective) -> dict[str, torch.Tensor]:
    """Changes all parameters and buffers; returns what they were."""
    before = {name: value.clone() for name, value in objective.state_dict().items() if value.is_floating_point()}
    for name, value in objective.state_dict().items():
        if name in before:
            value.add_(1)
    return before


@pytest.mark.parametrize("borrowed", [
    {"method": "codir", "negatives": 3}, {"method": "codir", "objective": "nce_two_sided", "negatives": 3},
    {"method": "rail_kd_l", "width": 8}, {"method": "pkd", "width": 8}], ids=str)
def test_another_student_finds_all_as_it_was(borrowed: dict[str, Any]) -> None:
    mixed = choice(knowledge={"label": 1, "feature": 1, "other": borrowed})
    before = stir(mixed)
    assert {name.split(".")[0] for name in before} == {"knowledge", "objectives"}
    mixed.reset()
    for name, value in mixed.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_bank_through_two_episodes() -> None:
    """It moves while a student learns, and the next student begins with the first one's."""
    learning = choice("ksm", knowledge={"label": 1, "codir": {"negatives": 3}}, reward_steps=2)
    bank, models, ends = learning.objectives[0].contrast.bank.rows, toys(CLASSIFICATION), []
    first = bank.clone()
    for _ in range(2):
        learning.before_steps(examine)
        assert torch.equal(bank, first)
        for step in range(4):
            loss_of(learning, progress(step), ids=torch.arange(4) + 4 * step, models=models)
            learning.after_step(progress(step), examine)
        learning.after_steps(examine)
        ends.append(bank.clone())
    assert not (ends[0] == first).all(dim=1).any()
    assert torch.equal(*ends)  # the toy student did not learn


# Hooks


class Told(vanilla_kd.VanillaKd):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(vanilla_kd.Config(), regression=False)
        self.told: list[str] = []

    def before_steps(self, examine: Any) -> None:
        self.told.append("steps")

    def before_epoch(self, progress: Progress, teacher: Any) -> None:
        self.told.append(f"epoch {progress.epoch}")

    def after_step(self, progress: Progress, examine: Any) -> dict[str, float]:
        self.told.append(f"step {progress.step}")
        return {"news": 1.0}

    def after_steps(self, examine: Any) -> dict[str, float]:
        self.told.append("end")
        return {"whole": 2.0}


@pytest.mark.parametrize("method", ["knowledge_mix", "ksm"])
def test_it_is_told_what_happens(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vanilla_kd, "phases", lambda config, setting: (Phase("distill", Told()),))
    mixed = choice(method, knowledge={"label": 1, "other": {"method": "vanilla_kd"}})
    mixed.before_steps(examine)
    mixed.before_epoch(progress(4), lambda ids, keys: Features({}))
    loss_of(mixed, progress(4))
    assert mixed.after_step(progress(4), examine)["other/news"] == 1
    assert mixed.after_steps(examine)["other/whole"] == 2
    assert mixed.objectives[0].told == ["steps", "epoch 1", "step 4", "end"]


def test_alarms_ring_for_the_diagnostics_of_the_candidate() -> None:
    mixed = choice(knowledge={"a": {"method": "rail_kd_l"}, "b": {"method": "rail_kd_c"}})
    names = {alarm.diagnostic for alarm in mixed.alarms}
    assert names == {"a/collapse", "a/spread", "b/collapse", "b/spread"}
    assert names <= loss_of(mixed, progress(0)).diagnostics.keys()


@pytest.mark.parametrize(("borrowed", "couples"), [("dynamic_kd", True), ("rail_kd_l", False)])
def test_what_compares_examples_makes_the_whole_compare_them(borrowed: str, couples: bool) -> None:
    assert choice(knowledge={"label": 1, borrowed: {}}).couples_examples == couples
    assert choice("ksm", knowledge={"label": 1, borrowed: {}}).couples_examples


# Refusals


@pytest.mark.parametrize(("knowledge", "message"), [
    ({"rail": {"method": "rail_kd"}}, r"knowledge.rail.method = 'rail_kd' is no method; did you mean 'rail_kd_l'"),
    ({"rail": {"width": 8}}, r"knowledge.rail: there is no method of this name; .* `method: NAME`; did you mean"),
    ({"pkd": {"method": "fsp"}}, r"knowledge.pkd says `method: fsp`, but pkd is a method itself"),
    ({"rail_kd_l": {"widht": 8}}, r"knowledge.rail_kd_l: unknown key `widht`; did you mean 'width'\?"),
    ({"rail_kd_l": {"weight": -1}}, r"knowledge.rail_kd_l: weight = -1: .* greater than or equal to 0"),
    ({"rail_kd_l": 1}, r"knowledge.rail_kd_l = 1: rail_kd_l is no type .* `NAME: \{method: METHOD, weight: 1\}`"),
    ({"label": {"method": "fsp"}}, r"knowledge.label is a type of knowledge, which has a weight and no settings"),
    ({"a/b": {"method": "fsp"}}, r"knowledge.a/b"),
    ({"ksm": {}}, r"knowledge.ksm: ksm chooses itself"),
    ({"mix": {"method": "knowledge_mix"}}, r"knowledge.mix: knowledge_mix chooses itself"),
    ({"label": "much"}, r"knowledge.label = 'much'"),
], ids=str)
@pytest.mark.parametrize("method", ["knowledge_mix", "ksm"])
def test_settings_that_do_not_fit(method: str, knowledge: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^methods.{method}: {message}") as caught:
        methods.configure(method, {"knowledge": knowledge})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("borrowed", "message"), [
    ({"method": "tinybert"}, "other: tinybert has the phases intermediate, prediction, one after another"),
    ({"method": "finetune"}, "other: finetune learns from labels alone, which is the type `label`"),
    ({"method": "rail_kd_l", "alphas": [1]}, "other: alphas has 1 weights, expected 2"),
    ({"method": "pkd", "mapping": [[9, 1]]}, "other: "),
], ids=str)
def test_objectives_that_cannot_be_candidates(borrowed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^knowledge\.{message}") as caught:
        choice(knowledge={"label": 1, "other": borrowed}, setting=EQUAL)
    assert "\n" not in str(caught.value)


def test_a_training_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vanilla_kd, "phases",
                        lambda config, setting: (Phase("distill", Told(), epochs=1, fresh_student=True),))
    with pytest.raises(UserError, match=r"^knowledge\.other: vanilla_kd has a training of its own"):
        choice(knowledge={"label": 1, "other": {"method": "vanilla_kd"}})
