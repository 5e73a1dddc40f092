"""Selection of knowledge by reinforcement: an actor weighs the types of knowledge, a critic judges what comes of it.

Wang et al., Findings of EMNLP 2022, "Improved Knowledge Distillation for Pre-trained Language Models via Knowledge
Selection", section 3, equations 2 to 13: networks, actions, rewards and losses as pure computation. With the last
layer's CLS states c of a batch, the state of a step is
  s_t = v_1 .. v_B joined in the order of the batch    v_b = N_S(c_S,b) and N_T(c_T,b) joined
zero where the batch is short; the action is a_t = mu(s_t) in 0..1, one number per type of knowledge; Q(s, a) is the
critic. The *phases* of the paper, k steps with one reward together, are segments here: `Phase` is something else.
"""

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 8
"""Numbers that stand for an example, of each model (section 5.3)."""
NEAR_ZERO = 3e-3
"""Bound of the first weights of the last layers of actor and critic; the paper is silent, and this is from Lillicrap et
al., ICLR 2016, "Continuous control with deep reinforcement learning", section 7. Actions begin at 1/2, and no type of
knowledge has a merit before there was a reward: with usual weights it would outweigh rewards of hundredths for long."""


class Seen(NamedTuple):
    """What the states of n steps are made from; zero where a step has fewer examples than b."""

    student: Float[Tensor, "n b ours"]
    teacher: Float[Tensor, "n b theirs"]
    present: Bool[Tensor, "n b"]


@dataclass(frozen=True)
class Segment:
    """n steps in a row whose reward is known for all of them together.

    seen         of the n steps and of the one that follows; without it the episode ended here
    actions      what was done
    exploration  what each step earns for doing something new
    reward       by how much the student got better from before the first step to after the last
    """

    seen: Seen
    actions: Float[Tensor, "n k"]
    exploration: Float[Tensor, " n"]
    reward: float


class Network(nn.Module):
    """Linear layers with ReLU between them; computes in its weights' type also under autocast."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))

    def forward(self, values: Float[Tensor, "*axes inputs"]) -> Float[Tensor, "*axes outputs"]:
        first, *others = (cast(nn.Linear, layer) for layer in self.layers)
        with torch.autocast(values.device.type, enabled=False):
            values = first(values.to(first.weight.dtype))
            for layer in others:
                values = layer(values.relu())
            return values


class Selector(nn.Module):
    """The feature networks N_S and N_T, the actor and the critic."""

    def __init__(self, student: int, teacher: int, batch_size: int, types: int, feature_hidden: int = 256,
                 hidden: int = 256) -> None:
        """`student` and `teacher` are the widths of the models, `types` the number of types of knowledge."""
        super().__init__()
        self.batch_size = batch_size
        state = 2 * FEATURES * batch_size
        self.student_features = Network(student, feature_hidden, FEATURES)
        self.teacher_features = Network(teacher, feature_hidden, FEATURES)
        self.actor = Network(state, hidden, hidden, types)
        self.critic = Network(state + types, hidden, hidden, 1)
        for network in (self.actor, self.critic):
            for parameter in network.layers[-1].parameters():
                nn.init.uniform_(parameter, -NEAR_ZERO, NEAR_ZERO)

    def features(self, seen: Seen) -> tuple[Float[Tensor, "n b f"], Float[Tensor, "n b f"]]:
        """N_S and N_T of each example, zero where there is none."""
        absent = ~seen.present.unsqueeze(-1)
        return (self.student_features(seen.student).masked_fill(absent, 0),
                self.teacher_features(seen.teacher).masked_fill(absent, 0))

    def act(self, states: Float[Tensor, "n s"]) -> Float[Tensor, "n k"]:
        """mu: a weight in 0..1 for each type of knowledge (equation 3)."""
        return self.actor(states).sigmoid()

    def judge(self, states: Float[Tensor, "n s"], actions: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
        """Q: what is still to be earned from a state on, beginning with this action."""
        return self.critic(torch.cat([states, actions.to(states.dtype)], dim=1)).squeeze(1)

    @torch.no_grad()
    def choose(self, seen: Seen) -> Float[Tensor, "n k"]:
        """The actions of these steps, as constants."""
        return self.act(joined(*self.features(seen)))

    def frozen(self) -> "Selector":
        """A copy whose weights are buffers: saved and moved with a module, learned by nobody."""
        copied = copy.deepcopy(self)
        for module in copied.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, parameter.detach())
        return copied


def joined(ours: Float[Tensor, "n b f"], theirs: Float[Tensor, "n b f"]) -> Float[Tensor, "n s"]:
    """States from the features of the examples (equation 2)."""
    return torch.cat([ours, theirs], dim=-1).flatten(1)


def padded(student: Float[Tensor, "b ours"], teacher: Float[Tensor, "b theirs"], batch_size: int) -> Seen:
    """One step, as constants, with room for `batch_size` examples."""
    ours, theirs = (F.pad(side.detach(), (0, 0, 0, batch_size - len(side))).unsqueeze(0) for side in (student, teacher))
    present = torch.arange(batch_size, device=student.device) < len(student)
    return Seen(ours, theirs, present.unsqueeze(0))


def hard(actions: Float[Tensor, "*n k"], threshold: float) -> Float[Tensor, "*n k"]:
    """1 for types whose weight reaches the threshold, else 0 (equation 5)."""
    return (actions >= threshold).to(actions.dtype)


def similarity_reward(action: Float[Tensor, " k"], earlier: Float[Tensor, "n k"]) -> Float[Tensor, ""]:
    """Minus the mean cosine to the actions of the segment before (equation 12)."""
    return -F.cosine_similarity(earlier, action.unsqueeze(0), dim=1).mean()


def count_reward(action: Float[Tensor, " k"], earlier: Float[Tensor, "n k"], alpha: float) -> Float[Tensor, ""]:
    """alpha / sqrt(1 + how often the segment before did the same), for hard actions (equation 13)."""
    return alpha / (1 + (earlier == action).all(dim=1).sum()).to(action.dtype).sqrt()


def estimated_rewards(selector: Selector, segment: Segment, gamma: float,
                      full_gradient: bool = False) -> Float[Tensor, " n"]:
    """r_t = Q(s_t, a_t) - gamma Q(s_t+1, mu(s_t+1)), where nothing follows the last step (equation 11).

    Teaches the critic and N_T. The following value is a constant, except with `full_gradient`.
    """
    ours, theirs = selector.features(segment.seen)
    states, steps = joined(ours.detach(), theirs), len(segment.actions)
    values = selector.judge(states[:steps], segment.actions)
    following = selector.judge(states[1:], selector.act(states[1:]).detach())
    following = F.pad(following, (0, steps - len(following)))
    return values - gamma * (following if full_gradient else following.detach())


def stepwise_loss(estimates: Float[Tensor, " n"], rewards: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """For rewards that are known step by step (equation 9)."""
    return F.mse_loss(estimates, rewards.to(estimates.dtype))


def segment_loss(estimates: Float[Tensor, " n"], reward: float) -> Float[Tensor, ""]:
    """For one reward of all steps, which nobody divides among them (equation 10, of one segment)."""
    return (estimates.sum() - reward).square()


def actor_loss(selector: Selector, seen: Seen) -> Float[Tensor, ""]:
    """Minus the mean value of what the actor would do (equation 7). Teaches the actor and N_S, given the critic."""
    ours, theirs = selector.features(seen)
    states = joined(ours, theirs.detach())
    return -selector.judge(states.detach(), selector.act(states)).mean()
