"""The command line: fast to answer, one line for mistakes, the traceback for bugs."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kdcore import __version__, cli, environment
from kdcore.errors import BusyError, UserError
from kdcore.layout import ROOT, Layout
from kdcore.stages import report
from tests.command import kdflow

COMMANDS = sorted(c.name or c.callback.__name__ for c in cli.app.registered_commands)
STAGES = ("prepare", "teacher", "features", "selector", "method", "distill", "evaluate", "analyse", "report")
HEAVY = ("torch", "prefect", "mlflow", "datasets", "transformers", "evaluate", "dvc", "pandas", "sklearn", "matplotlib")


def _process(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, check=False)


def test_every_command_of_the_design_is_there():
    assert set(COMMANDS) == {
        *STAGES, "init", "grid", "register", "models", "status", "doctor", "general-teacher", "corpus", "pretrain",
        "general-report", "accept-search", "export", "promote", "rollback", "show", "explain"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_of_that_command(command, tmp_path):
    outcome = kdflow(command, "--help", cwd=tmp_path)
    assert outcome.code == 0
    assert f"Example: kdflow {command}" in outcome.out


def test_no_arguments_print_help(tmp_path):
    outcome = kdflow(cwd=tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    assert "distill" in outcome.out


def test_version(tmp_path):
    assert kdflow("--version", cwd=tmp_path).out == f"{__version__}\n"


def test_help_and_mistakes_load_no_heavy_library(repository, tmp_path):
    """In a fresh interpreter: what `kdflow --help` and a misspelt name import."""
    code = f"""
import contextlib, sys
from kdcore import cli, config, layout
for arguments in ("--help", "distill --help", "distill moviez finetune", "distill movies finetun"):
    with contextlib.suppress(SystemExit):
        cli.main([*arguments.split(), *(["--study", {str(repository)!r}] if "--help" not in arguments else [])])
print("loaded:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = _process(code, tmp_path)
    assert done.stdout.endswith("loaded: []\n"), done.stdout + done.stderr
    assert "did you mean 'movies'?" in done.stderr
    assert "did you mean 'finetune'" in done.stderr


def test_help_takes_little_more_than_the_libraries_it_needs(tmp_path):
    """Processor time, the best of six, measured by turns: seconds would tell of the machine and of what else runs. It
    takes 1.8 times that of the libraries, and took 10 times with torch."""
    def once(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    libraries = "import typer, ruamel.yaml; from pydantic import BaseModel, TypeAdapter"
    took = [(once("-m", "kdcore.cli", "--help"), once("-c", libraries)) for _ in range(6)]
    assert min(help_ for help_, _ in took) < 3 * min(needed for _, needed in took)


def test_a_stage_runs_inside_the_study_folder(repository, tmp_path, monkeypatch):
    """As under DVC: relative paths in params.yaml mean the same whichever way a stage is started."""
    seen = []
    monkeypatch.setattr(report, "run", lambda study, layout: seen.append((Path.cwd(), layout, study.study.datasets)))
    assert kdflow("report", "--study", str(repository), cwd=tmp_path).code == 0
    assert seen == [(repository, Layout(Path()), ("movies",))]


@pytest.mark.parametrize(("error", "code"), [(UserError("a is\nwrong"), 2), (BusyError("pid 7 works here"), 75)])
def test_a_users_mistake_is_one_line_and_its_exit_code(error, code, repository, monkeypatch):
    def fail(study, layout):
        raise error

    monkeypatch.setattr(report, "run", fail)
    outcome = kdflow("report", cwd=repository)
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.err == f"kdflow: {' '.join(str(error).split())}\n"


@pytest.mark.parametrize(("error", "words"), [
    (PermissionError(errno.EACCES, "Permission denied", "/data/out"), "/data/out: Permission denied; name a folder"),
    (OSError(errno.EROFS, "Read-only file system", "out"), "out: Read-only file system; name a folder"),
    (OSError(errno.ENOSPC, "No space left on device"), "a file cannot be written: No space left on device; make room"),
])
def test_a_place_where_nothing_can_be_written_is_one_line(error, words, repository, monkeypatch):
    def fail(study, layout):
        raise error

    monkeypatch.setattr(report, "run", fail)
    outcome = kdflow("report", cwd=repository)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith(f"kdflow: {words}")


def test_a_full_device_is_one_line_with_what_helps(repository, monkeypatch):
    def fail(study, layout):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity")

    monkeypatch.setattr(report, "run", fail)
    outcome = kdflow("report", cwd=repository)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith("kdflow: the device's memory is full: CUDA out of memory; raise training's `accum")


def test_a_bug_keeps_its_traceback(repository, monkeypatch):
    monkeypatch.setattr(report, "run", lambda study, layout: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kdflow("report", cwd=repository)


def test_an_interrupt_is_130_and_says_how_to_go_on(repository, monkeypatch):
    def interrupt(study, layout):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "run", interrupt)
    outcome = kdflow("report", cwd=repository)
    assert outcome.code == 130
    assert outcome.err.count("\n") == 1
    assert "same command" in outcome.err


def test_environment_turns_telemetry_off_and_keeps_what_the_user_set(monkeypatch):
    for name in environment.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "debug")
    environment.prepare_environment()
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert os.environ["DVC_NO_ANALYTICS"] == "1"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert os.environ["TRANSFORMERS_VERBOSITY"] == "debug"


@pytest.mark.parametrize(("lower", "upper", "expected"), [
    ("", "", "127.0.0.1,localhost"), ("", "a.example.com, localhost", "a.example.com,localhost,127.0.0.1"),
    ("a.example.com", "", "a.example.com,127.0.0.1,localhost"), ("*", "", "*"),
])
def test_a_proxy_is_kept_out_of_what_is_on_this_machine(monkeypatch, lower, upper, expected):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("no_proxy", lower)
    monkeypatch.setenv("NO_PROXY", upper)
    environment.prepare_environment()
    environment.prepare_environment()  # a child's
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == expected


def test_without_a_proxy_nothing_is_said_of_one(monkeypatch):
    for name in environment.PROXIES:
        monkeypatch.setenv(name, "")
        monkeypatch.setenv(name.upper(), "")
    monkeypatch.setenv("no_proxy", "")
    environment.prepare_environment()
    assert os.environ["no_proxy"] == ""


def test_a_study_like_another(tmp_path):
    """The pipeline goes with the settings: that of a general study is another one."""
    for like, pipeline in (("studies/general-cpu", "general.dvc.yaml"), ("studies/glue-cpu", "dvc.yaml")):
        made = tmp_path / pipeline.partition(".")[0]
        outcome = kdflow("init", str(made), "--like", like, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        assert (made / "dvc.yaml").resolve() == ROOT / pipeline
    refused = kdflow("init", str(tmp_path / "x"), "--like", "studies/general-cp", cwd=tmp_path)
    assert refused.code == 2
    assert "did you mean 'studies/general-cpu'" in refused.err
