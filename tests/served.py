"""A small project with `make ui` running in it, for the tests of Prefect: a real server, a real DVC repository.

Its stages do nothing but print, sleep, fail or write a line, as `behave.json` tells them.
"""

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests import forked
from tests.projects import ROOT as SOURCE
from tests.projects import commit, copy_workload_code, environment, git, wait_for, without_publisher

STAGE = """
import json, os, sys, time
from pathlib import Path
root = Path(__file__).parents[1]

def main(*arguments):
    name = "-".join([Path(__file__).stem, *arguments])
    behave = json.loads((root / "behave.json").read_text()).get(Path(__file__).stem, {}) \\
        if (root / "behave.json").exists() else {}
    print(behave.get("say", f"{name} says hello"), flush=True)
    (root / f"{Path(__file__).stem}.pid").write_text(str(os.getpid()))
    for _ in range(int(10 * behave.get("sleep", 0))):
        time.sleep(0.1)
        if (root / "go").exists():
            break
    if "signal" in behave:
        os.kill(os.getpid(), behave["signal"])
    if "fail" in behave:
        raise ValueError(behave["fail"])
    if "bug" in behave:
        raise KeyError(behave["bug"])
    for path in OUTS:
        path = root / path.format(*arguments)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(CONTENT) if path.suffix == ".json" else TABLE)
"""
TABLE = """CPU: Some CPU

| workload           | device | test score      | seconds per epoch | measured                      |
|--------------------|--------|-----------------|-------------------|-------------------------------|
| sign classify, gru | CPU    | 0.8750 accuracy | 0.500             | 2026-01-02 03:04 on somewhere |

- the comparison of all runs
"""
# Runs the flow as Prefect's runner does, without waiting for the runner: pipeline(**the JSON of its argument).
FLOW = """
import json, sys
from flows.pipeline import pipeline
state = pipeline(**json.loads(sys.argv[1]), return_state=True)
print(f"{state.name}: {state.message}")
sys.exit(0 if state.is_completed() else 1)
"""
STAGE_SECONDS = 600  # of a stage that has to be stopped: a test that succeeds waits for none of them
ROW = {
    "workload": "sign", "requested": "auto", "device": "cpu", "device_name": "Some CPU", "epoch_seconds": 0.5,
    "samples_per_second": 100.0, "train_seconds": 1.5, "metrics": {"accuracy": 0.875}, "score_name": "accuracy",
    "score": 0.875,
    "measured_at": "2026-01-02T03:04:05+0000",
    "measured_on": "somewhere", "seeds": [0],
    "missing_reasons": {"peak_allocated_mib": "the device is the CPU"},
    "runs": [{"seed": 0, "tracking": {"run_id": "abc", "experiment_id": "1"}}],
}  # fmt: skip
STAGES: dict[str, tuple[list[str], Any]] = {
    "hardware": (["results/hardware/devices/auto.json", "results/hardware/devices/cpu.json"], {}),
    "train": (["results/runs/{0}/{1}/train/result/train.json"], {}),
    "compare": (
        ["results/compare/compare.json", "results/compare/compare.md"],
        {"rows": [ROW], "outdated": [], "short_verdicts": {}},
    ),
}
GRAPH = """
stages:
  hardware:
    cmd: python -m tandem.stage hardware
    always_changed: true
    outs: [results/hardware]
  train:
    matrix: {workload: "${workloads}", device: "${devices}"}
    cmd: python -m tandem.stage train ${item.workload} ${item.device} ${seeds[0]}
    deps: ["results/hardware/devices/${item.device}.json"]
    params: ["${item.workload}.train"]
    outs: ["results/runs/${item.workload}/${item.device}/train/result"]
  compare:
    cmd: python -m tandem.stage compare
    deps: [results/runs]
    outs: [results/compare]
"""


def make_project(root: Path) -> Path:
    for folder in ("flows", "stages", "tandem"):
        shutil.copytree(SOURCE / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "dvc.*"))
    for name, (outs, content) in STAGES.items():
        values = f"OUTS = {outs!r}\nCONTENT = {content!r}\nTABLE = {TABLE!r}\n"
        (root / "stages" / f"{name}.py").write_text(values + STAGE)
    without_publisher(root)
    params = (SOURCE / "params.yaml").read_text()
    (root / "params.yaml").write_text(params.replace("- sign\n- pen\n- price\n- rally\n", "- sign\n"))
    copy_workload_code(root)
    (root / "dvc.yaml").write_text(GRAPH)
    ignored = ("/.tandem/", "/results/", "/behave.json", "/*.pid", "/go", "/mlruns/", "__pycache__/", "/home/")
    (root / ".gitignore").write_text("\n".join(ignored))
    git(root, "init", "-q")
    subprocess.run(["dvc", "init", "-q"], cwd=root, env=clean_environment(root), check=True)
    commit(root)
    return root


def clean_environment(root: Path, **more: str) -> dict[str, str]:
    """No Prefect, MLflow or DVC setting of the caller; a home folder of its own, which must stay empty."""
    home = root / "home"
    home.mkdir(exist_ok=True)
    noon = f"Etc/GMT{time.gmtime().tm_hour - 12:+d}"  # or the nightly run may begin in the middle of a test
    variables = {"HOME": str(home), "TZ": noon, "DVC_NO_ANALYTICS": "true", "PYTHONWARNINGS": "ignore"}
    variables["MPLCONFIGDIR"] = str(root / "matplotlib")  # its list of fonts, which would lie in HOME
    return environment(**variables | more)


def call(url: str, method: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    """Ask Prefect's API."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data, headers, method=method)
    for is_last in (False, False, False, True):
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:  # 503: two transactions of the server crossed, on SQLite
            if error.code != 503 or is_last:
                raise
        time.sleep(1)


def processes(root: Path, *words: str) -> list[psutil.Process]:
    """Living processes that work in `root` and have one of `words` in their command line."""
    living = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(root)) and any(word in " ".join(process.cmdline()) for word in words):
                living.append(process)
        except (psutil.Error, FileNotFoundError):
            continue
    return living


class Project:
    def __init__(self, root: Path, ui: "subprocess.Popen[str] | None" = None, prefect: str = "", mlflow: str = ""):
        self.root, self.ui, self.prefect, self.mlflow = root, ui, prefect, mlflow
        self.api_url = f"{prefect}/api"  # of the flows that `run_flow` and `start_flow` start

    def reset(self) -> None:
        """The stages behave as usual from here on."""
        for name in ("behave.json", "train.pid", "go"):
            (self.root / name).unlink(missing_ok=True)

    def behave(self, **stages: dict[str, Any]) -> None:
        (self.root / "behave.json").write_text(json.dumps(stages))

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Until it has ended. What it starts of DVC and Tandem, or is itself, is forked (tests/forked.py)."""
        environment = forked.handing_over(clean_environment(self.root, **environment))
        pipes: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 1800}
        return subprocess.run([sys.executable, *command], cwd=self.root, env=environment, **pipes)

    def start(self, *command: str, **environment: str) -> "subprocess.Popen[str]":
        environment = clean_environment(self.root, **environment)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([sys.executable, *command], cwd=self.root, env=environment, **pipes)

    def run_flow(self, **parameters: Any) -> subprocess.CompletedProcess[str]:
        return self.run("-c", FLOW, json.dumps(parameters), **self.flow_environment)

    def start_flow(self, **parameters: Any) -> "subprocess.Popen[str]":
        return self.start("-c", FLOW, json.dumps(parameters), **self.flow_environment)

    @property
    def flow_environment(self) -> dict[str, str]:
        """Of a flow. A server that does not answer is given up soon behind a door alone: busy machines are slow."""
        seconds = "600" if self.api_url == f"{self.prefect}/api" else "10"
        return {
            "PREFECT_CLIENT_MAX_RETRIES": "2",
            "PREFECT_API_REQUEST_TIMEOUT": seconds,
            "PREFECT_API_URL": self.api_url,
        }

    def api(self, method: str, path: str, body: Any = None) -> Any:
        return call(f"{self.prefect}/api{path}", method, body)

    def latest(self) -> dict[str, Any]:
        """The newest run of the pipeline that has started. The listing itself is what later fastapi releases break."""
        body = {"flows": {"name": {"any_": ["pipeline"]}}, "sort": "START_TIME_DESC", "limit": 50}
        return next(run for run in self.api("POST", "/flow_runs/filter", body) if run["start_time"])

    def children(self, run: dict[str, Any]) -> dict[str, dict[str, Any]]:
        runs = self.api("POST", "/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run["id"]]}}})
        return {child["name"]: child for child in runs}

    def task_states(self, run: dict[str, Any]) -> dict[str, str]:
        tasks = self.api("POST", "/task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [run["id"]]}}})
        return {task["name"]: task["state"]["name"] for task in tasks}

    def artifacts(self, run: dict[str, Any]) -> dict[str, dict[str, Any]]:
        artifacts = self.api("POST", "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
        return {artifact["key"]: artifact for artifact in artifacts}

    def state(self, run: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = self.api("GET", f"/flow_runs/{run['id']}")["state"]
        return state

    def create(self, deployment: str, **parameters: Any) -> dict[str, Any]:
        """A run of a deployment, as the form creates it."""
        id = self.api("GET", f"/deployments/name/{deployment}")["id"]
        body = {"parameters": parameters}
        created: dict[str, Any] = self.api("POST", f"/deployments/{id}/create_flow_run", body)
        return created

    def cancel(self, run: dict[str, Any]) -> None:
        state = {"type": "CANCELLING", "name": "Cancelling"}
        self.api("POST", f"/flow_runs/{run['id']}/set_state", {"state": state})

    def logs(self, run: dict[str, Any]) -> str:
        entries = self.api("POST", "/logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}})
        return "\n".join(entry["message"] for entry in entries)

    def left_running(self) -> list[psutil.Process]:
        return processes(self.root, "-m tandem.stage ", "flows.dvc_run ", " dvc repro")

    def holds_dvc(self) -> list[int]:
        """The processes that DVC takes for running. A killed one counts until its parent has taken note of its end."""
        path = self.root / ".dvc/tmp/rwlock"
        users = re.findall(r'"pid": (\d+)', path.read_text()) if path.exists() else []
        return [int(pid) for pid in users if psutil.pid_exists(int(pid))]

    def stage_process(self) -> psutil.Process:
        """The process that runs the stage train."""

        def running() -> psutil.Process | None:
            try:
                return psutil.Process(int((self.root / "train.pid").read_text() or 0))
            except (FileNotFoundError, psutil.NoSuchProcess):
                return None

        return wait_for(running, what="a running train stage")


@contextmanager
def running_ui(root: Path, **more: str) -> Iterator[Project]:
    """A repository with `make ui` running in it, the ports it asks for being in use. `more`: environment variables."""
    with socket.socket() as first, socket.socket() as second:
        ports = []
        for occupied in (first, second):
            # Not a port the kernel chose: the next ones, which the servers take, would be the next that it gives away.
            for port in random.sample(range(20_000, 30_000, 50), 100):
                with suppress(OSError):
                    occupied.bind(("127.0.0.1", port))
                    break
            occupied.listen()
            ports.append(str(occupied.getsockname()[1]))
        command = [sys.executable, "-m", "tandem.cli", "ui", "--prefect-port", ports[0], "--mlflow-port", ports[1]]
        environment, pipes = clean_environment(root, **more), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        ui = subprocess.Popen(command, cwd=root, env=environment, text=True, **pipes)
        assert ui.stdout
        message = []
        for line in ui.stdout:
            message.append(line)
            if line.startswith("Ctrl+C"):
                break
        text = "".join(message)
        assert f"port {ports[0]} is in use; Prefect takes " in text, text
        assert f"port {ports[1]} is in use; MLflow takes " in text, text
        assert message[-1].startswith("Ctrl+C"), text
        servers = json.loads((root / ".tandem" / "ui.json").read_text())
        yield Project(root, ui, servers["prefect"], servers["mlflow"])
    if ui.poll() is None:
        ui.send_signal(signal.SIGINT)
        ui.wait(600)
    ui.stdout.close()


class Door(threading.Thread):
    """A door to the server that can be shut (connections refused and cut) or left without an answer."""

    def __init__(self, target: str):
        super().__init__(daemon=True)
        self.target = ("127.0.0.1", int(target.rpartition(":")[2]))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.pairs: list[socket.socket] = []
        self.hangs = False
        self.start()

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.pairs.append(client)
            if self.hangs:
                continue
            server = socket.create_connection(self.target)
            self.pairs.append(server)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while chunk := source.recv(65536):
                if not self.hangs:
                    sink.sendall(chunk)
        except OSError:
            pass
        if not self.hangs:
            for end in (source, sink):
                end.close()

    def shut(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for end in self.pairs:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
