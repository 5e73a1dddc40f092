"""Curves: same bytes for same values, no metadata, every method in the legend."""

import struct

from matplotlib.figure import Figure

from kdcore.analysis.plots import COLOURS, MARKERS, STYLES, Curve, Panel, draw

PANEL = Panel("rte", "validation (acc)", {
    "teacher": [Curve([1, 2], [0.6, 0.4], [0.7, 0.75])],
    "finetune": [Curve([1, 2, 3], [0.7, 0.6, 0.5], [0.6, 0.65, 0.66]), Curve([1, 2], [0.7, 0.6], [0.61, 0.64])],
    "two_phases": [Curve([1, 2], [3.0, 0.5], [None, 0.7])]})


def chunks(data):
    place, found = 8, []
    while place < len(data):
        length, kind = struct.unpack(">I4s", data[place:place + 8])
        found.append(kind.decode())
        place += 12 + length
    return found


def test_equal_values_give_equal_bytes_without_metadata(tmp_path):
    draw([PANEL, PANEL], tmp_path / "a.png")
    draw([PANEL, PANEL], tmp_path / "b.png")
    data = (tmp_path / "a.png").read_bytes()
    assert data == (tmp_path / "b.png").read_bytes()
    assert not {"tEXt", "iTXt", "zTXt", "tIME", "eXIf"} & set(chunks(data))


def test_other_values_give_other_bytes(tmp_path):
    draw([PANEL], tmp_path / "a.png")
    other = {**PANEL.curves, "teacher": [Curve([1, 2], [0.6, 0.3], [0.7, 0.75])]}
    draw([Panel(PANEL.dataset, PANEL.score, other)], tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


def test_axes_are_labelled_and_methods_are_named(tmp_path, monkeypatch):
    figures = []
    subplots = Figure.subplots
    monkeypatch.setattr(Figure, "subplots", lambda self, *a, **k: figures.append(self) or subplots(self, *a, **k))
    draw([PANEL], tmp_path / "a.png")
    left, right = figures[0].axes
    assert (left.get_xlabel(), left.get_ylabel()) == ("epoch", "mean loss per example")
    assert (right.get_xlabel(), right.get_ylabel()) == ("epoch", "score x 100")
    assert "validation (acc)" in right.get_title()
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["teacher", "finetune", "two_phases"]
    thick = {line.get_label(): line for line in right.get_lines() if not line.get_label().startswith("_")}
    assert list(thick["finetune"].get_xdata()) == [1, 2], "the mean ends where the shortest seed ends"
    assert list(thick["finetune"].get_ydata()) == [60.5, 64.5]
    assert list(thick["two_phases"].get_xdata()) == [2]


def test_the_legend_of_twenty_methods_has_room(tmp_path, monkeypatch):
    figures = []
    subplots = Figure.subplots
    monkeypatch.setattr(Figure, "subplots", lambda self, *a, **k: figures.append(self) or subplots(self, *a, **k))
    draw([Panel("rte", "validation (acc)", {f"method {n}": PANEL.curves["finetune"] for n in range(20)})],
         tmp_path / "a.png")
    legend = figures[0].axes[1].get_legend().get_window_extent()
    assert legend.y0 >= 0
    assert legend.y1 <= figures[0].bbox.height


def test_seven_methods_are_told_apart_by_more_than_colour():
    looks = {(COLOURS[i], STYLES[i % len(STYLES)], MARKERS[i]) for i in range(7)}
    assert len({(style, marker) for _, style, marker in looks}) == 7
