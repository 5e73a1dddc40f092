"""The champion over HTTP, as a stranger would serve it, against the raw logits."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kdcore import registry, tracking_store
from tests import trained_study as toy
from tests.mlflow_store import Store
from tests.test_registry import NAME, direct
from tests.tiny import tiny_texts

pytest_plugins = ("tests.mlflow_store",)
pytestmark = pytest.mark.slow


class Server:
    """`mlflow models serve` on a port of its own."""

    def __init__(self, store: Store) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [str(Path(sys.executable).with_name("mlflow")), "models", "serve", "-m", f"models:/{NAME}@champion",
                   "--env-manager", "local", "--port", str(self.port)]
        environment = store.environment() | {"MLFLOW_TRACKING_URI": tracking_store.uri(),
                                             "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.log = store.root / "serve.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True,
                                            cwd=store.root)
        deadline = time.monotonic() + 120
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(self.log.read_text())
            time.sleep(0.3)

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer to one request; raises HTTPError for a bad one."""
        call = urllib.request.Request(f"http://127.0.0.1:{self.port}/invocations", json.dumps(request).encode(),
                                      {"Content-Type": "application/json"})
        with urllib.request.urlopen(call, timeout=60) as answer:
            return json.load(answer)["predictions"]

    def refusal(self, request: dict[str, Any]) -> tuple[int, str]:
        """Status and message of a bad request."""
        with pytest.raises(urllib.error.HTTPError) as error:
            self.ask(request)
        return error.value.code, json.load(error.value)["message"]

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=2):
                return True
        except OSError:
            return False


@pytest.fixture
def server(store: Store) -> Iterator[Server]:
    toy.write_study(store.layout)
    registry.register(toy.settings(), store.layout, "toy", "rail_kd_l", 1)
    running = Server(store)
    yield running
    running.stop()


def test_text_pairs_over_http_are_scored_as_by_the_raw_logits(store: Store, server: Server) -> None:
    texts, pairs = tiny_texts(20, seed=3), tiny_texts(20, seed=4)
    records = [{"text": text, "text_pair": pair} for text, pair in zip(texts, pairs, strict=True)]
    answer = server.ask({"dataframe_records": records})
    wanted = direct(store.layout.student("toy", "rail_kd_l") / "seed-1", texts, pairs)
    found = torch.tensor([[row[f"probability:{label}"] for label in toy.LABELS] for row in answer])
    assert (found - wanted).abs().max() < 1e-5
    assert [row["label"] for row in answer] == [toy.LABELS[i] for i in wanted.argmax(dim=1)]

    rows = {"columns": ["text_pair", "text"], "data": [[pair, text] for text, pair in zip(texts, pairs, strict=True)]}
    assert server.ask({"dataframe_split": rows}) == answer, "columns go by name, not by place"

    swapped = server.ask({"dataframe_records": [{"text": r["text_pair"], "text_pair": r["text"]} for r in records]})
    other = torch.tensor([[row[f"probability:{label}"] for label in toy.LABELS] for row in swapped])
    assert (found - other).abs().max() > 1e-3, "the second text counts"

    code, message = server.refusal({"dataframe_records": [{"text": "the film"}]})
    assert code == 400
    assert "text_pair" in message
    code, message = server.refusal({"dataframe_records": [{"text": "the film", "text_pair": None}]})
    assert code == 400
    assert "`text_pair` of row 0" in message
    columns = {"text": texts, "text_pair": pairs}
    assert server.ask({"inputs": columns}) == answer, "as columns"
