"""A copy of the checkout in a folder of its own: flows and services write into it, not into ours."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from kdcore.layout import ROOT

PARTS = ("kdcore", "tasks", "flows", "prefect.yaml", "dvc.yaml", "general.dvc.yaml", "params.yaml", "pyproject.toml",
         ".dvc/config")
ELSEWHERE = ("PREFECT_", "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
"""What would lead commands to servers and stores that are not the copy's."""


class Checkout:
    """Code and settings without results; commands run with it as `kdcore.layout.ROOT`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in PARTS:
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / part, folder / part)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(ELSEWHERE)} | {
            "KDFLOW_ROOT": str(folder), "PYTHONPATH": str(folder), "HOME": str(folder / "home"),
            "KDFLOW_PREFECT_PORT": str(free_port()), "KDFLOW_MLFLOW_PORT": str(free_port()), "KDFLOW_TRACKING": "off",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }

    def start(self, *command: str, **options) -> "subprocess.Popen[str]":
        """Start a Python module, e.g. `flows.distill --study X`, in the copy."""
        return subprocess.Popen([sys.executable, "-m", *command], cwd=self.folder, env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)

    def run(self, *command: str, seconds: float = 180) -> tuple[int, str]:
        """Run a Python module; returns exit code and all output."""
        process = self.start(*command)
        try:
            return_value = process.communicate(timeout=seconds)[0]
        finally:
            process.kill()
        return process.returncode, return_value


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
