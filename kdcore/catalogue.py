"""`kdflow models`: what is registered, how good it is and where it came from."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdcore import champions, model_card, tracking_store
from kdcore.errors import UserError, did_you_mean
from kdcore.registry import aliases

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient
    from rich.table import Table

ALIASES = ("champion: the released version, which others load. challenger: the newest other one, not released; `kdflow "
           "promote MODEL` releases it if it passes the gates, `kdflow rollback MODEL` takes that back.")
PAGE = 1000
"""Models that MLflow gives at a time, at most."""
_METRIC = "metric."
_HASH = "dvc."


@dataclass(frozen=True)
class Entry:
    """One version of one registered model."""

    name: str
    version: str
    aliases: tuple[str, ...]
    method: str
    seed: str
    scores: dict[str, str]
    """`split.metric` -> value."""
    selected_on: str
    parameters: int
    revision: str
    checkpoint: str
    description: str
    study: str
    dataset: str
    hashes: dict[str, str]
    """DVC hashes by what they are of: student (all seeds), prepared, teacher, evaluation."""
    gates: str
    """What the gates said when it was last to be promoted, one a line; empty before."""
    reigns: tuple[str, ...]
    """Who was champion of the model when, oldest first."""


def entries(name: str | None = None) -> list[Entry]:
    """All versions, newest first within a model; only those of one model when `name` is given.

    Raises:
        UserError: there is no such model.
    """
    client = tracking_store.connect()
    found = names(client)
    if name is not None and name not in found:
        raise UserError(f"there is no registered model {name!r}; "
                        + (did_you_mean(name, found) if found else "nothing is registered yet, see `kdflow register`"))
    return [entry for known in found if name in (None, known) for entry in _versions(client, known)]


def names(client: "MlflowClient") -> list[str]:
    """All models of kdflow."""
    found: list[str] = []
    token: str | None = None
    while token != "":  # MLflow's token of the last page is empty
        page = client.search_registered_models("name LIKE 'kdflow-%'", PAGE, page_token=token)
        found += [model.name for model in page]
        token = page.token or ""
    return sorted(found)


def one(reference: str) -> Entry:
    """The version that `NAME@ALIAS`, `NAME/VERSION` or `NAME` (its champion) names.

    Raises:
        UserError: there is no such model, alias or version.
    """
    name, at, alias = reference.removeprefix("models:/").partition("@")
    name, slash, version = name.partition("/")
    found = entries(name)
    wanted = version if slash else alias if at else "champion"
    for entry in found:
        if wanted == entry.version or (not slash and wanted in entry.aliases):
            return entry
    known = [entry.version for entry in found] if slash else [word for entry in found for word in entry.aliases]
    hint = did_you_mean(wanted, known) if known else f"see `kdflow models {name}/VERSION`" if found else \
        "it has no versions"
    raise UserError(f"{name} has no {'version' if slash else 'alias'} {wanted!r}; {hint}")


def table(found: list[Entry]) -> "Table":
    """The versions as a table for the terminal."""
    from rich.table import Table

    grid = Table("model", "version", "alias", "method", "seed", "scores", "parameters", "commit", "checkpoint",
                 title="Registered models", title_justify="left", caption=ALIASES, caption_justify="left")
    for entry in found:
        grid.add_row(entry.name, entry.version, ", ".join(entry.aliases), entry.method, entry.seed, _scores(entry),
                     f"{entry.parameters / 1e6:.1f} M", _short(entry.revision), entry.checkpoint[:8])
    return grid


def as_json(found: list[Entry]) -> str:
    """The versions for other programs."""
    return json.dumps([vars(entry) for entry in found], indent=2, ensure_ascii=False)


def page(entry: Entry) -> str:
    """All about a version, for the terminal: its card, what the gates said and who was champion when."""
    gates = entry.gates.splitlines() or ["never tried: it is the first version, or nobody promoted it yet"]
    return "\n".join([
        f"{entry.name} version {entry.version}" + (f": {', '.join(entry.aliases)}" if entry.aliases else ""), "",
        model_card.plain(entry.description), "",
        "**Gates**", "", *(f"- {gate}" for gate in gates), "",
        "**Champions**", "", *(f"- {reign}" for reign in entry.reigns or ("not noted yet",))])


def _versions(client: "MlflowClient", name: str) -> list[Entry]:
    by_version = aliases(client, name)
    reigns = tuple(map(str, champions.history(client, name)))
    found = client.search_model_versions(f"name = '{name}'")
    return [_entry(version, by_version, reigns) for version in sorted(found, key=lambda v: -int(v.version))]


def _entry(version: "ModelVersion", by_version: dict[str, tuple[str, ...]], reigns: tuple[str, ...]) -> Entry:
    tags = version.tags
    scores = {key.removeprefix(_METRIC): value for key, value in tags.items() if key.startswith(_METRIC)}
    hashes = {key.removeprefix(_HASH): value for key, value in tags.items() if key.startswith(_HASH)}
    return Entry(version.name, str(version.version), by_version.get(str(version.version), ()),
                 tags.get("kdflow.method", ""), tags.get("kdflow.seed", ""), scores, tags.get("kdflow.selected_on", ""),
                 int(tags.get("kdflow.parameters", 0)), tags.get("kdflow.revision", ""),
                 tags.get("kdflow.checkpoint", ""), version.description or "", tags.get("kdflow.study", ""),
                 tags.get("kdflow.dataset", ""), hashes, tags.get("kdflow.gates", ""), reigns)


def _scores(entry: Entry) -> str:
    """The split that selected first, then the others."""
    order = sorted(entry.scores, key=lambda key: (not key.startswith(entry.selected_on + "."), key))
    return "\n".join(f"{key.replace('.', ' ', 1)} {float(entry.scores[key]):.3f}" for key in order)


def _short(revision: str) -> str:
    commit, dash, dirty = revision.partition("-")
    return commit[:8] + dash + dirty
