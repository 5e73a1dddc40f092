"""Tables fit the terminal whatever they hold, and Markdown keeps every cell."""

import io

import pytest
from rich.console import Console

from kdcore.analysis.statistics import Difference, Summary
from kdcore.analysis.tables import WIDTH, Table, interval, markdown, percent, pieces, probability, show


def wide(columns=14):
    return Table("Quality", ("", *(f"a long split\nmetric {i}" for i in range(columns))),
                 tuple((name, *["83.6 ± 0.4"] * columns) for name in ("teacher", "finetune", "rail_kd_l")),
                 "A caption.")


def shown(tables):
    out = io.StringIO()
    show(tables, Console(width=WIDTH, file=out, highlight=False, emoji=False, markup=False))
    return out.getvalue()


def test_percent():
    assert percent(Summary(0.8361, 0.0042, 5)) == "83.6 ± 0.4"
    assert percent(Summary(0.8361, None, 1)) == "83.6"


def test_interval():
    assert interval(Difference(0.012, 0.003, 0.02, 0.01, 0.03, 1.0, 3, "better")) == "+1.2 [+0.3, +2.0]"
    assert interval(Difference(-0.012, None, None, None, None, 1.0, 2, "not tested")) == "-1.2"


def test_no_printed_line_reaches_a_hundred_columns_and_no_number_is_cut():
    text = shown([wide()])
    assert max(map(len, text.splitlines())) < 100
    assert text.count("83.6 ± 0.4") == 14 * 3
    assert "…" not in text


def test_pieces_repeat_the_names_and_keep_the_caption_once():
    parts = pieces(wide())
    assert len(parts) > 1
    assert [part.caption for part in parts] == [""] * (len(parts) - 1) + ["A caption."]
    assert all(row[0] == name for part in parts for row, name in zip(part.rows, ("teacher", "finetune", "rail_kd_l"),
                                                                     strict=True))
    assert [part.title for part in parts[:2]] == ["Quality", "Quality (continued)"]


def test_a_small_table_stays_whole():
    assert pieces(wide(3)) == [wide(3)]


def test_markdown_keeps_pipes_and_line_breaks_in_cells():
    text = markdown(Table("", ("", "a\nb"), (("x|y", "1"),), "Note."))
    assert text.splitlines() == ["|  | a b |", "| --- | ---: |", "| x\\|y | 1 |", "", "Note."]


def test_square_brackets_are_not_taken_for_markup():
    assert "+1.2 [+0.3, +2.0]" in shown([Table("", ("", "d"), (("x", "+1.2 [+0.3, +2.0]"),))])


def test_a_row_of_another_length_is_a_bug():
    with pytest.raises(ValueError, match="2 cells, expected 3"):
        Table("", ("", "a", "b"), (("x", "1"),))


def test_probabilities():
    assert [probability(p) for p in (None, 0.0004, 0.001, 0.25, 1.0)] == ["", "<0.001", "0.001", "0.250", "1.000"]


def test_the_best_stand_out_in_markdown_and_in_pieces():
    table = Table("t", ("", "a", "b" * 60, "c" * 60), (("x", "1", "2", "3"), ("y", "4", "5", "6")), best=frozenset(
        {(1, 1), (0, 3)}))
    assert "| y | **4** | 5 | 6 |" in markdown(table)
    assert "| x | 1 | 2 | **3** |" in markdown(table)
    assert [piece.best for piece in pieces(table)] == [{(1, 1)}, {(0, 1)}]
