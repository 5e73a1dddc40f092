"""KSM: a knowledge selection module weighs, step by step, how much of each type of knowledge the student learns.

Wang, Lu, Mu, Hu, Xiao and Zhu, Findings of EMNLP 2022, "Improved Knowledge Distillation for Pre-trained Language Models
via Knowledge Selection". An actor sees the last layer's CLS states of both models for the batch and gives an action a:
  L = sum over types of a_m L_m (soft), or of the L_m with a_m >= lambda (hard)
Types are response, feature, relation and fine-tuning (`kdcore/knowledge_types.py`), and what `knowledge` names beside
them (`kdcore/choice.py`). A critic learns from rewards: by how much the loss on development rows fell over k steps, and
what was new; the actor follows the critic's gradient (`kdcore/selector.py`). Algorithm 2 trains them in `episodes` with
a fresh student each, while its score improves; Algorithm 1, the last phase, trains a fresh student with the best one's.
With `selector` that phase is all, by a selector that has learned before (`learning`, which the stage `selector` runs).

Deviations from the paper: `dev_rows` training rows, which the episodes' students do not learn from, give rewards and
judge episodes, so that rows that select checkpoints or report had no part in the selector; `paper` takes the selection
split for all of it. Our choice where the text is silent: T^2 in response; features of a batch are joined, with zeros
where it is short; actor and critic start near zero; a reward is the loss before minus that after; the value of what
follows is a constant; a hard action without any type takes no step; `noise`, `relative_rewards` and two learning rates
are options. Where widths differ, feature and relation compare after a linear map each.
Released code: none.
"""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from kdcore.choice import Choice
from kdcore.features import FeatureKey, Features
from kdcore.knowledge_types import KnowledgeConfig
from kdcore.objective import Alarm, Batch, Examine, Loss, Needs, Phase, Progress, Setting
from kdcore.projection import initialised_from
from kdcore.selector import Seen, Selector, hard, padded
from kdcore.selector_training import Learning, LearningConfig, Ledger, SelectorLearner, adopted, made_for

NOTHING_WEIGHED = Alarm(
    "largest_action", "the selector weighs every type of knowledge by nearly nothing; `exploration: false` with "
    "`noise: 0.5` and `relative_rewards: true` keeps it from there", low=0.01)


class Config(KnowledgeConfig, LearningConfig):
    """What there is to choose from, and how the selector learns; the paper has BERT-base with batches of 32."""


class Selection(Choice):
    """The candidates, weighed by an action on the batch."""

    couples_examples = True

    def __init__(self, config: Config, setting: Setting) -> None:
        student, teacher = (FeatureKey("cls", dims.layers) for dims in (setting.student, setting.teacher))
        super().__init__(config, setting, always=Needs(frozenset({student}), frozenset({teacher})))
        self.alarms = (*self.alarms, NOTHING_WEIGHED)
        self.config = config
        self.student_state, self.teacher_state = student, teacher

    def seen(self, student: Features, teacher: Features) -> Seen:
        return padded(student[self.student_state], teacher[self.teacher_state], self.setting.batch_size)

    def weighed(self, action: Float[Tensor, " k"], student: Features, teacher: Features, batch: Batch,
                progress: Progress) -> Loss:
        if self.config.actions == "hard":
            action = hard(action, self.config.threshold)
        actions = dict(zip(self.names, action, strict=True))
        parts, found = self.losses(self.names, student, teacher, batch, progress)
        weights: dict[str, Tensor] = {
            name: (self.weights[name] * weight).expand(len(batch.ids)) for name, weight in actions.items()}
        told = {f"action/{name}": weight for name, weight in actions.items()} | {"largest_action": action.max()}
        return Loss(parts, weights, told | found)


class Episodes(Selection):
    """Algorithm 2: the selector learns; each phase is an episode."""

    def __init__(self, config: Config, setting: Setting, selector: Selector, best: Selector) -> None:
        super().__init__(config, setting)
        self.learner = SelectorLearner(selector, config, setting.student.width, setting.teacher.width,
                                       len(self.names), setting.seed)
        self.best = best
        self.ledger = Ledger(config.reward)
        self.held_back = 0 if config.dev_rows == "paper" else config.dev_rows

    @property
    def done(self) -> bool:
        return self.ledger.stale >= self.config.episode_patience

    def before_steps(self, examine: Examine) -> None:
        self.ledger.begin(examine())
        self.reset()
        super().before_steps(examine)
        self.learner.begin()

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        action, exploration = self.learner.choose(self.seen(student, teacher), f"{self.ledger.episode} {progress.step}")
        loss = self.weighed(action, student, teacher, batch, progress)
        return Loss(loss.parts, loss.weights, {**loss.diagnostics, "exploration": exploration})

    def after_step(self, progress: Progress, examine: Examine) -> Mapping[str, float]:
        found = super().after_step(progress, examine)
        full = self.learner.keep()
        return {**found, **self._reward(examine)} if full or progress.step + 1 == progress.total_steps else found

    def after_steps(self, examine: Examine) -> Mapping[str, float]:
        if self.learner.steps and self.learner.reward is None:  # the last step was not taken
            self._reward(examine)
        self.learner.end()
        if self.ledger.is_best():
            self.best.load_state_dict(self.learner.selector.state_dict())
        return {**self.ledger.told(), **super().after_steps(examine)}

    def _reward(self, examine: Examine) -> dict[str, float]:
        reward, gains = self.ledger.gains(examine())
        self.learner.earn(reward)
        return {"reward": reward, **{f"gain/{name}": value for name, value in gains.items()}}


class Use(Selection):
    """Algorithm 1: the selector's actions as they are."""

    def __init__(self, config: Config, setting: Setting, selector: Selector | None) -> None:
        """Without a selector there is nothing but needs and sizes to look at."""
        super().__init__(config, setting)
        self.selector = selector

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        assert self.selector is not None, "the setting brought no selector"
        return self.weighed(self.selector.choose(self.seen(student, teacher))[0], student, teacher, batch, progress)


def learning(config: Config, setting: Setting) -> Learning:
    """The episodes alone; raises UserError when depths and mapping do not fit together."""
    with initialised_from(setting.seed):
        selector = Selector(setting.student.width, setting.teacher.width, setting.batch_size, len(config.weights))
    best = selector.frozen()
    episodes = Episodes(config, setting, selector, best)
    return Learning(
        tuple(Phase(f"episode-{number}", episodes, epochs=config.episode_epochs, keep="last", fresh_student=True)
              for number in range(1, config.episodes + 1)), best, made_for(config, setting, config.weights))


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """The episodes, then the use of the best one, or the use of a ready one; raises UserError when that was made for
    something else, or when depths and mapping do not fit together."""
    if config.selector is not None:
        ready = adopted(setting.selector, config, setting, config.weights) if setting.selector else None
        return (Phase("distill", Use(config, setting, ready)),)
    learned = learning(config, setting)
    return (*learned.phases, Phase("distill", Use(config, setting, learned.best), fresh_student=True))
