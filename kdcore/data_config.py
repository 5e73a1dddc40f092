"""The section `data` of a dataset in `params.yaml`: where its rows come from, and what is done with them."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from kdcore.strict import Seed, Strict


class Files(Strict):
    """The user's own tables, relative to the study folder and inside its `data/`, so that DVC sees changes.

    CSV, JSONL or Parquet by file ending.
    """

    train: str | None = None
    validation: str | None = None
    test: str | None = None


class Unlabelled(Strict):
    """Texts without labels: those of a table inside the study's `data/`, or rows of the training split itself beyond
    `train_rows`. A name alone is the file, a number alone so many rows of the split.

    Columns default to those of the dataset; `rows` takes a seeded random part of that size.
    """

    file: str | None = None
    text: str | None = None
    text_pair: str | None = None
    rows: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"file": value}
        return {"rows": value} if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _from_somewhere(self) -> Self:
        if self.file is None and (self.rows is None or self.text or self.text_pair):
            raise ValueError("`unlabelled` names no `file`; name a table such as data/more.jsonl, or give a number "
                             "alone for so many rows of the training split")
        return self


class OutOfDomain(Strict):
    """A set of the user's own that only evaluates; columns default to those of the dataset."""

    file: str
    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    labels: tuple[str, ...] | None = None
    """Names of this file's classes where they differ; joined with the dataset's by `label_map`."""
    label_map: dict[str, str] = Field(default={})
    """From the dataset's label names to this file's, e.g. {contradiction: neutral}."""


class Augmentation(Strict):
    """TinyBERT's data augmentation of training rows: variants with some words replaced. Defaults are the paper's.

    `model` is the source of a masked language model. `word_vectors` names a file inside the study's `data/`, in GloVe's
    text format, of which the first `word_limit` words count; without it, words of several pieces stay as they are.
    """

    model: str
    revision: str | None = None
    word_vectors: str | None = None
    word_limit: int = Field(default=100_000, ge=1)
    variants: int | None = Field(default=None, ge=1)
    """Draws per text; None is what the paper's code has for the dataset, else 20."""
    replace_probability: float = Field(default=0.4, gt=0, le=1)
    candidates: int = Field(default=15, ge=1)
    """For each word, to draw from."""
    labels: Literal["teacher", "copy"] = "teacher"
    """`teacher`: variants join as rows without labels, which the teacher answers; `copy`: with their row's label."""
    rows: int | None = Field(default=None, ge=1)
    """Only so many labelled training rows, a seeded random part, get variants."""
    public: bool = False
    """Pairs as in the released code: the second text's variants beside the last variant of the first."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the masked language model; `auto` is bf16 where the hardware computes it natively."""
    batch_size: int = Field(default=64, ge=1)
    """Words that the masked language model looks at together."""
    seed: Seed = 0


class Data(Strict):
    """What a dataset consists of. Built-in names (`rte`, `movies`, ...) need none of the first block."""

    files: Files | None = None
    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    labels: tuple[str, ...] | None = None
    """Class names in order of their ids; None with `files` means a score to regress."""
    score_range: tuple[float, float] | None = None
    metrics: tuple[str, ...] = ()
    """Their mean selects; built-in datasets bring their own."""
    ood: dict[str, OutOfDomain] = Field(default={})

    teacher_files: dict[str, str] | None = None
    """Answers of a teacher that is only files, by split, e.g. {train: data/teacher.parquet}; in place of the pair's
    teacher, also beside a built-in dataset."""

    source: str | None = None
    """Replaces the built-in source: a hub id or a local folder in the hub's layout."""
    revision: str | None = None
    ood_sets: tuple[str, ...] | None = None
    """Which of the built-in out-of-domain partners to use, e.g. [imdb_128]; None means the default ones."""
    train_rows: int | None = Field(default=None, ge=1)
    """A seeded random part of the training split of this size."""
    unlabelled: Unlabelled | None = None
    """Rows without labels that train beside the labelled ones where a teacher is read, e.g. data/more.jsonl."""
    augment: Augmentation | None = None
    eval_rows: int | None = Field(default=None, ge=1)
    """A seeded random part of each larger evaluation split, named in every result."""
    selection: Literal["validation", "held_out"] = "validation"
    """Which rows choose the checkpoint: the validation split, as the papers do, or a part of train."""
    held_out_share: float = Field(default=0.1, gt=0, lt=0.5)
    margin: float | None = Field(default=None, ge=0)
    """`movies` only: ratings nearer to zero than this are dropped."""
    seed: Seed = 0
