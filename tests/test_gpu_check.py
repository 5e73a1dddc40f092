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


def test_all_gpu_tests_lie_where_it_looks(repository):
    """It collects one folder only: other tests import what a borrowed GPU machine may lack."""
    marked = [f for f in (repository / "tests").rglob("test_*.py")
              if "mark.gpu" in f.read_text(encoding="utf-8") and f != Path(__file__)]
    assert marked
    assert {f.parent.relative_to(repository).as_posix() for f in marked} == {"tests/gpu"}
