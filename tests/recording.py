"""A small run's record, and what arrived of it: for the tests of MLflow."""

import csv
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tandem.tracking.connection import make_schema
from tests import epochs
from tests.projects import environment, python, wait_for
from tests.servers import answers

mlflow = pytest.importorskip("mlflow")

LONG = ("epochs: 3", "epochs: 20")

EPOCHS = Path(epochs.__file__).read_text(encoding="utf-8")
# Writes small runs and prints MLflow's ids of each. Arguments: seconds to wait, the runs' names.
RECORD = f"""
{EPOCHS}
import json, sys
from tandem.tracking import run_dir
run_dir.WAIT_SECONDS = float(sys.argv[1])
for name in sys.argv[2:]:
    with run_dir.open_run_dir(name, "train") as run:
        run.write_info("tiny", name, params={{"a": 1}})
        run.save_epochs(epochs(1))
    print(json.dumps(run.ids))
"""


def client_of(project: Path) -> mlflow.MlflowClient:
    make_schema(project / "mlruns/mlflow.db")  # the publisher may be making it right now
    uri = f"sqlite:///{project}/mlruns/mlflow.db"
    mlflow.set_tracking_uri(uri)  # the client's downloads go by the global one, which would make a database here
    return mlflow.MlflowClient(uri)


def runs_of(client: mlflow.MlflowClient, experiment: str = "tiny") -> list:
    entry = client.get_experiment_by_name(experiment)
    return list(client.search_runs([entry.experiment_id])) if entry else []


def record(ready: Path, *names: str, wait_seconds: float = 120, **extra: str) -> str:
    words = f"import sys; sys.argv = {['-c', str(wait_seconds), *names]}\n"
    return python(ready, words + RECORD, **extra).stdout


def said_of_tracking(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("tracking: "))


def statuses(ready: Path) -> dict[str, str]:
    """The runs that arrived in the project's own store, and how they ended."""
    return {entry.info.run_name: entry.info.status for entry in runs_of(client_of(ready))}


def table_of(path: Path) -> dict[str, list[float]]:
    """Column -> its numbers, bit for bit."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


@contextmanager
def server_of(folder: Path, port: int) -> Iterator[Callable[[int], None]]:
    """A real MLflow server on a store of its own; yields what sends it a signal. A killed one is started again."""
    folder.mkdir(exist_ok=True)
    words = ["mlflow", "server", "--port", str(port), "--workers", "1", "--backend-store-uri"]
    words += [f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")]
    quiet = subprocess.DEVNULL

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", *words], cwd=folder, env=environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
            start_new_session=True, stdout=quiet, stderr=quiet,
        )  # fmt: skip

    started = [start()]

    def send(number: int) -> None:
        os.killpg(started[-1].pid, number)
        if number == signal.SIGKILL:
            started[-1].wait()
            started.append(start())

    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"), what="the server")
        yield send
    finally:
        os.killpg(started[-1].pid, signal.SIGKILL)
        started[-1].wait()


@contextmanager
def refusing_server() -> Iterator[tuple[str, list[str | None]]]:
    """The address of a server that answers 403 to everything, and the authorizations that it has received."""
    received: list[str | None] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            received.append(self.headers["Authorization"])
            self.send_error(403)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", received
        server.shutdown()
