"""A study of a tiny pair on the toy problem, prepared and ready for `teacher`, `features` and `distill`."""

from pathlib import Path
from typing import Any

from kdcore import config, methods, strict
from kdcore.layout import Layout
from kdcore.stages import features, teacher
from tests.tiny import save_tiny
from tests.training.problem import write_prepared

SHORT = {"intermediate_epochs": None, "prediction_epochs": None}
"""Both phases of `tinybert` as long as any training of the study."""


def small_study(folder: Path, regression: bool = False, seeds: tuple[int, ...] = (1, 2), rows: int = 90,
                layers: int = 4, **sections: Any) -> tuple[config.Study, Layout]:
    """Teacher of 4 layers and width 32, students from every second one; `sections` replace those of params.yaml."""
    layout = Layout(folder)
    write_prepared(layout.prepared("toy"), rows, regression)
    save_tiny(folder / "pretrained", layers=layers, labels=None if regression else ("no", "yes"))
    training = {"epochs": 2, "batch_size": 16, "learning_rate": 1e-3, "precision": "fp32"}
    content = {
        "code": ".", "study": {"datasets": ["toy"], "methods": ["rail_kd_l"], "seeds": list(seeds)},
        "pair": {"teacher": {"source": str(folder / "pretrained")},
                 "student": {"layers": "even", "depth": layers // 2}, "max_length": 32},
        "training": {"teacher": training, "student": training},
        "datasets": {"toy": {"data": {}, "teacher": {}, "student": {}}},
        "methods": {name: {} for name in methods.names()} | {"tinybert": SHORT, "ksm": {"episodes": 1}}, "features": {},
        "gate": {"allow_weak": True}, "evaluation": {}}
    return strict.parse(config.Study, content | sections, "params.yaml"), layout


def with_teacher(study: config.Study, layout: Layout) -> None:
    """Run the stages before `distill`."""
    teacher.run(study, layout, "toy")
    features.run(study, layout, "toy")
