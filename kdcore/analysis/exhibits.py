"""What the stage `analyse` hands to the report: pictures with data and text, and what is not defined and why."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from kdcore.errors import UserError

INDEX = "analysis.json"


@dataclass(frozen=True)
class Exhibit:
    """One picture. `image` and `data` are files beside the index, `text` says what one sees and how it was computed."""

    title: str
    image: str
    data: str
    text: str


@dataclass(frozen=True)
class Exhibits:
    """All pictures of one dataset. `absent` are sentences on analyses that are not defined here."""

    dataset: str
    shown: tuple[Exhibit, ...]
    absent: tuple[str, ...]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `write` wrote.

        Raises:
            UserError: a file is missing or damaged.
        """
        again = f"run `kdflow analyse {folder.name}` again"
        try:
            content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            found = cls(content["dataset"], tuple(Exhibit(**exhibit) for exhibit in content["shown"]),
                        tuple(content["absent"]))
        except FileNotFoundError:
            raise UserError(f"{folder / INDEX} is missing; {again}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / INDEX} cannot be read ({error}); {again}") from None
        for name in found.files:
            if not (folder / name).is_file():
                raise UserError(f"{folder / name} is missing; {again}")
        return found

    def write(self, folder: Path) -> None:
        """Write the index beside the pictures."""
        text = json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False)
        (folder / INDEX).write_text(text + "\n", encoding="utf-8")

    @property
    def files(self) -> tuple[str, ...]:
        """Pictures and data, each once."""
        return tuple(dict.fromkeys(name for exhibit in self.shown for name in (exhibit.image, exhibit.data)))

    def markdown(self, folder: str) -> list[str]:
        """A section of a report that lies beside `folder`."""
        if not self.shown and not self.absent:
            return []
        parts = ["### Analyses\n"]
        for exhibit in self.shown:
            parts += [f"**{exhibit.title}**\n", f"![{exhibit.title}]({folder}/{exhibit.image})\n",
                      f"{exhibit.text} Data: [{exhibit.data}]({folder}/{exhibit.data}).\n"]
        return [*parts, "".join(f"- {sentence}\n" for sentence in self.absent)] if self.absent else parts


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Numbers with six decimals, which hides the last bits in which machines differ."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([f"{round(value, 6) + 0.0:.6f}" if isinstance(value, float) else value for value in row])
