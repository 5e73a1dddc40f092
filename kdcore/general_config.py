"""`params.yaml` of a general study, which distils an encoder from unlabelled text, as frozen, strict objects.

As in `kdcore.config`, a section holds what one kind of stage needs and nothing else. How tokens are masked has a
section of its own, so that other shares or weights do not write the corpus anew.
"""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from kdcore.config import Training, is_general
from kdcore.errors import UserError, did_you_mean
from kdcore.pair_config import Family
from kdcore.strict import Seed, Strict, parse, read_yaml

TEACHER = "teacher"
"""The name of the study's own teacher among those that a student may have."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class CorpusSource(Strict):
    """One place that texts come from: the user's own `files`, or a hub set.

    `files` are paths inside the study's `data/`, or absolute ones; a folder stands for all files below it that end in
    .txt, .csv, .tsv, .jsonl or .parquet, in the order of their names. `source` is a hub id or a local folder in the
    hub's layout, read as a stream.
    """

    files: tuple[str, ...] = ()
    documents: Literal["paragraph", "line"] = "paragraph"
    """What a document of a .txt file is: lines up to an empty one, or each line."""
    source: str | None = None
    config: str | None = None
    revision: str | None = None
    split: str | None = None
    """Of a hub set; None is `train`."""
    text: tuple[str, ...] = Field(default=("text",), min_length=1)
    """Columns with texts, in all but .txt files; those of one row are one document, in this order."""

    @model_validator(mode="after")
    def _one_kind_of_place(self) -> Self:
        if bool(self.files) == (self.source is not None):
            raise ValueError("an entry of corpus.sources has either `files` (your own) or `source` (a hub set), "
                             f"but this one has {'both' if self.files else 'neither'}")
        for name in ("config", "revision", "split"):
            if self.files and getattr(self, name) is not None:
                raise ValueError(f"an entry of corpus.sources has `files` and `{name}`, which is for a hub set; "
                                 "remove it")
        return self


class Cleaning(Strict):
    """What happens to documents before they are cut into tokens; what it drops is counted in `corpus.json`."""

    unicode: Literal["NFC", "NFKC"] | None = "NFC"
    """Normal form of the characters; None leaves them as they are."""
    control_characters: bool = True
    """Remove control, format and surrogate characters; line breaks and tabs are whitespace."""
    whitespace: bool = True
    """Make one space of each run of it, and one line break of each run with a line break."""
    min_characters: int = Field(default=1, ge=1)
    """Shorter documents are dropped."""
    duplicates: bool = True
    """Drop documents that were read before, character for character."""


class Corpus(Strict):
    """The section `corpus`: unlabelled text, and how it becomes rows of tokens of the teacher's tokenizer.

    `sentences` packs consecutive sentences of a document into rows, as BERT does; `rows` makes each text a row.
    """

    sources: tuple[CorpusSource, ...] = Field(min_length=1)
    """Read one after another."""
    max_length: int = Field(default=128, ge=8)
    """Tokens of a row, special tokens included."""
    packing: Literal["sentences", "rows"] = "sentences"
    pairs: bool = False
    """`sentences` only: each row is two segments with separators, cut at a random end of a sentence."""
    short_sequences: float = Field(default=0.1, ge=0, le=1)
    """`sentences` only: the share of rows that aim at a random smaller length."""
    cleaning: Cleaning = Cleaning()
    shard_rows: int = Field(default=100_000, ge=1)
    """Rows of one file; a killed run loses at most the file that it was at."""
    max_rows: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    """Reading stops at the last row that keeps within it; special tokens count."""
    seed: Seed = 0
    """Of lengths and cuts."""

    @model_validator(mode="after")
    def _pairs_are_of_sentences(self) -> Self:
        if self.pairs and self.packing == "rows":
            raise ValueError("corpus.pairs goes with `packing: sentences`, but packing is `rows`; remove one of them")
        return self


class Masking(Strict):
    """The section `masking`: which tokens are masked for methods with a language modelling loss, and how.

    Of the masked tokens `mask_token` become the mask token, `random_token` a random one, and the rest stays.
    """

    mask_share: float = Field(default=0.15, gt=0, lt=1)
    """Of a row's tokens, special tokens left out; at least one."""
    mask_token: float = Field(default=0.8, ge=0, le=1)
    random_token: float = Field(default=0.1, ge=0, le=1)
    weighting: Literal["uniform", "frequency"] = "uniform"
    """`frequency` draws rare tokens more often, by (count in the corpus)^-`smoothing`, as DistilBERT does."""
    smoothing: float = Field(default=0.7, ge=0)

    @model_validator(mode="after")
    def _shares_leave_room(self) -> Self:
        if self.mask_token + self.random_token > 1:
            raise ValueError(f"masking.mask_token {self.mask_token:g} and random_token {self.random_token:g} sum to "
                             "more than 1; what they leave over stays as it is")
        if "smoothing" in self.model_fields_set and self.weighting == "uniform":
            raise ValueError("masking.smoothing goes with `weighting: frequency`, but weighting is `uniform`; remove "
                             "it, or say `weighting: frequency`")
        return self


class Teacher(Strict):
    """The section `teacher`: a pre-trained encoder. `source` is a hub id, a local folder or `package:NAME`."""

    source: str
    revision: str | None = None


class GeneralTraining(Training):
    """The section `training`: one training run on the corpus. Nothing selects there, so the last weights are kept."""

    teacher_precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the teacher's forward; `auto` is bf16 where the hardware computes it natively."""


class Shape(Strict):
    """What a student is: the size of random layers, or layers of its teacher. What is not said is as in the teacher.

    `layers` takes layers of the teacher, counted from 1: `first`, `last` or `even` with `depth`, or an explicit list.
    Without it all layers are random, `depth` of them.
    """

    layers: Literal["first", "last", "even"] | tuple[int, ...] | None = None
    depth: int | None = Field(default=None, ge=1)
    width: int | None = Field(default=None, ge=1)
    heads: int | None = Field(default=None, ge=1)
    ffn: int | None = Field(default=None, ge=1)
    """Width of the feed-forward layers; of another `width` 4 times that."""
    architecture: Family | None = None
    """Family, where it differs: `distilbert` from a BERT, `roberta` from an XLM-R or the other way round."""
    embeddings: bool = False
    """Random layers on top of the teacher's embeddings."""

    @model_validator(mode="after")
    def _random_or_taken(self) -> Self:
        if isinstance(self.layers, str) and self.depth is None:
            raise ValueError(f"`layers: {self.layers}` needs `depth`, the number of layers")
        if isinstance(self.layers, tuple) and self.depth is not None:
            raise ValueError("`depth` is the length of the list `layers`; remove it")
        for name in ("width", "heads", "ffn") if self.layers is not None else ():
            if getattr(self, name) is not None:
                raise ValueError(f"`layers` of the teacher have its `{name}`; remove one of the two: random layers are "
                                 "`depth` without `layers`")
        if self.layers is not None and self.embeddings:
            raise ValueError("`layers` of the teacher bring its embeddings; remove `embeddings`")
        return self


class Student(Strict):
    """One student. Its name is that of its folder; other students may name it as their `teacher`.

    `options` and `training` replace values of `methods` and of the section `training` for this student.
    """

    teacher: str
    """`teacher`, or another student: a teacher assistant."""
    method: str
    """A name under `methods`; each is a file in `kdcore/general/`."""
    model: Shape = Shape()
    options: dict[str, Any] = Field(default={})
    training: dict[str, Any] = Field(default={})


class GeneralStudy(Strict):
    """The whole of `params.yaml` of a general study. `code` is the checkout, seen from the study folder."""

    code: str
    corpus: Corpus
    masking: Masking
    teacher: Teacher
    training: GeneralTraining
    students: dict[str, Student] = Field(min_length=1)
    methods: dict[str, dict[str, Any]]

    @model_validator(mode="after")
    def _students_fit(self) -> Self:
        for name, student in self.students.items():
            if not NAME.fullmatch(name) or name == TEACHER:
                raise ValueError(f"students.{name} is no name for a student; use letters, digits, - and _, and not "
                                 f"`{TEACHER}`")
            if student.teacher != TEACHER and student.teacher not in self.students:
                raise ValueError(f"students.{name}.teacher = {student.teacher!r} is neither `{TEACHER}` nor a student; "
                                 f"{did_you_mean(student.teacher, [TEACHER, *self.students])}")
            if student.method not in self.methods:
                raise ValueError(f"students.{name}.method = {student.method!r} has no entry under `methods`; "
                                 f"{did_you_mean(student.method, self.methods)}")
            if self.student_training(name).patience is not None:
                raise ValueError(f"students.{name} stops early (patience), but nothing selects in a corpus; remove it")
        try:
            TopologicalSorter({name: {student.teacher} for name, student in self.students.items()}).prepare()
        except CycleError as error:
            raise ValueError(f"students teach each other in a circle: {' <- '.join(error.args[1])}; let one of them "
                             f"have `teacher: {TEACHER}`") from None
        return self

    def student(self, name: str) -> Student:
        """The declaration of a student; raises UserError with near names."""
        if name not in self.students:
            raise UserError(f"student {name!r} is not declared in params.yaml; {did_you_mean(name, self.students)}")
        return self.students[name]

    def student_training(self, name: str) -> GeneralTraining:
        """Training of a student: the study's settings under the student's own."""
        content = self.training.model_dump() | self.students[name].training
        return parse(GeneralTraining, content, f"students.{name}.training")

    def options(self, name: str) -> dict[str, Any]:
        """The hyper-parameters of a student's method as written: those of `methods` under the student's own."""
        student = self.students[name]
        return self.methods[student.method] | student.options

    def chain(self, name: str) -> tuple[str, ...]:
        """The student and those who teach it, from the first assistant on."""
        teacher = self.students[name].teacher
        return (*(() if teacher == TEACHER else self.chain(teacher)), name)


def load(path: Path) -> GeneralStudy:
    """Read and check a `params.yaml` of a general study.

    Raises:
        UserError: the file is missing, is no YAML mapping, is that of another kind of study, or a value does not fit.
    """
    content = read_yaml(path)
    if not is_general(content):
        raise UserError(f"{path} is no general study: it has no section `corpus`; this command is for studies such as "
                        "studies/general-cpu")
    return parse(GeneralStudy, content, str(path))
