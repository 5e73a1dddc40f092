"""What the stage `analyse` shows of knowledge selection: the numbers of the log, for methods that select only."""

import csv
import json
from pathlib import Path

import pytest

from kdcore import config
from kdcore.analysis.exhibits import Exhibits
from kdcore.knowledge_types import TYPES
from kdcore.layout import Layout
from kdcore.stages import analyse, distill
from tests.stages.small_study import small_study, with_teacher

METHODS = ("finetune", "knowledge_mix", "ksm")
PICTURES = ["actions.png", "rewards.png", "episodes.png"]
SETTINGS = {"finetune": {}, "knowledge_mix": {"selection": "random_soft"},
            "ksm": {"reward_steps": 5, "episodes": 2, "episode_patience": 2, "dev_rows": "paper"}}


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> tuple[config.Study, Layout]:
    """Two epochs of six steps: as long as a training is that short, the curve has a point for every step."""
    study, layout = small_study(
        tmp_path_factory.mktemp("study") / "toy", layers=6, methods=SETTINGS,
        study={"datasets": ["toy"], "methods": list(METHODS), "seeds": [1]}, features={"kinds": ["logits", "cls"]})
    with_teacher(study, layout)
    for method in METHODS:
        distill.run(study, layout, "toy", method)
    analyse.run(study, layout, "toy")
    return study, layout


def table(layout: Layout, name: str) -> list[dict[str, str]]:
    with (layout.analysis("toy") / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def journal(layout: Layout, method: str) -> list[dict[str, float]]:
    path = layout.logs / f"distill@toy-{method}-seed-1.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def same(written: str, logged: float) -> bool:
    return float(written) == pytest.approx(logged, abs=1e-6)


def test_pictures_of_methods_that_select(analysed: tuple[config.Study, Layout]) -> None:
    _, layout = analysed
    found = Exhibits.load(layout.analysis("toy"))
    assert [exhibit.image for exhibit in found.shown][-3:] == PICTURES
    assert {row["method"] for row in table(layout, "actions")} == {"knowledge_mix", "ksm"}
    assert {row["method"] for name in ("rewards", "episodes") for row in table(layout, name)} == {"ksm"}


@pytest.mark.parametrize(("method", "phases"), [
    ("knowledge_mix", ["distill"]), ("ksm", ["episode-1", "episode-2", "distill"])])
def test_actions_are_those_of_the_log(analysed: tuple[config.Study, Layout], method: str, phases: list[str]) -> None:
    _, layout = analysed
    rows = [row for row in table(layout, "actions") if row["method"] == method]
    assert list(dict.fromkeys(row["phase"] for row in rows)) == phases
    assert len(rows) == 12 * len(phases) * len(TYPES)
    logged = {(int(line["step"]), name): line[f"action/{name}"] for line in journal(layout, method)
              for name in TYPES if f"action/{name}" in line}
    assert len(logged) == len(rows)
    assert all(same(row["action"], logged[int(row["step"]), row["type"]]) for row in rows)


def test_rewards_and_episodes_are_those_of_the_log(analysed: tuple[config.Study, Layout]) -> None:
    _, layout = analysed
    logged = {int(line["step"]): line for line in journal(layout, "ksm") if "reward" in line}
    rows = table(layout, "rewards")
    assert [int(row["step"]) for row in rows] == list(logged) == [5, 10, 12, 17, 22, 24]
    for row in rows:
        for column, name in (("reward", "reward"), ("gain_loss", "gain/loss"), ("gain_accuracy", "gain/accuracy")):
            assert same(row[column], logged[int(row["step"])][name])
    told = [line for line in journal(layout, "ksm") if "epoch/episode/score" in line]
    episodes = table(layout, "episodes")
    assert [row["episode"] for row in episodes] == ["1", "2"]
    for row, line in zip(episodes, told, strict=True):
        assert all(same(row[name], line[f"epoch/episode/{name}"]) for name in ("score", "dev_loss", "accuracy"))
        gained = [float(other["gain_loss"]) for other in rows if other["phase"] == f"episode-{row['episode']}"]
        assert float(row["reward"]) == pytest.approx(sum(gained), abs=1e-5)


def test_nothing_without_selection(analysed: tuple[config.Study, Layout]) -> None:
    study, layout = analysed
    settings = study.study.model_copy(update={"methods": ("finetune",)})
    without = study.model_copy(update={"study": settings})
    before = {path: path.read_bytes() for path in layout.analysis("toy").iterdir()}
    analyse.run(without, layout, "toy")
    found = {path.name for path in layout.analysis("toy").iterdir()}
    assert found.isdisjoint([*PICTURES, *(str(Path(name).with_suffix(".csv")) for name in PICTURES)])
    analyse.run(study, layout, "toy")
    assert {path: path.read_bytes() for path in layout.analysis("toy").iterdir()} == before
