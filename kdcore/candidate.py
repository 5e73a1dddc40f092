"""One trained student with all that a registry must know of it, checked to be what DVC recorded.

A registered model leads back to git and DVC, so a student that was trained by hand, or whose evaluation belongs to
another student, is refused before anything is written.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kdcore import config
from kdcore.data.prepared import Prepared, PreparedInfo
from kdcore.errors import UserError, did_you_mean
from kdcore.layout import Layout
from kdcore.lineage import Revision, hash_folder, read_lock, record_key, revision
from kdcore.method_config import MethodEntry
from kdcore.pair_config import Pair
from kdcore.tracking_store import study_name

Scores = dict[str, dict[str, float]]
"""Split name -> metric name -> value."""
NOT_METRICS = ("degenerate", "n")
RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Candidate:
    """A student that can be registered.

    checkpoint   hash of its folder, as DVC would give; equal for equal bytes
    hashes       DVC hashes of what it came from: student (all seeds), prepared, teacher, evaluation
    all_seeds    scores of every seed of the method, this one too
    intervals    of 95 %, split -> metric -> bounds, over the examples of the split; where predictions tell them
    latency      as measured on this machine (`kdcore.evaluation.cost.latency`); None where it was not
    taught_by    who its teacher is where that is an average of models or files; empty for one model
    origin       where its first weights came from, as `kdcore.origin` tells; empty where from its teacher
    selector     where the selector came from that weighed its knowledge, as `kdcore.selector_folder` tells; else empty
    variant      what its method is and what the study says of it, where the method has a name of its own there
    """

    study: str
    dataset: str
    method: str
    seed: int
    folder: Path
    evaluation: Path
    info: PreparedInfo
    checkpoint: str
    hashes: dict[str, str]
    code: Revision
    scores: Scores
    all_seeds: list[Scores]
    intervals: dict[str, dict[str, tuple[float, float]]]
    teacher_scores: Scores
    parameters: int
    latency: dict[str, Any] | None
    settings: dict[str, Any]
    taught_by: str = ""
    origin: dict[str, Any] = field(default_factory=dict)
    selector: dict[str, Any] = field(default_factory=dict)
    variant: MethodEntry | None = None

    @property
    def method_file(self) -> str:
        """What `method`, its name in the study, is."""
        return self.variant.file if self.variant else self.method

    @property
    def stage(self) -> str:
        """The DVC stage that trained it."""
        return f"distill@{self.dataset}-{self.method}"

    @property
    def predictions(self) -> dict[str, Path]:
        """Its predictions per scored split."""
        files = {split: self.evaluation / "predictions" / f"seed-{self.seed}" / f"{split}.parquet"
                 for split in self.info.with_role("select", "report", "ood")}
        return {split: path for split, path in files.items() if path.is_file()}


def gather(study: config.Study, layout: Layout, dataset: str, method: str, seed: int) -> Candidate:
    """Collect one student.

    Raises:
        UserError: it was not trained or evaluated, DVC does not know these bytes, or its label names are not the
            dataset's.
    """
    study.dataset(dataset)
    folder = layout.student(dataset, method) / f"seed-{seed}"
    _check_exists(layout, dataset, method, seed, folder)
    info = Prepared.load(layout.prepared(dataset)).info
    _check_labels(folder, info)
    hashes = _checked_hashes(layout, dataset, method)
    scores = read_scores(layout, dataset, method)
    if f"seed-{seed}" not in scores:
        raise UserError(f"{layout.evaluation(dataset, method)} has no scores of seed {seed} (it has "
                        f"{', '.join(scores) or 'none'}); run `dvc repro evaluate@{dataset}-{method}`")
    training, record = study.student_training(dataset, method).model_dump(), _record(folder)
    entry = study.method(method, dataset)
    return Candidate(
        study=study_name(layout.study), dataset=dataset, method=method, seed=seed, folder=folder,
        evaluation=layout.evaluation(dataset, method), info=info, checkpoint=hash_folder(folder), hashes=hashes,
        code=revision(layout.study), scores=scores[f"seed-{seed}"], all_seeds=list(scores.values()),
        intervals=_intervals(layout.evaluation(dataset, method) / "predictions" / f"seed-{seed}", info,
                             scores[f"seed-{seed}"]),
        teacher_scores=read_scores(layout, dataset, "teacher").get("teacher", {}), parameters=_parameters(folder),
        latency=_latency(layout, dataset, method),
        settings={"method": {"name": entry.file, **entry.options}, "training": training,
                  "pair": _pair(study.pair), "seed": seed}, taught_by=record.get("taught_by", ""),
        origin=record.get("origin", {}), selector=record.get("selector", {}),
        variant=entry if entry.is_variant else None)


def best(study: config.Study, layout: Layout, dataset: str,
         methods: Sequence[str] | None = None) -> tuple[str, int, str]:
    """The student to release: of the method with the best mean over seeds, its best seed. Also says why.

    `methods` are those to choose from, by default all of the study.

    Both are decided on the split that selects, by the mean of the dataset's metrics; ties go to the first.

    Raises:
        UserError: a method of the study has no evaluation.
    """
    study.dataset(dataset)
    info = Prepared.load(layout.prepared(dataset)).info
    means: dict[str, float] = {}
    seeds: dict[str, dict[int, float]] = {}
    for method in methods or study.study.methods:
        scores = read_scores(layout, dataset, method)
        seeds[method] = {seed: selection_score(scores[f"seed-{seed}"], info) for seed in study.study.seeds
                         if f"seed-{seed}" in scores}
        missing = [str(seed) for seed in study.study.seeds if seed not in seeds[method]]
        if missing:
            raise UserError(f"{method} on {dataset} has no scores of seed {', '.join(missing)}; run "
                            f"`dvc repro evaluate@{dataset}-{method}`, then register")
        means[method] = sum(seeds[method].values()) / len(seeds[method])
    method = max(means, key=lambda name: means[name])
    seed = max(seeds[method], key=lambda number: seeds[method][number])
    metrics = " and ".join(info.metrics)
    over = "1 seed" if len(seeds[method]) == 1 else f"{len(seeds[method])} seeds"
    return method, seed, (f"{method} has the best mean {metrics} over {over} on {info.select} "
                          f"({means[method]:.4f}), seed {seed} is its best ({seeds[method][seed]:.4f})")


def selection_score(scores: Scores, info: PreparedInfo) -> float:
    """Mean of the dataset's metrics on the split that selects; higher is better."""
    return sum(scores[info.select][name] for name in info.metrics) / len(info.metrics)


def read_scores(layout: Layout, dataset: str, method: str) -> dict[str, Scores]:
    """`seed-N`, or `teacher`, -> scores; empty before the evaluation.

    Raises:
        UserError: the file is damaged.
    """
    path = layout.evaluation(dataset, method) / "metrics.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {who: {split: {name: float(value) for name, value in values.items() if name not in NOT_METRICS}
                      for split, values in splits.items()}
                for who, splits in content.items() if who == "teacher" or who.startswith("seed-")}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and run "
                        f"`dvc repro evaluate@{dataset}-{method}`") from None


def _check_exists(layout: Layout, dataset: str, method: str, seed: int, folder: Path) -> None:
    if (folder / "config.json").is_file():
        return
    here = sorted(p.name.removeprefix("seed-") for p in layout.student(dataset, method).glob("seed-*"))
    if here:
        raise UserError(f"{method} on {dataset} has no student of seed {seed}; {did_you_mean(str(seed), here)}")
    methods = sorted(p.name for p in layout.student(dataset, method).parent.glob("*"))
    hint = f"; {did_you_mean(method, methods)}" if methods else ""
    raise UserError(f"{folder} holds no student{hint}; run `dvc repro distill@{dataset}-{method}` first")


def _check_labels(folder: Path, info: PreparedInfo) -> None:
    names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("id2label", {})
    own = tuple(names[key] for key in sorted(names, key=int))
    wanted = info.labels if info.labels is not None else own[:1]
    if own != wanted:
        raise UserError(f"{folder} calls its classes {', '.join(own)}, the dataset {', '.join(wanted)}; a model with "
                        "other names would answer wrongly, train it again with `dvc repro`")


def _checked_hashes(layout: Layout, dataset: str, method: str) -> dict[str, str]:
    """DVC hashes by kind, after comparing the student's and the evaluation's files with them."""
    stages = read_lock(layout.study)
    outs = {out["path"]: (out.get("md5", ""), name) for name, stage in stages.items() for out in stage.get("outs", ())}
    folders = {"student": layout.student(dataset, method), "evaluation": layout.evaluation(dataset, method),
               "prepared": layout.prepared(dataset), "teacher": layout.teacher(dataset)}
    paths = {kind: folder.relative_to(layout.study).as_posix() for kind, folder in folders.items()}
    hashes = {kind: outs[path][0] for kind, path in paths.items() if path in outs}
    for kind, stage in (("student", "distill"), ("evaluation", "evaluate")):
        command = f"`dvc repro {stage}@{dataset}-{method}`"
        if kind not in hashes:
            raise UserError(f"dvc.lock does not know {paths[kind]}, so it could not be traced back; run {command}")
        if hash_folder(folders[kind]) != hashes[kind]:
            raise UserError(f"{paths[kind]} is not what dvc.lock records ({hashes[kind]}): it was made or changed by "
                            f"hand; run {command}, which restores or makes it")
    evaluated = stages[outs[paths["evaluation"]][1]]
    for dependency in evaluated.get("deps", ()):
        if dependency["path"] == paths["student"] and dependency.get("md5") != hashes["student"]:
            raise UserError(f"{paths['evaluation']} belongs to an earlier student; run "
                            f"`dvc repro evaluate@{dataset}-{method}`")
    return hashes


def _intervals(folder: Path, info: PreparedInfo, scores: Scores) -> dict[str, dict[str, tuple[float, float]]]:
    """Bootstrap intervals of a model's scores; a metric that needs more than predicted classes has none."""
    import numpy as np
    import pyarrow.parquet as pq

    from kdcore.analysis.resampling import resampled
    from kdcore.evaluation.metrics import CLASS_METRICS, SCORE_METRICS

    column = "score" if info.regression else "prediction"
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for split, values in scores.items():
        if not (path := folder / f"{split}.parquet").is_file():
            continue
        table = pq.read_table(path, columns=["label", column])
        predictions, labels = table[column].to_numpy()[None], table["label"].to_numpy()
        for metric in values.keys() & {*CLASS_METRICS, *SCORE_METRICS}:
            draws = resampled(metric, predictions, labels, RESAMPLES, seed=0)[:, 0]
            low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            found.setdefault(split, {})[metric] = float(low), float(high)
    return found


def _pair(pair: Pair) -> dict[str, Any]:
    """The pair's settings, without those that say how teachers are averaged where there is one."""
    average = {"seeds", "members", "average", "weights"} if len(pair.teacher.models) < 2 else set()
    return pair.model_dump(exclude={"teacher": average})


def _record(folder: Path) -> dict[str, Any]:
    path = folder / "training.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _parameters(folder: Path) -> int:
    """Number of values in the weights, read from the header of the file."""
    from safetensors import safe_open

    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as weights:
            for name in weights.keys():  # noqa: SIM118 - not a mapping
                size = 1
                for length in weights.get_slice(name).get_shape():
                    size *= length
                total += size
    return total


def _latency(layout: Layout, dataset: str, method: str) -> dict[str, Any] | None:
    """As the evaluation measured it on one seed: all seeds of a method have the same shape. None where it measured
    others than the students that are there."""
    path = layout.measured / f"evaluate@{dataset}-{method}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return next((values["latency"] for seed, values in content.items()
                 if isinstance(values, dict) and isinstance(values.get("latency"), dict)
                 and values.get("of") == record_key(_record(layout.student(dataset, method) / seed))), None)
