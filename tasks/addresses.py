"""Where the servers listen: 127.0.0.1, on ports that the environment may change."""

import os

from kdcore.errors import UserError

HOST = "127.0.0.1"
PREFECT_PORT = "KDFLOW_PREFECT_PORT"
MLFLOW_PORT = "KDFLOW_MLFLOW_PORT"


def prefect_api() -> str:
    """Prefect's API, as `PREFECT_API_URL` wants it."""
    return f"{prefect_url()}/api"


def prefect_url() -> str:
    """Prefect's pages."""
    return f"http://{HOST}:{port(PREFECT_PORT, 4200)}"


def mlflow_url() -> str:
    """MLflow's pages: the server that runs are logged to, else that of `make up`."""
    return mlflow_elsewhere() or f"http://{HOST}:{port(MLFLOW_PORT, 5000)}"


def mlflow_elsewhere() -> str | None:
    """The server that `MLFLOW_TRACKING_URI` names, which stands for the one of `make up`; None where it names none."""
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    return tracking.rstrip("/") if tracking.startswith(("http://", "https://")) else None


def port(variable: str, default: int) -> int:
    """A port number from the environment.

    Raises:
        UserError: it is no port number.
    """
    given = os.environ.get(variable, str(default))
    if not given.isdigit() or not 0 < int(given) < 65536:
        raise UserError(f"{variable} = {given!r} is no port, expected 1 to 65535; unset it for {default}")
    return int(given)
