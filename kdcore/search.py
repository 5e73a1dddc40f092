"""The search of a method on a dataset: which points of the study's grid are tried, and what became of them.

A trial is a study of its own, of one dataset, one method and one seed, with a point of the grid in place: the stages
of every study run it, DVC tells whether it is done, and what it shares with others comes from DVC's cache. Optuna
keeps the scores, samples and prunes; its store is `search/optuna.db` in the study's folder. A trial that was killed
is the next to be tried, and goes on from its checkpoint.

Knows nothing of Prefect, DVC and MLflow; `tasks.trials` runs the trials.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kdcore import config, grid, scratch, strict
from kdcore import study as studies
from kdcore.errors import UserError, did_you_mean
from kdcore.export import RECORD
from kdcore.layout import Layout
from kdcore.method_config import DATASETS

if TYPE_CHECKING:
    import optuna

Point = Mapping[str, Any]
"""Value by dotted setting."""

SAMPLERS = ("grid", "random", "tpe")
PRUNERS = ("median", "hyperband")
SEEN = "dev/score"
"""Under which name a journal has the score of an evaluation."""
EVALUATIONS, WHY = "evaluations", "why"
"""What is noted of a trial in Optuna."""


@dataclass(frozen=True)
class Rules:
    """How the points of a grid are tried.

    Attributes:
        seed: of the students, and of what is drawn here.
        sampler: `grid` takes the points in order, `random` in random order, `tpe` as Optuna's sampler of that name
            (tree-structured Parzen estimator) proposes.
        trials: so many points at most; None means all.
        pruner: gives up trials whose score after an epoch is behind: `median` or `hyperband` of Optuna.

    Raises:
        UserError: a name that is not known, a number that does not fit.
    """

    seed: int
    sampler: str = "grid"
    trials: int | None = None
    pruner: str | None = None

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise UserError(f"sampler = {self.sampler!r}; {did_you_mean(self.sampler, SAMPLERS)}")
        if self.pruner is not None and self.pruner not in PRUNERS:
            raise UserError(f"pruner = {self.pruner!r}; {did_you_mean(self.pruner, PRUNERS)}; leave it out to prune "
                            "none")
        if self.trials is not None and self.trials < 1:
            raise UserError(f"trials = {self.trials}: expected 1 or more; leave it out to try all points")
        if self.seed < 0:
            raise UserError(f"seed = {self.seed}: expected 0 or more; leave it out for the first of study.seeds")


@dataclass(frozen=True)
class Tried:
    """What became of a point.

    Attributes:
        score: of the selected checkpoint on the split that selects; of a pruned trial the best so far.
        evaluations: so many came before the end: one per epoch.
        why: of a failed one.
    """

    point: Point
    state: Literal["finished", "pruned", "failed"]
    score: float | None = None
    evaluations: int = 0
    why: str = ""


def searches(study: Path, settings: config.Study, rules: Rules, datasets: tuple[str, ...], methods: tuple[str, ...],
             named: bool) -> "list[Search]":
    """The searches of methods on datasets, by dataset.

    Args:
        named: whether somebody named these methods: then each must have something to search, else one must.

    Raises:
        UserError: the grid says nothing of a method on a dataset, or hyper-parameters in it do not fit.
    """
    from kdcore import methods as files

    if not settings.grid:
        raise UserError(f"{study / 'params.yaml'} has no `grid`, so there is nothing to search; list values to try, "
                        "e.g. `grid: {training.student.learning_rate: [1.0e-5, 2.0e-5]}`")
    found = []
    for dataset in datasets:
        for method in methods:
            points = settings.points(dataset, method)
            if points == ({},):
                if named:
                    raise UserError(f"the grid has no setting that concerns {method} on {dataset}; add one, or leave "
                                    f"{method} out")
                continue
            try:
                for point in points:
                    files.of_entry(settings.at(grid.own(point, dataset, method)).method(method, dataset))
            except UserError as error:
                raise UserError(f"grid: {error}") from None
            found.append(Search(study, settings, dataset, method, points, rules))
    if not found:
        raise UserError(f"the grid has no setting that concerns one of {', '.join(methods)} on {', '.join(datasets)}")
    return found


class Search:
    """The trials of one method on one dataset."""

    def __init__(self, study: Path, settings: config.Study, dataset: str, method: str, points: tuple[Point, ...],
                 rules: Rules) -> None:
        self.study = study
        self.settings = settings
        self.dataset = dataset
        self.method = method
        self.points = points
        self.rules = rules
        self._by_key = {_key(point): point for point in points}
        self._choices = {setting: tuple(dict.fromkeys(_text(point[setting]) for point in points))
                         for setting in points[0]}
        self._order = list(points)
        if rules.sampler != "grid":
            random.Random(rules.seed).shuffle(self._order)
        self._known: set[str] = set()
        """Points that are not tried again: finished, pruned, or tried by this process."""
        self._begun: dict[str, optuna.Trial] = {}

    def read(self) -> None:
        """Read what is known, to look at it."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._axes: dict[str, optuna.distributions.BaseDistribution] = {
            setting: optuna.distributions.CategoricalDistribution(texts) for setting, texts in self._choices.items()}
        place = Layout(self.study).search / "optuna.db"
        place.parent.mkdir(exist_ok=True)
        self._optuna = optuna.create_study(
            storage=f"sqlite:///{place}", study_name=self._name(), direction="maximize", load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=self.rules.seed, constant_liar=True), pruner=self._pruner())

    def open(self) -> None:
        """Read what is known; take up again what a killed process was trying. Call it while nobody else searches."""
        import optuna

        self.read()
        for trial in self._optuna.get_trials(deepcopy=False):
            if trial.state == optuna.trial.TrialState.RUNNING:
                self._optuna.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                self._optuna.enqueue_trial(trial.params)
        self._known = {key for key, tried in self._recorded().items() if tried.state != "failed"}

    def next(self) -> Point | None:
        """Begin a trial and return its point; None when all are tried that should be."""
        import optuna

        proposed = self.rules.sampler != "tpe"
        while (wanted := self._wanted()) is not None:
            if proposed and not self._optuna.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
                self._optuna.enqueue_trial({setting: _text(value) for setting, value in wanted.items()})
            trial = self._optuna.ask(self._axes)
            key = _key(_point(trial.params))
            if key not in self._known:
                self._known.add(key)
                self._begun[key] = trial
                return self._by_key[key]
            self._optuna.tell(trial, state=optuna.trial.TrialState.FAIL)  # the sampler proposes what it knows already
            proposed = True
        return None

    def report(self, point: Point, number: int, score: float) -> bool:
        """Tell the score after evaluation `number`, from 1; returns whether to give the trial up."""
        trial = self._begun[_key(point)]
        trial.report(score, number)
        return self.rules.pruner is not None and trial.should_prune()

    def finish(self, point: Point) -> float:
        """Note that a trial is done; returns its score."""
        record = json.loads(self._record(point).read_text(encoding="utf-8"))
        score = float(record["selected"]["score"])
        trial = self._begun.pop(_key(point))
        trial.set_user_attr(EVALUATIONS, sum("development" in entry for entry in record["history"]))
        self._optuna.tell(trial, score)
        return score

    def prune(self, point: Point) -> None:
        """Note that a trial was given up."""
        import optuna

        self._optuna.tell(self._begun.pop(_key(point)), state=optuna.trial.TrialState.PRUNED)

    def fail(self, point: Point, why: str) -> None:
        """Note that a trial failed; the next process tries it again."""
        import optuna

        trial = self._begun.pop(_key(point))
        trial.set_user_attr(WHY, why)
        self._optuna.tell(trial, state=optuna.trial.TrialState.FAIL)

    def again(self, point: Point) -> None:
        """Try a finished point once more: what it depends on has changed."""
        self._known.discard(_key(point))
        self._optuna.enqueue_trial({setting: _text(value) for setting, value in point.items()})

    def tried(self) -> list[Tried]:
        """What became of every point that was tried, in the order of the grid."""
        found = self._recorded()
        return [replace(found[key], point=point) for key, point in self._by_key.items()
                if key in found and key not in self._begun]

    def best(self) -> Tried | None:
        """The finished trial with the highest score; the first of equals. None where none is finished."""
        finished = [tried for tried in self.tried() if tried.state == "finished"]
        return max(finished, key=lambda tried: tried.score or 0.0, default=None)

    def folder(self, point: Point) -> Path:
        """The folder of a trial, made or brought up to date: a study beside the searched one."""
        return studies.trial(self.study, self._key_of(point), self.content(point))

    def content(self, point: Point) -> dict[str, Any]:
        """The `params.yaml` of a trial: that of the study with the point accepted, and nothing else to do."""
        written = strict.read_yaml(self.study / "params.yaml")
        chosen = {"datasets": [self.dataset], "methods": [self.method], "seeds": [self.rules.seed]}
        selectors = {name: value for name, value in written.get("selectors", {}).items() if name == self.dataset}
        entry = written["methods"][self.method]
        here = entry.get(DATASETS, {}).get(self.dataset, {})  # other datasets are none of its concern
        content = {key: value for key, value in written.items() if key not in ("grid", "selectors")}
        content |= {"study": chosen} | ({"selectors": selectors} if selectors else {})
        content["methods"] = written["methods"] | {self.method: entry | {DATASETS: {self.dataset: here}}}
        return grid.placed(content, grid.own(point, self.dataset, self.method))

    def told(self, point: Point) -> str:
        """`learning_rate 1e-05, temperature 4`."""
        return ", ".join(f"{setting.rpartition('.')[2]} {value}" for setting, value in point.items())

    def evaluations(self, folder: Path, since: float) -> Iterator[float]:
        """The scores that a trial's training has noted, one per evaluation; of what was noted after the time `since`,
        which leaves out the journal of a training before."""
        path = Layout(folder).logs / f"distill@{self.dataset}-{self.method}-seed-{self.rules.seed}.jsonl"
        if path.is_file() and path.stat().st_mtime >= since:
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n") and (score := json.loads(line).get(SEEN)) is not None:
                    yield score

    def _wanted(self) -> Point | None:
        """The next point in order; None when enough are tried."""
        most = len(self.points) if self.rules.trials is None else min(self.rules.trials, len(self.points))
        if len(self._known) >= most:
            return None
        return next(point for point in self._order if _key(point) not in self._known)

    def _recorded(self) -> dict[str, Tried]:
        """How the last trial of each point ended that came to an end of its own."""
        import optuna

        found: dict[str, Tried] = {}
        states = optuna.trial.TrialState
        for trial in self._optuna.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED, states.FAIL)):
            point, seen, noted = _point(trial.params), list(trial.intermediate_values.values()), trial.user_attrs
            if trial.state == states.COMPLETE:
                found[_key(point)] = Tried(point, "finished", trial.value, noted[EVALUATIONS])
            elif trial.state == states.PRUNED:
                found[_key(point)] = Tried(point, "pruned", max(seen, default=None), len(seen))
            elif WHY in noted:  # else its process was killed, or the sampler proposed what was known
                found[_key(point)] = Tried(point, "failed", None, len(seen), noted[WHY])
        return found

    def _name(self) -> str:
        """Of the study in Optuna: trials with other values to choose from, or of other settings, are not comparable."""
        content = self.content(self.points[0])
        sections = ("study", "pair", "training", "features", "gate", "selectors")
        deciding = {section: content.get(section) for section in sections}
        deciding |= {"dataset": content["datasets"][self.dataset], "method": content["methods"][self.method]}
        return scratch.key(f"{self.dataset}-{self.method}", {"settings": deciding, "axes": self._choices})

    def _key_of(self, point: Point) -> str:
        return scratch.key(f"{self.dataset}-{self.method}", {"point": dict(point), "seed": self.rules.seed})

    def _record(self, point: Point) -> Path:
        layout = Layout(studies.trial_folder(self.study, self._key_of(point)))
        return layout.student(self.dataset, self.method) / f"seed-{self.rules.seed}" / RECORD

    def _pruner(self) -> "optuna.pruners.BasePruner":
        import optuna

        if self.rules.pruner == "median":
            return optuna.pruners.MedianPruner()
        return optuna.pruners.HyperbandPruner() if self.rules.pruner == "hyperband" else optuna.pruners.NopPruner()


def _text(value: Any) -> str:
    """A value as Optuna keeps it: of its own kinds of values, texts alone can be all that a setting can."""
    return json.dumps(value, sort_keys=True)


def _point(params: Mapping[str, str]) -> dict[str, Any]:
    return {setting: json.loads(text) for setting, text in params.items()}


def _key(point: Point) -> str:
    return _text(dict(point))
