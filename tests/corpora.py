"""Corpora of random sentences, and studies that make them from files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kdcore import general_config
from kdcore.data.cleaning import Cleaner
from kdcore.data.corpus import Corpus
from kdcore.data.corpus_building import Limits, build
from kdcore.data.corpus_sources import Origin
from kdcore.data.packing import Packer
from kdcore.layout import Layout
from kdcore.stages import corpus
from kdcore.strict import parse
from tests.tiny import tiny_texts, tiny_tokenizer


def origin(documents: Sequence[str]) -> Origin:
    """A source of documents of one text each."""
    def rows() -> Iterator[list[str]]:
        return ([document] for document in documents)
    return Origin("made up", "0" * 16, rows)


def tiny_corpus(folder: Path, family: str = "bert", rows: int = 40, max_length: int = 24, seed: int = 0,
                shard_rows: int = 16, longest: int = 20) -> Corpus:
    """Write a corpus of random sentences, one a row, in several shards; equal for equal arguments."""
    tokenizer = tiny_tokenizer(family)
    build(folder, [origin(tiny_texts(rows, seed, longest))], Cleaner(duplicates=False),
          Packer(tokenizer, max_length, "rows", False, 0.1, seed), corpus.vocabulary_of(tokenizer), Limits(shard_rows))
    return Corpus.load(folder / "corpus")


def make_corpus(study: Path, teacher: str | Path, files: dict[str, str | bytes], **settings: Any) -> Corpus:
    """Run the stage on files written into a study; `settings` are those of the section, `sources` all files."""
    for name, content in files.items():
        path = study / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    content = {"sources": [{"files": sorted(files)}], "max_length": 32} | settings
    corpus.run(parse(general_config.Corpus, content, "params.yaml"), str(teacher), None, Layout(study))
    return Corpus.load(Layout(study).corpus)
