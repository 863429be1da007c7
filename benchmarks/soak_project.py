"""The project of benchmarks/soak.py: a short training in its own clone, its processes, its servers.

The clone has this project's uncommitted changes and none of its results. A workload is that of params.yaml with fewer
rows, EPOCHS epochs and one thread; checkpoints are due after CHECKPOINT_SECONDS, so that kills hit their writing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pandas as pd
import psutil

from benchmarks.sandbox import FOREIGN, Server, commit, copy_project, environment
from tandem.params.reading import read_yaml

EPOCHS = 12
CHECKPOINT_SECONDS = 0.3
QUIET_SECONDS = 60.0  # after a kill; then no process may be left
# The phase of a run, for the table.
START, TRAINING, SAVING = "before the first checkpoint", "training", "a checkpoint is written"
STORING, EVALUATION, AFTER = "DVC stores the training", "evaluation", "after the evaluation"
# The files of a round that must equal those of the uninterrupted run.
SAME = (
    "data/prepared/*/**/*.npy", "data/prepared/*/summary.json", "data/packed/*/*/*.safetensors",
    "results/runs/*/*/*/result/**/*.*",
)  # fmt: skip
# Identifies a process by a word of its command; the first match counts.
PROCESSES = {
    "publisher": "tandem.tracking.publisher", "trainer": "tandem.stage train", "evaluation": "tandem.stage evaluate",
    "another stage": "tandem.stage", "flow": "flows.pipeline",
    "make repro": "tandem.cli repro ", "dvc": "repro",  # and flows.dvc_run
}  # fmt: skip
# server -> its command, and the path that answers when it is ready.
SERVERS = {
    "Prefect's server": ("prefect server start --host 127.0.0.1 --port {port}", "api/health"),
    "MLflow's server": (
        "mlflow server --host 127.0.0.1 --port {port} --workers 1 --backend-store-uri sqlite:///{mlruns}/mlflow.db "
        "--artifacts-destination {mlruns}/artifacts",
        "health",
    ),
}


class Project:
    """The clone at `folder`/project, which runs one workload at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "project"
        self.environment = environment(
            OMP_NUM_THREADS="1",
            OMP_WAIT_POLICY="PASSIVE",
            DVC_NO_ANALYTICS="true",
            PREFECT_HOME=str(folder / "prefect"),
            PREFECT_SERVER_ANALYTICS_ENABLED="false",
            PREFECT_CLIENT_MAX_RETRIES="2",  # as in flows/pipeline.py
            PREFECT_API_REQUEST_TIMEOUT="10",
            MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
            NO_PROXY="127.0.0.1,localhost",
        )
        self.servers: dict[str, Server] = {}

    def make(self, workload: str) -> None:
        """Copy this project's files, with a short training of one workload that is ready to start."""
        shutil.rmtree(self.path, ignore_errors=True)
        copy_project(self.path)
        recorder = self.path / "tandem/stage/recorder.py"
        code = recorder.read_text()
        for line in ("CHECKPOINT_SECONDS = 10.0", "CHECKPOINT_SHARE = 0.01"):
            assert line in code, line
        code = code.replace("CHECKPOINT_SECONDS = 10.0", f"CHECKPOINT_SECONDS = {CHECKPOINT_SECONDS}")
        recorder.write_text(code.replace("CHECKPOINT_SHARE = 0.01", "CHECKPOINT_SHARE = 1.0"))
        shorten(self.path, workload)
        commit(self.path)
        self.succeed("dvc", "repro", f"preload@{workload}-cpu", f"baseline@{workload}")
        self.succeed(sys.executable, "-m", "tandem.tracking.publisher", "open")

    def hashes(self) -> dict[str, str]:
        paths = sorted({path for pattern in SAME for path in self.path.glob(pattern)})
        return {str(path.relative_to(self.path)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.path, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def succeed(self, *command: str) -> None:
        result = self.run(*command)
        if result.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout}")

    # Processes --------------------------------------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """All processes in the clone; the servers run outside it."""
        processes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, FileNotFoundError):
                if process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(str(self.path)):
                    processes.append(process)
        return processes

    def named(self) -> dict[str, psutil.Process]:
        """The processes in the clone, by the names of PROCESSES."""
        processes: dict[str, psutil.Process] = {}
        for process in self.processes():
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                name = next((name for name, word in PROCESSES.items() if word in words), None)
                if name and not words.startswith("/bin/sh"):
                    processes[name] = process
        return processes

    def end_processes(self) -> None:
        while processes := self.processes():
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.1)

    def wait_until_quiet(self) -> list[str]:
        """The commands of the processes that still run after QUIET_SECONDS, which are then ended."""
        deadline = time.monotonic() + QUIET_SECONDS
        while processes := self.processes():
            if time.monotonic() > deadline:
                commands = []
                for process in processes:
                    with suppress(psutil.Error):
                        commands.append(" ".join(process.cmdline())[:200])
                        process.kill()
                return commands
            time.sleep(0.1)
        return []

    # Servers ----------------------------------------------------------------------------------------------------------

    def start_servers(self) -> None:
        """Start the servers that do not run; a killed one restarts on its port."""
        for name, (command, address) in SERVERS.items():
            if name not in self.servers:
                settings = {name: value for name, value in self.environment.items() if name.startswith(FOREIGN)}
                self.servers[name] = Server(command.replace("{mlruns}", str(self.path / "mlruns")), address, **settings)
            elif name not in self.running_servers():
                self.servers[name].launch()
                self.servers[name].wait()
        prefect, mlflow = (self.servers[name].url for name in SERVERS)
        self.environment |= {"PREFECT_API_URL": f"{prefect}/api", "MLFLOW_TRACKING_URI": mlflow}

    def running_servers(self) -> list[str]:
        return [name for name, server in self.servers.items() if server.process.poll() is None]

    def end_servers(self) -> None:
        for server in self.servers.values():
            server.kill()
        self.servers = {}
        for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
            self.environment.pop(name, None)

    # What there is of a run -------------------------------------------------------------------------------------------

    def is_saving(self, workload: str, since: float) -> bool:
        """Whether a checkpoint is half-written, excluding one left by an earlier run."""
        for path in (self.path / ".tandem/checkpoints" / workload).glob(".*.pt.*.tmp"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime >= since:
                    return True
        return False

    def is_stored(self, workload: str) -> bool:
        """Whether DVC has stored the training."""
        lock = self.path / "dvc.lock"
        return lock.exists() and f"train@{workload}-cpu" in lock.read_text(errors="replace")

    def has_result(self, workload: str, since: float) -> bool:
        """Whether a training has written its results after that time (as time.time)."""
        with suppress(FileNotFoundError):
            return (self.path / f"results/runs/{workload}/cpu/train/measured/0/timing.json").stat().st_mtime >= since
        return False

    def phase(self, workload: str, since: float) -> str:
        """The phase of the run that was started at that time."""
        if self.is_saving(workload, since):
            return SAVING
        if (self.path / f"results/runs/{workload}/cpu/evaluate/result/0/score.json").exists():
            return AFTER
        if self.is_stored(workload):
            return EVALUATION
        if self.has_result(workload, since):
            return STORING
        return TRAINING if any((self.path / ".tandem/checkpoints" / workload).glob("*.pt")) else START

    # What may be wrong ------------------------------------------------------------------------------------------------

    def wrong_in_mlflow(self) -> dict[str, list[str]]:
        """What `sync` leaves, and what is not exactly once in MLflow, by kind."""
        errors: dict[str, list[str]] = {"else": [], "RUNNING": [], "twice": [], "file left": []}
        synced = self.run(sys.executable, "-m", "tandem.cli", "sync")
        if synced.returncode:
            errors["else"].append(f"sync fails: {synced.stdout[-1000:]}")
        with closing(sqlite3.connect(self.path / "mlruns/mlflow.db", timeout=60)) as database:
            runs = database.execute("select run_uuid, status from runs where lifecycle_stage = 'active'").fetchall()
            query = "select key, step, count(*) from metrics group by run_uuid, key, step having count(*) > 1"
            errors["twice"] += [f"{key}, step {step}" for key, step, _ in database.execute(query)]
            steps = [step for (step,) in database.execute("select step from metrics where key = 'train/loss'")]
        errors["RUNNING"] += [run for run, status in runs if status == "RUNNING"]
        if [status for _, status in runs] not in (["FINISHED"], ["RUNNING"]):
            errors["else"].append(f"not one run, or not FINISHED: {runs}")
        if sorted(set(steps)) != list(range(1, EPOCHS + 1)):
            errors["else"].append(f"epochs in MLflow: {sorted(steps)}")
        names = [path.name for path in (self.path / ".tandem/runs").glob("*") if not path.name.startswith("publisher.")]
        errors["file left"] += [f"run {name}" for name in names]
        return {kind: texts for kind, texts in errors.items() if texts}

    def leftovers(self) -> list[str]:
        folders = [self.path / name for name in (".tandem", "results", "data", "mlruns")]
        paths = [path for folder in folders for path in folder.rglob("*")]
        endings = (".tmp", ".new", ".pt", ".ended")
        return [str(path.relative_to(self.path)) for path in paths if path.name.endswith(endings)]


def shorten(project: Path, workload: str) -> None:
    params = read_yaml(project / "params.yaml")
    params |= {"workloads": [workload], "devices": ["cpu"], "seeds": [0], "preset": "none"}
    params[workload]["train"] |= {
        "epochs": EPOCHS, "threads": 1, "precision": "fp32", "probe": False, "step": "eager",
    }  # fmt: skip
    table = project / "workloads" / workload / "data/table.csv.gz"
    if workload == "rally":
        params[workload]["preprocess"] |= {"num_train": 320, "num_val": 64, "num_test": 64}
    elif workload == "price":
        pd.read_csv(table).head(1500).to_csv(table, index=False)
    elif workload == "pen":
        rows = pd.read_csv(table)
        rows[rows["sequence"] % 6 == 0].to_csv(table, index=False)
        params[workload]["preprocess"]["split"] = {"train": 0.6, "val": 0.1, "test": 0.3}
    # JSON is YAML: nobody reads this file.
    (project / "params.yaml").write_text(json.dumps(params, default=str))
