"""The section `pair` of `params.yaml`: who teaches, and how the student is initialised."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kdcore.strict import Seed, Strict

Family = Literal["bert", "distilbert", "roberta", "xlm-roberta", "mpnet", "electra", "deberta-v2", "modernbert"]
FILES = "files"
"""`pair.teacher.source` where the teacher is files of answers."""


class Member(Strict):
    """One of several teachers. `seed` of its training; None means that of `training.teacher`."""

    source: str
    revision: str | None = None
    seed: Seed | None = None


class TeacherModel(Strict):
    """Who teaches: one model that is fine-tuned on each dataset, or the average of several, or files of answers.

    `source` is a hub id, a local folder, `package:NAME` for weights that travel in a Python package, or `files`: every
    dataset names the answers of its teacher in `data.teacher_files`. Several models are `seeds` of one source, or
    `members`. `average` says what of them is averaged; `weights` need not sum to 1 and are equal where not given.
    """

    source: str | None = None
    revision: str | None = None
    seeds: tuple[Seed, ...] = ()
    members: tuple[Member, ...] = ()
    average: Literal["logits", "probabilities"] = "logits"
    weights: tuple[Annotated[float, Field(gt=0)], ...] = ()

    @property
    def models(self) -> tuple[Member, ...]:
        """What is fine-tuned; empty where the teacher is files."""
        if self.members or self.source in (None, FILES):
            return self.members
        return tuple(Member(source=self.source, revision=self.revision, seed=seed) for seed in self.seeds or (None,))

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.source is None and not self.members:
            raise ValueError("pair.teacher names no model: give its `source`, several `members`, or `source: files` "
                             "for a teacher that is only a file")
        if self.source is not None and self.members:
            raise ValueError("pair.teacher has `source` and `members`; several sources all belong into `members`")
        if self.members and (self.seeds or self.revision is not None):
            raise ValueError("pair.teacher has `members` beside `seeds` or `revision`; give each member its own `seed` "
                             "and `revision`")
        if not self.models and (self.revision is not None or self.seeds):
            raise ValueError("pair.teacher has `source: files`, which has no revision and no seeds; remove them")
        for place, model in enumerate(self.models):
            if model in self.models[:place]:
                raise ValueError(f"pair.teacher names {model.source!r} with seed {model.seed} twice; an average needs "
                                 "models that differ in source, revision or seed")
        if self.weights and len(self.weights) != len(self.models):
            raise ValueError(f"pair.teacher has {len(self.weights)} weights for {len(self.models)} models; give each "
                             "model one weight, or none for equal weights")
        return self


class StudentModel(Strict):
    """How the student is initialised.

    `source` as for the teacher, or `teacher`: this dataset's fine-tuned teacher.
    `layers` picks transformer layers of the source, counted from 1: `first`, `last` or `even` with
    `depth`, or an explicit list; None keeps the source as it is. `random` takes nothing but sizes and tokenizer:
    all weights are drawn. `architecture` is the student's family where it differs from the source's, e.g.
    `distilbert` from the layers of a BERT.
    """

    source: str = "teacher"
    revision: str | None = None
    layers: Literal["first", "last", "even", "random"] | tuple[int, ...] | None = None
    depth: int | None = Field(default=None, ge=1)
    architecture: Family | None = None

    @model_validator(mode="after")
    def _depth_goes_with_a_rule(self) -> Self:
        if isinstance(self.layers, str) != (self.depth is not None):
            raise ValueError("`depth` goes with `layers: first`, `last`, `even` or `random`, and only with these")
        return self


class Pair(Strict):
    """Teacher and student of a study. `max_length` counts tokens, special tokens included."""

    teacher: TeacherModel
    student: StudentModel = StudentModel()
    max_length: int = Field(default=128, ge=4)
