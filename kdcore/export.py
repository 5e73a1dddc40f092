"""A trained model as a plain transformers folder that needs nothing of ours: weights, configuration, tokenizer.

Equal models give equal bytes: no paths, times or names of runs. `training.json` tells how the model came about.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kdcore.models.loading import quiet

RECORD = "training.json"


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, record: dict[str, Any], folder: Path) -> None:
    """Write the folder anew. Weights are float32 safetensors; the objective's projections are not among them."""
    shutil.rmtree(folder, ignore_errors=True)
    model.config._name_or_path = ""
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    _without_paths(folder / "tokenizer_config.json")
    write_record(record, folder)


def write_record(record: dict[str, Any], folder: Path) -> None:
    """Write how a model came about beside it."""
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")


def _without_paths(path: Path) -> None:
    """Drop what transformers notes of where the tokenizer was loaded from and how."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for name in ("name_or_path", "tokenizer_file", "special_tokens_map_file", "is_local", "local_files_only"):
        content.pop(name, None)
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
