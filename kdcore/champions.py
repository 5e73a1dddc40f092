"""Who was champion when: one tag of the registered model for each change, which nothing ever removes.

`kdflow.champion.0001` is `{"version": "1", "since": "2026-01-31T12:00:00Z", "how": "first"}`, and so on. The alias says
who is champion now; where somebody moved it by other means than ours, the next change notes that first, as `found`.
"""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from kdcore.errors import UserError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

CHAMPION = "champion"
NOTE = "kdflow.champion."
ROLLED_BACK = "kdflow.rolled_back"
"""Since when a version is no champion any more; the tag goes when it becomes one again."""
How = Literal["first", "promoted", "rolled back", "found"]


@dataclass(frozen=True)
class Reign:
    """From when a version was champion (UTC, to the second), and how it came to that."""

    version: str
    since: str
    how: How

    def __str__(self) -> str:
        return f"version {self.version} since {self.since} ({self.how})"


def history(client: "MlflowClient", name: str) -> tuple[Reign, ...]:
    """All changes of a model's champion, oldest first."""
    tags = client.get_registered_model(name).tags
    return tuple(Reign(**json.loads(tags[key])) for key in sorted(tags) if key.startswith(NOTE))


def crown(client: "MlflowClient", name: str, version: str, how: How) -> None:
    """Make a version champion and note it. The caller holds the lock `registry`."""
    now = client.get_registered_model(name).aliases.get(CHAMPION)
    known = history(client, name)
    if now is not None and (not known or known[-1].version != str(now)):
        _note(client, name, len(known) + 1, str(now), "found")
    client.set_registered_model_alias(name, CHAMPION, version)
    _note(client, name, len(history(client, name)) + 1, version, how)
    if ROLLED_BACK in client.get_model_version(name, version).tags:
        client.delete_model_version_tag(name, version, ROLLED_BACK)


def predecessor(reigns: tuple[Reign, ...], champion: str, known: list[str]) -> str | None:
    """Whom a rollback makes champion: the last one before `champion` that was not itself rolled back and that is still
    among the `known` versions; None where there is none."""
    line: list[str] = []
    for reign in reigns:
        if reign.how == "rolled back":
            while line and line[-1] != reign.version:
                line.pop()
        else:
            line.append(reign.version)
    return next((version for version in reversed(line) if version in known and version != champion), None)


def rollback(client: "MlflowClient", name: str, known: list[str]) -> tuple[str, str]:
    """Give the alias back to the champion before; returns who left and who came. The caller holds the lock `registry`.

    The one that left keeps its version, its tags and the note of its time, and gets the tag `kdflow.rolled_back`.

    Raises:
        UserError: there was no other champion, or none that still exists.
    """
    champion = client.get_registered_model(name).aliases.get(CHAMPION)
    if champion is None:
        raise UserError(f"{name} has no {CHAMPION}; `kdflow promote {name}` makes one")
    reigns = history(client, name)
    previous = predecessor(reigns, str(champion), known)
    if previous is None:
        raise UserError(f"{name} had no {CHAMPION} before version {champion} that still exists; "
                        f"`kdflow promote {name}/VERSION` promotes another version if it passes the gates")
    crown(client, name, previous, "rolled back")
    client.set_model_version_tag(name, str(champion), ROLLED_BACK, history(client, name)[-1].since)
    return str(champion), previous


def _note(client: "MlflowClient", name: str, number: int, version: str, how: How) -> None:
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    client.set_registered_model_tag(name, f"{NOTE}{number:04d}", json.dumps(asdict(Reign(version, since, how))))
