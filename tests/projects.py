"""Copies of this project with tiny trainings, as real git and DVC repositories, and what runs and records in them."""

import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from tandem.runs.run import open_folder
from tests import forked

ROOT = Path(__file__).resolve().parents[1]


SERVERS = ("PREFECT", "MLFLOW", "DVC", "TANDEM")  # how the variables begin that lead to a server, or to another project
OF_SESSION: dict[str, str] = {}  # variables of every process of a project, from tests/conftest.py


TINY = """
workloads: [tiny]
devices: [cpu]
seeds: [0]
preset: none
presets: {}
tiny:
  task: classify
  preprocess:
    source: sequences
    table: table.csv
    columns: {sequence: sequence, step: step, features: [x, y], label: label}
    split: {train: 0.6, val: 0.2, test: 0.2}
    seed: 0
    velocity: true
    missing: refuse
    groups: none
  preload: {data_location: auto}
  train:
    model: {name: gru, hidden_size: 8, num_layers: 1, bidirectional: true, dropout: 0.1}
    augment: {coupled_features: 2, mix: 0.1, shift: 0.0, warp: 0.1}
    epochs: 3
    warmup_epochs: 1
    batch_size: 16
    grad_accum_steps: 1
    precision: fp32
    step: eager
    probe: false
    learning_rate: 1e-2
    weight_decay: 0.01
    schedule: one-cycle
    max_grad_norm: 1.0
    label_smoothing: 0.1
    threads: 1
    deterministic: true
  evaluate: {weights: last}
"""


MODEL = "{name: gru, hidden_size: 8, num_layers: 1, bidirectional: true, dropout: 0.1}"  # in TINY
RUN = "results/runs/tiny/cpu/train/result/0"  # the name of the run with seed 0
# Where a run's files are, in results/runs/<workload>/<device>/. Other seeds than 0 have `replicate` instead of `train`.
PLACES = {
    "train/result": ("best.safetensors", "last.safetensors", "model.json", "history.csv", "train.json"),
    "train/measured": ("timing.json", "timings.csv"),
    "evaluate/measured": ("in_mlflow.json",),
    "evaluate/result": ("score.json", "scores.csv", "confusion.csv", "predictions.csv", "result.png"),
}


def run_path(name: str, workload: str = "tiny", device: str = "cpu", seed: int = 0) -> str:
    """The path of a run's file, relative to the project."""
    place = next(folder for folder, names in PLACES.items() if name in names)
    if seed:
        place = place.replace("train", "replicate")
    return f"results/runs/{workload}/{device}/{place}/{seed}/{name}"


def read_record(project: Path, name: str, workload: str = "tiny", device: str = "cpu", seed: int = 0) -> dict[str, Any]:
    """The content of train.json, timing.json or score.json."""
    return dict(json.loads((project / run_path(name, workload, device, seed)).read_text()))


def manifest_of(project: Path, device: str = "cpu") -> dict[str, Any]:
    return open_folder(project / "results/runs/tiny" / device, seed=0).manifest


def needs(*packages: str) -> None:
    """Skips a test, or what it starts from, where a package is not installed: a GPU's machine may have few."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def make_table(num_sequences: int = 60, num_steps: int = 12, num_classes: int = 3, seed: int = 0) -> pd.DataFrame:
    """Circles run through at class-dependent speeds, with noise: classes that a tiny model tells apart in a few
    epochs.
    """
    draw = np.random.default_rng(seed)
    sequence = np.repeat(np.arange(num_sequences), num_steps)
    step = np.tile(np.arange(num_steps), num_sequences)
    label = sequence % num_classes
    angle = (label + 1) * step * 0.4 + draw.normal(size=num_sequences)[sequence]
    noise = draw.normal(scale=0.05, size=(2, len(step)))
    names = np.array([f"class {number}" for number in range(num_classes)])
    return pd.DataFrame(
        {
            "sequence": sequence,
            "step": step,
            "x": np.cos(angle) + noise[0],
            "y": np.sin(angle) + noise[1],
            "label": names[label],
        }
    )


def make_project(folder: Path, params: str = TINY, table: pd.DataFrame | None = None) -> Path:
    """This project's code in a repository of its own, with one workload `tiny`. Compiled code comes along: it stays
    valid.
    """
    folder.mkdir(parents=True)
    subprocess.run(["cp", "-a", *(ROOT / name for name in ("stages", "flows", "tandem")), folder], check=True)
    (folder / "stages/dvc.lock").unlink(missing_ok=True)
    shutil.copytree(ROOT / ".dvc/plots", folder / ".dvc/plots")
    for name in ("dvc.yaml", ".dvc/config", ".dvc/.gitignore", ".gitignore", ".dvcignore", "pyproject.toml"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    if (fingerprints := ROOT / ".tandem/fingerprints.json").exists():  # of tests/conftest.py
        (folder / ".tandem").mkdir()
        shutil.copy(fingerprints, folder / ".tandem")
    (folder / "mlruns").mkdir()
    (folder / "params.yaml").write_text(params)
    raw = folder / "workloads/tiny/data"
    raw.mkdir(parents=True)
    (make_table() if table is None else table).to_csv(raw / "table.csv", index=False)
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


def copy_workload_code(folder: Path) -> None:
    """The components that the committed params.yaml names; without them it is invalid."""
    for path in (ROOT / "workloads").glob("*/*.py"):
        (folder / "workloads" / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / "workloads" / path.parent.name)


def copy_of(template: Path, folder: Path, params: str = TINY) -> Path:
    """A project that begins where `template` stands, with other params."""
    assert not folder.exists()
    subprocess.run(["cp", "-aT", template, folder], check=True)  # takes half as long as Python's copy
    if params != (folder / "params.yaml").read_text():
        (folder / "params.yaml").write_text(params)
        commit(folder)
    return folder


def add_workload(project: Path, name: str) -> None:
    """A second workload, equal to the first."""
    shutil.copytree(project / "workloads/tiny", project / "workloads" / name)
    params = (project / "params.yaml").read_text()
    listed, block = params.replace("[tiny]", f"[tiny, {name}]", 1), params[params.index("tiny:\n") :]
    (project / "params.yaml").write_text(listed + block.replace("tiny:\n", f"{name}:\n", 1))


def without_publisher(project: Path) -> Path:
    """The project, whose stages send nothing to MLflow from here on."""
    with (project / "tandem/tracking/run_dir.py").open("a") as file:
        file.write("\n\ndef start_publisher():\n    return None\n\n\nWAIT_SECONDS = 0.0\n")
    return project


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "as it is")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words], cwd=folder, check=True)


def environment(**extra: str) -> dict[str, str]:
    """For a process of a project: its Python is this one, and who commits is said.

    A PYTHONPATH comes before the caller's, on which packages may lie.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if "PYTHONPATH" in extra and "PYTHONPATH" in os.environ:
        extra["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    git = {
        f"GIT_{role}_{field}": f"test{'@localhost' if field == 'EMAIL' else ''}"
        for role in ("AUTHOR", "COMMITTER")
        for field in ("NAME", "EMAIL")
    }
    # Again, because mlflow.set_tracking_uri sets a variable too.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(SERVERS)}
    return {**inherited, "PATH": path, **git, **OF_SESSION, **extra}


def run(folder: Path, *command: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `command` in a project; where it must succeed and does not, the test shows its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert not check or done.returncode == 0, done.stdout
    return done


def shell(folder: Path, command: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """A command that a message gave, in a shell. What it starts of DVC and Tandem is forked (tests/forked.py)."""
    return run(folder, "bash", "-ec", command, check=check, **forked.handing_over(environment(**extra)))


def start(folder: Path, *command: str, **extra: str) -> subprocess.Popen[str]:
    """A process of a project, in a session of its own, with its output in one pipe."""
    return subprocess.Popen(
        command, cwd=folder, env=environment(**extra), start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def start_training(project: Path, device: str = "cpu", inside: str = "", **extra: str) -> subprocess.Popen[str]:
    """`inside`: a command that starts another one, such as `ip netns exec NAME`; it becomes that other one."""
    train = (sys.executable, "-m", "tandem.stage", "train", "tiny", device, "0")
    return start(project, *inside.split(), *train, **extra)


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def error_of(output: str) -> str:
    """The first sentence that says why a command failed."""
    return next(line for line in output.splitlines() if line.startswith("error: "))


# A stage waits for the ids of its run from MLflow, which take seconds, and longer where the store is not made yet.
NO_PUBLISHER = (
    "from tandem.tracking import run_dir; run_dir.start_publisher, run_dir.WAIT_SECONDS = lambda: None, 0.0\n"
)


def stage(
    folder: Path, *words: str, check: bool = True, publishes: bool = True, **extra: str
) -> subprocess.CompletedProcess[str]:
    """A stage, as `python -m tandem.stage` runs it."""
    return stages_at_once(folder, " ".join(words), check=check, publishes=publishes, **extra)


def stages_at_once(
    folder: Path, *every: str, check: bool = True, publishes: bool = True, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Stages one after the other, as `dvc repro` runs them, in one process, up to the first that fails."""
    words, code = [command.split() for command in every], "" if publishes else NO_PUBLISHER
    code += f"import sys; from tandem.stage import main; sys.exit(next(filter(None, map(main, {words})), 0))"
    return python(folder, code, check=check, **extra)


EVALUATED = (
    "hardware",
    "preprocess tiny",
    "baseline tiny",
    "preload tiny cpu",
    "train tiny cpu 0",
    "evaluate tiny cpu",
)


def every_stage(folder: Path, workload: str = "tiny") -> None:
    """The results of every stage, of which DVC knows nothing. Nothing is sent to MLflow."""
    *trained, evaluated = EVALUATED
    every = (*trained, "replicate tiny cpu", evaluated, "speed tiny", "compare")
    stages_at_once(folder, *(command.replace("tiny", workload) for command in every), publishes=False)


def reproduce(folder: Path) -> None:
    """What `dvc repro` leaves: the results of every stage, and DVC's record of them. Nothing is sent to MLflow."""
    every_stage(folder)
    dvc(folder, "commit", "--force")


def tandem(folder: Path, *words: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """The command `tandem`. What it starts are new processes."""
    code = f"import sys; from tandem.cli import main; sys.exit(main({list(words)}))"
    return python(folder, code, check=check, **extra)


def python(folder: Path, code: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """`python -c code`, in a process that has imported torch already (tests/forked.py)."""
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "log"
        status = forked.run(folder, code, environment(**extra), log, log)
        output = log.read_text()
    assert not check or status == 0, output
    return subprocess.CompletedProcess(code, status, output)


def at_once(work: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    """`work` of each value, in processes that run at the same time."""
    forked.address()  # which they share
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(work, values))


def dvc(folder: Path, *words: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    needs("dvc")
    code = f"import sys; from dvc.cli import main; sys.argv = ['dvc']; sys.exit(main({list(words)}))"
    return python(folder, code, check=check, **extra)


def wait_for(condition: Callable[[], Any], seconds: float = 300.0, what: str = "the condition") -> Any:
    """The first true value of `condition`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come about within {seconds} s")


def held(folder: Path, epoch: int, word: str = "train", forks: bool = True) -> dict[str, str]:
    """Environment of a training that waits after `epoch` until `folder`/go is there, if `word` is in its command.

    What must happen while it trains then happens on a quick machine and on a busy one. `forks`: it and what starts it
    are forked processes (tests/forked.py), and not processes from their beginning.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"""
import builtins, pathlib, runpy, sys, time

def print_and_wait(*words, print=print, **options):
    print(*words, **options)
    while words and "epoch {epoch}/" in str(words[0]) and not pathlib.Path({str(folder / "go")!r}).exists():
        time.sleep(0.02)

if {forks} and not hasattr(sys, "is_forked"):
    runpy.run_path({str(forked.HERE / "handover/sitecustomize.py")!r})
if {word!r} in sys.orig_argv:
    builtins.print = print_and_wait
""")
    return {"PYTHONPATH": str(folder), "FORK_SERVER": forked.address()}


def wait_until_published(project: Path) -> None:
    """Wait until MLflow has everything: the publisher finishes after the stage that started it."""
    wait_for(lambda: not unpublished(project), what="MLflow to have every run")


def unpublished(project: Path) -> list[Path]:
    """The run directories that MLflow does not have, or does not have all of."""
    return [path for path in (project / ".tandem/runs").glob("[!.]*") if path.is_dir()]


def recorded_runs(project: Path, experiment: str) -> list[dict[str, Any]]:
    """id, status, params, tags and last metrics of an MLflow experiment's runs, from the database: mlflow's import is
    slow.
    """
    # Not read-only: only a reader that may write rolls back what a killed process left half-written.
    store = f"file:{project}/mlruns/mlflow.db?mode=rw"
    with closing(sqlite3.connect(store, uri=True, timeout=60)) as database:
        query = "select run_uuid, status from runs join experiments using (experiment_id) where experiments.name = ?"
        runs = [{"id": run_id, "status": status} for run_id, status in database.execute(query, [experiment])]
        for run in runs:
            for key, table in (("params", "params"), ("tags", "tags"), ("metrics", "latest_metrics")):
                rows = database.execute(f"select key, value from {table} where run_uuid = ?", [run["id"]])
                run[key] = dict(rows.fetchall())
    return runs
