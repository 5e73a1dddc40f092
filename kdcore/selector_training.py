"""How a selector learns while a student trains: it remembers a segment's steps and updates critic and actor after it.

Algorithm 2 of Wang et al., Findings of EMNLP 2022, for one step after another. The update after a segment needs the
state of the step that follows: it waits until that step's batch is there, and comes before that step's action. What
happened outlives a restart: the steps of the open segment, the actions of the one before and both optimisers' states
are saved.
"""

import io
import json
import random
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from kdcore.errors import UserError
from kdcore.method_config import MethodConfig, SelectorSource
from kdcore.objective import Phase, ReadySelector, Setting, Standing
from kdcore.selector import (
    Seen,
    Segment,
    Selector,
    actor_loss,
    count_reward,
    estimated_rewards,
    hard,
    segment_loss,
    similarity_reward,
    stepwise_loss,
)


class LearningConfig(MethodConfig):
    """Base of the `Config` of methods that train a selector. Numbers are the paper's where it gives them."""

    selector: SelectorSource | None = None
    """One that has learned, in place of episodes: `study`, the dataset's own, or a folder with its `revision`."""
    actions: Literal["soft", "hard"] = "soft"
    """Whether types of knowledge are weighed by 0..1 or left out and in."""
    threshold: float = Field(default=0.2, gt=0, lt=1)
    """`hard`: lambda, the weight from which a type is in. The grid is 0.1, 0.2, 0.3."""
    reward_steps: int = Field(default=64, ge=1)
    """k, the steps of a segment, which share one reward. The grid is 32, 64, 96, 128; 1 is the conventional variant."""
    exploration: bool = True
    """Whether doing something new earns a reward too."""
    alpha: float = Field(default=0.1, gt=0)
    """`hard`: the scale of that reward, 0.1 or 0.2."""
    noise: float = Field(default=0.0, ge=0)
    """Standard deviation of Gaussian noise on the actions while the selector learns: the same for all steps of a
    segment, whose reward is one and which would make it average out."""
    gamma: float = Field(default=0.98, ge=0, le=1)
    """How much what follows counts."""
    gradient: Literal["semi", "full"] = "semi"
    """Whether the critic's value of what follows is a constant."""
    critic_learning_rate: float = Field(default=2e-4, gt=0)
    """Of its Adam optimiser, as below."""
    actor_learning_rate: float = Field(default=2e-4, gt=0)
    """Of its Adam optimiser. Lower gives the critic longer to learn before an action has come to an end of 0..1."""
    reward: Literal["loss", "score"] = "loss"
    """What gets better between two examinations of the student: the label loss, or the dataset's metrics."""
    relative_rewards: bool = False
    """Whether a reward counts by how much it exceeds that of the segment before. As they are, rewards are above zero
    while a student learns at all, for which the critic thanks whatever was done."""
    dev_rows: Annotated[int, Field(ge=1)] | Literal["paper"] = 256
    """So many training rows, a quarter at most, give rewards and judge episodes, whose students do not learn from them;
    `paper` takes the selection split."""
    episodes: int = Field(default=5, ge=1)
    """At most, each with a fresh student."""
    episode_epochs: float | None = Field(default=None, gt=0)
    """None is the study's."""
    episode_patience: int = Field(default=1, ge=1)
    """Episodes in a row without a better score that end the selector's training."""

    @property
    def ready_selector(self) -> SelectorSource | None:
        return self.selector

    @model_validator(mode="after")
    def _learning_is_used(self) -> Self:
        learning = LearningConfig.model_fields.keys() - {"selector", "actions", "threshold"}
        if self.selector is not None and (idle := learning & self.model_fields_set):
            raise ValueError(f"{min(idle)} is for a selector that learns, but `selector` names one that has learned; "
                             "leave one of the two out")
        if self.actions == "soft" and (idle := {"threshold", "alpha"} & self.model_fields_set):
            raise ValueError(f"{min(idle)} concerns actions: hard; leave it out or set that")
        if not self.exploration and "alpha" in self.model_fields_set:
            raise ValueError("alpha is the scale of a reward that exploration: false switches off; leave it out")
        return self


class Learning(NamedTuple):
    """How a selector comes about: the phases that train it, the best one so far, and what it is made for."""

    phases: tuple[Phase, ...]
    best: Selector
    made_for: dict[str, Any]


def made_for(config: LearningConfig, setting: Setting, candidates: Iterable[str]) -> dict[str, Any]:
    """All that must be the same where a selector learns and where it is used, as JSON values."""
    return {"candidates": list(candidates), "student_width": setting.student.width,
            "teacher_width": setting.teacher.width, "batch_size": setting.batch_size, "actions": config.actions,
            "threshold": config.threshold if config.actions == "hard" else None}


_REMEDIES = {
    "candidates": "name the same under `knowledge`",
    "student_width": "take layers of a source of that width",
    "teacher_width": "take a teacher of that width",
    "batch_size": "set batch_size of training.student to that",
    "actions": "set `actions` to that",
    "threshold": "set `threshold` to that"}


def adopted(ready: ReadySelector, config: LearningConfig, setting: Setting, candidates: Iterable[str]) -> Selector:
    """A ready selector, frozen; raises UserError when it was made for something else."""
    here = made_for(config, setting, candidates)
    for what, remedy in _REMEDIES.items():
        learned, wanted = (", ".join(value) if isinstance(value, list) else value
                           for value in (ready.made_for.get(what), here[what]))
        if learned != wanted:
            raise UserError(f"{ready.name} learned with {what.replace('_', ' ')} {learned}, and here "
                            f"it is {wanted}; {remedy}, or train another selector")
    selector = Selector(setting.student.width, setting.teacher.width, setting.batch_size, len(here["candidates"]))
    selector.load_state_dict(dict(ready.weights))
    return selector.frozen()


class OwnAdam(nn.Module):
    """Adam over some parameters of an objective, apart from the student's optimiser; its state is saved."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        super().__init__()
        self.learning = list(parameters)
        self.adam = torch.optim.Adam(self.learning, lr=learning_rate)
        self._loaded: Tensor | None = None

    def minimise(self, loss: Float[Tensor, ""]) -> None:
        """One step down the gradient of `loss`, of which no other parameter hears."""
        if self._loaded is not None:  # only now: the parameters were on another device when the state was read
            self.adam.load_state_dict(torch.load(io.BytesIO(self._loaded.numpy().tobytes()), "cpu", weights_only=True))
            self._loaded = None
        for parameter, gradient in zip(self.learning, torch.autograd.grad(loss, self.learning), strict=True):
            parameter.grad = gradient
        self.adam.step()
        self.adam.zero_grad()

    def get_extra_state(self) -> Tensor:
        if self._loaded is not None:
            return self._loaded
        buffer = io.BytesIO()
        torch.save(self.adam.state_dict(), buffer)
        return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        self._loaded = state.cpu()


class SelectorLearner(nn.Module):
    """A selector with the memory of what it did."""

    student: Tensor
    teacher: Tensor
    present: Tensor
    actions: Tensor
    exploration: Tensor
    earlier: Tensor

    def __init__(self, selector: Selector, config: LearningConfig, student: int, teacher: int, types: int,
                 seed: int) -> None:
        """`student`, `teacher` and `types` as for the selector; `seed` is that of the noise."""
        super().__init__()
        self.selector = selector
        self.config = config
        self.seed = seed
        self.critic_optimiser = OwnAdam(
            [*selector.critic.parameters(), *selector.teacher_features.parameters()], config.critic_learning_rate)
        self.actor_optimiser = OwnAdam(
            [*selector.actor.parameters(), *selector.student_features.parameters()], config.actor_learning_rate)
        steps, examples = config.reward_steps, selector.batch_size
        for name, shape in (("student", (examples, student)), ("teacher", (examples, teacher)), ("actions", (types,)),
                            ("exploration", ()), ("earlier", (types,))):
            self.register_buffer(name, torch.zeros(steps, *shape))
        self.register_buffer("present", torch.zeros(steps, examples, dtype=torch.bool))
        self.steps = self.earlier_steps = 0
        self.reward: float | None = None
        self.last_reward: float | None = None
        self.begun = ""
        self._now: tuple[Seen, Tensor, Tensor] | None = None

    def begin(self) -> None:
        """Forget the steps of another student; what was learned stays."""
        self.steps = self.earlier_steps = 0
        self.reward = self.last_reward = None

    def choose(self, seen: Seen, moment: str) -> tuple[Float[Tensor, " k"], Float[Tensor, ""]]:
        """The action of this step and what it earns for being new; learns first if a whole segment has waited for it.

        `moment` names the step among all; that of a segment's first decides its noise.
        """
        if self.reward is not None and _finite(seen):
            self._learn(seen)
        if not self.steps:
            self.begun = moment
        action = self.selector.choose(seen)[0]
        if self.config.noise:
            generator = torch.Generator().manual_seed(random.Random(f"{self.seed} {self.begun}").getrandbits(63))
            drawn = torch.randn(action.shape, generator=generator).to(action)
            action = (action + self.config.noise * drawn).clamp(0, 1)
        exploration = self._exploration(action)
        self._now = seen, action, exploration
        return action, exploration

    def keep(self) -> bool:
        """The step counts: remember it. True when it was the segment's last, whose reward is to be told."""
        assert self._now is not None, "no action was chosen"
        seen, action, exploration = self._now
        for name, value in (("student", seen.student[0]), ("teacher", seen.teacher[0]), ("present", seen.present[0]),
                            ("actions", action), ("exploration", exploration)):
            self.get_buffer(name)[self.steps].copy_(value)
        self.steps += 1
        return self.steps == self.config.reward_steps

    def earn(self, reward: float) -> None:
        """The reward of all steps since the last one; learned from when the next step is seen, or at the `end`."""
        expected = reward if self.last_reward is None else self.last_reward
        self.reward = reward - expected if self.config.relative_rewards else reward
        self.last_reward = reward

    def end(self) -> None:
        """Nothing follows: learn from what has waited."""
        if self.reward is not None:
            self._learn(None)

    def get_extra_state(self) -> Tensor:
        return as_bytes({"steps": self.steps, "earlier_steps": self.earlier_steps, "reward": self.reward,
                         "last_reward": self.last_reward, "begun": self.begun})

    def set_extra_state(self, state: Tensor) -> None:
        content = from_bytes(state)
        self.steps, self.earlier_steps, self.reward, self.last_reward, self.begun = (
            content[key] for key in ("steps", "earlier_steps", "reward", "last_reward", "begun"))

    def _exploration(self, action: Float[Tensor, " k"]) -> Float[Tensor, ""]:
        if not self.earlier_steps:
            return action.new_zeros(())
        earlier = self.earlier[:self.earlier_steps]
        if self.config.actions == "soft":
            return similarity_reward(action, earlier)
        threshold = self.config.threshold
        return count_reward(hard(action, threshold), hard(earlier, threshold), self.config.alpha)

    def _learn(self, following: Seen | None) -> None:
        """One update of the critic, then one of the actor, over the segment; then it is the one before."""
        assert self.reward is not None
        steps = self.steps
        seen = Seen(self.student[:steps], self.teacher[:steps], self.present[:steps])
        extended = seen if following is None else Seen(*(torch.cat(pair) for pair in zip(seen, following, strict=True)))
        segment = Segment(extended, self.actions[:steps], self.exploration[:steps], self.reward)
        estimates = estimated_rewards(self.selector, segment, self.config.gamma, self.config.gradient == "full")
        loss = segment_loss(estimates, segment.reward)
        if self.config.exploration:
            loss = loss + stepwise_loss(estimates, segment.exploration)
        self.critic_optimiser.minimise(loss)
        self.actor_optimiser.minimise(actor_loss(self.selector, seen))
        self.earlier.copy_(self.actions)
        self.steps, self.earlier_steps, self.reward = 0, steps, None


class Ledger(nn.Module):
    """What each episode's student gained and how good it became; its state is saved."""

    def __init__(self, reward: Literal["loss", "score"]) -> None:
        """`reward` is the gain that counts."""
        super().__init__()
        self.reward = reward
        self.episode = self.stale = 0
        self.standing = Standing(0.0, 0.0, {})
        self.best_score: float | None = None
        self.earned = 0.0

    def begin(self, standing: Standing) -> None:
        """Another episode, whose student stands so."""
        self.episode += 1
        self.standing, self.earned = standing, 0.0

    def gains(self, now: Standing) -> tuple[float, dict[str, float]]:
        """The reward since the student was examined last, and by how much the loss fell and all else rose."""
        before = self.standing
        gains = {"loss": before.loss - now.loss, "score": now.score - before.score}
        gains |= {name: value - before.metrics[name] for name, value in now.metrics.items()}
        reward = gains[self.reward]
        self.standing, self.earned = now, self.earned + reward
        return reward, gains

    def is_best(self) -> bool:
        """Close the episode: whether its student is better than all before; `stale` counts the episodes since then."""
        if self.best_score is None or self.standing.score > self.best_score:
            self.best_score, self.stale = self.standing.score, 0
        else:
            self.stale += 1
        return self.stale == 0

    def told(self) -> dict[str, float]:
        """What the log is to know of the episode."""
        return {"episode/score": self.standing.score, "episode/dev_loss": self.standing.loss,
                "episode/reward": self.earned,
                **{f"episode/{name}": value for name, value in self.standing.metrics.items()}}

    def get_extra_state(self) -> Tensor:
        return as_bytes({"episode": self.episode, "stale": self.stale, "best_score": self.best_score,
                         "standing": asdict(self.standing), "earned": self.earned})

    def set_extra_state(self, state: Tensor) -> None:
        content = from_bytes(state)
        self.episode, self.stale, self.best_score = (content[key] for key in ("episode", "stale", "best_score"))
        self.standing, self.earned = Standing(**content["standing"]), content["earned"]


def as_bytes(content: dict[str, Any]) -> Tensor:
    """Plain values as a byte tensor, exactly."""
    return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)


def from_bytes(state: Tensor) -> dict[str, Any]:
    """Inverse of `as_bytes`."""
    return json.loads(bytes(state.tolist()))


def _finite(seen: Seen) -> bool:
    """A student that diverged in this step, which then counts for nothing, shall not teach the selector."""
    return bool(seen.student.isfinite().all() & seen.teacher.isfinite().all())
