"""`make up`, `make down`: the servers and the worker of this checkout, in the background on this machine.

    python -m tasks.services up|down|status

`up` starts what is not running and can be repeated. `down` ends what `up` started, known by process number and start
time, and nothing else. While the services are up, `prefect.toml` in the checkout tells every Prefect command that is
run there where they are.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kdcore import tracking_store
from kdcore.environment import prepare_environment
from kdcore.errors import UserError
from kdcore.layout import ROOT
from tasks import addresses
from tasks.processes import alive, end_session, identity

FOLDER = ROOT / ".kdflow"
STATE = FOLDER / "services.json"
SETTINGS = ROOT / "prefect.toml"
POOL = "kdflow"
BEAT = 30
"""Seconds between two signs of life of a flow run; Prefect takes no less."""
WAIT = 120.0
"""Seconds until a server must answer; the first start of a machine's disk cache is slow."""


@dataclass(frozen=True)
class Service:
    """A running service: `process` is `PID:START`, `url` answers when it is ready (a worker has none)."""

    process: str
    url: str
    log: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 3 `status` found something not running."""
    prepare_environment()
    parser = argparse.ArgumentParser(prog="python -m tasks.services", description="Servers and worker of kdflow.")
    parser.add_argument("what", choices=["up", "down", "status"])
    what = parser.parse_args(arguments).what
    try:
        return {"up": up, "down": down, "status": status}[what]()
    except UserError as error:
        print(f"services: {error}", file=sys.stderr)
        return error.exit_code


def up() -> int:
    """Start Prefect's server, MLflow's server, deployments and a worker; print where they are."""
    running = _running()
    environment = os.environ | _prefect_settings()
    if "prefect" not in running:
        running["prefect"] = _start("prefect", [
            "prefect", "server", "start", "--host", addresses.HOST, "--port", _port(addresses.prefect_url())],
            f"{addresses.prefect_api()}/health", addresses.PREFECT_PORT, environment)
    if "mlflow" not in running:
        tracking_store.setup()  # create the store before two processes do
        running["mlflow"] = _start("mlflow", [
            "mlflow", "server", "--host", addresses.HOST, "--port", _port(addresses.mlflow_url()), "--workers", "1",
            "--backend-store-uri", tracking_store.uri(), "--artifacts-destination",
            (ROOT.resolve() / "mlartifacts").as_uri()],
            f"{addresses.mlflow_url()}/health", addresses.MLFLOW_PORT,
            os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    _save(running)
    for name in ("prefect", "mlflow"):
        _wait(name, running[name])
    _write_settings()
    if "worker" not in running:
        _run([sys.executable, "-m", "tasks.deploy"], environment)
        running["worker"] = _start("worker", ["prefect", "worker", "start", "--pool", POOL, "--type", "process",
                                              "--name", "kdflow"], "", "", environment)
        _save(running)
    print(f"Prefect  {addresses.prefect_url()}\nMLflow   {tracking_store.page(addresses.mlflow_url(), 'experiments')}\n"
          f"Worker   of pool {POOL}, log {running['worker'].log}\n"
          f"Start a study:  prefect deployment run distill/demo --watch   (in {ROOT}); stop all: make down")
    return 0


def down() -> int:
    """End the worker with what it runs, then the servers."""
    running = _running()
    for name in ("worker", "mlflow", "prefect"):
        if name not in running:
            continue
        if name == "prefect":
            _run([sys.executable, "-m", "tasks.deploy", "--close-runs"], os.environ | _prefect_settings())
        end_session(int(running[name].process.partition(":")[0]), grace=10.0)
        print(f"stopped {name}")
    if not running:
        print("nothing was running")
    STATE.unlink(missing_ok=True)
    SETTINGS.unlink(missing_ok=True)
    return 0


def status() -> int:
    """Say what runs."""
    running = _running()
    for name in ("prefect", "mlflow", "worker"):
        found = running.get(name)
        print(f"{name:8}", f"PID {found.process.partition(':')[0]}, log {found.log}" if found else "not running")
    return 0 if len(running) == 3 else 3


def prefect_api() -> str | None:
    """Prefect's API, if `up` started one that still runs."""
    service = _running().get("prefect")
    return service.url.removesuffix("/health") if service else None


def _running() -> dict[str, Service]:
    try:
        known = json.loads(STATE.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    services = {name: Service(**entry) for name, entry in known.items()}
    return {name: service for name, service in services.items() if alive(service.process)}


def _save(services: Mapping[str, Service]) -> None:
    STATE.write_text(json.dumps({name: asdict(service) for name, service in services.items()}, indent=1),
                     encoding="utf-8")


def _prefect_settings() -> dict[str, str]:
    """What server, deployments, worker and flows share."""
    return {
        "PREFECT_HOME": str(FOLDER / "prefect"),
        "PREFECT_API_URL": addresses.prefect_api(),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(BEAT),
        "PREFECT_WORKER_QUERY_SECONDS": "3",
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
    }


def _write_settings() -> None:
    """For Prefect commands that a person runs in the checkout; the same keys as `_prefect_settings`."""
    SETTINGS.write_text(f"""\
# Written by `make up`, deleted by `make down`: where this checkout's Prefect server is.
home = {json.dumps(str(FOLDER / "prefect"))}

[api]
url = {json.dumps(addresses.prefect_api())}

[server]
analytics_enabled = false

[flows]
heartbeat_frequency = {BEAT}
""", encoding="utf-8")


def _start(name: str, command: Sequence[str], url: str, variable: str, environment: Mapping[str, str]) -> Service:
    """Start a service as leader of its own session, which survives this command and is ended as a whole.

    Raises:
        UserError: something else answers at its address.
    """
    if url and answers(url):
        raise UserError(f"{url.partition('/health')[0]} is in use by a process that `make up` did not start; stop it, "
                        f"or choose another port with {variable}")
    FOLDER.mkdir(exist_ok=True)
    log = FOLDER / f"{name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=dict(environment), stdout=out,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
    return Service(identity(process.pid) or f"{process.pid}:0", url, str(log))


def _wait(name: str, service: Service) -> None:
    deadline = time.monotonic() + WAIT
    while not answers(service.url):
        if not alive(service.process) or time.monotonic() > deadline:
            last = Path(service.log).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise UserError(f"{name} does not answer at {service.url}; {''.join(last)}; log: {service.log}")
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Whether a server listens there, whatever it says."""
    try:
        with urllib.request.urlopen(url, timeout=3):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env=dict(environment), text=True, capture_output=True, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(command[1:])} failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


def _port(url: str) -> str:
    return url.rpartition(":")[2]


if __name__ == "__main__":
    sys.exit(main())
