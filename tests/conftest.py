"""Fixtures for every test: offline, no telemetry, no home folder, shared data where it exists."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", KDFLOW_TRACKING="off", DVC_NO_ANALYTICS="1",
                  DO_NOT_TRACK="1", PREFECT_SERVER_ANALYTICS_ENABLED="false")

# A shell that starts tests in the background has them ignore Ctrl-C, and their child processes too.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """A test's random numbers are the same alone and after others; torch is not loaded for it."""
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout under test."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data and models beside the checkout; tests that need them skip where they are absent."""
    if not SHARED.is_dir():
        pytest.skip(f"needs real data in {SHARED}, which is not there")
    return SHARED


@pytest.fixture(scope="session")
def golden() -> Path:
    """Float64 test vectors."""
    return Path(__file__).parent / "golden"
