"""Pictures of all datasets together: equal values give equal bytes, and every system is told apart."""

from kdcore.analysis.overview_plots import CostPanel, draw_cost, draw_ranks, mark
from kdcore.analysis.ranks import rank


def test_costs_are_drawn_also_where_a_system_has_only_some(tmp_path):
    sizes = {"teacher": (22.7, 83.0)} | {f"method_{n}": (17.4, 75.0 + n) for n in range(9)}
    panels = [CostPanel("parameters, M", sizes),
              CostPanel("latency at batch 1, ms", {"method_1": (12.0, 76.0)})]
    for name in ("a.png", "b.png"):
        draw_cost(panels, "quality x 100", tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").stat().st_size > 10_000
    draw_cost(panels[:1], "quality x 100", tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "a.png").read_bytes()


def test_ranks_are_drawn_with_their_groups(tmp_path):
    ranking = rank({name: [1.0 - place / 10] * 20 for place, name in enumerate("abcd")})
    assert len(ranking.groups) == 3
    for name in ("a.png", "b.png"):
        draw_ranks(ranking, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_systems_are_told_apart():
    assert len({mark(number) for number in range(49)}) == 49
