"""`general.dvc.yaml`, as `test_dvc_yaml` looks at `dvc.yaml`, and the studies that link to it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdcore import config, general, general_config, strict, study
from kdcore.general_config import GeneralStudy
from tests.import_graph import ROOT, closure
from tests.pipelines import listed_code, method_files, needed_code, read_yaml, settings_read

STAGE_FILES = {"teacher": "general_teacher", "report": "general_report"}
METHOD_FILES = method_files("general")


def _spec(stage: dict[str, Any]) -> dict[str, Any]:
    return stage.get("do", stage)


PIPELINE = {name: _spec(stage) for name, stage in read_yaml(ROOT / "general.dvc.yaml")["stages"].items()}
STUDIES = sorted(p.parent for p in ROOT.glob("studies/*/params.yaml")
                 if "." not in p.parent.name and config.is_general(read_yaml(p)))
SECTIONS = {"student": ["students.${key}"], "student_training": ["students.${key}", "training"],
            "options": ["students.${key}", "methods.${item.method}"], "students": ["students"],
            "masking": ["masking"], "teacher": ["teacher"], "training": ["training"], "corpus": ["corpus"]}
"""What a stage reads of a study by attribute or method, and the parameters that stand for it."""


def _stage_file(stage: str) -> Path:
    return ROOT / "kdcore" / "stages" / f"{STAGE_FILES.get(stage, stage)}.py"


@pytest.mark.parametrize("stage", PIPELINE)
def test_code_dependencies_are_exactly_the_import_closure(stage: str) -> None:
    needed = needed_code(_stage_file(stage), "general" if stage == "pretrain" else None)
    listed = listed_code(PIPELINE[stage])
    missing = "\n".join(f"      - ${{code}}/{name}" for name in sorted(needed - listed))
    assert not needed - listed, f"general.dvc.yaml, deps of {stage}, lacks:\n{missing}"
    assert not listed - needed, f"general.dvc.yaml, deps of {stage}, names what it never imports: {listed - needed}"


def test_no_method_imports_another() -> None:
    for method in METHOD_FILES:
        assert not closure(method) & (set(METHOD_FILES) - {method}), method.name


def test_pretraining_depends_on_no_evaluation() -> None:
    """A metric that changes must not train general students anew."""
    assert not [name for name in listed_code(PIPELINE["pretrain"]) if "evaluation" in name]


@pytest.mark.parametrize("stage", PIPELINE)
def test_every_settings_section_that_a_stage_file_reads_is_a_parameter(stage: str) -> None:
    for chain in settings_read(_stage_file(stage)):
        for needed in SECTIONS[chain.split(".")[0]]:
            assert needed in PIPELINE[stage]["params"], f"{stage} reads study.{chain}, but lists no {needed}"


@pytest.mark.parametrize("folder", STUDIES, ids=lambda p: p.name)
def test_every_study_links_to_the_pipeline_and_has_all_its_parameters(folder: Path) -> None:
    assert (folder / "dvc.yaml").resolve() == ROOT / "general.dvc.yaml"
    settings = general_config.load(folder / "params.yaml")
    assert (folder / settings.code).resolve() == ROOT
    written = read_yaml(folder / "params.yaml")
    for spec in PIPELINE.values():
        for name, student in settings.students.items():
            for template in spec["params"]:
                place = template.replace("${key}", name).replace("${item.method}", student.method)
                value: Any = written
                for part in place.split("."):
                    assert part in value, f"{folder.name}: params.yaml has no {place}"
                    value = value[part]
            assert {"teacher", "method"} <= set(written["students"][name])  # DVC knows no defaults


@pytest.mark.parametrize("folder", STUDIES, ids=lambda p: p.name)
def test_dvc_reads_it_and_orders_the_chains(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "dvc", "stage", "list", "--name-only"], cwd=folder, text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    settings = general_config.load(folder / "params.yaml")
    assert set(done.stdout.split()) == {"teacher", "corpus", "report", *(f"pretrain@{name}" for name in
                                                                         settings.students)}


def _methods_fit(settings: GeneralStudy) -> None:
    for name, student in settings.students.items():
        general.configure(student.method, settings.options(name))


@pytest.mark.parametrize("folder", STUDIES, ids=lambda p: p.name)
def test_settings_of_methods_fit_also_in_every_profile(folder: Path) -> None:
    settings = general_config.load(folder / "params.yaml")
    _methods_fit(settings)
    for path in study.profiles(folder).values():
        merged = strict.merge(read_yaml(folder / "params.yaml"), read_yaml(path))
        _methods_fit(GeneralStudy.model_validate(merged))


def test_the_shipped_studies_are_looked_at() -> None:
    assert {"general-bert6", "general-cpu", "minilm-ablations", "minilm-tables"} <= {folder.name for folder in STUDIES}


def test_each_stage_calls_the_command_of_its_name() -> None:
    for stage, spec in PIPELINE.items():
        command, *rest = spec["cmd"].removeprefix("kdflow ").split()
        assert command == STAGE_FILES.get(stage, stage).replace("_", "-")
        assert rest == (["${key}"] if stage == "pretrain" else [])
        for out in spec["outs"]:
            assert isinstance(out, str)
            assert out.startswith(("artifacts/", "results/"))
