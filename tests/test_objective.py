"""The interface carries what the most demanding methods need: a memory bank, and an actor with a critic.

Both toys are trained by a bare loop, stopped, saved, loaded into fresh objects and continued; the bytes must equal
those of a run that was never stopped.
"""

import io
import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from kdcore.features import LOGITS, FeatureKey, Features
from kdcore.losses import kd_loss, label_loss, unit
from kdcore.objective import Alarm, Batch, Examine, Loss, Needs, Objective, Progress, Setting, Standing
from tests.methods.toys import CLASSIFICATION, STEPS_PER_EPOCH, Toy, batch, progress, toys

STATE = FeatureKey("cls", 3)
TEACHER_STATE = FeatureKey("cls", 6)


class MemoryBank(Objective):
    """Contrast with teacher vectors of other examples that were seen earlier (in the manner of CoDIR).

    The bank is a buffer by example id; rows of the step's examples are renewed after it. Labels are learned
    as they are seen: a row not seen yet is noise, as good a negative as any.
    """

    bank: Tensor
    labels: Tensor

    def __init__(self, setting: Setting, width: int = 8) -> None:
        super().__init__()
        self.seed = setting.seed
        self.student_map = nn.Linear(setting.student.width, width)
        self.teacher_map = nn.Linear(setting.teacher.width, width)
        noise = torch.randn(setting.examples, width, generator=torch.Generator().manual_seed(setting.seed))
        self.register_buffer("bank", unit(noise))
        self.register_buffer("labels", torch.full((setting.examples,), -1))
        self.needs = Needs(frozenset({STATE}), frozenset({TEACHER_STATE}))
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        queries, positives = unit(self.student_map(student[STATE])), unit(self.teacher_map(teacher[TEACHER_STATE]))
        allowed = (self.labels != batch.labels[:, None]).float()
        generator = torch.Generator().manual_seed(hash((self.seed, progress.step)))
        negatives = self.bank[allowed.multinomial(5, generator=generator)]
        wrong = torch.einsum("bu,bku->bk", queries, negatives)
        scores = torch.cat([(queries * positives).sum(1, keepdim=True), wrong], dim=1)
        self._seen.append((batch.ids, batch.labels, positives.detach()))
        nothing = torch.zeros(len(queries), dtype=torch.int64)
        return Loss({"contrast": label_loss(scores / 0.07, nothing, regression=False)}, {"contrast": 1.0})

    def after_step(self, progress: Progress, examine: Examine) -> Mapping[str, float]:
        for ids, labels, vectors in self._seen:
            self.bank[ids] = unit(0.5 * self.bank[ids] + 0.5 * vectors)
            self.labels[ids] = labels
        self._seen.clear()
        return {}


class Selector(Objective):
    """Weighs label and KD loss by an actor's action on the batch; a critic learns from the dev loss (as in KSM).

    Every second step ends a round, whose reward is the fall of the dev loss. Actor and critic have an optimiser of
    their own, whose state travels as bytes.
    """

    couples_examples: ClassVar[bool] = True
    reward: Tensor

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.inputs = setting.batch_size * setting.student.width
        self.student_bridge = nn.Linear(setting.student.width, setting.student.width)  # learns with the student
        self.actor = nn.Sequential(nn.Linear(self.inputs, 8), nn.ReLU(), nn.Linear(8, 2), nn.Sigmoid())
        self.critic = nn.Sequential(nn.Linear(self.inputs + 2, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimiser = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()], lr=2e-2)
        self.register_buffer("before", torch.tensor(math.nan))
        self.register_buffer("state", torch.zeros(self.inputs))
        self.needs = Needs(frozenset({LOGITS, STATE}), frozenset({LOGITS}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        states = student[STATE].detach().flatten()
        self.state = nn.functional.pad(states, (0, self.inputs - len(states)))  # a short batch has trailing zeros
        action = self.actor(self.state).detach()
        parts = {"label": label_loss(student.logits, batch.labels, False),
                 "kd": kd_loss(student.logits, teacher.logits, 1.0, False),
                 "bridge": self.student_bridge(student[STATE]).square().mean(1)}
        weights = {"label": action[0].expand_as(batch.ids), "kd": action[1].expand_as(batch.ids), "bridge": 0.1}
        return Loss(parts, weights, {"action/label": action[0], "action/kd": action[1]})

    def main_parameters(self) -> Iterator[nn.Parameter]:
        return self.student_bridge.parameters()

    def before_steps(self, examine: Examine) -> None:
        self.before.fill_(examine().loss)

    def after_step(self, progress: Progress, examine: Examine) -> Mapping[str, float]:
        if progress.step % 2 == 0:
            return {}
        after = examine().loss
        reward = self.before - after
        self.before.fill_(after)
        action = self.actor(self.state)
        value = self.critic(torch.cat([self.state, action]))
        critic_loss = (self.critic(torch.cat([self.state, action.detach()])) - reward).square().sum()
        self.optimiser.zero_grad()
        torch.autograd.backward(critic_loss, inputs=list(self.critic.parameters()))
        torch.autograd.backward(-value.sum(), inputs=list(self.actor.parameters()))
        self.optimiser.step()
        return {"reward": float(reward)}

    def get_extra_state(self) -> Tensor:
        buffer = io.BytesIO()
        torch.save(self.optimiser.state_dict(), buffer)
        return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        self.optimiser.load_state_dict(torch.load(io.BytesIO(state.numpy().tobytes()), weights_only=True))


def run(objective: Objective, student: Toy, optimiser: torch.optim.Optimizer, steps: range, micro_batches: int) -> int:
    """A bare trainer: returns how often the student was examined."""
    teacher = toys(CLASSIFICATION)[1]
    evaluations = 0

    def loss(ids: Tensor, moment: Progress) -> Tensor:
        needs = objective.needs_at(moment)
        return objective(student.features(ids, needs.student), teacher.features(ids, needs.teacher),
                         batch(CLASSIFICATION, ids), moment).total.sum()

    def examine() -> Standing:
        nonlocal evaluations
        evaluations += 1
        ids = torch.arange(12, 16)
        with torch.no_grad():
            logits = student.features(ids, frozenset({LOGITS})).logits
        return Standing(label_loss(logits, ids % 3, False).mean().item(), 0.0, {})

    if steps.start == 0:
        objective.before_steps(examine)
    for step in steps:
        ids = torch.arange(4) + 4 * (step % STEPS_PER_EPOCH)
        ids = ids[:3] if step % STEPS_PER_EPOCH == 3 else ids  # an epoch's last batch is short
        optimiser.zero_grad()
        for part in ids.chunk(micro_batches):
            (loss(part, progress(step)) / len(ids)).backward()
        optimiser.step()
        objective.after_step(progress(step), examine)
    return evaluations


def start(kind: type[Objective]) -> tuple[Objective, Toy, torch.optim.Optimizer]:
    torch.manual_seed(0)
    objective, student = kind(CLASSIFICATION).double(), toys(CLASSIFICATION)[0]
    return objective, student, torch.optim.AdamW([*student.parameters(), *objective.main_parameters()], lr=1e-2)


@pytest.mark.parametrize(("kind", "micro_batches"), [(MemoryBank, 2), (Selector, 1)])
@pytest.mark.parametrize("stop", [1, 4, 5])
def test_stopped_and_continued_equals_undisturbed(kind: type[Objective], micro_batches: int, stop: int) -> None:
    undisturbed = start(kind)
    run(*undisturbed, range(9), micro_batches)
    first = start(kind)
    run(*first, range(stop), micro_batches)
    saved = io.BytesIO()
    torch.save([part.state_dict() for part in first], saved)
    saved.seek(0)
    second = start(kind)
    for part, state in zip(second, torch.load(saved, weights_only=True), strict=True):
        part.load_state_dict(state)
    run(*second, range(stop, 9), micro_batches)
    for expected, actual in zip(undisturbed[:2], second[:2], strict=True):
        for key, value in expected.state_dict().items():
            assert torch.equal(value, actual.state_dict()[key]), key


def test_bank_rows_are_renewed_by_id_and_stay_unit_vectors() -> None:
    objective, student, optimiser = start(MemoryBank)
    before = objective.bank.clone()
    run(objective, student, optimiser, range(1), micro_batches=2)
    changed = (objective.bank != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert objective.labels[:5].tolist() == [0, 1, 2, 0, -1]
    torch.testing.assert_close(objective.bank.norm(dim=1), torch.ones(16).double())


def test_actor_learns_from_rewards_apart_from_the_student() -> None:
    objective, student, optimiser = start(Selector)
    before = {key: value.clone() for key, value in objective.state_dict().items() if key != "_extra_state"}
    assert run(objective, student, optimiser, range(2), micro_batches=1) == 2  # before the first step, after the second
    moved = {key.split(".")[0] for key, value in before.items() if not torch.equal(value, objective.state_dict()[key])}
    assert moved == {"student_bridge", "actor", "critic", "before", "state"}
    owned = {id(p) for group in optimiser.param_groups for p in group["params"]}
    assert not owned & {id(p) for p in (*objective.actor.parameters(), *objective.critic.parameters())}
    assert len({id(p) for p in objective.main_parameters()} & owned) == 2


def test_loss_refuses_weights_of_other_parts() -> None:
    with pytest.raises(ValueError, match=r"\['label'\] and weights \['kd'\]"):
        Loss({"label": torch.zeros(2)}, {"kd": 1.0})


def test_weights_may_differ_per_example() -> None:
    loss = Loss({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 5.0])}, {"a": torch.tensor([1.0, 0.0]), "b": 2})
    torch.testing.assert_close(loss.total, torch.tensor([7.0, 10.0]))


def test_alarm() -> None:
    alarm = Alarm("collapse", "all alike", high=0.99)
    assert not alarm.rings(0.99)
    assert alarm.rings(0.991)
    assert alarm.rings(math.nan)
    assert Alarm("spread", "all alike", low=1e-3).rings(0.0)
