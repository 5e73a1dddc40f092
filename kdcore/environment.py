"""What every process of kdflow sets before it imports a library: no telemetry, no chatter, no spinning threads.

Set through the environment, so that child processes (DVC, Prefect, MLflow servers) inherit it. A value
that the user has set stays. Where a proxy is set, this machine's own servers are added to what it is not asked for.
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

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
"""Variables that name a proxy, in either case."""
THIS_MACHINE = ("127.0.0.1", "localhost")


def prepare_environment() -> None:
    """Apply `SETTINGS` to this process and its children, and keep a proxy out of what is on this machine."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in PROXIES):
        _ask_this_machine_directly()


def _ask_this_machine_directly() -> None:
    # Some libraries read one case, some the other first: a list that is given in one case alone is that of both.
    for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
        given = os.environ.get(name) or os.environ.get(other) or ""
        hosts = [host.strip() for host in given.split(",") if host.strip()]
        if "*" not in hosts:
            hosts += [host for host in THIS_MACHINE if host not in hosts]
        os.environ[name] = ",".join(hosts)
