"""Stage `corpus`: unlabelled text to shards of token rows.

Reads the section `corpus`, its sources and the teacher's tokenizer; writes `artifacts/corpus` at once, by renaming a
finished folder. Sources are read as streams, so memory does not grow with them. The bytes depend on texts, settings and
tokenizer alone; a killed run goes on at its last finished shard.
"""

import json
import shutil
import time
from importlib.metadata import version

from transformers import PreTrainedTokenizerBase

from kdcore import general_config, scratch
from kdcore.data import corpus_building
from kdcore.data.cleaning import Cleaner
from kdcore.data.corpus import CorpusInfo, Vocabulary
from kdcore.data.corpus_sources import find
from kdcore.data.packing import Packer
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.models.loading import check_length, load_config, load_tokenizer, tokenizer_fingerprint

CODE = ("data/cleaning.py", "data/corpus.py", "data/corpus_building.py", "data/corpus_sources.py", "data/packing.py",
        "data/separated.py", "data/tokens.py", "stages/corpus.py")
"""What decides the rows and the notes of finished shards."""


def run(settings: general_config.Corpus, source: str, revision: str | None, layout: Layout) -> None:
    """Write the corpus of a general study.

    Args:
        source, revision: the teacher, whose tokenizer cuts the texts.

    Raises:
        UserError: what is wrong with the teacher, the sources or the texts, or no text is left after cleaning.
        BusyError: another process writes the same corpus.
    """
    started = time.monotonic()
    check_length(load_config(source, revision), settings.max_length, f"the teacher {source}", "corpus.max_length")
    tokenizer = load_tokenizer(source, revision)
    if not tokenizer.is_fast:
        raise UserError(f"the tokenizer of {source} is a Python one, too slow for a corpus; name a teacher with a "
                        "tokenizer.json")
    vocabulary = vocabulary_of(tokenizer)
    origins = [find(layout.study, entry, f"corpus.sources[{place}]") for place, entry in enumerate(settings.sources)]
    cleaner = Cleaner(**settings.cleaning.model_dump())
    packer = Packer(tokenizer, settings.max_length, settings.packing, settings.pairs, settings.short_sequences,
                    settings.seed)
    limits = corpus_building.Limits(settings.shard_rows, settings.max_rows, settings.max_tokens)
    folder = layout.scratch / "corpus"
    with scratch.claim(folder):
        place = folder / scratch.key("shards", {
            "settings": settings.model_dump(), "sources": [origin.fingerprint for origin in origins],
            "tokenizer": vocabulary.fingerprint, "code": scratch.hash_code(*CODE),
            "libraries": {name: version(name) for name in ("tokenizers", "transformers")}})
        before = sum(part.shard.tokens for part in corpus_building.finished(place))
        info = corpus_building.build(place, origins, cleaner, packer, vocabulary, limits)
        scratch.publish({".": place / "corpus"}, layout.corpus, folder / "staging")
        shutil.rmtree(folder)  # with what other settings left unfinished
    seconds = time.monotonic() - started
    print(f"corpus: {_describe(info)}, at {(info.tokens - before) / seconds:,.0f} tokens per second")
    layout.measured.mkdir(parents=True, exist_ok=True)
    (layout.measured / "corpus.json").write_text(
        json.dumps({"rows": info.rows, "tokens": info.tokens, "resumed_tokens": before, "seconds": seconds},
                   indent=2, sort_keys=True) + "\n", encoding="utf-8")


def vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """What masking must know of a tokenizer."""
    unknown = tokenizer.unk_token_id
    if unknown in (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.sep_token_id,
                   tokenizer.cls_token_id):
        unknown = None  # tokenizers of bytes know every text and name any other special token here
    return Vocabulary(tokenizer_fingerprint(tokenizer), len(tokenizer), int(tokenizer.pad_token_id),
                      tokenizer.mask_token_id, unknown, tuple(sorted(set(tokenizer.all_special_ids) - {unknown})))


def _describe(info: CorpusInfo) -> str:
    dropped = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in info.dropped.items() if count)
    return (f"{info.rows:,} rows, {info.tokens:,} tokens in {len(info.shards)} shards from {info.documents:,} "
            f"documents{f' (dropped: {dropped})' if dropped else ''}")
