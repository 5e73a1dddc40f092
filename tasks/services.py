"""`make up`, `make down`: the servers and the worker of this checkout, in the background on this machine.

    python -m tasks.services up|down|status

`up` starts what is not running and can be repeated. `down` ends what `up` started, known by process number and start
time, and nothing else. Where `MLFLOW_TRACKING_URI` names a server, that one is used and none of ours is started. While
the services are up, `prefect.toml` in the checkout tells every Prefect command that is run there where they are.
"""

import argparse
import ipaddress
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock

from kdcore import tracking_store
from kdcore.environment import prepare_environment
from kdcore.errors import UserError
from kdcore.layout import ROOT
from tasks import addresses
from tasks.output import readable
from tasks.processes import alive, end_session, identity

FOLDER = ROOT / ".kdflow"
STATE = FOLDER / "services.json"
SETTINGS = ROOT / "prefect.toml"
POOL = "kdflow"
BEAT = 30
"""Seconds between two signs of life of a flow run; Prefect takes no less."""
WAIT = 120.0
"""Seconds until a server must answer; the first start of a machine's disk cache is slow."""
CLOSING = 60.0
"""Seconds until Prefect's server must have closed the runs of a worker that was ended."""
_ELSEWHERE = "as MLFLOW_TRACKING_URI says"


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
    """Start Prefect's server, MLflow's server, deployments and a worker; print where they are.

    Each is noted as soon as it has been started, so that `down` ends it whatever fails after it.

    Raises:
        UserError: an address is taken, a server does not answer, or the deployments are refused.
    """
    with _alone():
        running = _running()
        environment = os.environ | _prefect_settings()
        _start_servers(running, environment)
        _write_settings()
        if "worker" not in running:
            _run([sys.executable, "-m", "tasks.deploy"], environment)
            _start(running, "worker", ["prefect", "worker", "start", "--pool", POOL, "--type", "process",
                                       "--name", "kdflow"], "", "", environment)
    note = f" ({_ELSEWHERE})" if addresses.mlflow_elsewhere() else ""
    print(f"Prefect  {addresses.prefect_url()}\n"
          f"MLflow   {tracking_store.page(addresses.mlflow_url(), 'experiments')}{note}\n"
          f"Worker   of pool {POOL}, log {running['worker'].log}\n"
          f"Start a study:  prefect deployment run distill/demo --watch   (in {ROOT}); stop all: make down")
    return 0


def down() -> int:
    """End the worker with what it runs, then the servers, also those that no longer answer."""
    with _alone():
        running = _running()
        for name in ("worker", "mlflow", "prefect"):
            if name not in running:
                continue
            if name == "prefect":
                _close_runs()
            end_session(int(running[name].process.partition(":")[0]), grace=10.0)
            print(f"stopped {name}")
        if not running:
            print("nothing was running")
        STATE.unlink(missing_ok=True)
        SETTINGS.unlink(missing_ok=True)
    return 0


def status() -> int:
    """Say what runs."""
    running, complete = _running(), True
    for name in ("prefect", "mlflow", "worker"):
        found = running.get(name)
        if found:
            said = f"PID {found.process.partition(':')[0]}, log {found.log}"
        elif name == "mlflow" and addresses.mlflow_elsewhere():
            said = f"{addresses.mlflow_url()} ({_ELSEWHERE})"
        else:
            said, complete = "not running", False
        print(f"{name:8}", said)
    return 0 if complete else 3


def prefect_api() -> str | None:
    """Prefect's API, if `up` started one that still runs."""
    service = _running().get("prefect")
    return service.url.removesuffix("/health") if service else None


def _start_servers(running: dict[str, Service], environment: Mapping[str, str]) -> None:
    """Start the servers that do not run yet, side by side, and wait until both answer."""
    elsewhere = addresses.mlflow_elsewhere() is not None
    if elsewhere:
        tracking_store.connect()  # a mistake there is told before anything is started
    if "prefect" not in running:
        _start(running, "prefect", [
            "prefect", "server", "start", "--host", addresses.HOST, "--port", _port(addresses.prefect_url())],
            f"{addresses.prefect_api()}/health", addresses.PREFECT_PORT, environment)
    if "mlflow" not in running and not elsewhere:
        tracking_store.setup()  # create the store before two processes do
        _start(running, "mlflow", [
            "mlflow", "server", "--host", addresses.HOST, "--port", _port(addresses.mlflow_url()), "--workers", "1",
            "--backend-store-uri", tracking_store.uri(), "--artifacts-destination",
            (ROOT.resolve() / "mlartifacts").as_uri()],
            f"{addresses.mlflow_url()}/health", addresses.MLFLOW_PORT,
            os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    for name in ("prefect", "mlflow"):
        if name in running:
            _wait(name, running[name])


@contextmanager
def _alone() -> Iterator[None]:
    """One `up` or `down` of this checkout at a time: a second waits, and finds what the first has done."""
    FOLDER.mkdir(exist_ok=True)
    with FileLock(FOLDER / "services.lock"):
        yield


def _running() -> dict[str, Service]:
    try:
        known = json.loads(STATE.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    services = {name: Service(**entry) for name, entry in known.items()}
    return {name: service for name, service in services.items() if alive(service.process)}


def _save(services: Mapping[str, Service]) -> None:
    beside = STATE.with_suffix(".new")
    beside.write_text(json.dumps({name: asdict(service) for name, service in services.items()}, indent=1),
                      encoding="utf-8")
    os.replace(beside, STATE)  # flows read it at any time


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


def _start(running: dict[str, Service], name: str, command: Sequence[str], url: str, variable: str,
           environment: Mapping[str, str]) -> None:
    """Start a service as leader of its own session, which survives this command and is ended as a whole; note it.

    Raises:
        UserError: something else answers at its address.
    """
    if url and answers(url):
        raise UserError(f"{url.partition('/health')[0]} is in use by a process that `make up` did not start; stop it, "
                        f"or choose another port with {variable}")
    log = FOLDER / f"{name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=dict(environment), stdout=out,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
    running[name] = Service(identity(process.pid) or f"{process.pid}:0", url, str(log))
    _save(running)


def _wait(name: str, service: Service) -> None:
    deadline = time.monotonic() + WAIT
    # Its process first: where ours could not have the address, another may answer there.
    while not alive(service.process) or not answers(service.url):
        if not alive(service.process) or time.monotonic() > deadline:
            said = _last_line(Path(service.log).read_text(encoding="utf-8", errors="replace"))
            raise UserError(f"{name} does not answer at {service.url}; {said}; log: {service.log}")
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Whether a server listens there, whatever it says. One of this machine is asked without the proxy that is set."""
    handler = urllib.request.ProxyHandler({} if _on_this_machine(url) else None)
    try:
        with urllib.request.build_opener(handler).open(url, timeout=3):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _on_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _close_runs() -> None:
    """Have Prefect close what the worker was running; a server that does not answer is no reason to leave it there."""
    try:
        _run([sys.executable, "-m", "tasks.deploy", "--close-runs"], os.environ | _prefect_settings(), CLOSING)
    except UserError as error:
        print(f"services: runs of the worker may stay Running in Prefect's records: {error}", file=sys.stderr)


def _run(command: Sequence[str], environment: Mapping[str, str], limit: float | None = None) -> None:
    """Run a command to its end.

    Raises:
        UserError: it failed, says its last line; or it ran longer than `limit` seconds and was ended.
    """
    told = " ".join(command[1:])
    try:
        # One stream, unbuffered: Prefect says some of its errors on stdout, and the last line is to be the last one.
        done = subprocess.run(command, cwd=ROOT, env={**environment, "PYTHONUNBUFFERED": "1"}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        raise UserError(f"{told} did not end within {limit:.0f} s") from None
    if done.returncode:
        raise UserError(f"{told} failed with exit code {done.returncode}: {_last_line(done.stdout)}")


def _last_line(text: str) -> str:
    """The last line with words in it, which the frame around a message has not."""
    lines = [readable(line) for line in text.splitlines()]
    return next((line.strip() for line in reversed(lines) if re.search(r"\w", line)), "it printed nothing")


def _port(url: str) -> str:
    return url.rpartition(":")[2]


if __name__ == "__main__":
    sys.exit(main())
