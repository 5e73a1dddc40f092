"""Pictures of layers: same bytes for same values, no metadata, everything labelled."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from kdcore.analysis import layer_plots
from kdcore.analysis.layer_plots import HeatMaps, Watch, decimals
from kdcore.mapping import skip
from tests.analysis.test_plots import chunks


def matrix(students=6, teachers=12, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (students, teachers))


def maps(path, seed=0, methods=3):
    layer_plots.draw_heat_maps(HeatMaps("mrpc: cosine", "mean cosine", {f"m{i}": matrix(seed=seed + i) for i in
                                                                        range(methods)}, -1, 1, skip(12, 6)[:3]), path)


def pairs(path, seed=0):
    layer_plots.draw_pairs("mrpc: pairs", skip(12, 6)[:3], {"a": [matrix(seed=seed), matrix(seed=7)],
                                                            "b": [matrix(seed=8)]}, path)


def draws(path, seed=0):
    table = np.array([[4 + seed, 0, 0], [0, 1, 3 + seed]])
    layer_plots.draw_draws("mrpc: draws", {"rail": table}, {"rail": np.array([[2, 1, 0], [0, 1, 2]]) / 3}, path)


def watches(path, seed=0):
    layer_plots.draw_watches(
        "mrpc: collapse", [Watch("collapse", "cosine", 0.99), Watch("spread", "deviation", 0.001, logarithmic=True)],
        {"rail": [([1, 2], {"collapse": [0.5, 0.6 + seed / 10], "spread": [0.1, None]})]}, {"rail": 3}, path)


DRAWINGS = (maps, pairs, draws, watches)


@pytest.fixture
def figures(monkeypatch):
    seen = []
    subplots = Figure.subplots
    monkeypatch.setattr(Figure, "subplots", lambda self, *a, **k: seen.append(self) or subplots(self, *a, **k))
    return seen


@pytest.mark.parametrize("draw", DRAWINGS)
def test_equal_values_give_equal_bytes_without_metadata(draw, tmp_path):
    draw(tmp_path / "a.png")
    draw(tmp_path / "b.png")
    draw(tmp_path / "c.png", seed=1)
    data = (tmp_path / "a.png").read_bytes()
    assert data == (tmp_path / "b.png").read_bytes() != (tmp_path / "c.png").read_bytes()
    assert not {"tEXt", "iTXt", "zTXt", "tIME", "eXIf"} & set(chunks(data))


def test_heat_maps_have_layers_on_their_axes_and_numbers_in_their_cells(tmp_path, figures):
    maps(tmp_path / "a.png")
    *panels, bar = figures[0].axes
    assert [axes.get_title() for axes in panels] == ["m0", "m1", "m2"]
    assert [label.get_text() for label in panels[0].get_xticklabels()] == [str(layer) for layer in range(1, 13)]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == [str(layer) for layer in range(1, 7)]
    assert {axes.get_ylabel() for axes in panels} >= {"student layer"}
    assert [axes.get_xlabel() for axes in panels] == ["", "teacher layer", "teacher layer"]
    assert bar.get_ylabel() == "mean cosine"
    texts = {text.get_position(): text.get_text() for text in panels[1].texts}
    assert len(texts) == 72
    assert texts[12, 1] == decimals(matrix(seed=1)[0, 11], 2)
    assert panels[0].get_images()[0].get_cmap().name == "cividis"


def test_marked_pairs_get_a_frame_around_their_cells(tmp_path, figures):
    maps(tmp_path / "a.png")
    frames = [(patch.get_x(), patch.get_y()) for patch in figures[0].axes[0].patches]
    assert frames == [(1.5, 0.5), (3.5, 1.5), (5.5, 2.5)]


def test_pairs_have_a_panel_each_with_seeds_and_means(tmp_path, figures):
    pairs(tmp_path / "a.png")
    panels = figures[0].axes
    assert [axes.get_title() for axes in panels] == [f"teacher {2 * layer}, student {layer}" for layer in (1, 2, 3)]
    mean, seeds = panels[2].get_lines()[:2]
    values = [matrix(seed=seed)[2, 5] for seed in (0, 7)]
    np.testing.assert_allclose(seeds.get_xdata(), values)
    np.testing.assert_allclose(mean.get_xdata(), [np.mean(values)])
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["a", "b"]


def test_draws_show_counts_and_expectation(tmp_path, figures):
    draws(tmp_path / "a.png")
    left, right = figures[0].axes
    assert [bar.get_height() for bar in left.patches] == [4, 1, 3]
    assert left.get_lines()[0].get_ydata()[0] == pytest.approx(4 * 2 / 3)
    assert (left.get_xlabel(), left.get_ylabel(), right.get_ylabel()) == ("teacher layer", "times drawn", "slot")
    assert [text.get_text() for text in right.texts] == ["4", "", "", "", "1", "3"]
    np.testing.assert_allclose(right.get_lines()[0].get_xdata(), [4 / 3, 8 / 3])


def test_watches_show_where_training_warns(tmp_path, figures):
    watches(tmp_path / "a.png")
    left, right = figures[0].axes
    assert [text.get_text() for axes in (left, right) for text in axes.texts] == ["warns at 0.99", "warns at 0.001"]
    assert (left.get_xlabel(), left.get_ylabel(), right.get_yscale()) == ("epoch", "cosine", "log")
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["rail"]


@pytest.mark.parametrize(("value", "text"), [(0.834, ".83"), (-0.07, "-.07"), (1.0, "1.00"), (0.999, "1.00"),
                                             (-0.001, ".00"), (-0.999, "-1.00"), (0.0, ".00")])
def test_decimals(value, text):
    assert decimals(value, 2) == text
