"""Kill running processes, resume with `dvc repro`, and compare: nothing may be lost, and no bit may differ.

    python -m benchmarks.soak --kills 200 --folder DIR   # resumes where it stopped; Ctrl+C ends it
    python -m benchmarks.soak --table                    # the results so far; with --file docs/soak.jsonl, published

A round is one training of one workload from its packed data to its evaluation, in a clone of this project
(benchmarks/soak_project.py). It starts `dvc repro`, `make repro` or the Prefect flow; at a random moment kill -9 ends
a random process of it (trainer, evaluation, dvc, publisher, flow; some rounds also run and kill Prefect's and MLflow's
servers). It starts again, up to KILLS_PER_ROUND kills; then `make repro` runs to its end. A third of the kills waits
until a checkpoint is being written, a third until DVC stores the training's outputs. The death of a publisher or server
does not end the run, so the same run is killed again. One uninterrupted run of each workload comes first. Errors:

- differ: a file that is not the uninterrupted run's (weights, history, predictions, scores, metrics, pictures, data),
- left running: a process that still runs a minute after the kill of another one,
- after `tandem sync`: RUNNING, a run in that state in MLflow; twice, a duplicate epoch,
- file left: a temporary file, a checkpoint, a run directory,
- else: a `make repro` that fails or shows a traceback although nothing was killed; an epoch that MLflow lacks, a run
  that it lacks or has twice.

The file has a line for each kill. Errors found at the end of a round are on the lines of all its kills.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.markdown import header, row
from benchmarks.soak_project import PROCESSES, SAVING, SERVERS, STORING, TRAINING, Project
from tandem.files import ROOT
from tandem.terminal.messages import one_line

WORKLOADS = ("sign", "pen", "price", "rally")
KILLS_PER_ROUND = 6
# Processes whose death does not end the run.
APART = ("publisher", *SERVERS)
Kill = dict[str, Any]


def main() -> None:
    options = parse()
    kills = read(options.file)
    if not options.table:
        with tempfile.TemporaryDirectory(prefix="tandem-soak-", ignore_cleanup_errors=True) as temporary:
            folder = (options.folder or Path(temporary)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            soak = Soak(folder, options)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
            number = max((kill["round"] for kill in kills), default=-1)
            try:
                while len(kills) < options.kills:
                    number += 1
                    counts = Counter(kill["workload"] for kill in kills)
                    workload = min(options.workloads, key=lambda name: counts[name])
                    new_kills = soak.round(number, workload, options.kills - len(kills))
                    options.file.parent.mkdir(parents=True, exist_ok=True)
                    with options.file.open("a") as file:
                        file.writelines(json.dumps(kill) + "\n" for kill in new_kills)
                    kills += new_kills
                    print(f"{len(kills)} kills", flush=True)
            finally:
                soak.project.end_servers()
                soak.project.end_processes()
    print(table(kills))
    sys.exit(any(kill["wrong"] for kill in kills))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all, those in --file included (200)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS, metavar="NAME")
    parser.add_argument("--servers", type=float, default=0.25, help="share of the rounds with servers and flow (0.25)")
    parser.add_argument("--file", type=Path, default=ROOT / "results" / "soak.jsonl", help="where kills are kept")
    parser.add_argument("--folder", type=Path, help="keep the clone and the uninterrupted runs here, for the next call")
    parser.add_argument("--table", action="store_true", help="kill nothing")
    return parser.parse_args()


def read(file: Path) -> list[Kill]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Aim(NamedTuple):
    """The moment of a kill, and its victim: the first of `victims` that exists."""

    moment: str  # any, SAVING or STORING
    delay: float  # any: seconds from the start of the run, or from the previous kill
    after: float  # seconds after STORING
    victims: list[str]


def aim(draw: random.Random, seconds: float) -> Aim:
    """`seconds`: the duration of an uninterrupted run."""
    moment = draw.choice(["any", SAVING, STORING])
    victims = [*PROCESSES, *SERVERS]
    draw.shuffle(victims)
    # Usually the trainer while a checkpoint is written, and dvc during DVC's commit.
    first = {SAVING: ["trainer"], STORING: ["make repro", "dvc"]}.get(moment, []) if draw.random() < 0.7 else []
    return Aim(moment, draw.random() * 0.8 * seconds, draw.random() * 0.5, [*first, *victims])


class Soak:
    """Rounds in `folder`. `folder`/<workload> is the project before the workload's training."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.project = folder, options, Project(folder)
        self.expected: dict[str, dict[str, str]] = {}
        self.seconds: dict[str, float] = {}

    def prepare(self, workload: str) -> None:
        """Make, or load, the project before the training and the results of an uninterrupted run."""
        expected = self.folder / f"{workload}.json"
        if not expected.exists():
            self.project.make(workload)
            shutil.rmtree(self.folder / workload, ignore_errors=True)
            shutil.copytree(self.project.path, self.folder / workload, symlinks=True)
            start = time.monotonic()
            self.project.succeed("dvc", "repro", f"evaluate@{workload}-cpu")
            content = {"seconds": time.monotonic() - start, "files": self.project.hashes()}
            self.project.wait_until_quiet()  # the publisher removes the run directory after DVC has ended
            if errors := (self.project.wrong_in_mlflow() or self.project.leftovers()):
                raise SystemExit(f"the uninterrupted run of {workload} is wrong: {errors}")
            expected.write_text(json.dumps(content))
            print(f"{workload}: {len(content['files'])} files, {content['seconds']:.1f} s", flush=True)
        content = json.loads(expected.read_text())
        self.expected[workload], self.seconds[workload] = content["files"], content["seconds"]

    def round(self, number: int, workload: str, max_kills: int) -> list[Kill]:
        draw = random.Random(number)
        project = self.project
        project.end_servers()
        project.end_processes()  # left by an invocation that was itself killed
        self.prepare(workload)
        shutil.rmtree(project.path, ignore_errors=True)
        shutil.copytree(self.folder / workload, project.path, symlinks=True)
        with_servers = draw.random() < self.options.servers
        kills: list[Kill] = []
        num_kills, status, start = min(KILLS_PER_ROUND, max_kills), 1, time.monotonic()
        while len(kills) < num_kills and status:
            if with_servers:
                project.start_servers()
            new_kills, status = self.start_and_kill(workload, draw, num_kills - len(kills))
            alive = project.wait_until_quiet()
            for kill in new_kills:
                kill |= {"round": number, "wrong": {"left running": alive} if alive else {}}
                print(f"{number} {workload}: {kill['killed']}, {kill['moment']}, {kill['seconds']} s", flush=True)
            kills += new_kills
            if not new_kills:
                break
        if with_servers:
            project.start_servers()
        errors, commands = self.finish(workload)
        for kill in kills:
            kill["wrong"] |= errors
            kill["commands"] = commands
        print(f"{number} {workload}: {time.monotonic() - start:.0f} s, {errors or 'all equal'}", flush=True)
        return kills

    def finish(self, workload: str) -> tuple[dict[str, list[str]], list[str]]:
        """Run to the end without kills. Returns the errors by kind, and the commands that an error message named.

        A kill can truncate a file of DVC. `make repro` then names the command that repairs it, as docs/reliability.md
        says, and this function runs the command, as a user would.
        """
        project, commands = self.project, []
        while True:
            repro = project.run(sys.executable, "-m", "tandem.cli", "repro", f"evaluate@{workload}-cpu")
            named = re.search(r"; run: (.+)", repro.stdout) if repro.returncode else None
            if named is None or named[1] in commands:
                break
            commands.append(named[1])
            project.run("sh", "-c", named[1])
        hashes = project.hashes()
        errors = {"left running": project.wait_until_quiet(), **project.wrong_in_mlflow()}
        if repro.returncode or "Traceback" in repro.stdout:
            errors.setdefault("else", []).append(f"make repro, exit status {repro.returncode}: {repro.stdout[-2000:]}")
        errors["differ"] = [name for name, digest in self.expected[workload].items() if hashes.get(name) != digest]
        errors.setdefault("file left", []).extend(project.leftovers())
        return {kind: texts for kind, texts in errors.items() if texts}, commands

    def start_and_kill(self, workload: str, draw: random.Random, max_kills: int) -> tuple[list[Kill], int]:
        """Start the run and kill its processes until it ends; return the kills and the exit status."""
        through = "flow" if self.project.servers and draw.random() < 0.7 else draw.choice(["dvc", "make"])
        python, stage = (sys.executable, "-m"), f"evaluate@{workload}-cpu"
        command = {
            "flow": (sys.executable, "-c", f"from flows.pipeline import pipeline; pipeline(workloads=[{workload!r}])"),
            "make": (*python, "tandem.cli", "repro", stage),
            "dvc": ("dvc", "repro", stage),
        }[through]
        started, kills = time.time(), list[dict[str, Any]]()
        with (self.folder / "run.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.project.path, env=self.project.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        while process.poll() is None and len(kills) < max_kills:
            # After a kill that did not end the run, the rest of the run is short.
            seconds = self.seconds[workload] * (0.3 if kills else 1.0)
            kill = self.kill_one(workload, aim(draw, seconds), process, started)
            if kill is None:
                break
            kills.append(kill | {"workload": workload, "through": through})
            if kill["killed"] not in APART:
                break
        try:
            return kills, process.wait(timeout=600)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return kills, 1

    def kill_one(self, workload: str, aim: Aim, process: subprocess.Popen[bytes], started: float) -> Kill | None:
        """Kill one process of the run at the chosen moment; None if the run ends first."""
        project, moment, begun = self.project, aim.moment, time.time()
        processes: dict[str, psutil.Process] = {}  # found in advance: a checkpoint is written in milliseconds
        if moment != "any" and project.is_stored(workload):
            moment = "any"  # the training is over
        while True:
            if process.poll() is not None:
                return None
            if moment == "any" and time.time() > begun + aim.delay:
                break
            if moment == SAVING:
                processes = processes if "trainer" in processes else project.named()
                if project.is_saving(workload, started):
                    break
                if project.has_result(workload, started):
                    moment = "any"
            if moment == STORING and project.has_result(workload, started):
                time.sleep(aim.after)
                break
            time.sleep(0.002 if "trainer" in processes else 0.05)
        if moment != SAVING or "trainer" not in processes:
            processes = project.named()
        alive: dict[str, Callable[[], object]] = {name: target.kill for name, target in processes.items()}
        alive |= {name: project.servers[name].kill for name in project.running_servers()}
        victim = next((name for name in aim.victims if name in alive), None) or next(iter(sorted(alive)), None)
        if victim is None or process.poll() is not None:
            return None
        phase = project.phase(workload, started)
        with suppress(psutil.NoSuchProcess):
            alive[victim]()
            if phase == SAVING and victim == "trainer" and not project.is_saving(workload, started):
                phase = TRAINING  # the file had already been moved into place
            return {
                "killed": victim, "moment": phase, "seconds": round(time.time() - started, 2),
                "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "load": round(os.getloadavg()[0], 1),
            }  # fmt: skip
        return None


def table(kills: list[Kill]) -> str:
    if not kills:
        return "no kills yet"
    loads, num_rounds = [kill["load"] for kill in kills], len({kill["round"] for kill in kills})
    num_wrong = sum(bool(kill["wrong"]) for kill in kills)
    lines = [
        f"{len(kills)} kills in {num_rounds} rounds, {num_wrong} with an error; "
        f"{kills[0]['at'][:16]} to {kills[-1]['at'][:16]}, load {min(loads)} to {max(loads)}",
    ]
    repairs = {kill["round"]: kill["commands"] for kill in kills if kill.get("commands")}
    if repairs:
        commands = sorted({command for repair in repairs.values() for command in repair})
        lines += [
            "",
            f"In {len(repairs)} rounds, an error message named a command, which was run: `{'`, `'.join(commands)}`",
        ]
    for column in ("killed", "moment"):
        lines += ["", header(column, "kills", "with an error")]
        for value, count in Counter(kill[column] for kill in kills).most_common():
            lines.append(row(value, count, sum(bool(kill["wrong"]) for kill in kills if kill[column] == value)))
    errors = Counter(
        (kill["round"], kind, one_line("; ".join(texts))) for kill in kills for kind, texts in kill["wrong"].items()
    )
    problems = [f"- round {number}, {count} kills: {kind}: {text}" for (number, kind, text), count in errors.items()]
    return "\n".join([*lines, *([""] if problems else []), *problems])


if __name__ == "__main__":
    main()
