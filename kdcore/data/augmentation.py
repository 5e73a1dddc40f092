"""TinyBERT's data augmentation of the training split, in preparation (Jiao et al. 2020, section 3.2, algorithm 1).

A training row is joined by variants of itself: some of its words are replaced by others that a masked language model,
or vectors of words, propose. Each text of a pair varies while the other stays. What is drawn depends on the row and
the seed alone, and finished candidates wait in a folder named by all that they depend on, so that a run that is killed
goes on and ends with the same bytes.

Deviations from the paper: a word is replaced where it stands, and the text around it stays as it is written;
candidates are words or other text, never special tokens; a variant whose texts are those of any other row of the
dataset, but for case and white space, is left out; draws per text are those of the released code by default
(`DRAWS`), the paper has 20 for all.

The released code (data_augmentation.py) pairs the second text's variants with the last variant of the first text
(`public`). It copies the label, which its distillation then reads for scores only; here variants join without labels
by default, so that neither the teacher nor plain fine-tuning learns from them.
"""

import hashlib
import itertools
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import nn

from kdcore import scratch
from kdcore.data import files, splitting, variants
from kdcore.data.augmentation_report import Report, Sample, Tally
from kdcore.data.candidates import Sentence, propose
from kdcore.data.kept_candidates import KeptCandidates
from kdcore.data.parts import SOURCE_ID, Part
from kdcore.data.variants import Row, Variant
from kdcore.data.word_prediction import MaskedLm
from kdcore.data.word_vectors import WordVectors
from kdcore.data_config import Augmentation
from kdcore.errors import UserError
from kdcore.models.files import source_fingerprint
from kdcore.models.loading import load_masked_lm, load_tokenizer, tokenizer_fingerprint
from kdcore.progress import RowProgress
from kdcore.training.precision import Precision, device, resolve

DRAWS = {"cola": 30, "mrpc": 30, "rte": 30, "stsb": 30, "sst2": 20, "qnli": 20, "mnli": 10, "qqp": 10}
"""Draws per text by dataset, as in the released code."""
OTHER_DRAWS = 20
"""Draws per text of other datasets, as in the paper."""
CODE = ("data/batching.py", "data/candidates.py", "data/kept_candidates.py", "data/stop_words.py", "data/tokens.py",
        "data/word_prediction.py", "data/word_vectors.py", "models/loading.py", "models/reading.py",
        "training/precision.py")
"""What decides the candidates and how they are written."""
TEXTS = ("text", "text_pair")
SAMPLES = 10
CHUNK = 1000
"""Rows whose variants become a table together."""


@dataclass(frozen=True)
class Proposer:
    """Who proposes words: a masked language model, and vectors of words where there are any."""

    settings: Augmentation
    model: MaskedLm
    vectors: WordVectors | None
    precision: Precision

    @classmethod
    def load(cls, settings: Augmentation, study: Path, setting: str) -> "Proposer":
        """Load both; `setting` is what `params.yaml` calls the settings.

        Raises:
            UserError: what cannot be loaded, and why.
        """
        vectors, where = None, device()
        if settings.word_vectors is not None:
            path = files.locate(study, settings.word_vectors, f"{setting}.word_vectors")
            vectors = WordVectors.read(path, settings.word_limit, where)
        model = load_masked_lm(settings.model, settings.revision)
        nn.Module.to(model, where)
        return cls(settings, MaskedLm(model, load_tokenizer(settings.model, settings.revision)), vectors,
                   resolve(settings.precision, where))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the candidates of a text depend on, as JSON values. Batches are not among it: they tell apart
        tokens at most that are equally probable but for the last bits."""
        return {"count": self.settings.candidates, "precision": self.precision.name,
                "model": source_fingerprint(self.settings.model, self.settings.revision),
                "tokenizer": tokenizer_fingerprint(self.model.tokenizer),
                "vectors": self.vectors and self.vectors.fingerprint, "code": scratch.hash_code(*CODE),
                "libraries": scratch.library_versions()}

    def __call__(self, texts: Sequence[str]) -> list[Sentence]:
        """Candidates for the words of texts."""
        with self.precision.autocast():
            return propose(texts, self.model, self.vectors, self.settings.candidates, self.settings.batch_size)


@dataclass(frozen=True)
class Origin:
    """A training row that is to have variants: where it stands in the split, what it is called, and its texts."""

    place: int
    source_id: str | None
    texts: tuple[str, ...]

    def vary(self, sentences: Sequence[Sentence], draws: int, settings: Augmentation) -> list[list[Variant]]:
        """Variants of each text, from a generator of this row and text alone."""
        found = []
        for number, (text, sentence) in enumerate(zip(self.texts, sentences, strict=True)):
            own = hashlib.sha256(repr((settings.seed, self.source_id, number, text)).encode()).digest()
            generator = np.random.default_rng(int.from_bytes(own[:16]))
            found.append(variants.draw(text, sentence.slots, draws, settings.replace_probability, generator))
        return found


def augment(dataset: str, parts: Sequence[Part], settings: Augmentation, study: Path,
            folder: Path) -> tuple[Part, Report]:
    """The training split with its variants, and what there is to tell of them.

    Args:
        parts: all splits of the dataset, the training split first.
        folder: where finished candidates wait; in the end those of these settings stay.

    Raises:
        UserError: the model lacks the head for masked words or its tokenizer the mask, word vectors cannot be read,
            more rows are asked for than have labels, or no word of them can be replaced.
        BusyError: another process is at the same work.
    """
    train, setting = parts[0], f"datasets.{dataset}.data.augment"
    origins = _origins(train, settings, f"{setting}.rows")
    proposer = Proposer.load(settings, study, setting)
    with scratch.claim(folder):
        place = folder / scratch.key("candidates", proposer.identity)
        candidates = _candidates(dataset, origins, proposer, place)
        for other in folder.iterdir():
            if other.is_dir() and other != place:
                shutil.rmtree(other)
    draws, tally = settings.variants or DRAWS.get(dataset, OTHER_DRAWS), Tally()
    taken = {key for part in parts for key in splitting.keys(part.rows.table)}
    new = _new_rows(origins, candidates, draws, settings, taken, tally)
    tables = [_table(chunk, train) for chunk in iter(lambda: list(itertools.islice(new, CHUNK)), [])]
    if not tables:
        possible = tally.eligible.total() - tally.eligible["none"]
        why = (f"{possible:,} of the {tally.words:,} words of {len(origins):,} rows have others to replace them, but "
               f"every draw left the text as it was or gave one that is there ({tally.equal:,}); raise "
               "`replace_probability` or `variants`" if possible else
               f"none of the {tally.words:,} words of {len(origins):,} rows has another to replace it; name another "
               "`model`, or `word_vectors`")
        raise UserError(f"{setting} makes no variant: {why}")
    joined = replace(train, rows=replace(train.rows, table=pa.concat_tables(tables)))
    if settings.labels == "teacher":
        joined = joined.without_labels()
    report = Report(dataset, settings, draws, tally, _samples(origins, candidates, draws, settings))
    return train.join(joined.rows.table, report.note), report


def _origins(train: Part, settings: Augmentation, setting: str) -> list[Origin]:
    """The rows that are to have variants: those with labels, or a seeded part of them."""
    places = np.flatnonzero(train.has_label)
    if settings.rows is not None:
        if settings.rows > len(places):
            raise UserError(f"{setting} = {settings.rows:,} is more than the {len(places):,} training rows with "
                            "labels; lower it or remove it")
        places = places[splitting.draw(len(places), settings.rows, settings.seed, "augment")]
    table = splitting.take(train.rows.table, places)
    texts = [table.column(name).to_pylist() for name in TEXTS if name in table.column_names]
    ids = train.ids.take(pa.array(places)).to_pylist()
    return [Origin(*row) for row in zip(places.tolist(), ids, zip(*texts, strict=True), strict=True)]


def _candidates(dataset: str, origins: Sequence[Origin], proposer: Proposer, folder: Path) -> KeptCandidates:
    """Candidates for all texts of the rows; says how fast this process found them."""
    places = {text: place for place, text in enumerate(dict.fromkeys(text for row in origins for text in row.texts))}
    last = np.sort([max(places[text] for text in origin.texts) for origin in origins])
    computed, start = 0, time.monotonic()
    with RowProgress(f"augment {dataset}", len(origins)) as progress:

        def advance(texts: int, now: bool) -> None:
            nonlocal computed
            rows = int(np.searchsorted(last, texts)) - progress.done
            computed += rows if now else 0
            progress.advance(rows)

        found = KeptCandidates(folder, list(places), proposer, advance)
    if computed:
        print(f"{dataset}: candidates for {computed:,} of {len(origins):,} rows, "
              f"{computed / (time.monotonic() - start):,.1f} rows/s in {proposer.precision.name}")
    return found


def _new_rows(origins: Iterable[Origin], candidates: KeptCandidates, draws: int, settings: Augmentation,
              taken: set[bytes], tally: Tally) -> Iterator[tuple[Origin, int, Row]]:
    """New rows with what they come from and their number there, from 1; `taken` and `tally` grow with them."""
    for origin in origins:
        sentences = [candidates[text] for text in origin.texts]
        tally.count_origin(sentences)
        new = variants.rows(origin.texts, origin.vary(sentences, draws, settings), settings.public)
        for number, row in enumerate(new, start=1):
            key = splitting.key(row.texts)
            if key in taken:
                tally.equal += 1
                continue
            taken.add(key)
            tally.count_added(sentences[row.place], row.variant)
            yield origin, number, row


def _samples(origins: Sequence[Origin], candidates: KeptCandidates, draws: int,
             settings: Augmentation) -> list[Sample]:
    """The texts of some rows, drawn with the seed, with their variants."""
    chosen = splitting.draw(len(origins), min(SAMPLES, len(origins)), settings.seed, "samples")
    return [Sample(origin.source_id, text, own) for origin in (origins[place] for place in chosen) for text, own in zip(
            origin.texts, origin.vary([candidates[text] for text in origin.texts], draws, settings), strict=True)]


def _table(new: Sequence[tuple[Origin, int, Row]], train: Part) -> pa.Table:
    """The rows as those of the training split, with the labels of their origins, called ORIGIN+NUMBER."""
    own = train.rows.table
    columns = {name: pa.array(texts, own.schema.field(name).type) for name, texts in zip(
        (name for name in TEXTS if name in own.column_names), zip(*(row.texts for _, _, row in new), strict=True),
        strict=True)}
    columns["label"] = own.column("label").take([origin.place for origin, _, _ in new])
    columns[SOURCE_ID] = pa.array([origin.source_id and f"{origin.source_id}+{number}" for origin, number, _ in new],
                                  pa.large_string())
    return pa.table(columns)
