"""Layer mappings: which teacher layer teaches which student layer. Integers in, integers out.

Layer 0 is the embedding output and 1..n (1..m) are the layers of teacher (student). *Intermediate*
layers are 1..n-1: neither embeddings nor the last layer. A mapping is a tuple of (student, teacher).
"""

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from kdcore.errors import UserError

Pairs = tuple[tuple[int, int], ...]
"""(student layer, teacher layer), by student layer."""

Rule = Literal["skip", "last", "even"]
"""A mapping that follows from the two depths alone."""

Grouping = Literal["regular", "overlap", "cross", "interleave", "skip_middle"]
"""How teacher layers are dealt to the student's, see `groups`."""


def skip(teacher_layers: int, student_layers: int) -> Pairs:
    """Every floor(n/m)-th teacher layer for student layers 1..m-1 (PKD-skip, Sun et al. 2019)."""
    _deep_enough(teacher_layers, student_layers)
    stride = teacher_layers // student_layers
    return tuple((j, stride * j) for j in range(1, student_layers))


def last(teacher_layers: int, student_layers: int) -> Pairs:
    """The m-1 teacher layers below the last one for student layers 1..m-1 (PKD-last, Sun et al. 2019)."""
    _deep_enough(teacher_layers, student_layers)
    return tuple((j, teacher_layers - student_layers + j) for j in range(1, student_layers))


def even(teacher_layers: int, student_layers: int) -> Pairs:
    """j n/m rounded half up, for any depths; equals `skip` where m divides n."""
    _deep_enough(teacher_layers, student_layers)
    n, m = teacher_layers, student_layers
    return tuple((j, (2 * j * n + m) // (2 * m)) for j in range(1, m))


def uniform(teacher_layers: int, student_layers: int) -> Pairs:
    """Every n/m-th teacher layer for student layers 1..m, the last for the last (TinyBERT, Jiao et al. 2020).

    Raises UserError when m does not divide n.
    """
    n, m = teacher_layers, student_layers
    if n % m:
        fitting = ", ".join(str(depth) for depth in range(1, n + 1) if n % depth == 0)
        raise UserError(f"every student layer is to learn from the teacher layer at the end of its share, but a "
                        f"teacher of {n} layers has no equal shares for a student of {m}; use a student of {fitting} "
                        "layers")
    return tuple((i, n // m * i) for i in range(1, m + 1))


def explicit(
    pairs: Iterable[tuple[int, int]], teacher_layers: int, student_layers: int, lowest: Literal[0, 1] = 0
) -> Pairs:
    """Pairs as a person wrote them, checked and sorted by student layer.

    `lowest` is 1 for what only transformer layers have (attention), 0 where embeddings count as well.
    Raises UserError on a layer out of range and on a student layer that is named twice.
    """
    result = tuple(sorted(pairs))
    if not result:
        raise UserError("the layer mapping is empty; name at least one pair [student layer, teacher layer]")
    for student, teacher in result:
        for side, layer, depth in (("student", student, student_layers), ("teacher", teacher, teacher_layers)):
            if not lowest <= layer <= depth:
                raise UserError(f"the layer mapping pairs {side} layer {layer}, expected {lowest}..{depth}")
    _no_repeats([student for student, _ in result], "the layer mapping")
    return result


def fixed(mapping: Rule | Pairs, teacher_layers: int, student_layers: int) -> Pairs:
    """The pairs of a rule, or those that a person wrote, of transformer layers (1..m, 1..n).

    Raises UserError when the depths do not fit, a layer is out of range or named twice, or nothing is paired.
    """
    if not isinstance(mapping, str):
        return explicit(mapping, teacher_layers, student_layers, lowest=1)
    pairs = {"skip": skip, "last": last, "even": even}[mapping](teacher_layers, student_layers)
    if not pairs:
        raise UserError(f"a student of {student_layers} layer has no intermediate layer to teach; use a deeper "
                        f"student, or write the pairs: `mapping: [[1, {teacher_layers}]]`")
    return pairs


def blocks(layers: Sequence[int], count: int, widened: bool = False) -> tuple[tuple[int, ...], ...]:
    """Cut layers into contiguous blocks of nearly equal size, the larger ones first; `widened` by one on each side.

    11 layers in 5 blocks have 3, 2, 2, 2, 2. A widened block ends where the layers do: 1..6 in two blocks are 1..4
    and 3..6. Raises UserError when there are fewer layers than blocks.
    """
    if len(layers) < count:
        raise UserError(f"{count} student layers are to be taught by a block each of the teacher's, but only "
                        f"{len(layers)} teacher layer(s) are there; use a deeper teacher or a shallower student")
    size, larger = divmod(len(layers), count)
    bounds = [block * size + min(block, larger) for block in range(count + 1)]
    return tuple(tuple(layers[max(start - widened, 0):end + widened]) for start, end in pairwise(bounds))


def groups(grouping: Grouping, layers: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """One group of teacher layers for each of `count` student layers (CKD, Wu et al. 2020). Of 1..6 in two groups:

    regular      1 2 3 and 4 5 6      contiguous blocks; the first ones are larger where the count does not divide
    overlap      1 2 3 4 and 3 4 5 6  these blocks, widened by one layer on each side
    cross        1 3 and 4 6          the first and the last layer of each block
    interleave   1 3 5 and 2 4 6      every count-th layer
    skip_middle  1 2 and 5 6          defined for six layers in two groups only

    Raises UserError when there are fewer layers than groups, and on `skip_middle` elsewhere.
    """
    regular = blocks(layers, count)
    match grouping:
        case "regular":
            return regular
        case "overlap":
            return blocks(layers, count, widened=True)
        case "cross":
            return tuple(block if len(block) == 1 else (block[0], block[-1]) for block in regular)
        case "interleave":
            return tuple(tuple(layers[start::count]) for start in range(count))
        case "skip_middle":
            if (len(layers), count) != (6, 2):
                raise UserError(f"grouping skip_middle is defined for 6 teacher layers in 2 groups, not for "
                                f"{len(layers)} in {count}; use regular, overlap, cross or interleave")
            return regular[0][:2], regular[1][1:]


def student_slots(named: tuple[int, ...] | None, student_layers: int) -> tuple[int, ...]:
    """The student layers that are taught: those named, else all intermediate ones.

    Raises UserError on a repeat, a layer outside 1..m, and when nothing is left to teach.
    """
    if named is None:
        if student_layers == 1:
            raise UserError("a student of 1 layer has no intermediate layer to teach; use a deeper student, or name "
                            "its layer: `student_layers: [1]`")
        return tuple(range(1, student_layers))
    if not named:
        raise UserError(f"student_layers is empty, expected at least one layer of 1..{student_layers}")
    slots = tuple(sorted(named))
    for layer in slots:
        if not 1 <= layer <= student_layers:
            raise UserError(f"student_layers names layer {layer}, expected 1..{student_layers}")
    _no_repeats(slots, "student_layers")
    return slots


def teacher_layer(named: int | None, teacher_layers: int) -> int:
    """The one teacher layer that teaches: that named, else the last.

    Raises UserError on a layer outside 1..n.
    """
    if named is not None and not 1 <= named <= teacher_layers:
        raise UserError(f"teacher_layer is {named}, expected 1..{teacher_layers}; leave it out for the last layer")
    return named or teacher_layers


class RandomLayers:
    """Draws distinct intermediate teacher layers for the student's slots, anew per epoch or step.

    As in RAIL-KD (Haidar et al. 2022): uniform without replacement from 1..n-1, sorted. The draw
    depends on the seed and the epoch (step) only: it touches no global generator, is equal on every
    rank and after a resume, and stays the same over the micro-batches of one step.
    """

    def __init__(self, slots: int, teacher_layers: int, seed: int, resample: Literal["epoch", "step"]) -> None:
        """Raises UserError when the teacher has fewer intermediate layers than there are slots."""
        self.candidates = range(1, teacher_layers)
        if not self.candidates:
            raise UserError("a teacher of 1 layer has no intermediate layer to draw; use a deeper teacher")
        if len(self.candidates) < slots:
            raise UserError(f"{slots} student layers are to be taught, but a teacher of {teacher_layers} layer(s) has "
                            f"only {len(self.candidates)} intermediate ones; use a deeper teacher or a shallower "
                            f"student, or name at most {len(self.candidates)} student layers in `student_layers`")
        self.slots = slots
        self._seed = seed
        self._resample = resample
        self._drawn_for = -1
        self._drawn: tuple[int, ...] = ()

    def at(self, epoch: int, step: int) -> tuple[int, ...]:
        """The teacher layers at this moment, ascending; the j-th teaches the j-th slot."""
        moment = epoch if self._resample == "epoch" else step
        if moment != self._drawn_for:
            # A text seed is hashed with SHA-512: neighbouring seeds and epochs share nothing, unlike seed + epoch.
            generator = random.Random(f"{self._seed} {self._resample} {moment}")
            self._drawn = tuple(sorted(generator.sample(self.candidates, self.slots)))
            self._drawn_for = moment
        return self._drawn


def _deep_enough(teacher_layers: int, student_layers: int) -> None:
    if not 1 <= student_layers <= teacher_layers:
        raise UserError(f"no mapping from a teacher of {teacher_layers} to a student of {student_layers} layers; "
                        f"the student needs 1..{teacher_layers} layers")


def _no_repeats(layers: Iterable[int], where: str) -> None:
    seen: set[int] = set()
    for layer in layers:
        if layer in seen:
            raise UserError(f"{where} names student layer {layer} twice; each student layer has one teacher layer")
        seen.add(layer)
