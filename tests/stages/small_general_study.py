"""A general study in small: a tiny teacher with a language-model head, a page of text, students of two layers."""

from pathlib import Path
from typing import Any

from kdcore import general, general_config, strict
from kdcore.general_config import GeneralStudy
from kdcore.layout import Layout
from kdcore.stages import corpus, general_teacher
from tests.tiny import tiny_texts
from tests.training.corpus_problem import OPTIONS, save_encoder

TRAINING = {"steps": 6, "batch_size": 8, "learning_rate": 1e-3, "precision": "fp32",
            "teacher_precision": "fp32"}


def general_study(folder: Path, head: bool = True, **sections: Any) -> tuple[GeneralStudy, Layout]:
    """Teacher of four layers and width 32 in `folder`; `sections` replace those of params.yaml."""
    save_encoder(folder / "pretrained", head=head)
    (folder / "data").mkdir(exist_ok=True)
    pages = "\n\n".join(". ".join(tiny_texts(6, seed)) + "." for seed in range(12))
    (folder / "data" / "pages.txt").write_text(pages, encoding="utf-8")
    content = {
        "code": ".", "corpus": {"sources": [{"files": ["data/pages.txt"]}], "max_length": 24}, "masking": {},
        "teacher": {"source": str(folder / "pretrained")}, "training": TRAINING,
        "students": {"small": {"teacher": "teacher", "method": "minilm", "model": {"depth": 2}}},
        "methods": {name: OPTIONS.get(name, {}) for name in general.names()}}
    return strict.parse(general_config.GeneralStudy, content | sections, "params.yaml"), Layout(folder)


def with_corpus(study: GeneralStudy, layout: Layout) -> None:
    """Run the stages before `pretrain`."""
    general_teacher.run(study, layout)
    corpus.run(study.corpus, str(layout.general_teacher.absolute()), None, layout)


def student(method: str, teacher: str = "teacher", model: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An entry of `students`."""
    return {"teacher": teacher, "method": method, "model": model or {"depth": 2}} | more
