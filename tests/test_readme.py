"""What the documents say is true: commands exist or run, settings parse, links lead somewhere."""

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from kdcore import cli, config, general_config, methods, strict
from kdcore.data.own import check_declaration
from kdcore.data_config import Augmentation, Data, Files, OutOfDomain, Unlabelled
from kdcore.layout import Layout
from kdcore.pair_config import Member, Pair, StudentModel, TeacherModel
from kdcore.training.trainer import SAVE_SECONDS
from tasks import services
from tests.command import kdflow

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("studies/*/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
PARAMS = (ROOT / "docs" / "params.md").read_text(encoding="utf-8")
COMMANDS = {c.name or c.callback.__name__ for c in cli.app.registered_commands}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def _commands(text: str) -> list[str]:
    """Lines of bash blocks and inline code that start with a program we know, without comments."""
    lines = [line for block in _blocks(text, "bash") for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:\.venv/bin/)?(?:make|kdflow|dvc|prefect|python|mlflow|torchrun) [^`]+)`", text)
    return [" ".join(shlex.split(line, comments=True)).removeprefix(".venv/bin/") for line in lines if line.strip()]


CASES = sorted({(document.relative_to(ROOT).as_posix(), command) for document in DOCUMENTS
                for command in _commands(document.read_text(encoding="utf-8"))})


@pytest.mark.parametrize(("document", "command"), CASES)
def test_commands_exist(document, command):
    program, *rest = command.split()
    match program:
        case "make":
            assert {word for word in rest if "=" not in word} <= TARGETS
        case "kdflow":
            assert rest[0].startswith("--") or rest[0] in COMMANDS or rest[0].isupper()
        case "python" if "-m" not in rest:
            assert (ROOT / rest[0]).is_file()
        case "python" | "torchrun":
            assert importlib.util.find_spec(rest[rest.index("-m") + 1]) is not None
        case "dvc":
            from dvc.cli.parser import get_main_parser

            get_main_parser().parse_args(rest)
        case "prefect" if rest[:2] == ["worker", "start"]:
            assert rest[2:] == ["--pool", services.POOL]
        case "prefect":
            assert rest[:2] == ["deployment", "run"]
            assert rest[2] in _deployments()
        case "mlflow":
            assert rest[:2] == ["models", "serve"]
        case "source" | "export" | "curl":
            pass
        case _:
            pytest.fail(f"{document}: nobody checks `{command}`")


def _deployments() -> set[str]:
    content = YAML(typ="safe").load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    return {f"{each['entrypoint'].partition(':')[2]}/{each['name']}" for each in content["deployments"]}


def test_the_commands_were_found():
    assert {"make demo", "make test"} <= {command for document, command in CASES if document == "README.md"}
    assert len(CASES) > 15


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), f"{document.name} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in titles}, target


def test_files_and_folders_that_the_readme_names_exist():
    for name in re.findall(r"`((?:kdcore|studies|docs|tests|flows|tasks|examples)/[A-Za-z0-9_./-]*)`", README):
        if "mine" not in name:
            assert (ROOT / name).exists(), f"README names {name}"


def test_no_figure_is_waiting_to_be_measured():
    waiting = [d.name for d in DOCUMENTS if "PLACEHOLDER" in d.read_text(encoding="utf-8")]
    assert not waiting, f"put measured figures in place of PLACEHOLDER in {waiting}"


def _settings(study: str) -> dict:
    return YAML(typ="safe").load((ROOT / study / "params.yaml").read_text(encoding="utf-8"))


SETTINGS = [(document.relative_to(ROOT).as_posix(), number, block) for document in DOCUMENTS
            for number, block in enumerate(_blocks(document.read_text(encoding="utf-8"), "yaml"), start=1)]
ELSEWHERE = {"docs/running.md": "prefect.yaml", "docs/scaling.md": None}
"""Pages whose blocks are no settings of a study: a part of another file, or of no file of ours."""
GENERAL = {"corpus", "students", "masking"}
"""Sections of general studies alone."""


@pytest.mark.parametrize(("document", "number", "block"), [case for case in SETTINGS if case[0] not in ELSEWHERE],
                         ids=lambda part: str(part) if "\n" not in str(part) else "")
def test_settings_that_documents_show_are_valid(document, number, block):
    """Each block in place of what a whole study says; of datasets that it only names, any will do."""
    block = YAML(typ="safe").load(block)
    general = document == "docs/general-methods.md" or GENERAL & block.keys()
    content = _settings("studies/general-cpu" if general else ".")
    for section, value in block.items():
        content[section] = content.get(section, {}) | value if isinstance(value, dict) else value
    if general:
        strict.parse(general_config.GeneralStudy, content, document)
        return
    named = {name for written in content["methods"].values() for name in written.get("datasets", {})}
    named |= {name for row in content["study"].get("published", {}).values() for name in row["scores"]}
    content["datasets"] = {name: {"data": {}, "teacher": {}, "student": {}} | content["datasets"].get(name, {})
                           for name in {*content["datasets"], *content["study"]["datasets"], *named}}
    study = strict.parse(config.Study, content, document)
    for name in study.datasets:
        check_declaration(name, study.dataset(name).data)
    for name in block.get("methods", {}):
        for entry in study.entries(name):
            methods.configure(entry.file, entry.options)


def test_blocks_that_are_no_settings_are_parts_of_other_files():
    assert {document for document, _, _ in SETTINGS} > ELSEWHERE.keys()
    for document, _, block in SETTINGS:
        if (file := ELSEWHERE.get(document)) is not None:
            assert block in (ROOT / file).read_text(encoding="utf-8"), f"{document} shows what {file} does not hold"


def test_python_of_the_readme_names_an_exported_student():
    blocks = _blocks(README, "python")
    assert blocks
    for block in blocks:
        ast.parse(block)
    path = re.search(r'from_pretrained\("([^"]+)"\)', "".join(blocks))
    assert path is not None
    assert Path(path[1]) == Layout(Path()).student("movies", "rail_kd_l") / "seed-1"


def test_the_settings_guide_names_every_key():
    text = PARAMS
    models = [config.Selection, TeacherModel, Member, StudentModel, Pair, config.Training,
              Data, Files, Augmentation, OutOfDomain, config.StoredFeatures,
              config.TeacherGate, config.Evaluation, config.Analysis, config.SelectorTraining, config.Published,
              Unlabelled, config.Study]
    for model in models:
        for name in model.model_fields:
            said = re.search(rf"[`.]{name}\b|^{name}:|^## .*\b{name}\b", text, re.MULTILINE)
            assert said, f"docs/params.md says nothing of {model.__name__}.{name}"


NOTHING = {"", "all", "as the paper's code", "built in", "equal", "latest", "never stops", "none",
           "that of the source"}
"""Words for a default of None or of no entries."""


@pytest.mark.parametrize(("title", "prefix", "model", "whole"), [
    ("pair: teacher and student", "student.", StudentModel, True),
    ("Several teachers", "", TeacherModel, False),
    ("training.teacher, training.student: one training run", "", config.Training, True),
    ("datasets.NAME: one dataset", "", Data, False),
    ("Augmented rows", "", Augmentation, True),
    ("selectors: what weighs knowledge, trained once", "DATASET.", config.SelectorTraining, True),
    ("features: the teacher store", "", config.StoredFeatures, True),
    ("evaluation", "", config.Evaluation, True),
    ("analysis: a look inside the students", "", config.Analysis, True),
])
def test_defaults_in_the_settings_guide_are_those_of_the_code(title, prefix, model, whole):
    """`whole`: the section's table with defaults has every field; else others stand in tables without."""
    section = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PARAMS, re.MULTILINE | re.DOTALL)
    assert section is not None
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]*)\| [^|]*\|$", section[1], re.MULTILINE)
    said = {key.removeprefix(prefix): default.strip().replace("`", "") for keys, default in rows
            for key in re.findall(r"`([^`]+)`", keys) if key.startswith(prefix)}
    fields = {name: field for name, field in model.model_fields.items() if whole or name in said}
    assert fields, "the table has none of the fields"
    assert said.keys() <= model.model_fields.keys(), "the table has a row for no field"
    for name, field in fields.items():
        assert name in said, f"{title} has no row for {name}"
        default = None if field.is_required() else field.default
        if name == "save_minutes":
            default = SAVE_SECONDS / 60  # what None stands for
        if default is None or default == ():
            assert said[name] in NOTHING, name
        else:
            shown = YAML(typ="safe").load(said[name])
            assert (float(shown) if isinstance(default, float) else shown) == (
                list(default) if isinstance(default, tuple) else default), name


def test_make_help_lists_every_target_of_the_design():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("demo", "test", "lint", "up", "down", "bench", "gpu-check", "lock", "clean", "help"):
        assert f"make {target} " in done.stdout


def test_a_new_study_and_its_remote_as_in_the_readme(tmp_path):
    """`kdflow init`, `dvc remote add` and `dvc push`, as written, in a folder of its own."""
    outcome = kdflow("init", str(tmp_path / "mine"), cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    (tmp_path / "store").mkdir()
    remote = next(line for line in _commands(README) if line.startswith("dvc remote add") and "/mnt/" in line)
    steps = [remote.replace("/mnt/shared/kdflow", str(tmp_path / "store")), "dvc push --run-cache",
             "dvc stage list --name-only"]
    assert steps[1] in _commands(README)
    for step in steps:
        done = subprocess.run([sys.executable, "-m", *step.split()], cwd=tmp_path / "mine", capture_output=True,
                              text=True, check=False, env=os.environ | {"DVC_SITE_CACHE_DIR": str(tmp_path / "site")})
        assert done.returncode == 0, f"{step}: {done.stderr}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_scripts_are_valid_bash():
    for script in [ROOT / ".ci" / "run", *ROOT.glob("scripts/*.sh")]:
        assert os.access(script, os.X_OK), f"{script.name} is not executable"
        subprocess.run(["bash", "-n", str(script)], check=True)
