"""Pictures of knowledge selection: what stands where, and the same bytes every time."""

from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kdcore.analysis import selection_plots
from kdcore.analysis.selection_curves import Entry, read
from tests.analysis.test_selection_curves import point, record


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures in place of files."""
    figures: list[Figure] = []

    def keep(canvas: FigureCanvasAgg, path: Path) -> None:
        figures.append(canvas.figure)

    monkeypatch.setattr(selection_plots, "write", keep)
    return figures


@pytest.fixture
def learned() -> Entry:
    traces = [read(seed, record(*scores)) for seed, scores in ((1, (0.5, 0.6)), (2, (0.7, 0.6, 0.5)))]
    return Entry("ksm", "ksm: actions soft", [trace for trace in traces if trace])


@pytest.fixture
def random_mix() -> Entry:
    trace = read(1, {"history": [{"phase": "distill", "epoch": 1.0, "step": 6, "diagnostics": {}}],
                     "curve": [point("distill", 6, action_feature=0.4)]})
    assert trace is not None
    return Entry("random", "random", [trace])


def test_actions_of_all_phases_beside_those_of_methods_that_learn_nothing(
        learned: Entry, random_mix: Entry, drawn: list[Figure]) -> None:
    selection_plots.draw_actions("toy", [learned, random_mix], Path("unused"))
    first, second = drawn[0].axes
    assert [text.get_text() for text in first.texts] == ["episode 1", "2", "3", "distill"]
    assert [text.get_text() for text in second.texts] == []
    assert first.get_xlim() == (0, 18)
    lines = [line.get_xydata().tolist() for line in first.lines if line.get_color() == selection_plots.COLOURS[0]]
    assert [len(line) for line in lines] == [2, 2, 2, 1]
    assert lines[1] == [[6, 0.2], [8, 0.2]]
    assert lines[3] == [[18, 1.0]]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["label", "feature"]


def test_a_line_per_episode_and_a_column_per_measure(learned: Entry, drawn: list[Figure]) -> None:
    selection_plots.draw_rewards("toy", [learned], ["loss", "f1"], Path("unused"))
    loss, score = drawn[0].axes
    assert [line.get_label() for line in loss.lines[1:]] == ["episode 1", "episode 2", "episode 3"]
    assert loss.lines[1].get_xydata().tolist() == [[4, 0.3]]
    assert score.lines[1].get_xydata().tolist() == [[4, -10.0]]
    assert (loss.get_title(), score.get_title()) == ("fall of the loss", "rise of f1 x 100")


def test_rounding_errors_do_not_fill_an_axis(drawn: list[Figure]) -> None:
    content = record(0.5)
    content["curve"][1]["diagnostics"] |= {"gain/loss": 1e-17, "gain/f1": -1e-17}
    trace = read(1, content)
    assert trace is not None
    selection_plots.draw_rewards("toy", [Entry("ksm", "ksm", [trace])], ["loss", "f1"], Path("unused"))
    assert [axes.get_ylim() for axes in drawn[0].axes] == [(-0.005, 0.005), (-0.5, 0.5)]


def test_the_kept_episode_of_each_seed_has_a_ring(learned: Entry, drawn: list[Figure]) -> None:
    selection_plots.draw_scores("toy", [learned], Path("unused"))
    (axes,) = drawn[0].axes
    rings = [line.get_xydata().tolist() for line in axes.lines if line.get_fillstyle() == "none"]
    assert rings == [[[2, 60.0]], [[1, 70.0]]]
    mean = next(line for line in axes.lines if line.get_label() == "ksm: actions soft")
    assert mean.get_xydata().tolist() == [[1, 60.0], [2, 60.0]]


@pytest.mark.parametrize("draw", [
    lambda entry, path: selection_plots.draw_actions("toy", [entry], path),
    lambda entry, path: selection_plots.draw_rewards("toy", [entry], ["loss"], path),
    lambda entry, path: selection_plots.draw_scores("toy", [entry], path)])
def test_same_values_same_bytes(learned: Entry, tmp_path: Path, draw: Callable[[Entry, Path], None]) -> None:
    for name in "ab":
        draw(learned, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_method_with_a_long_label_leaves_room(learned: Entry, drawn: list[Figure]) -> None:
    selection_plots.draw_actions("toy", [Entry("ksm", "ksm: " + 90 * "word ", learned.traces)], Path("unused"))
    assert drawn[0].axes[0].get_title().count("\n") <= 2
    assert drawn[0].axes[0].get_title().endswith(" ...")
