"""Kill what runs, go on with `make repro`, and compare: nothing may be lost, and no bit may differ.

    python -m benchmarks.soak --kills 200             # goes on where it stopped; Ctrl+C ends it
    python -m benchmarks.soak --kills 200 --seed 1    # other moments, other processes
    python -m benchmarks.soak --table                 # what is there so far, as Markdown

All happens in a clone of this project in a temporary folder: its uncommitted changes come along, results do not. The
workloads are those of params.yaml with fewer rows, EPOCHS epochs and one thread; a checkpoint is due after
CHECKPOINT_SECONDS, so that kills meet its writing. One uninterrupted run of each workload comes first.

A round is one training of one workload from its packed data to its evaluation: `dvc repro`, or the Prefect flow, is
started; at a random moment kill -9 takes a random process of it (the stage, dvc, the uploader, the flow); it is started
again, up to four kills; then `make repro` runs to its end. Some moments are aimed at: a checkpoint is being written, or
DVC stores what the stage wrote. Wrong is:

- a file that differs from the uninterrupted run's (weights, history, predictions, scores, metrics, pictures, data),
- a process that still runs a minute after the kill of another one,
- after `uploader sync`: a run in MLflow that is RUNNING, a second one with an epoch, an epoch twice or missing, a
  journal that stays,
- a temporary file that is left,
- a `make repro` that fails though nothing was killed, or that shows a traceback.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from stages.files import ROOT
from stages.params.loading import read_yaml

WORKLOADS = ("sign", "pen", "price", "rally")
EPOCHS = 12
CHECKPOINT_SECONDS = 0.3
MAX_KILLS = 4  # in a round
QUIET_SECONDS = 60.0  # after a kill, until no process may be left
STORING = "DVC stores the training"
# The files of a round that have to be those of the uninterrupted run, below data/ and results/.
SAME = (
    "data/prepared/*/**/*.npy", "data/prepared/*/summary.json", "data/packed/*/*/*.safetensors",
    "results/runs/*/*/*/*.safetensors", *(f"results/runs/*/*/*/{name}" for name in (
        "model.json", "history.csv", "predictions.csv", "scores.csv", "confusion.csv", "metrics.json", "result.json",
        "plots/result.png",
    )),
)  # fmt: skip
# What a process of a round is, by a word of its command; the first that is there.
VICTIMS = {
    "uploader": "stages.records.uploader", "trainer": "flows.stage train", "evaluation": "flows.stage evaluate",
    "stage": "flows.stage", "flow": "flows.pipeline", "dvc": "dvc",
}  # fmt: skip


def main() -> None:
    options = parse()
    entries = read(options.file)
    if not options.table:
        with soak_folder(options) as folder:
            soak = Soak(folder, options)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
            try:
                while (num_kills := sum(len(entry["kills"]) for entry in entries)) < options.kills:
                    entry = soak.round(len(entries), options.kills - num_kills)
                    entries.append(entry)
                    options.file.parent.mkdir(parents=True, exist_ok=True)
                    with options.file.open("a") as file:
                        file.write(json.dumps(entry) + "\n")
                    print(describe(entry), flush=True)
            finally:
                soak.end_processes()
    print(table(entries))
    sys.exit(any(entry["wrong"] for entry in entries))


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all, those in --file included (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the processes (0)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS, metavar="NAME")
    parser.add_argument("--flows", type=float, default=0.15, help="share of the starts through Prefect (0.15)")
    parser.add_argument("--file", type=Path, default=ROOT / "results" / "soak.jsonl", help="where rounds are kept")
    parser.add_argument("--folder", type=Path, help="keep the clone here, also for the next call")
    parser.add_argument("--table", action="store_true", help="kill nothing")
    return parser.parse_args(words)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@contextmanager
def soak_folder(options: argparse.Namespace) -> Iterator[Path]:
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        yield options.folder.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="tandem-soak-", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


class Soak:
    """The clone at `folder`/project. Of each workload `folder`/<workload> is the project before its training."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.project, self.options = folder, folder / "project", options
        self.environment = clean_environment(folder)
        self.expected: dict[str, dict[str, str]] = {}
        self.seconds: dict[str, float] = {}
        for workload in options.workloads:
            self.prepare(workload)

    def prepare(self, workload: str) -> None:
        """The project before the training, and what an uninterrupted run makes of it; both from an earlier call, if
        there was one.
        """
        expected = self.folder / f"{workload}.json"
        if not expected.exists():
            make_project(self.project, workload)
            self.succeed("dvc", "repro", f"preload@{workload}-cpu")
            code = "from stages.records.uploader import open_client; open_client()"
            self.succeed(sys.executable, "-c", code)
            shutil.rmtree(self.folder / workload, ignore_errors=True)
            shutil.copytree(self.project, self.folder / workload, symlinks=True)
            start = time.monotonic()
            self.succeed("dvc", "repro", f"evaluate@{workload}-cpu-0")
            seconds = time.monotonic() - start
            content = {"seconds": seconds, "files": hashes(self.project)}
            if wrong := [*self.wrong_in_mlflow(workload), *self.leftovers()]:
                raise SystemExit(f"the uninterrupted run of {workload} is wrong: {wrong}")
            expected.write_text(json.dumps(content))
            print(f"{workload}: {len(content['files'])} files, {seconds:.1f} s", flush=True)
        content = json.loads(expected.read_text())
        self.expected[workload], self.seconds[workload] = content["files"], content["seconds"]

    def round(self, number: int, max_kills: int) -> dict[str, Any]:
        draw = random.Random(f"{self.options.seed} {number}")
        workload = draw.choice(self.options.workloads)
        self.end_processes()  # of a call that was itself killed
        shutil.rmtree(self.project, ignore_errors=True)
        shutil.copytree(self.folder / workload, self.project, symlinks=True)
        kills: list[dict[str, Any]] = []
        wrong: list[str] = []
        status, start = 1, time.monotonic()
        for _ in range(min(draw.randint(2, MAX_KILLS), max_kills)):
            kill, status = self.start_and_kill(workload, draw)
            if kill:
                kills.append(kill)
            if left := self.wait_until_quiet():
                wrong.append(f"left running after the kill of {kill and kill['victim']}: {left}")
            if status == 0 and not left:
                break
        done = self.run(sys.executable, "-m", "flows.repro", f"evaluate@{workload}-cpu-0")
        if done.returncode:
            wrong.append(f"dvc repro fails: {done.stdout[-2000:]}")
        if "Traceback" in done.stdout:
            wrong.append(f"a traceback: {done.stdout[-2000:]}")
        found = hashes(self.project)
        differing = sorted(name for name, sha256 in self.expected[workload].items() if found.get(name) != sha256)
        wrong += [f"{name} differs" for name in differing]
        if left := self.wait_until_quiet():
            wrong.append(f"left running at the end: {left}")
        wrong += [*self.wrong_in_mlflow(workload), *self.leftovers()]
        return {
            "round": number,
            "seed": self.options.seed,
            "workload": workload,
            "kills": kills,
            "num_files": len(self.expected[workload]),
            "seconds": round(time.monotonic() - start, 1),
            "wrong": wrong,
        }

    def start_and_kill(self, workload: str, draw: random.Random) -> tuple[dict[str, Any] | None, int]:
        """Start the run, kill one of its processes, and wait for its end: what was killed, and the exit status."""
        through = "flow" if draw.random() < self.options.flows else "dvc"
        moment = draw.choice(["any", "any", "checkpoint", "result"])
        delay, pick = draw.random() * 0.8 * self.seconds[workload], draw.random()
        after = draw.random() * 0.5
        victims = draw.sample(["trainer", "evaluation", "stage", "dvc", "flow", "uploader"], 6)
        command = ("dvc", "repro", f"evaluate@{workload}-cpu-0")
        if through == "flow":
            command = (sys.executable, "-m", "flows.pipeline", "--workloads", workload)
            delay *= 2
        log = (self.folder / "run.log").open("wb")
        with log:
            process = subprocess.Popen(
                command, cwd=self.project, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        if self.has_result(workload):
            moment = "any"  # the training is over
        start, trainer = time.monotonic(), None
        while process.poll() is None:
            elapsed = time.monotonic() - start
            if moment == "any" and elapsed > delay:
                break
            if moment == "checkpoint":
                trainer = trainer or self.victims().get("trainer")  # found before: a write takes milliseconds
                if trainer and elapsed > delay / 3 and self.is_saving(workload):
                    break
            if moment == "result" and self.phase(workload) == STORING:
                time.sleep(after)
                break
            time.sleep(0.002 if trainer else 0.05)
        alive = {"trainer": trainer} if trainer else self.victims()
        kill = None
        if alive and process.poll() is None:
            # Of DVC's commit dvc, more often than not.
            first = ["dvc"] if moment == "result" and pick < 0.6 else victims
            victim = next((name for name in first if name in alive), sorted(alive)[0])
            where = "" if trainer else self.phase(workload)
            with suppress(psutil.NoSuchProcess):
                alive[victim].kill()
                kill = {
                    "victim": victim, "moment": moment, "through": through, "where": where or self.phase(workload),
                    "seconds": round(time.monotonic() - start, 2),
                }  # fmt: skip
        try:
            status = process.wait(timeout=600)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = 1
        return kill, status

    def victims(self) -> dict[str, psutil.Process]:
        found: dict[str, psutil.Process] = {}
        for process in self.processes():
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                name = next((name for name, word in VICTIMS.items() if word in words), None)
                if name and not words.startswith("/bin/sh"):
                    found[name] = process
        return found

    def processes(self) -> list[psutil.Process]:
        """All that run in the clone."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, FileNotFoundError):
                if process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(str(self.project)):
                    found.append(process)
        return found

    def end_processes(self) -> None:
        while processes := self.processes():
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.1)

    def wait_until_quiet(self) -> list[str]:
        """The commands of the processes that still run after QUIET_SECONDS; those are then ended."""
        deadline = time.monotonic() + QUIET_SECONDS
        while processes := self.processes():
            if time.monotonic() > deadline:
                left = []
                for process in processes:
                    with suppress(psutil.Error):
                        left.append(" ".join(process.cmdline())[:200])
                        process.kill()
                return left
            time.sleep(0.1)
        return []

    def is_saving(self, workload: str) -> bool:
        return any((self.project / ".tandem/checkpoints" / workload).glob(".*.tmp"))

    def has_result(self, workload: str) -> bool:
        return (self.project / f"results/runs/{workload}/cpu/0/tracking.json").exists()

    def phase(self, workload: str) -> str:
        """Where the run is, for the table."""
        folder = self.project / f"results/runs/{workload}/cpu/0"
        if self.is_saving(workload):
            return "a checkpoint is written"
        if (folder / "result.json").exists():
            return "after the evaluation"
        if self.has_result(workload):
            stored = f"train@{workload}-cpu-0" in (self.project / "dvc.lock").read_text()
            return "evaluation" if stored else STORING
        if any((self.project / ".tandem/checkpoints" / workload).glob("*.pt")):
            return "training"
        return "before the first epoch"

    def wrong_in_mlflow(self, workload: str) -> list[str]:
        synced = self.run(sys.executable, "-m", "stages.records.uploader", "sync")
        wrong = [] if synced.returncode == 0 else [f"sync fails: {synced.stdout[-1000:]}"]
        with closing(sqlite3.connect(self.project / "mlruns/mlflow.db")) as database:
            runs = database.execute("select run_uuid, status from runs").fetchall()
            twice = database.execute(
                "select key, step, count(*) from metrics group by run_uuid, key, step having count(*) > 1"
            ).fetchall()
            steps = database.execute("select step from metrics where key = 'train/loss' order by step").fetchall()
            trained = {run for (run,) in database.execute("select run_uuid from metrics where key = 'train/loss'")}
        # A training that is killed before its first checkpoint begins anew, also in MLflow; the first has no epoch.
        counted = [status for run, status in runs if run in trained or status != "KILLED"]
        if counted != ["FINISHED"]:
            wrong.append(f"MLflow's runs: {runs}")
        if twice:
            wrong.append(f"metrics twice: {twice[:5]}")
        if [step for (step,) in steps] != list(range(1, EPOCHS + 1)):
            wrong.append(f"epochs in MLflow: {steps}")
        journals = self.project / ".tandem/journals"
        return wrong + [f"left: {path.name}" for path in (journals.iterdir() if journals.exists() else [])]

    def leftovers(self) -> list[str]:
        found = (path for part in (".tandem", "results", "data", "mlruns") for path in (self.project / part).rglob("*"))
        names = [str(path.relative_to(self.project)) for path in found if path.name.endswith((".tmp", ".new", ".pt"))]
        return [f"left: {name}" for name in names]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.project, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def succeed(self, *command: str) -> None:
        done = self.run(*command)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")


def clean_environment(folder: Path) -> dict[str, str]:
    foreign = ("PREFECT", "MLFLOW", "DVC", "TANDEM", "GIT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "DVC_NO_ANALYTICS": "true",
        "PREFECT_HOME": str(folder / "prefect"),
        "NO_PROXY": "127.0.0.1,localhost",
    }


def make_project(project: Path, workload: str) -> None:
    """This project's files, with a short training of one workload."""
    shutil.rmtree(project, ignore_errors=True)
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).is_file():  # a link to a folder is listed too
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, project / name)
    train = project / "stages/train.py"
    code = train.read_text()
    for line in ("CHECKPOINT_SECONDS = 10.0", "CHECKPOINT_SHARE = 0.01"):
        assert line in code, line
    code = code.replace("CHECKPOINT_SECONDS = 10.0", f"CHECKPOINT_SECONDS = {CHECKPOINT_SECONDS}")
    train.write_text(code.replace("CHECKPOINT_SHARE = 0.01", "CHECKPOINT_SHARE = 1.0"))
    shorten(project, workload)
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "as it is"]):
        subprocess.run(
            ["git", "-c", "user.name=soak", "-c", "user.email=soak@localhost", *words], cwd=project, check=True
        )


def shorten(project: Path, workload: str) -> None:
    params = read_yaml(project / "params.yaml")
    params |= {"workloads": [workload], "devices": ["cpu"], "seeds": [0], "preset": "none"}
    params[workload]["train"] |= {
        "epochs": EPOCHS, "threads": 1, "precision": "fp32", "probe": False, "step": "eager",
    }  # fmt: skip
    table = project / "data/raw" / workload / "table.csv.gz"
    if workload == "rally":
        params[workload]["preprocess"]["split"] = {"train": 320, "val": 64, "test": 64}
    elif workload == "price":
        pd.read_csv(table).head(1500).to_csv(table, index=False)
    elif workload == "pen":
        rows = pd.read_csv(table)
        rows[rows["sequence"] % 6 == 0].to_csv(table, index=False)
        params[workload]["preprocess"]["split"] = {"train": 0.6, "val": 0.1, "test": 0.3}
    # JSON is YAML: nobody reads this file.
    (project / "params.yaml").write_text(json.dumps(params, default=str))


def hashes(project: Path) -> dict[str, str]:
    paths = sorted({path for pattern in SAME for path in project.glob(pattern)})
    return {str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def describe(entry: dict[str, Any]) -> str:
    kills = ", ".join(f"{kill['victim']} ({kill['where']}, {kill['seconds']} s)" for kill in entry["kills"])
    wrong = "; ".join(entry["wrong"]) or f"{entry['num_files']} files equal"
    return f"{entry['round']} {entry['workload']}, {entry['seconds']} s: {kills or 'nothing was killed'}: {wrong}"


def table(entries: list[dict[str, Any]]) -> str:
    kills = [(kill, entry) for entry in entries for kill in entry["kills"]]
    wrong = [problem for entry in entries for problem in entry["wrong"]]
    names = sorted({kill["victim"] for kill, _ in kills})
    num_files, minutes = (sum(entry[name] for entry in entries) for name in ("num_files", "seconds"))
    lines = [
        f"{len(kills)} kills in {len(entries)} rounds, {num_files} files compared, {len(wrong)} problems; "
        f"{minutes / 60:.0f} minutes on {os.cpu_count()} processors",
        "",
        f"| killed while | {' | '.join(names)} | in all |",
        f"|---|{'---|' * len(names)}---|",
    ]
    phases = Counter(kill["where"] for kill, _ in kills)
    for phase, count in phases.most_common():
        counts = Counter(kill["victim"] for kill, _ in kills if kill["where"] == phase)
        lines.append(f"| {phase} | {' | '.join(str(counts[name]) for name in names)} | {count} |")
    lines += ["", "| workload | rounds | kills | problems |", "|---|---|---|---|"]
    for workload in dict.fromkeys(entry["workload"] for entry in entries):
        own = [entry for entry in entries if entry["workload"] == workload]
        problems = sum(len(entry["wrong"]) for entry in own)
        lines.append(f"| {workload} | {len(own)} | {sum(len(entry['kills']) for entry in own)} | {problems} |")
    return "\n".join([*lines, *(f"- {problem}" for problem in wrong)])


if __name__ == "__main__":
    main()
