"""Stage `prepare`: raw data to checked rows and token ids.

Reads the dataset's declaration, its sources and the tokenizers of the pair; writes `artifacts/prepared/<dataset>` at
once, by renaming a finished folder. The bytes depend on the data, the settings, the tokenizers and the model
that augments, if any, alone.
"""

import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from kdcore import config
from kdcore.data import answers, augmentation_report
from kdcore.data.assemble import Assembled, assemble
from kdcore.data.augmentation import augment
from kdcore.data.parts import Part
from kdcore.data.prepared import INFO_FILE, PreparedInfo, split_file, teacher_key, token_file
from kdcore.data.tokenise import tokenise
from kdcore.layout import Layout
from kdcore.models.loading import check_length, load_config, load_tokenizer, tokenizer_fingerprint, usable_length
from kdcore.pair_config import Pair


def run(study: config.Study, layout: Layout, dataset: str) -> None:
    """Prepare one dataset of a study.

    Raises:
        UserError: what is wrong with the declaration, the models' sources, the data's sources or the data.
    """
    data = study.dataset(dataset).data
    tokenizers, usable = _tokenizers(study.pair, data.teacher_files is not None)
    assembled, augmentation = assemble(layout.study, dataset, data, usable), None
    if data.augment is not None:
        train, augmentation = augment(dataset, assembled.parts, data.augment, layout.study,
                                      layout.kept / f"augment-{dataset}")
        assembled = replace(assembled, parts=(train, *assembled.parts[1:]),
                            warnings=(*assembled.warnings, *augmentation.warnings))
    info = _info(dataset, assembled, study.pair.max_length, tokenizers)
    folder = layout.scratch / f"prepare-{dataset}"
    shutil.rmtree(folder, ignore_errors=True)  # of a killed run
    folder.mkdir(parents=True)
    try:
        _write(folder, assembled.parts, info, tokenizers)
        if assembled.answers:
            answers.write(folder / answers.FOLDER, assembled.answers, info.labels)
        if augmentation is not None:
            (folder / augmentation_report.FILE).write_text(augmentation.markdown(), encoding="utf-8")
            print(f"{dataset}: {augmentation.numbers}")
        target = layout.prepared(dataset)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _report(info, {split: aligned.source for split, aligned in assembled.answers.items()})


def _tokenizers(pair: Pair, from_files: bool) -> tuple[dict[str, PreTrainedTokenizerBase], int]:
    """The tokenizers of teacher and student, and the most tokens that all models take.

    Of several teachers the first is `teacher`, and those with another tokenizer are `teacher-2` and so on. A teacher
    that is only files reads nothing; the student's tokenizer stands in.
    """
    models = {teacher_key(place): (model.source, model.revision)
              for place, model in enumerate(() if from_files else pair.teacher.models)}
    if pair.student.source != "teacher":
        models["student"] = (pair.student.source, pair.student.revision)
    tokenizers, lengths = {}, []
    for who, (source, revision) in models.items():
        settings = load_config(source, revision)
        check_length(settings, pair.max_length, f"the {who} {source}")
        lengths.append(usable_length(settings))
        tokenizers[who] = load_tokenizer(source, revision)
    if from_files:
        tokenizers["teacher"] = tokenizers["student"]
    tokenizers.setdefault("student", tokenizers["teacher"])
    own = tokenizer_fingerprint(tokenizers["teacher"])
    return {who: tokenizer for who, tokenizer in tokenizers.items()
            if who in ("teacher", "student") or tokenizer_fingerprint(tokenizer) != own}, min(lengths)


def _info(name: str, assembled: Assembled, max_length: int,
          tokenizers: dict[str, PreTrainedTokenizerBase]) -> PreparedInfo:
    return PreparedInfo(
        name=name, labels=assembled.labels, score_range=assembled.score_range, metrics=assembled.metrics,
        is_pair=assembled.is_pair, max_length=max_length,
        splits={part.name: part.info(max_length) for part in assembled.parts},
        tokenizers={who: tokenizer_fingerprint(tokenizer) for who, tokenizer in tokenizers.items()},
        warnings=assembled.warnings)


def _write(folder: Path, parts: Iterable[Part], info: PreparedInfo,
           tokenizers: dict[str, PreTrainedTokenizerBase]) -> None:
    distinct = {info.tokenizers[who]: tokenizer for who, tokenizer in tokenizers.items()}
    total = len(distinct) * sum(split.rows for split in info.splits.values())
    with tqdm(total=total, desc=f"prepare {info.name}", unit=" rows", file=sys.stderr) as bar:
        for part in parts:
            table = part.rows.table
            ids = pa.array(range(table.num_rows), pa.int64())
            pq.write_table(table.add_column(0, "id", ids), split_file(folder, part.name))
            for fingerprint, tokenizer in distinct.items():
                path = token_file(folder, fingerprint, part.name)
                path.parent.mkdir(exist_ok=True)
                tokenise(table, tokenizer, info.splits[part.name].max_length, bar.update).save(path)
    (folder / INFO_FILE).write_text(info.to_json(), encoding="utf-8")


def _report(info: PreparedInfo, sources: Mapping[str, answers.Source]) -> None:
    for split in info.splits.values():
        note = f" ({split.note})" if split.note else ""
        without = (f" ({split.unlabelled:,} of them, {split.unlabelled / split.rows:.0%}, without labels)"
                   if split.unlabelled else "")
        print(f"{info.name}/{split.name}: {split.rows:,} rows{without}, {split.role}, from {split.source}{note}")
    for name, source in sources.items():
        print(f"{info.name}/{name}: the teacher's answers are the {source.holds} in {source.file}")
    for warning in info.warnings:
        print(f"warning: {info.name}: {warning}", file=sys.stderr)
