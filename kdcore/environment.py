"""What every process of kdflow sets before it imports a library: no telemetry, no chatter, no spinning threads.

Set through the environment, so that child processes (DVC, Prefect, MLflow servers) inherit it. A value
that the user has set stays.
"""

import os

SETTINGS = {
    # telemetry
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Threads that wait for each other sleep. Spinning costs more than twice the time as soon as anything else runs.
    "OMP_WAIT_POLICY": "PASSIVE",
    # chatter that tells a user nothing
    "HF_HUB_DISABLE_SYMLINKS_WARNING": "1",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "",
    "TOKENIZERS_PARALLELISM": "false",  # else a warning at every fork of a data loader
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",  # else "newly initialized weights" and load reports for every student
}


def prepare_environment() -> None:
    """Apply `SETTINGS` to this process and its children."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
