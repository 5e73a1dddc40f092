"""docs/tutorial.md as a stranger follows it: commands, settings and the head of the CSV are read from the page."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from kdcore import config, strict
from kdcore.data.own import check_declaration
from kdcore.layout import ROOT, Layout
from tests.flows.checkout import Checkout, free_port
from tests.tiny import POSITIONS, save_tiny, tiny_texts

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
LAYERS = 4
SMALL = {"study": {"methods": ["finetune", "rail_kd_l"], "seeds": [1]},
         "pair": {"student": {"depth": LAYERS // 2}, "max_length": POSITIONS},
         "training": {"teacher": {"epochs": 8, "batch_size": 16, "learning_rate": 2e-3},
                      "student": {"learning_rate": 2e-3}}}
"""What the page's settings lack where the teacher is tiny and starts from random weights."""
WORDS = (("bad", "awful", "dull", "hated"), ("good", "great", "fine", "liked"))
"""By label; the tiny tokenizer knows them."""


def blocks(language: str) -> list[str]:
    """The code blocks of the page in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def settings() -> dict[str, Any]:
    """What a study holds whose owner did as the page says."""
    (given,) = blocks("yaml")
    return strict.read_yaml(ROOT / "params.yaml") | YAML(typ="safe").load(given)


def columns() -> list[str]:
    """The head of the page's CSV."""
    return next(csv.reader(StringIO(blocks("csv")[0])))


def test_the_page_has_six_commands() -> None:
    assert [shlex.split(block)[0] for block in blocks("bash")] == [
        "kdflow", "kdflow", "python", "kdflow", "mlflow", "curl"]


def test_settings_and_data_of_the_page_fit_each_other() -> None:
    study = strict.parse(config.Study, settings(), "params.yaml")
    (name,) = study.study.datasets
    data = study.datasets[name].data
    check_declaration(name, data)
    assert [data.text, data.text_pair, data.label] == columns()
    rows = list(csv.DictReader(StringIO(blocks("csv")[0])))
    assert {row[data.label] for row in rows} == set(data.labels)
    assert set(study.study.methods) <= set(study.methods)
    (answer,) = json.loads(blocks("json")[0])["predictions"]
    assert set(answer) == {"label", *(f"probability:{label}" for label in data.labels)}
    assert f"kdflow-support-{name}@champion" in PAGE


class Stranger(Checkout):
    """Somebody in a fresh checkout under git, who types what the page says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment |= {"KDFLOW_TRACKING": "on", "PATH": programs}
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)

    def types(self, line: str, allowed: tuple[int, ...] = (0,)) -> str:
        """Run one block of the page; returns what the terminal shows."""
        done = subprocess.run(["bash", "-c", line], cwd=self.folder, env=self.environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert done.returncode in allowed, f"{line}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path / "kdflow")


@pytest.fixture
def serving(stranger: Stranger) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Servers to stop in the end."""
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        with suppress(ProcessLookupError):  # it ended by itself, and the test says why
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def write_rows(path: Path, labels: tuple[str, ...], rows: int, seed: int) -> None:
    """Pairs of texts; a word of the second one decides the label, and a tiny model learns that at once."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(columns())
        for number, first in enumerate(tiny_texts(rows, seed, 8)):
            word = WORDS[number % 2][number // 2 % 4]
            table.writerow([first, f"the {first.split()[0]} film was {word}", labels[number % 2]])


def answers(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait for a server."""
    deadline = time.monotonic() + 180
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_a_csv_to_a_served_student(stranger: Stranger, serving: list["subprocess.Popen[bytes]"]) -> None:
    init, doctor, distill, show, serve, ask = blocks("bash")

    stranger.types(init)
    layout = Layout(stranger.folder / init.split()[-1])
    content = strict.merge(settings() | {"code": strict.read_yaml(layout.params)["code"]}, SMALL)
    with layout.params.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(content, file)
    (name,) = content["study"]["datasets"]
    data = content["datasets"][name]["data"]
    for seed, split, rows in ((0, "train", 320), (10, "validation", 80)):
        write_rows(layout.study / data["files"][split], tuple(data["labels"]), rows, seed)
    save_tiny(layout.study / content["pair"]["teacher"]["source"], layers=LAYERS, labels=("a", "b"))

    assert "bad  " not in stranger.types(doctor)

    said = stranger.types(distill)
    assert f"models:/kdflow-support-{name}@champion" in said
    assert "macro F1" in (layout.report / "report.md").read_text(encoding="utf-8")

    told = stranger.types(show)
    assert "champion" in told
    assert name in told

    served = re.search(r"^(\w+), seed 1:", told, re.MULTILINE)
    assert served is not None
    other = next(method for method in content["study"]["methods"] if method != served[1])
    told = stranger.types(f"kdflow register {name} {other} --seed 1 --promote --study {init.split()[-1]}", (0, 2))
    assert re.search(r"^(passed |REFUSED) better on validation: ", told, re.MULTILINE), told

    port, log = str(free_port()), stranger.folder / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(["bash", "-c", f"exec {serve.replace('5001', port)}"], cwd=stranger.folder,
                                   env=stranger.environment, stdout=out, stderr=out, start_new_session=True)
    serving.append(process)
    answers(f"http://127.0.0.1:{port}/ping", process, log)
    (answer,) = json.loads(stranger.types(ask.replace("5001", port)))["predictions"]
    assert answer["label"] in data["labels"]
    assert sum(answer[f"probability:{label}"] for label in data["labels"]) == pytest.approx(1, abs=1e-5)
