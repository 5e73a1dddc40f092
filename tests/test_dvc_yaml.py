"""`dvc.yaml` names exactly what each stage depends on: code by import closure, settings by section.

DVC applies no `.dvcignore` to folders outside a study's own DVC project, so a dependency on a code folder
would turn stale with every `__pycache__`: code is listed file by file, and this test keeps the list right.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kdcore import config
from tests.import_graph import ROOT, closure
from tests.pipelines import listed_code, method_files, needed_code, read_yaml, settings_read


def of_each(spec):
    """What a stage is for each of its items."""
    of_dataset = {key: value for key, value in spec.get("do", spec).items() if key not in ("foreach", "matrix")}
    return json.loads(json.dumps(of_dataset).replace("${key}", "${item.dataset}"))


STAGE_FILES = {"evaluate-teacher": "evaluate"}
METHOD_FILES = method_files("methods")
PIPELINE = {stage: of_each(spec) for stage, spec in read_yaml(ROOT / "dvc.yaml")["stages"].items()}
"""As `dvc.yaml` has it, but that a dataset is `item.dataset` everywhere."""
TRAIN_SELECTORS = {f"kdcore/methods/{file.name}" for file in METHOD_FILES if "\ndef learning(" in file.read_text()}
STUDIES = [ROOT, *sorted(p.parent for p in ROOT.glob("studies/*/params.yaml") if "." not in p.parent.name
                         and not config.is_general(read_yaml(p)))]


def _stage_file(stage: str) -> Path:
    return ROOT / "kdcore" / "stages" / f"{STAGE_FILES.get(stage, stage)}.py"


def _needed_code(stage: str) -> set[str]:
    """`distill` reaches its method's file by the link of the stage `method`; `selector` runs one that trains selectors,
    which need not be among the methods of the study."""
    named = {"kdcore/methods/${item.method}.py"}
    needed = needed_code(_stage_file(stage), "methods" if stage in ("selector", "distill") else None) - named
    return needed | (TRAIN_SELECTORS if stage == "selector" else set())


def _listed_code(stage: str) -> set[str]:
    return listed_code(PIPELINE[stage])


@pytest.mark.parametrize("stage", PIPELINE)
def test_code_dependencies_are_exactly_the_import_closure(stage):
    needed, listed = _needed_code(stage), _listed_code(stage)
    missing = "\n".join(f"      - ${{code}}/{name}" for name in sorted(needed - listed))
    assert not needed - listed, f"dvc.yaml, deps of {stage}, lacks:\n{missing}"
    assert not listed - needed, f"dvc.yaml, deps of {stage}, names what it never imports: {sorted(listed - needed)}"


@pytest.mark.parametrize("stage", PIPELINE)
def test_code_is_listed_by_file(stage):
    folders = [d for d in PIPELINE[stage]["deps"] if d.startswith("${code}/") and not d.endswith(".py")]
    assert not folders, f"{stage} depends on folders {folders}, which turn stale with every __pycache__"


def test_no_method_imports_another():
    """Else a change of one would have to make the other stale, which one line for all methods cannot say."""
    for method in METHOD_FILES:
        others = closure(method) & (set(METHOD_FILES) - {method})
        assert not others, f"{method.name} imports {[f.name for f in others]}; move what they share out of methods/"


def test_at_least_the_four_methods_are_looked_at():
    assert {"finetune", "vanilla_kd", "rail_kd_l", "rail_kd_c"} <= {f.stem for f in METHOD_FILES}


@pytest.mark.parametrize("stage", PIPELINE)
def test_every_settings_section_that_a_stage_file_reads_is_a_parameter(stage):
    listed = set(PIPELINE[stage]["params"])
    for chain in settings_read(_stage_file(stage)):
        for needed in _sections(chain):
            covered = any(needed == have or needed.startswith(f"{have}.") or have.startswith(f"{needed}.")
                          for have in listed)
            assert covered, f"{_stage_file(stage).name} reads study.{chain}, but {stage} lists no {needed} in params"


def _sections(chain: str) -> list[str]:
    head = chain.split(".")[0]
    match head:
        case "teacher_training":
            return ["training.teacher", "datasets.${item.dataset}.teacher"]
        case "student_training":
            return ["training.student", "datasets.${item.dataset}.student"]
        case "dataset":
            return ["datasets.${item.dataset}"]
        case "method":
            return ["methods.${item.method}"]
        case _ if head in config.Study.model_fields:
            return [chain if head in ("pair", "study") else head]
        case _:
            return []


@pytest.mark.parametrize("study", STUDIES, ids=lambda p: p.name if p != ROOT else "default")
def test_every_study_links_to_the_pipeline_and_has_all_its_parameters(study):
    assert (study / "dvc.yaml").resolve() == ROOT / "dvc.yaml"
    settings = config.load(study / "params.yaml")
    assert (study / settings.code).resolve() == ROOT
    written = read_yaml(study / "params.yaml")
    for stage, spec in PIPELINE.items():
        for template in spec["params"]:
            for dataset in settings.selectors if stage == "selector" else settings.study.datasets:
                for method in settings.study.methods:
                    name = template.replace("${item.dataset}", dataset).replace("${item.method}", method)
                    value = written
                    for part in name.split("."):
                        assert part in value, f"{study.name}: params.yaml has no {name}, which stage {stage} reads"
                        value = value[part]


@pytest.mark.parametrize("study", STUDIES, ids=lambda p: p.name if p != ROOT else "default")
def test_dvc_reads_it_and_the_stages_stay_few(study):
    """Also that no unquoted `${...}` stands in a flow sequence: `dvc stage list` would fail."""
    done = subprocess.run([sys.executable, "-m", "dvc", "stage", "list", "--name-only"], cwd=study, text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    settings = config.load(study / "params.yaml")
    chosen = settings.study
    datasets, methods, selectors = len(chosen.datasets), len(chosen.methods), len(settings.selectors)
    assert len(names) == 5 * datasets + 2 * datasets * methods + methods + selectors + 1
    assert len(names) <= 250, "dvc.lock grows too slow to write; see docs/decisions"
    assert f"distill@{chosen.datasets[0]}-{chosen.methods[0]}" in names


def test_selectors_are_trained_only_where_a_study_asks():
    """Also without the section, which studies need not have."""
    spec = read_yaml(ROOT / "dvc.yaml")
    assert spec["vars"] == [{"selectors": {}}]
    assert spec["stages"]["selector"]["foreach"] == "${selectors}"
    assert "selectors" not in read_yaml(ROOT / "params.yaml")


def test_every_out_is_cached_and_no_out_is_inside_another_stages_dependency_folder_of_code():
    """Uncached outs are not restored on another machine; the links to methods are made anew there."""
    for stage, spec in PIPELINE.items():
        for out in spec["outs"] if stage != "method" else ():
            assert isinstance(out, str), f"{stage}: {out} changes how the out is kept"
            assert out.startswith(("artifacts/", "results/")), f"{stage}: out {out} lies outside artifacts and results"


def test_a_change_of_one_method_touches_its_own_stages_only():
    """No stage but `method`, `selector` and `distill` reads hyper-parameters, and these read their own method's."""
    reading = {stage: [p for p in spec["params"] if p.startswith("methods")] for stage, spec in PIPELINE.items()}
    assert {stage: params for stage, params in reading.items() if params} == {
        stage: ["methods.${item.method}"] for stage in ("selector", "method", "distill")}
    (link,) = PIPELINE["method"]["outs"]
    assert link == {"artifacts/method/${item.method}": {"cache": False, "persist": True}}
    assert set(link) < set(PIPELINE["distill"]["deps"])


def test_each_stage_calls_the_command_of_its_name():
    for stage, spec in PIPELINE.items():
        command, *rest = spec["cmd"].removeprefix("kdflow ").split()
        assert command == STAGE_FILES.get(stage, stage)
        assert rest == [a for a in ("${item.dataset}", "${item.method}") if a in spec["cmd"]] or stage in STAGE_FILES
