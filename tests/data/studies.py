"""Study folders for tests of preparation: a `params.yaml`, a tiny teacher, tables under `data/`."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from kdcore import config
from kdcore.data.prepared import Prepared
from kdcore.layout import Layout
from kdcore.stages import prepare

TRAIN = "text,label\nthe film was good,pos\na dull plot,neg\ngreat actor,pos\nawful film,neg\n"
VALIDATION = "text,label\nfine film,pos\nbad actor,neg\n"
DATA: dict[str, Any] = {"files": {"train": "data/train.csv", "validation": "data/validation.csv"},
                        "labels": ["neg", "pos"]}


def write(study: Path, files: dict[str, str | bytes]) -> None:
    """Write tables, given by path relative to the study."""
    for name, content in files.items():
        path = study / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make(study: Path, teacher: str | Path, data: dict[str, Any] | None = None, name: str = "mine",
         files: dict[str, str | bytes] | None = None, pair: dict[str, Any] | None = None) -> Path:
    """Write a study with one dataset; `files` replace or join the two small tables."""
    (study / "data").mkdir(parents=True, exist_ok=True)
    write(study, {"data/train.csv": TRAIN, "data/validation.csv": VALIDATION} | (files or {}))
    content = {
        "code": "..", "study": {"datasets": [name], "methods": ["finetune"], "seeds": [1]},
        "pair": {"teacher": {"source": str(teacher)}, "max_length": 32} | (pair or {}),
        "training": {"teacher": {}, "student": {}},
        "datasets": {name: {"data": DATA if data is None else data, "teacher": {}, "student": {}}},
        "methods": {"finetune": {}}, "features": {}, "gate": {}, "evaluation": {},
    }
    YAML(typ="safe").dump(content, study / "params.yaml")
    return study


def prepare_study(study: Path, name: str = "mine") -> Prepared:
    """Run the stage on a study written by `make`."""
    layout = Layout(study)
    prepare.run(config.load(layout.params), layout, name)
    return Prepared.load(layout.prepared(name))
