"""Files for the GLUE test server: one TSV per task, and the flat zip of all eleven that it wants.

Each file has the header `index<TAB>prediction` and one row per test example in file order. Labels are written by
name, so a class order cannot leak into a file. Format: gluebenchmark.com, as jiant's `benchmarks` writes it.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.evaluation.metrics import decide


@dataclass(frozen=True)
class TaskFile:
    """One file of the submission.

    `written`: how the server wants each label name; None for scores. `filler` stands in every row of a task that
    was not predicted: the majority label of the development set, for STS-B the mean score of the training set.
    """

    name: str
    rows: int
    written: Mapping[str, str] | None
    filler: str


_NLI = {name: name for name in ("entailment", "neutral", "contradiction")}
_ENTAILMENT = {name: name for name in ("entailment", "not_entailment")}

TASKS: dict[tuple[str, str], TaskFile] = {
    ("cola", "test"): TaskFile("CoLA.tsv", 1063, {"unacceptable": "0", "acceptable": "1"}, "1"),
    ("sst2", "test"): TaskFile("SST-2.tsv", 1821, {"negative": "0", "positive": "1"}, "1"),
    ("mrpc", "test"): TaskFile("MRPC.tsv", 1725, {"not_equivalent": "0", "equivalent": "1"}, "1"),
    ("stsb", "test"): TaskFile("STS-B.tsv", 1379, None, "2.701"),
    ("mnli", "test_matched"): TaskFile("MNLI-m.tsv", 9796, _NLI, "entailment"),
    ("mnli", "test_mismatched"): TaskFile("MNLI-mm.tsv", 9847, _NLI, "entailment"),
    ("qnli", "test"): TaskFile("QNLI.tsv", 5463, _ENTAILMENT, "not_entailment"),
    ("qqp", "test"): TaskFile("QQP.tsv", 390965, {"not_duplicate": "0", "duplicate": "1"}, "0"),
    ("rte", "test"): TaskFile("RTE.tsv", 3000, _ENTAILMENT, "entailment"),
    ("wnli", "test"): TaskFile("WNLI.tsv", 146, {"not_entailment": "0", "entailment": "1"}, "0"),
    ("ax", "test"): TaskFile("AX.tsv", 1104, _NLI, "entailment"),
}
"""By dataset and split. The diagnostic set AX is answered by the MNLI model."""

HEADER = "index\tprediction\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def task_file(prepared: Prepared, split: str, logits: Float[Tensor, "n c"]) -> str:
    """The content of the split's file.

    Raises:
        UserError: the split is not one of GLUE's tests, is not complete, is in another order, or has other labels.
    """
    info = prepared.info
    task = TASKS.get((info.name, split))
    if task is None:
        raise UserError(f"{info.name}/{split} has no place in a GLUE submission; it takes "
                        f"{', '.join('/'.join(key) for key in TASKS)}")
    if len(logits) != task.rows:
        raise UserError(f"{task.name} needs all {task.rows} test rows of {info.name}, got {len(logits)}; remove "
                        "eval_rows and take the official test split")
    table = prepared.table(split)
    if "source_id" in table.column_names:
        expected = [str(row) for row in range(task.rows)]
        if (ids := table.column("source_id").to_pylist()) != expected:
            row = next(i for i, (have, want) in enumerate(zip(ids, expected, strict=True)) if have != want)
            raise UserError(f"{task.name} must be in the order of the official file, but row {row} has id {ids[row]}; "
                            "sort the split by its index column")
    answers = decide(logits, info.regression)
    if task.written is None or info.labels is None:
        if task.written is not None or info.labels is not None:
            raise UserError(f"{task.name} and the labels of {info.name} are of different kinds (classes and scores)")
        written = [f"{value:.3f}" for value in np.clip(answers, 0.0, 5.0)]
    else:
        if set(info.labels) != set(task.written):
            raise UserError(f"{task.name} takes the labels {', '.join(task.written)}, but {info.name} has "
                            f"{', '.join(info.labels)}; give the dataset the official label names")
        names = [task.written[label] for label in info.labels]
        written = [names[answer] for answer in answers]
    return HEADER + "".join(f"{row}\t{value}\n" for row, value in enumerate(written))


def filler(task: TaskFile) -> str:
    """The content of a file for a task without predictions: its filler in every row."""
    return HEADER + "".join(f"{row}\t{task.filler}\n" for row in range(task.rows))


def assemble(files: Mapping[str, str], path: Path) -> tuple[str, ...]:
    """Write the zip with all eleven files; equal contents give equal bytes.

    Args:
        files: content by file name, e.g. `RTE.tsv`.

    Returns:
        The names of the files that were filled because `files` lacks them.

    Raises:
        UserError: a name that is not one of the eleven, or a file with another number of rows.
    """
    known = {task.name: task for task in TASKS.values()}
    for name, content in files.items():
        if name not in known:
            raise UserError(f"{name} is no file of a GLUE submission; it has {', '.join(sorted(known))}")
        rows = content.count("\n") - 1
        if rows != known[name].rows:
            raise UserError(f"{name} has {rows} rows, the submission needs {known[name].rows}; "
                            "evaluate the dataset again")
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(known):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # the same bytes on every operating system
            archive.writestr(entry, files.get(name) or filler(known[name]), compresslevel=6)
    return tuple(sorted(set(known) - set(files)))
