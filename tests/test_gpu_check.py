"""`make gpu-check`: what it says without CUDA, and that it sees every test marked `gpu`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def test_without_cuda_it_says_so_and_exits_3(repository, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    done = subprocess.run([repository / "scripts" / "gpu_check.sh"], capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHON": sys.executable, "OUTPUT": str(tmp_path)})
    assert done.returncode == 3
    assert "sees no CUDA device; nothing was checked" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


BORROWED = ("datasets", "dvc", "evaluate", "mlflow", "prefect", "typer")
"""What a borrowed machine with CUDA may lack."""


def test_gpu_tests_are_collected_without_the_packages_that_it_does_not_ask_for(repository):
    files = [str(f) for f in (repository / "tests").rglob("test_*.py")
             if "mark.gpu" in f.read_text(encoding="utf-8") and f != Path(__file__)]
    assert len(files) > 1
    code = f"""
import sys, pytest
sys.modules.update(dict.fromkeys({BORROWED!r}))  # importing one of them fails
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-o", "addopts=", *{files!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
