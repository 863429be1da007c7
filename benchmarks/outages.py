"""The cost of a failing server to a training (MLflow) and a pipeline (Prefect), by fault and moment.

    python -m benchmarks.outages [mlflow] [prefect] [--epochs 50]

- dead: the server is killed, and restarted when the command has ended
- frozen: it is stopped (SIGSTOP) until the command has ended: the kernel accepts connections that nobody answers
- black hole: a forwarder accepts the traffic and passes nothing on until the command has ended
- restarted: it is killed and restarted at once

Each fault occurs at the start (before the command), in the middle (at the middle epoch's line) and at the end (at
the last epoch's line); the first and the last command run without a fault. Epochs sleep for 0.1 s, so the rest is the
cost of tracking and display: the run directory, the follower, DVC and the flow are real. For MLflow the table has the
seconds to start and to end the run, and the longest wait to write an epoch. Then the server answers again, and
`python -m stages.records.publish sync` publishes the run directories; the table counts the epochs that MLflow lacks or
has twice, and runs that are missing, superfluous or not FINISHED.
"""

import argparse
import atexit
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

from ruamel.yaml import YAML

from benchmarks.overhead import FLOW, STRIPPED, WORKLOAD, call, describe_machine, make_tandem
from benchmarks.soak_project import free_port

FAULTS = ("dead", "frozen", "black hole", "restarted")
MOMENTS = ("start", "middle", "end")
SYNC = [sys.executable, "-m", "stages.records.publish", "sync"]
# A training with MLflow. Its last line is JSON: the seconds to start, for each saving of epochs, to end.
TRAINING = """
import json, sys, time, uuid
from stages.records import run_dir
from stages.records.history import EPOCH_METRICS, Record

seconds = []

def timed(call, *arguments):
    start = time.perf_counter()
    value = call(*arguments)
    seconds.append(time.perf_counter() - start)
    return value

num_epochs = int(sys.argv[1])
measured = {"epoch_seconds": 0.1, "samples_per_second": 9.0, "validation_seconds": 0.1, "is_warmup": 0}
measured |= dict.fromkeys(EPOCH_METRICS.values())
record = Record("token")
timed(run_dir.start_follower)
with run_dir.recording(uuid.uuid4().hex, "train") as run:
    run.open("outages", "outages", {"epochs": num_epochs})
    for epoch in range(1, num_epochs + 1):
        time.sleep(0.1)
        history = {"learning_rate": 0.1, "train_loss": 1 / epoch, "val_loss": 1 / epoch, "val_accuracy": 0.5}
        record.history.append({"epoch": epoch, **history})
        record.timings.append({"epoch": epoch, "ended_ms": int(time.time() * 1000), **measured})
        timed(run.save_epochs, record)
        print(f"epoch {epoch}/{num_epochs}:", flush=True)
    start = time.perf_counter()
seconds.append(time.perf_counter() - start)
print(json.dumps(seconds))
"""
# A pipeline of one stage that only sleeps.
STAGE = """
import sys, time
for epoch in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.1)
    print(f"epoch {epoch}/{sys.argv[1]}:", flush=True)
open("done", "w").close()
"""


class Server:
    """A server behind a forwarder that can drop all traffic."""

    def __init__(self, words: list[str], port: int, **settings: str):
        self.command, self.port = [sys.executable, "-m", *words], port
        kept = {name: value for name, value in os.environ.items() if not name.startswith(STRIPPED)}
        self.environment = {**kept, **settings}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.is_hole = False
        threading.Thread(target=self.forward, daemon=True).start()
        self.start()
        atexit.register(self.kill)
        self.wait()

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            self.command, env=self.environment, stdout=quiet, stderr=quiet, start_new_session=True
        )

    def wait(self) -> None:
        path = "api/health" if "prefect" in self.command else "health"
        for _ in range(3000):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=5).close()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"{' '.join(self.command)} did not answer")

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()

    def fail(self, fault: str) -> None:
        if fault in ("dead", "restarted"):
            self.kill()
        if fault == "restarted":
            self.start()
        if fault == "frozen":
            self.signal(signal.SIGSTOP)
        self.is_hole = fault == "black hole"

    def mend(self, fault: str) -> None:
        self.is_hole = False
        if fault == "dead":
            self.start()
        if fault == "frozen":
            self.signal(signal.SIGCONT)
        self.wait()

    def forward(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.port)) if not self.is_hole else None
        except OSError:
            client.close()  # the closest that a forwarder gets to refusing
            return
        threading.Thread(target=self.pump, args=(client, server), daemon=True).start()
        if server:
            self.pump(server, client)

    def pump(self, source: socket.socket, sink: socket.socket | None) -> None:
        try:
            while chunk := source.recv(65536):
                if sink and not self.is_hole:
                    sink.sendall(chunk)
        except OSError:
            pass
        while self.is_hole:
            time.sleep(0.1)
        for end in (source, sink):
            if end:
                end.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", metavar="server", help="mlflow, prefect; both by default")
    parser.add_argument("--epochs", type=int, default=50, help="of 0.1 s each (50)")
    options = parser.parse_args()
    if unknown := set(options.servers) - {"mlflow", "prefect"}:
        parser.error(f"unknown server {', '.join(sorted(unknown))}; accepted: mlflow, prefect")
    print(describe_machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = make_tandem(folder / "project", WORKLOAD)
        for server in options.servers or ("mlflow", "prefect"):
            (of_mlflow if server == "mlflow" else of_prefect)(folder, project, options.epochs)


def of_mlflow(folder: Path, project: Path, epochs: int) -> None:
    port, database = free_port(), folder / "server.db"
    store = ["--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", str(folder / "artifacts")]
    words = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    server = Server(words, port, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", MLFLOW_DISABLE_TELEMETRY="true")
    print(f"\n## MLflow's server, {epochs} epochs\n")
    print("| fault | moment | start (s) | longest epoch's metrics (s) | end (s) | sync (s) | lost | twice | wrong |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    settings = {"MLFLOW_TRACKING_URI": server.address}
    command = [sys.executable, "-c", TRAINING, str(epochs)]
    for number, (fault, moment) in enumerate(cases(), 1):
        _, _, output = timed(command, project, server, fault, moment, epochs, settings)
        first, *metrics, last = json.loads(output[-1])
        start = time.monotonic()
        with suppress(SystemExit):  # `sync` fails if it could not publish everything
            call(SYNC, project, **settings)
        wait_for_runs(project)
        synced = time.monotonic() - start
        counts = " | ".join(map(str, recorded(database, epochs, number)))
        seconds = f"{first:.2f} | {max(metrics):.4f} | {last:.1f} | {synced:.1f}"
        print(f"| {fault} | {moment} | {seconds} | {counts} |", flush=True)


def of_prefect(folder: Path, project: Path, epochs: int) -> None:
    port = free_port()
    words = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    home = {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    server = Server(words, port, **home)
    settings = {**home, "PREFECT_API_URL": f"{server.address}/api"}
    (project / "hw/dvc.yaml").unlink()
    (project / "sleep.py").write_text(STAGE)
    graph = {"stages": {"train": {"cmd": f"python sleep.py {epochs}", "deps": ["sleep.py"], "outs": ["done"]}}}
    with (project / "dvc.yaml").open("w") as file:
        YAML().dump(graph, file)
    print(f"\n## Prefect's server, a stage of {epochs} epochs\n")
    print("| fault | moment | pipeline (s) | exit status |\n|---|---|---|---|", flush=True)
    for fault, moment in cases():
        can_refuse = moment == "start"
        command = [*FLOW, "--force"]
        seconds, status, _ = timed(command, project, server, fault, moment, epochs, settings, can_refuse)
        print(f"| {fault} | {moment} | {seconds:.1f} | {status} |", flush=True)


def cases() -> list[tuple[str, str]]:
    """(fault, moment), with fault-free commands before and after."""
    return [("none", ""), *((fault, moment) for fault in FAULTS for moment in MOMENTS), ("none", "")]


def timed(
    command: list[str],
    project: Path,
    server: Server,
    fault: str,
    moment: str,
    epochs: int,
    settings: dict[str, str],
    can_refuse: bool = False,
) -> tuple[float, int, list[str]]:
    """Seconds, exit status and lines of `command`, while the server fails at `moment`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(STRIPPED)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    line = {"middle": f"epoch {epochs // 2}/", "end": f"epoch {epochs}/"}.get(moment)
    if moment == "start":
        server.fail(fault)
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=project, env={**kept, "PATH": path, "PYTHONUNBUFFERED": "1", **settings},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout
    output = []
    for text in process.stdout:
        output.append(text)
        if line and line in text:
            server.fail(fault)
            line = None
    status = process.wait()
    seconds = time.monotonic() - start
    server.mend(fault)
    if (status and not can_refuse) or line:
        sys.exit(f"{' '.join(command)} with the server {fault} at the {moment} ended with {status}:\n{''.join(output)}")
    return seconds, status, output


def wait_for_runs(project: Path) -> None:
    """Wait for the follower, which may still publish after the training and a `sync` have ended."""
    deadline = time.monotonic() + 300
    while any(path.is_dir() for path in (project / ".tandem/runs").iterdir()):
        if time.monotonic() > deadline:
            sys.exit("a run directory stays, although the server answers")
        time.sleep(0.2)


def recorded(database: Path, epochs: int, num_runs: int) -> tuple[int, int, int]:
    """Missing epochs of the newest run, duplicate epochs, and wrong runs."""
    with closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as connection:
        runs = connection.execute(
            "select run_uuid, status from runs where lifecycle_stage = 'active' order by start_time desc"
        ).fetchall()
        steps = connection.execute(
            "select step from metrics where key = 'time/epoch_seconds' and run_uuid = ?", [runs[0][0]]
        ).fetchall()
    wrong = abs(len(runs) - num_runs) + sum(status != "FINISHED" for _, status in runs)
    return epochs - len(set(steps)), len(steps) - len(set(steps)), wrong


if __name__ == "__main__":
    main()
