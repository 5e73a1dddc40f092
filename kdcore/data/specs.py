"""What the built-in datasets consist of, as declarations: source, columns, label names, metrics, splits, partners.

Label ids of a prepared dataset are positions in `Spec.labels`. Raw labels are matched by *name* (the `ClassLabel`
names of the source, or strings), so a source with another class order gives the same ids. The class orders are those
of the hub's GLUE. Row counts are the official ones; a source that holds fewer is noted as a subset in every result.

Metrics and roles follow GLUE (Wang et al. 2019); out-of-domain partners follow RAIL-KD (Haidar et al. 2022, 4.1).
"""

from dataclasses import dataclass, field

from kdcore.data.prepared import Role
from kdcore.errors import UserError, did_you_mean

CLASS_METRICS = ("accuracy", "f1", "macro_f1", "matthews")
SCORE_METRICS = ("pearson", "spearman")


@dataclass(frozen=True)
class SplitSpec:
    """One split of the source. `optional` ones may be absent from a local copy (hidden test labels)."""

    name: str
    role: Role
    official_rows: int
    optional: bool = False


@dataclass(frozen=True)
class OodSpec:
    """A labelled set of another domain that only evaluates.

    labels      its class names in order; None for scores.
    aliases     other spellings of these names in sources.
    label_map   every label name of the dataset -> the name it counts as here.
    max_length  token limit in place of the pair's, bounded by what both models take; None keeps the pair's.
    strip       text that is replaced by a space.
    default     False: only when named in `ood_sets`.
    help        what to do when the source is not there.
    """

    name: str
    source: str
    config: str | None
    split: str
    text: str
    text_pair: str | None
    label: str
    labels: tuple[str, ...] | None
    official_rows: int
    label_map: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    max_length: int | None = None
    strip: str | None = None
    default: bool = True
    help: str = ""


@dataclass(frozen=True)
class Spec:
    """One dataset. `labels` None means a score in `score_range` to regress; `ratings` marks the rated snippets."""

    name: str
    source: str
    config: str | None
    text: str
    text_pair: str | None
    label: str
    labels: tuple[str, ...] | None
    metrics: tuple[str, ...]
    splits: tuple[SplitSpec, ...]
    ood: tuple[OodSpec, ...] = ()
    score_range: tuple[float, float] | None = None
    row_id: str | None = "idx"
    margin: float | None = None
    note: str = ""

    @property
    def ratings(self) -> bool:
        """True for the snippets with mean human ratings, which come as one file per domain."""
        return self.source == RATINGS


GLUE = "nyu-mll/glue"
RATINGS = "package:hutto-icwsm-2014"

_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_SENTIMENT = ("negative", "positive")


def _splits(train: int, validation: int, test: int) -> tuple[SplitSpec, ...]:
    return (SplitSpec("train", "train", train), SplitSpec("validation", "select", validation),
            SplitSpec("test", "test", test, optional=True))


SCITAIL = OodSpec(
    "scitail", "allenai/scitail", "tsv_format", "test", "premise", "hypothesis", "label", ("entailment", "neutral"),
    2126, {"entailment": "entailment", "neutral": "neutral", "contradiction": "neutral"}, {"entails": "entailment"},
)
_PARAPHRASE = ("not_paraphrase", "paraphrase")
_DUPLICATE_IS_PARAPHRASE = {"not_duplicate": "not_paraphrase", "duplicate": "paraphrase"}
_PAWS_NUMBERS = {"0": "not_paraphrase", "1": "paraphrase"}
PAWS_WIKI = OodSpec(
    "paws_wiki", "google-research-datasets/paws", "labeled_final", "test", "sentence1", "sentence2", "label",
    _PARAPHRASE, 8000, _DUPLICATE_IS_PARAPHRASE, _PAWS_NUMBERS,
)
PAWS_QQP = OodSpec(
    "paws_qqp", "paws_qqp", None, "test", "sentence1", "sentence2", "label", _PARAPHRASE, 677,
    _DUPLICATE_IS_PARAPHRASE, _PAWS_NUMBERS, default=False,
    help="its licence forbids copies on the hub: build dev_and_test with the script of the PAWS authors",
)
_IMDB_LABELS, _IMDB_MAP = ("neg", "pos"), {"negative": "neg", "positive": "pos"}
IMDB = OodSpec("imdb", "stanfordnlp/imdb", "plain_text", "test", "text", None, "label", _IMDB_LABELS, 25000, _IMDB_MAP,
               max_length=512, strip="<br />")
IMDB_128 = OodSpec("imdb_128", "stanfordnlp/imdb", "plain_text", "test", "text", None, "label", _IMDB_LABELS, 25000,
                   _IMDB_MAP, max_length=128, strip="<br />", default=False)


def _rated(name: str, file: str, rows: int, labels: tuple[str, ...] | None) -> OodSpec:
    label_map = {label: label for label in labels or ()}
    return OodSpec(name, RATINGS, file, "all", "text", None, "rating", labels, rows, label_map)


def _rated_partners(labels: tuple[str, ...] | None) -> tuple[OodSpec, ...]:
    return (_rated("amazon", "amazonReviewSnippets", 3708, labels), _rated("tweets", "tweets", 4200, labels),
            _rated("nyt", "nytEditorialSnippets", 5190, labels))


_RATED_SPLITS = (SplitSpec("train", "train", 0), SplitSpec("validation", "select", 0), SplitSpec("test", "report", 0))

SPECS = {spec.name: spec for spec in (
    Spec("cola", GLUE, "cola", "sentence", None, "label", ("unacceptable", "acceptable"), ("matthews",),
         _splits(8551, 1043, 1063)),
    Spec("sst2", GLUE, "sst2", "sentence", None, "label", _SENTIMENT, ("accuracy",), _splits(67349, 872, 1821),
         (IMDB, IMDB_128)),
    Spec("mrpc", GLUE, "mrpc", "sentence1", "sentence2", "label", ("not_equivalent", "equivalent"),
         ("f1", "accuracy"), _splits(3668, 408, 1725)),
    Spec("stsb", GLUE, "stsb", "sentence1", "sentence2", "label", None, ("pearson", "spearman"),
         _splits(5749, 1500, 1379), score_range=(0.0, 5.0)),
    Spec("qqp", GLUE, "qqp", "question1", "question2", "label", ("not_duplicate", "duplicate"), ("f1", "accuracy"),
         _splits(363846, 40430, 390965), (PAWS_WIKI, PAWS_QQP)),
    Spec("mnli", GLUE, "mnli", "premise", "hypothesis", "label", _NLI, ("accuracy",),
         (SplitSpec("train", "train", 392702), SplitSpec("validation_matched", "select", 9815),
          SplitSpec("validation_mismatched", "report", 9832), SplitSpec("test_matched", "test", 9796, optional=True),
          SplitSpec("test_mismatched", "test", 9847, optional=True)), (SCITAIL,)),
    Spec("qnli", GLUE, "qnli", "question", "sentence", "label", _ENTAILMENT, ("accuracy",),
         _splits(104743, 5463, 5463)),
    Spec("rte", GLUE, "rte", "sentence1", "sentence2", "label", _ENTAILMENT, ("accuracy",), _splits(2490, 277, 3000)),
    Spec("wnli", GLUE, "wnli", "sentence1", "sentence2", "label", ("not_entailment", "entailment"), ("accuracy",),
         _splits(635, 71, 146)),
    Spec("movies", RATINGS, "movieReviewSnippets", "text", None, "rating", _SENTIMENT, ("accuracy",), _RATED_SPLITS,
         _rated_partners(_SENTIMENT), margin=0.5,
         note="sign of the mean rating in -4..4; ratings within the margin of zero are dropped. At the default margin "
              "0.5 that leaves 10,072 of 10,605 snippets, 49.6 % positive (Amazon 58.6 %, tweets 68.3 %, NYT 40.0 %)"),
    Spec("movies_rating", RATINGS, "movieReviewSnippets", "text", None, "rating", None, ("pearson", "spearman"),
         _RATED_SPLITS, _rated_partners(None), score_range=(-4.0, 4.0),
         note="mean human rating in -4..4 of all 10,605 snippets"),
)}
"""The built-in datasets by name."""


def built_in(name: str) -> Spec:
    """The declaration of a built-in dataset.

    Raises:
        UserError: the name is not built in; says how to declare data of one's own.
    """
    if name not in SPECS:
        raise UserError(f"dataset {name!r} is not built in and datasets.{name}.data.files, which would name data of "
                        f"your own, is missing; {did_you_mean(name, SPECS)}")
    return SPECS[name]


def partners(spec: Spec, chosen: tuple[str, ...] | None) -> tuple[OodSpec, ...]:
    """The out-of-domain partners named in `ood_sets`, in that order; None means the default ones.

    Raises:
        UserError: the dataset has no such partner, or a name comes twice.
    """
    known = {partner.name: partner for partner in spec.ood}
    if chosen is None:
        return tuple(partner for partner in spec.ood if partner.default)
    for position, name in enumerate(chosen):
        if name in chosen[:position]:
            raise UserError(f"datasets.{spec.name}.data.ood_sets names {name!r} twice; name it once")
        if name not in known:
            hint = did_you_mean(name, known) if known else "it has none; remove `ood_sets`"
            raise UserError(f"datasets.{spec.name}.data.ood_sets names {name!r}, which is no out-of-domain set of "
                            f"{spec.name}; {hint}")
    return tuple(known[name] for name in chosen)
