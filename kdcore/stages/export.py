"""Stage `export`: a finished student as ONNX, in float32 and with int8 weights, checked on the selection split.

No stage of `dvc.yaml`: it measures latency, which is true of this machine only. Nothing is written where a form does
not answer as the student does.
"""

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from kdcore import config, model_card
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.export import RECORD as TRAINING
from kdcore.layout import Layout
from kdcore.models.loading import load_finetuned, load_tokenizer
from kdcore.models.reading import accepts
from kdcore.portable import folder as files
from kdcore.portable import graph, parity, source, timing
from kdcore.portable.folder import Graph, Inputs
from kdcore.portable.parity import EXACT, Form, Parity

PYTORCH = "pytorch"
ONNX = "onnx"
INT8 = "int8"
GRAPHS = {ONNX: files.GRAPH, INT8: files.INT8}
PACKAGES = ("torch", "transformers", "onnx", "onnxruntime", "tokenizers")


def run(study: config.Study, layout: Layout, dataset: str, method: str | None = None, seed: int | None = None,
        int8: bool = True, tolerance: float = 1.0, folder: Path | None = None) -> Path:
    """Export a student of the study: without a seed the method's best, without a method the dataset's best.

    Args:
        tolerance: by how many points the int8 form may be worse than PyTorch on the selection split.
        folder: where to, by default `artifacts/export/...` of the study; returned.

    Raises:
        UserError: no such student, the folder holds something else, or a form does not answer as the student does.
    """
    student = source.of_study(study, layout, dataset, method, seed)
    return _write_out(student, folder or layout.export(student.name), int8, tolerance)


def run_registered(layout: Layout, model: str, int8: bool = True, tolerance: float = 1.0,
                   folder: Path | None = None) -> Path:
    """As `run`, for a registered student that came from the study.

    Raises:
        UserError: as `run`, or the study does not have the data that the student was trained on.
    """
    with tempfile.TemporaryDirectory() as place:  # where the registry's files come to
        student = source.of_registry(model, layout, Path(place))
        return _write_out(student, folder or layout.export(student.name), int8, tolerance)


def _write_out(student: source.Source, target: Path, int8: bool, tolerance: float) -> Path:
    """Export into `target` if every form answers as the student does."""
    _check_target(target)
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "export"  # unlike `place` it can be read by all
        made.mkdir()
        record = _export(student, made, int8, tolerance)
        (made / files.RECORD).write_text(json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False,
                                                    allow_nan=False) + "\n", encoding="utf-8")
        (made / files.CARD).write_text(model_card.plain(student.card), encoding="utf-8")
        for line in _told(record):
            print(line)
        _check_parity(record, tolerance)
        _publish(made, target)
    print(f"{student.name} exported to {target}")
    return target


def _export(student: source.Source, made: Path, int8: bool, tolerance: float) -> dict[str, Any]:
    """Write graphs, tokenizer and configuration; returns the record."""
    info = student.prepared.info
    model = load_finetuned(student.folder, info.labels)
    graph.write(model, made / files.GRAPH)
    if int8:
        graph.quantise(made / files.GRAPH, made / files.INT8)
    files.write_tokenizer(load_tokenizer(str(student.folder)), info.max_length, made / files.TOKENIZER)
    shutil.copyfile(student.folder / "config.json", made / files.CONFIG)
    if (student.folder / TRAINING).is_file():
        shutil.copyfile(student.folder / TRAINING, made / TRAINING)
    threads = torch.get_num_threads()
    graphs = {name: Graph(made / file, threads) for name, file in GRAPHS.items() if (made / file).is_file()}
    forms: dict[str, Form] = {PYTORCH: _runner(model), **graphs}
    compared = _compare(forms, made, student.prepared)
    sizes = {PYTORCH: sum(path.stat().st_size for path in student.folder.glob("*.safetensors"))}
    sizes |= {name: (made / GRAPHS[name]).stat().st_size for name in graphs}
    return {
        "student": student.name, "lineage": student.lineage, "labels": info.labels, "is_pair": info.is_pair,
        "max_length": info.max_length, "inputs": graphs[ONNX].inputs,
        "parity": {"split": info.select, "rows": info.splits[info.select].rows, "tolerance_points": tolerance,
                   "forms": {name: dataclasses.asdict(found) for name, found in compared.items()}},
        "latency": timing.latency(forms, student.prepared, info.select)
        | {"threads": threads, "device": f"CPU {platform.machine()}"},
        "bytes": sizes, "versions": {name: importlib.metadata.version(name) for name in PACKAGES}}


def _compare(forms: dict[str, Form], made: Path, prepared: Prepared) -> dict[str, Parity]:
    split = prepared.info.select
    found = parity.logits(forms, files.read_tokenizer(made / files.TOKENIZER), prepared, split)
    return parity.compare(found, PYTORCH, prepared, split)


def _runner(model: PreTrainedModel) -> Form:
    kept = accepts(model)

    def run_model(inputs: Inputs) -> Any:
        with torch.inference_mode():
            return model(**{name: torch.from_numpy(values) for name, values in inputs.items()
                            if name in kept}).logits.numpy()

    return run_model


def _told(record: dict[str, Any]) -> list[str]:
    """The record as a table for the terminal."""
    checked, latency = record["parity"], record["latency"]
    lines = [f"{checked['rows']} rows of {checked['split']}; latency with {latency['threads']} thread(s) on "
             f"{latency['device']}, p50 and p95 in ms",
             f"{'':8} {'MB':>7} {'points':>7} {'lost':>6} {'same answer':>11} {'batch 1':>15} {'batch 32':>17}"]
    for name, form in checked["forms"].items():
        one, many = (latency[batch][name] for batch in ("batch_1", "batch_32"))
        mean = sum(form["metrics"][metric] for metric in _metrics(form)) / len(_metrics(form))
        same = "" if form["same"] is None else f"{form['same']:.1%}"
        lines.append(f"{name:8} {record['bytes'][name] / 1e6:7.1f} {100 * mean:7.2f} {form['lost']:6.2f} {same:>11} "
                     f"{one['p50_ms']:7.2f} {one['p95_ms']:7.2f} {many['p50_ms']:8.1f} {many['p95_ms']:8.1f}")
    return lines


def _metrics(form: dict[str, Any]) -> list[str]:
    return [name for name in form["metrics"] if name not in ("n", "degenerate")]


def _check_parity(record: dict[str, Any], tolerance: float) -> None:
    """Refuse forms that do not answer as the student does."""
    checked = record["parity"]
    exact = checked["forms"][ONNX]
    if not exact["relative"] <= EXACT:  # so that logits that are no numbers are refused, too
        raise UserError(f"the ONNX form is not the student: logits on {checked['split']} differ by up to "
                        f"{exact['difference']:.2g}, {exact['relative']:.2g} of the largest, expected {EXACT:g} at "
                        "most; nothing was written")
    if (form := checked["forms"].get(INT8)) and not form["lost"] <= tolerance:
        raise UserError(f"the int8 form loses {form['lost']:.2f} points on {checked['split']}, more than the tolerated "
                        f"{tolerance:g}; nothing was written; export without it by --no-int8, or allow more by "
                        "--tolerance")


def _check_target(target: Path) -> None:
    if target.exists() and not (target / files.RECORD).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} holds something other than an export; name another --folder")


def _publish(made: Path, target: Path) -> None:
    """Put the finished folder in the place of an earlier one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(made, beside)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(beside, target)
