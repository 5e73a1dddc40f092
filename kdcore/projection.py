"""Learned linear bridges into one space where teacher and student of unequal widths can be compared."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdcore.losses import mean_cosine, unit
from kdcore.objective import Alarm

COLLAPSE_ALARMS = (
    Alarm("collapse", "projected teacher vectors of a batch are nearly alike (mean cosine above 0.99): the "
          "intermediate loss teaches nothing; set `freeze_teacher_projection: true` or `bias: false`", high=0.99),
    Alarm("spread", "projected teacher vectors of a batch hardly differ (standard deviation below 0.001): the "
          "intermediate loss teaches nothing; set `freeze_teacher_projection: true` or `bias: false`", low=1e-3),
)


class Projection(nn.Module):
    """Maps [b, k, inputs] to [b, k, width], unit vectors by default: one linear map for all k slots, or one per slot.
    Token states [b, k, t, inputs] are mapped alike.

    Computes in float32 also under autocast: the distance of two unit vectors would drown in the rounding
    of bfloat16.
    """

    def __init__(self, inputs: int, width: int, bias: bool = True, maps: int = 1, frozen: bool = False,
                 normalise: bool = True) -> None:
        """`maps` is 1 for a map that all slots share, else k; without `normalise` vectors keep their length."""
        super().__init__()
        self.normalise = normalise
        self.maps = nn.ModuleList(nn.Linear(inputs, width, bias) for _ in range(maps))
        self.requires_grad_(not frozen)

    def forward(self, vectors: Float[Tensor, "b k *tokens inputs"]) -> Float[Tensor, "b k *tokens width"]:
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.to(next(self.parameters()).dtype)
            if len(self.maps) == 1:
                mapped = self.maps[0](vectors)
            else:
                slots = zip(self.maps, vectors.unbind(dim=1), strict=True)
                mapped = torch.stack([linear(slot) for linear, slot in slots], dim=1)
            return unit(mapped) if self.normalise else mapped


class Bridge(nn.Module):
    """Brings the states of student and teacher to one width, each side by one linear map for all of its layers.

    Where the widths agree nothing is learned and states pass as they are. `width` is that of the results.
    """

    def __init__(self, student: int, teacher: int, width: int | None, bias: bool = True,
                 freeze_teacher: bool = False) -> None:
        """`width` is the common one that both sides are mapped to; None maps the student to the teacher's."""
        super().__init__()
        differ = student != teacher
        self.two_sided = differ and width is not None
        self.width = width if differ and width is not None else teacher
        self.student = Projection(student, self.width, bias, normalise=False) if differ else nn.Identity()
        self.teacher = (Projection(teacher, self.width, bias, frozen=freeze_teacher, normalise=False)
                        if self.two_sided else nn.Identity())

    def forward(
        self, student: Float[Tensor, "b k inputs"], teacher: Float[Tensor, "b n others"]
    ) -> tuple[Float[Tensor, "b k width"], Float[Tensor, "b n width"]]:
        return self.student(student), self.teacher(teacher)

    def watch(self, teacher: Float[Tensor, "b n width"]) -> dict[str, Tensor]:
        """`collapse` of the teacher's vectors as they are compared, where both sides are mapped; else nothing."""
        return collapse(teacher) if self.two_sided else {}


@contextmanager
def initialised_from(seed: int) -> Iterator[None]:
    """Weights made inside depend on the seed alone and leave the global generator as it was.

    So methods with and without projections see the same dropout, and runs differ by their method only.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed CUDA too
        yield


def collapse(teacher: Float[Tensor, "b k width"]) -> dict[str, Tensor]:
    """Diagnostics of the trivial optimum where both projections map everything to one vector.

    `collapse` is the mean cosine over pairs of examples in the slot where it is highest, `spread` the
    standard deviation over examples of the vectors' entries in the slot where it is lowest.
    A batch of one tells nothing and gives nothing.
    """
    if len(teacher) < 2:
        return {}
    vectors = teacher.detach()
    return {"collapse": mean_cosine(vectors).max(), "spread": vectors.std(dim=0).mean(dim=-1).min()}
