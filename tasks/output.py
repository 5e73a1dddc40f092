"""What a stage's process prints, as a person wants to read it: news, not noise."""

import re
from pathlib import Path

_NOISE = re.compile(r"Running stage '|> |Updating lock file|Generating lock file|To track the changes|\s*git add |"
                    r"To enable auto staging|\s*dvc config core\.autostage|Use `dvc push`|Verifying |"
                    r"\s*$|Modifying stage|Data and pipelines are up to date")
"""Lines of DVC that tell nothing new."""
_CLOSING = re.compile(r"ERROR: (failed to reproduce|failed to run)|For more information|Having any troubles|"
                      r"You can also (ask|visit)")
"""What DVC adds after a failed command has said why."""
_BAR = re.compile(r"\d+%\|")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LogTail:
    """New text of a growing log file, condensed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = ""

    def news(self, most: int) -> list[str]:
        """Lines since the last call, the newest `most`; of a progress bar only its newest state."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        self._offset += len(text)
        *whole, self._rest = (self._rest + text.decode("utf-8", errors="replace")).split("\n")
        lines = [readable(line) for line in whole if not _NOISE.match(line)]
        if "\r" in self._rest:  # a bar rewrites its line and ends it at last
            bar = readable(self._rest)
            self._rest = self._rest[self._rest.rindex("\r"):]
            lines.append(bar)
        news = [line for number, line in enumerate(lines) if line
                and not (_BAR.search(line) and number + 1 < len(lines) and _BAR.search(lines[number + 1]))]
        return news[-most:]


def readable(line: str) -> str:
    """A line as a terminal would show it in the end: the part after the last carriage return, without colours."""
    parts = [part for part in _CONTROL.sub("", line).split("\r") if part.strip()]
    return parts[-1].rstrip() if parts else ""


def reason(log: Path) -> str:
    """Why a failed stage failed: the last line that its command printed, or DVC's when it never ran one."""
    lines = [readable(line) for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    said = [line for line in lines if not _CLOSING.match(line)]
    if said:
        return said[-1].removeprefix("kdflow: ")
    return lines[-1].removeprefix("ERROR: ") if lines else "it printed nothing"
