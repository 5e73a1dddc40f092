"""How records of trainings are read for what they selected, and what tells methods from one another."""

from typing import Any

import pytest

from kdcore.analysis.selection_curves import ACTION, GAIN, Entry, Point, labels, read


def point(phase: str, step: int, **values: float) -> dict[str, Any]:
    return {"phase": phase, "step": step, "loss": 1.0, "parts": {},
            "diagnostics": {name.replace("_", "/"): value for name, value in values.items()}}


def entry(phase: str, step: int, **values: float) -> dict[str, Any]:
    return {"phase": phase, "epoch": step / 4, "step": step,
            "diagnostics": {f"episode/{name}": value for name, value in values.items()}}


def record(*scores: float) -> dict[str, Any]:
    """Episodes of two epochs of two steps, and a distillation of six steps."""
    history, curve, before = [], [], 0
    for number, score in enumerate(scores, 1):
        phase = f"episode-{number}"
        history += [entry(phase, 2), entry(phase, 4, score=score, reward=0.5)]
        curve += [point(phase, before + 2, action_label=0.1 * number),
                  point(phase, before + 4, action_label=0.2, reward=0.3, gain_loss=0.3, gain_f1=-0.1)]
        before += 4
    return {"history": [*history, entry("distill", 6)], "curve": [*curve, point("distill", before + 6, action_label=1)]}


def test_steps_count_within_phases_and_over_all() -> None:
    trace = read(7, record(0.5, 0.6))
    assert trace is not None
    assert trace.seed == 7
    assert trace.lengths == {"episode-1": 4, "episode-2": 4, "distill": 6}
    assert [(one.phase, one.step, one.step_of_all) for one in trace.points] == [
        ("episode-1", 2, 2), ("episode-1", 4, 4), ("episode-2", 2, 6), ("episode-2", 4, 8), ("distill", 6, 14)]
    assert trace.points[1].by_name(GAIN) == {"loss": 0.3, "f1": -0.1}
    assert [one.step_of_all for one in trace.rewarded] == [4, 8]
    assert trace.episodes == [{"score": 0.5, "reward": 0.5}, {"score": 0.6, "reward": 0.5}]


@pytest.mark.parametrize(("scores", "best"), [((0.5, 0.7, 0.6), 2), ((0.5, 0.5), 1)])
def test_the_best_episode_is_the_first_of_equals(scores: tuple[float, ...], best: int) -> None:
    trace = read(1, record(*scores))
    assert trace is not None
    assert trace.best_episode == best


def test_nothing_is_read_where_nothing_was_selected() -> None:
    assert read(1, {"history": [entry("distill", 6)], "curve": [point("distill", 6, collapse=0.1)]}) is None
    assert read(1, {"history": [{"phase": "distill", "epoch": 1.0}], "curve": []}) is None


def test_seeds_that_played_fewer_episodes() -> None:
    """Phases stand in the order of the longest training; means are over those that have a value there."""
    traces = [trace for seed, scores in ((1, (0.5,)), (2, (0.5, 0.6, 0.6))) if (trace := read(seed, record(*scores)))]
    both = Entry("ksm", "ksm", traces)
    assert list(both.lengths) == ["episode-1", "episode-2", "episode-3", "distill"]
    assert both.names(ACTION) == ["label"]
    assert both.over_seeds("action/label", "episode-1") == {2: [0.1, 0.1], 4: [0.2, 0.2]}
    assert both.over_seeds("action/label", "episode-3") == {2: [pytest.approx(0.3)], 4: [0.2]}
    assert both.over_seeds("gain/loss", "distill") == {}


def test_points_keep_their_values_by_prefix() -> None:
    assert Point("a", 1, 1, {"action/label": 1.0, "actions": 2.0}).by_name(ACTION) == {"label": 1.0}


def test_labels_say_in_what_entries_of_a_method_file_differ() -> None:
    soft = {"name": "ksm", "actions": "soft", "exploration": True, "knowledge": {"label": 1.0, "feature": 1.0}}
    assert labels({
        "ksm": soft, "hard": soft | {"actions": "hard"}, "bold": soft | {"exploration": False},
        "random": {"name": "knowledge_mix", "selection": "random_soft"},
    }) == {"ksm": "ksm: actions soft, exploration true", "hard": "hard: actions hard, exploration true",
           "bold": "bold: actions soft, exploration false", "random": "random"}
    assert labels({"ksm": soft, "few": soft | {"knowledge": {"label": 1.0}}}) == {
        "ksm": "ksm: knowledge {label: 1.0, feature: 1.0}", "few": "few: knowledge {label: 1.0}"}
