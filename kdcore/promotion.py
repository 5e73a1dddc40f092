"""When a challenger becomes champion: the gates, and what each one saw.

Two finished models are compared, not two methods: the question is whether these weights are better than those, so
the noise that counts is which examples the split happened to hold. It is measured by a paired bootstrap over the
examples on the predictions that were registered with both versions.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kdcore import catalogue, champions, tracking_store
from kdcore.analysis.resampling import resampled
from kdcore.champions import CHAMPION
from kdcore.data.prepared import INFO_FILE, PreparedInfo
from kdcore.errors import UserError, did_you_mean
from kdcore.evaluation.metrics import measure
from kdcore.registry import CHALLENGER, aliases, fetching

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Evidence:
    """What was registered with a version: the dataset, its predictions per split, latency where measured."""

    info: PreparedInfo
    predictions: dict[str, pa.Table]
    latency: dict[str, Any] | None


@dataclass(frozen=True)
class Gate:
    """One condition: whether it is met, and the numbers behind it."""

    name: str
    passed: bool
    reason: str

    def __str__(self) -> str:
        return f"{'passed ' if self.passed else 'REFUSED'} {self.name}: {self.reason}"


def gates(challenger: Evidence, champion: Evidence) -> tuple[Gate, ...]:
    """All gates, met or not."""
    same = challenger.info.labels == champion.info.labels
    checks = [Gate("labels", same, "the same in the same order" if same else
                   f"{_names(challenger.info)} instead of the champion's {_names(champion.info)}")]
    measured = isinstance((challenger.latency or {}).get("batch_1"), dict)
    checks.append(Gate("latency", measured, "measured" if measured else
                       "not measured; set evaluation.latency and evaluate again"))
    if same:
        checks.append(_in_domain(challenger, champion))
        checks += [_out_of_domain(challenger, champion, split) for split in champion.info.with_role("ood")
                   if split in champion.predictions]
    return tuple(checks)


def version_of(model: str) -> tuple[str, str | None]:
    """Name and version of `NAME`, whose version is open, `NAME@ALIAS` or `NAME/VERSION`.

    Raises:
        UserError: there is no such model, alias or version.
    """
    name = model.removeprefix("models:/")
    if "@" not in name and "/" not in name:
        return name, None
    entry = catalogue.one(name)
    return entry.name, entry.version


def rollback(name: str) -> tuple[str, str]:
    """Make the champion before champion again; returns the versions that left and came.

    Raises:
        UserError: no such model, or no champion before that still exists.
    """
    client = tracking_store.connect()
    with tracking_store.lock("registry"):
        _aliases_of(client, name)
        return champions.rollback(client, name, _versions(client, name))


def promote(name: str, version: str | None = None) -> tuple[str, tuple[Gate, ...]]:
    """Make a version, by default the challenger, champion if it passes all gates; returns it and the gates.

    The verdict is kept as the version's tag `kdflow.gates`.

    Raises:
        UserError: no such model or version, it already is the champion, or files of either are gone.
    """
    client = tracking_store.connect()
    with tracking_store.lock("registry"):
        taken = _aliases_of(client, name)
        chosen = version or taken.get(CHALLENGER)
        if chosen is None:
            raise UserError(f"{name} has no {CHALLENGER}; register a student first, or name a version")
        known = _versions(client, name)
        if chosen not in known:
            raise UserError(f"{name} has no version {chosen}; {did_you_mean(chosen, known)}")
        if chosen == taken.get(CHAMPION):
            raise UserError(f"version {chosen} of {name} already is the {CHAMPION}")
        if CHAMPION not in taken:
            raise UserError(f"{name} has no {CHAMPION} to compare with; set the alias in MLflow, or register anew")
        checks = gates(_evidence(client, name, chosen), _evidence(client, name, taken[CHAMPION]))
        client.set_model_version_tag(name, chosen, "kdflow.gates", "\n".join(map(str, checks)))
        if all(gate.passed for gate in checks):
            champions.crown(client, name, chosen, "promoted")
            if taken.get(CHALLENGER) == chosen:
                client.delete_registered_model_alias(name, CHALLENGER)
        return chosen, checks


def _in_domain(challenger: Evidence, champion: Evidence) -> Gate:
    """On the first split of the dataset that had no part in choosing checkpoint, seed and method, where there is one:
    on the split that chose, a student is the best of many there, and enough of them beat the champion by luck."""
    info = champion.info
    split = next((name for name in info.with_role("report") if name in champion.predictions), info.select)
    name = f"better on {split}"
    if reason := _not_comparable(challenger, champion, split):
        return Gate(name, False, reason)
    low, mean, high = _difference(challenger, champion, split, champion.info.metrics)
    return Gate(name, low > 0, f"{_words(mean, low, high)} in {' and '.join(champion.info.metrics)}")


def _out_of_domain(challenger: Evidence, champion: Evidence, split: str) -> Gate:
    name = f"not worse on {split}"
    if reason := _not_comparable(challenger, champion, split):
        return Gate(name, False, reason)
    metrics = champion.info.metrics if champion.info.regression else ("accuracy",)
    low, mean, high = _difference(challenger, champion, split, metrics)
    return Gate(name, high >= 0, f"{_words(mean, low, high)} in {' and '.join(metrics)}")


def _not_comparable(challenger: Evidence, champion: Evidence, split: str) -> str:
    """Why the two cannot be paired on a split; empty when they can."""
    ours, theirs = challenger.predictions.get(split), champion.predictions.get(split)
    if ours is None or theirs is None:
        return f"{'the challenger' if ours is None else 'the champion'} has no predictions of {split}"
    if challenger.info.select != champion.info.select:
        return f"selected on {challenger.info.select}, the champion on {champion.info.select}"
    both = {"text_hash", "label"} & set(ours.column_names) & set(theirs.column_names)  # older versions lack the first
    if not all(ours[column].equals(theirs[column]) for column in both):
        return f"evaluated on other rows ({ours.num_rows} against {theirs.num_rows}); evaluate both on the same data"
    return ""


def _difference(challenger: Evidence, champion: Evidence, split: str,
                metrics: tuple[str, ...]) -> tuple[float, float, float]:
    """Lower bound, value on all examples and upper bound of challenger minus champion, in the mean of the metrics."""
    column = "score" if champion.info.regression else "prediction"
    tables = [challenger.predictions[split], champion.predictions[split]]
    predictions = np.stack([table[column].to_numpy() for table in tables])
    labels = tables[0]["label"].to_numpy()
    draws = np.mean([resampled(metric, predictions, labels, RESAMPLES, seed=0) for metric in metrics], axis=0)
    low, high = np.quantile(draws[:, 0] - draws[:, 1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    ours, theirs = (np.mean([measure(metric, own, labels).value for metric in metrics]) for own in predictions)
    return float(low), float(ours - theirs), float(high)


def _words(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:+.2f} points ({LEVEL:.0%} interval {100 * low:+.2f} to {100 * high:+.2f})"


def _names(info: PreparedInfo) -> str:
    return ", ".join(info.labels) if info.labels else "a score"


def _aliases_of(client: "MlflowClient", name: str) -> dict[str, str]:
    from mlflow.exceptions import MlflowException

    try:
        return {alias: version for version, all_of_it in aliases(client, name).items() for alias in all_of_it}
    except MlflowException:
        known = catalogue.names(client)
        hint = did_you_mean(name, known) if known else "nothing is registered yet"
        raise UserError(f"there is no registered model {name!r}; {hint}") from None


def _versions(client: "MlflowClient", name: str) -> list[str]:
    return [str(found.version) for found in client.search_model_versions(f"name = '{name}'")]


def _evidence(client: "MlflowClient", name: str, version: str) -> Evidence:
    run = client.get_model_version(name, version).run_id or ""
    with TemporaryDirectory() as folder, fetching(name, version):
        place = Path(client.download_artifacts(run, "evaluation", folder))
        info = PreparedInfo.from_json((place / INFO_FILE).read_text(encoding="utf-8"))
        tables = {path.stem: pq.read_table(path) for path in sorted((place / "predictions").glob("*.parquet"))}
        return Evidence(info, tables, json.loads((place / "latency.json").read_text(encoding="utf-8")))
