"""`params.yaml` of a general study, which distils an encoder from unlabelled text, as frozen, strict objects.

As in `kdcore.config`, a section holds what one kind of stage needs and nothing else. How tokens are masked has a
section of its own, so that other shares or weights do not write the corpus anew.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from kdcore.strict import Strict


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
    seed: int = 0
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
        return self
