"""Layer mappings: the published tables, hand-written pairs, groups, and RAIL's random draw."""

import random
from collections import Counter
from pathlib import Path

import numpy
import pytest

from kdcore.errors import UserError
from kdcore.mapping import (
    RandomLayers,
    blocks,
    even,
    explicit,
    fixed,
    groups,
    last,
    skip,
    student_slots,
    teacher_layer,
    uniform,
)


def teachers(pairs: tuple[tuple[int, int], ...]) -> list[int]:
    assert [student for student, _ in pairs] == list(range(1, len(pairs) + 1))
    return [teacher for _, teacher in pairs]


def test_published_maps() -> None:
    assert teachers(skip(12, 6)) == [2, 4, 6, 8, 10]
    assert teachers(skip(24, 6)) == [4, 8, 12, 16, 20]
    assert teachers(skip(12, 3)) == [4, 8]
    assert teachers(last(12, 6)) == [7, 8, 9, 10, 11]
    assert teachers(last(12, 3)) == [10, 11]


def test_even_equals_skip_where_depths_divide_and_spreads_elsewhere() -> None:
    for n, m in ((12, 6), (24, 6), (12, 3), (6, 3), (4, 4)):
        assert even(n, m) == skip(n, m)
    assert teachers(even(8, 5)) == [2, 3, 5, 6]
    assert teachers(even(10, 4)) == [3, 5, 8]  # 2.5 and 7.5 are rounded up


@pytest.mark.parametrize("rule", [skip, last, even])
def test_rules_never_touch_embeddings_or_last_layer_and_refuse_shallow_teachers(rule: object) -> None:
    for n in range(1, 13):
        for m in range(1, n + 1):
            assert all(1 <= layer <= n - 1 for layer in teachers(rule(n, m)))
    with pytest.raises(UserError, match="teacher of 3 to a student of 4"):
        rule(3, 4)


def test_uniform_ends_with_the_last_layer(golden: Path) -> None:
    with numpy.load(golden / "09_tinybert.npz") as file:
        for name, depths in (("layer_map", (8, 4)), ("map_12_4", (12, 4)), ("map_12_6", (12, 6))):
            assert ((0, 0), *uniform(*depths)) == tuple(enumerate(file[f"out.{name}"].tolist()))
    assert uniform(3, 3) == ((1, 1), (2, 2), (3, 3))
    assert uniform(6, 1) == ((1, 6),)
    for student in (3, 9):
        with pytest.raises(UserError, match=f"teacher of 8 layers .* student of {student}; use a .* 1, 2, 4, 8 layers"):
            uniform(8, student)


def test_explicit_pairs() -> None:
    assert explicit([(2, 4), (0, 0), (1, 2)], 12, 6) == ((0, 0), (1, 2), (2, 4))
    assert explicit([(1, 12), (2, 12)], 12, 6) == ((1, 12), (2, 12))  # one teacher layer may teach two


@pytest.mark.parametrize(
    ("pairs", "lowest", "message"),
    [
        ([], 0, "empty"),
        ([(1, 13)], 0, r"teacher layer 13, expected 0\.\.12"),
        ([(7, 1)], 0, r"student layer 7, expected 0\.\.6"),
        ([(1, 0)], 1, r"teacher layer 0, expected 1\.\.12"),
        ([(-1, 1)], 0, r"student layer -1, expected 0\.\.6"),
        ([(3, 1), (3, 2)], 0, "student layer 3 twice"),
    ],
)
def test_explicit_pairs_that_do_not_fit(pairs: list[tuple[int, int]], lowest: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        explicit(pairs, 12, 6, lowest)


def test_fixed_takes_a_rule_by_name_or_pairs() -> None:
    assert [fixed(rule, 11, 4) for rule in ("skip", "last", "even")] == [skip(11, 4), last(11, 4), even(11, 4)]
    assert fixed(((3, 11), (1, 4)), 11, 4) == ((1, 4), (3, 11))


@pytest.mark.parametrize(
    ("mapping", "depths", "message"),
    [("skip", (12, 1), r"1 layer has no intermediate layer .* `mapping: \[\[1, 12\]\]`"),
     ("last", (3, 4), "teacher of 3 to a student of 4"), (((0, 1),), (12, 6), r"student layer 0, expected 1\.\.6"),
     (((1, 0),), (12, 6), r"teacher layer 0, expected 1\.\.12"), ((), (12, 6), "empty")],
)
def test_fixed_maps_that_do_not_fit(mapping: object, depths: tuple[int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fixed(mapping, *depths)


def test_blocks() -> None:
    assert blocks(range(1, 13), 6) == ((1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12))
    assert blocks(range(1, 12), 5) == ((1, 2, 3), (4, 5), (6, 7), (8, 9), (10, 11))
    assert blocks(range(1, 7), 2, widened=True) == ((1, 2, 3, 4), (3, 4, 5, 6))
    assert blocks(range(1, 5), 4) == ((1,), (2,), (3,), (4,))
    assert blocks(range(1, 5), 1, widened=True) == ((1, 2, 3, 4),)
    with pytest.raises(UserError, match=r"5 student layers .* only 4 teacher layer\(s\)"):
        blocks(range(1, 5), 5)


def test_groups_of_the_released_code() -> None:
    """CKD's own tables, for six layers in two groups."""
    six = range(1, 7)
    assert groups("regular", six, 2) == ((1, 2, 3), (4, 5, 6))
    assert groups("overlap", six, 2) == ((1, 2, 3, 4), (3, 4, 5, 6))
    assert groups("cross", six, 2) == ((1, 3), (4, 6))
    assert groups("interleave", six, 2) == ((1, 3, 5), (2, 4, 6))
    assert groups("skip_middle", six, 2) == ((1, 2), (5, 6))


def test_groups_golden(golden: Path) -> None:
    with numpy.load(golden / "04_ckd.npz") as file:
        for name in ("regular_8_4", "regular_6_2", "overlap_6_2", "cross_6_2", "interleave_6_2"):
            grouping, layers, count = name.split("_")
            expected = tuple(map(tuple, file[f"out.groups_{name}"].tolist()))
            assert groups(grouping, range(1, int(layers) + 1), int(count)) == expected
        balanced = groups("regular", range(1, 12), 5)
        assert [len(group) for group in balanced] == file["out.groups_balanced_11_5_sizes"].tolist()
        assert [group[0] for group in balanced] == file["out.groups_balanced_11_5_first"].tolist()


@pytest.mark.parametrize(
    ("layers", "count", "regular", "cross", "interleave"),
    [
        (12, 3, ((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)), ((1, 4), (5, 8), (9, 12)),
         ((1, 4, 7, 10), (2, 5, 8, 11), (3, 6, 9, 12))),
        (6, 3, ((1, 2), (3, 4), (5, 6)), ((1, 2), (3, 4), (5, 6)), ((1, 4), (2, 5), (3, 6))),
        (7, 3, ((1, 2, 3), (4, 5), (6, 7)), ((1, 3), (4, 5), (6, 7)), ((1, 4, 7), (2, 5), (3, 6))),
        (3, 3, ((1,), (2,), (3,)), ((1,), (2,), (3,)), ((1,), (2,), (3,))),
        (4, 1, ((1, 2, 3, 4),), ((1, 4),), ((1, 2, 3, 4),)),
    ],
)
def test_groups_of_other_depths(layers: int, count: int, regular: object, cross: object, interleave: object) -> None:
    found = [groups(grouping, range(1, layers + 1), count) for grouping in ("regular", "cross", "interleave")]
    assert found == [regular, cross, interleave]


@pytest.mark.parametrize("pair", [(12, 6), (24, 6), (12, 3), (6, 3), (6, 2), (11, 5), (23, 5), (6, 6)], ids=str)
def test_every_layer_is_in_a_group_and_neighbours_overlap(pair: tuple[int, int]) -> None:
    layers, count = pair
    for grouping in ("regular", "interleave"):
        flat = [layer for group in groups(grouping, range(1, layers + 1), count) for layer in group]
        assert sorted(flat) == list(range(1, layers + 1))
    for group, block in zip(groups("overlap", range(1, layers + 1), count),
                            groups("regular", range(1, layers + 1), count), strict=True):
        assert group == tuple(range(max(block[0] - 1, 1), min(block[-1] + 1, layers) + 1))


@pytest.mark.parametrize("grouping", ["regular", "overlap", "cross", "interleave", "skip_middle"])
def test_more_groups_than_layers(grouping: str) -> None:
    with pytest.raises(UserError, match=r"4 student layers .* only 3 teacher layer\(s\)"):
        groups(grouping, range(1, 4), 4)


def test_skip_middle_elsewhere_names_the_others() -> None:
    with pytest.raises(UserError, match="not for 12 in 6; use regular, overlap, cross or interleave"):
        groups("skip_middle", range(1, 13), 6)


def test_student_slots() -> None:
    assert student_slots(None, 6) == (1, 2, 3, 4, 5)
    assert student_slots((5, 2), 6) == (2, 5)
    assert student_slots((1,), 1) == (1,)


@pytest.mark.parametrize(
    ("named", "depth", "message"),
    [(None, 1, r"a student of 1 layer has no intermediate layer .* `student_layers: \[1\]`"),
     ((), 6, r"student_layers is empty, expected at least one layer of 1\.\.6"), ((7,), 6, r"layer 7, expected 1\.\.6"),
     ((0,), 6, r"layer 0, expected 1\.\.6"), ((2, 2), 6, "student layer 2 twice")],
)
def test_student_slots_that_do_not_fit(named: tuple[int, ...] | None, depth: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        student_slots(named, depth)


# RAIL's draw


@pytest.mark.parametrize(("n", "m"), [(12, 6), (24, 6), (6, 3), (4, 4), (2, 2)])
def test_draws_are_distinct_sorted_and_intermediate(n: int, m: int) -> None:
    draw = RandomLayers(m - 1, n, seed=1, resample="epoch")
    for epoch in range(200):
        layers = draw.at(epoch, step=0)
        assert len(layers) == m - 1
        assert list(layers) == sorted(set(layers))
        assert all(1 <= layer <= n - 1 for layer in layers)


def test_every_layer_is_equally_likely_and_the_mean_is_the_skip_map() -> None:
    epochs = 22_000
    draw = RandomLayers(5, 12, seed=3, resample="epoch")
    draws = [draw.at(epoch, 0) for epoch in range(epochs)]
    counts = Counter(layer for layers in draws for layer in layers)
    assert sorted(counts) == list(range(1, 12))
    # Four standard deviations of a share of 5/11, and of the j-th of 5 sorted draws from 1..11.
    assert all(abs(count / epochs - 5 / 11) < 4 * (5 / 11 * 6 / 11 / epochs) ** 0.5 for count in counts.values())
    for j in range(1, 6):
        deviation = (j * (6 - j) * 12 * 6 / (36 * 7) / epochs) ** 0.5
        assert abs(sum(layers[j - 1] for layers in draws) / epochs - 2 * j) < 4 * deviation


def test_draw_depends_on_seed_and_epoch_only() -> None:
    straight = RandomLayers(5, 12, seed=5, resample="epoch")
    expected = [straight.at(epoch, step=10 * epoch) for epoch in range(30)]
    random.seed(0)
    resumed = RandomLayers(5, 12, seed=5, resample="epoch")
    for epoch in (17, 3, 17, 29):
        assert resumed.at(epoch, step=10 * epoch + 7) == expected[epoch]
    other = RandomLayers(5, 12, seed=6, resample="epoch")
    assert [other.at(epoch, 0) for epoch in range(30)] != expected
    assert [other.at(epoch, 0) for epoch in range(29)] != expected[1:]  # a seed is no shift of its neighbour


def test_resampling_per_step_and_constancy_within_it() -> None:
    per_step = RandomLayers(5, 12, seed=5, resample="step")
    steps = [per_step.at(epoch=0, step=step) for step in range(20) for _ in range(4)]
    assert all(len(set(steps[4 * i:4 * i + 4])) == 1 for i in range(20))
    assert len(set(steps)) > 10
    per_epoch = RandomLayers(5, 12, seed=5, resample="epoch")
    assert len({per_epoch.at(epoch=2, step=step) for step in range(20)}) == 1


def test_a_draw_is_stable_over_versions() -> None:
    """A run is repeated from its seed years later: these layers must not change."""
    draw = RandomLayers(5, 12, seed=1, resample="epoch")
    assert [draw.at(epoch, 0) for epoch in range(3)] == [(2, 3, 8, 9, 10), (5, 7, 8, 10, 11), (1, 2, 5, 6, 11)]


def test_too_shallow_teacher_names_the_remedy() -> None:
    with pytest.raises(UserError, match=r"5 student layers .* teacher of 5 layer\(s\) has only 4 .* at most 4"):
        RandomLayers(5, 5, seed=1, resample="epoch")


def test_a_teacher_without_intermediate_layers_is_not_answered_with_none_to_name() -> None:
    with pytest.raises(UserError, match=r"teacher of 1 layer has no intermediate layer to draw; use a deeper teacher$"):
        RandomLayers(1, 1, seed=1, resample="epoch")


def test_one_teacher_layer_is_the_last_unless_named() -> None:
    assert [teacher_layer(named, 24) for named in (None, 21, 1)] == [24, 21, 1]
    for named in (0, -1, 25):
        with pytest.raises(UserError, match=rf"teacher_layer is {named}, expected 1\.\.24; leave it out"):
            teacher_layer(named, 24)
