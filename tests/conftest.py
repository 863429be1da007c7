"""What the tests share: small tables, and copies of this project with tiny trainings, as real git and DVC
repositories.
"""

import fcntl
import importlib.util
import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import psutil
import pytest

from stages.params.schema import GRU, Augment, Train
from tests import catalogue, forked

if TYPE_CHECKING:
    from torch import Tensor

    from stages.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
# A browser, for what only a page shows; None where there is none.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# What the caller's shell may hold and no test may see: servers, another repository (a git hook sets GIT_DIR), a colour
# or a width of the terminal, warnings that are errors in every process.
SERVERS = ("PREFECT", "MLFLOW", "DVC", "TANDEM")
FOREIGN = (*SERVERS, "GIT_", "FORCE_COLOR", "COLUMNS", "PYTHONWARNINGS", "PYTHONDONTWRITE")
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # The same tables in every `make test`, new ones in every `make faults`: what it finds gets a test of its own.
    settings.register_profile("same", derandomize="HYPOTHESIS_EXAMPLES" not in os.environ)
    settings.load_profile("same")

for variable in [name for name in os.environ if name.startswith(FOREIGN)]:
    del os.environ[variable]
os.environ |= {
    "GIT_CONFIG_GLOBAL": os.devnull,  # no hooks, no signatures
    "GIT_CONFIG_NOSYSTEM": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "OMP_NUM_THREADS": "1",  # products this small take longer on two, many times longer where a core is taken
    "OMP_WAIT_POLICY": "PASSIVE",  # a test that asks for two threads does not take the other worker's core to wait
}


def has_room(folder: Path, gib: float) -> bool:
    """Whether files of so many GiB may lie and be executed in a folder that is memory."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    free = min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available / 2)
    return os.access(folder, os.W_OK) and not found.f_flag & os.ST_NOEXEC and free > gib * 2**30


# The tests' folders are in memory, where there is room and nobody has chosen another place: a commit of SQLite (MLflow,
# Prefect, DVC) and a sync of a file wait milliseconds for a disk, and a run of the tests has ten thousands of them.
if "TMPDIR" not in os.environ and has_room(Path("/dev/shm"), gib=4):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

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
  preload: {residency: auto}
  train:
    model: {name: gru, hidden_size: 8, num_layers: 1, bidirectional: true, dropout: 0.1}
    augment: {coupled_features: 2, mix: 0.1, shift: 0.0, warp: 0.1}
    epochs: 3
    warmup_epochs: 1
    batch_size: 16
    accumulation: 1
    precision: fp32
    on_out_of_memory: stop
    step: eager
    probe: false
    learning_rate: 1e-2
    weight_decay: 0.01
    schedule: one-cycle
    clip_norm: 1.0
    label_smoothing: 0.1
    threads: 1
    deterministic: true
  evaluate: {weights: last}
"""


SETTINGS = Train(
    model=GRU("gru", hidden_size=8, num_layers=2, bidirectional=True, dropout=0.2),
    augment=Augment(coupled_features=2, mix=0.1, shift=0.1, warp=0.1),
    epochs=4, warmup_epochs=1, batch_size=16, accumulation=1, precision="fp32",
    on_out_of_memory="stop", step="eager", probe=False,
    learning_rate=1e-2, weight_decay=0.01, schedule="one-cycle", clip_norm=1.0,
    label_smoothing=0.1, threads=1, deterministic=True,
)  # fmt: skip


# The files that start processes: with two workers, the long ones must not come last, nor both wait for `trained`.
SLOWEST = (
    "pipeline", "flows", "team", "tracking", "outages", "store", "compare", "memory_trainings", "verify", "workloads",
    "published", "choices", "seeds", "new_workload", "speed", "memory", "models", "benchmarks", "closure", "doctor",
    "manifest", "sweep",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--catalogue", type=Path, metavar="FILE", help="write the table of cases into this document")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--catalogue") and not hasattr(config, "workerinput"):  # xdist's workers report to this one
        config.pluginmanager.register(catalogue.Catalogue(), "catalogue")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if collected := config.pluginmanager.get_plugin("catalogue"):
        table = collected.table()
        catalogue.write(config.getoption("--catalogue"), table)
        terminalreporter.section("what was survived")
        terminalreporter.write_line(table)


@pytest.fixture
def saw(
    record_property: Callable[[str, object], None], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], None]:
    """Hands over what the user read, for the table of cases (tests/catalogue.py), without this machine's folders."""
    base = tmp_path_factory.getbasetemp()
    folder = re.escape(str(base.parent if base.name.startswith("popen-") else base))  # each of xdist's workers has one
    return lambda text: record_property("saw", re.sub(rf"{folder}/(popen-\w+/)?[^/\s'`)]+/?", "", text))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        catalogue.describe(item)
    order = {f"test_{name}": rank for rank, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))  # keeps the order within a file
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_tests:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU that this torch can use on this machine"))


@pytest.fixture(autouse=True)
def _the_gpu_is_open(request: pytest.FixtureRequest) -> None:
    """A gpu test finds the GPU as a stage opens it, whatever ran before: without TF32, deterministic."""
    if request.node.get_closest_marker("gpu"):
        from stages.training.device import open_device

        open_device(identity("cuda"), threads=1, deterministic=True)


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
    for name in ("stages", "flows"):
        shutil.copytree(ROOT / name, folder / name)
    for name in (
        "dvc.yaml",
        "hw/dvc.yaml",
        ".dvc/config",
        ".dvc/.gitignore",
        ".gitignore",
        ".dvcignore",
        "pyproject.toml",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "mlruns").mkdir()
    (folder / "params.yaml").write_text(params)
    (folder / "data" / "raw" / "tiny").mkdir(parents=True)
    (make_table() if table is None else table).to_csv(folder / "data" / "raw" / "tiny" / "table.csv", index=False)
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


def copy_of(template: Path, folder: Path, params: str = TINY) -> Path:
    """A project that begins where `template` stands, with other params."""
    shutil.copytree(template, folder)
    if params != (folder / "params.yaml").read_text():
        (folder / "params.yaml").write_text(params)
        commit(folder)
    return folder


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
        f"GIT_{who}_{what}": f"test{'@localhost' if what == 'EMAIL' else ''}"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    # Again, because mlflow.set_tracking_uri sets a variable too.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SERVERS)}
    return {**kept, "PATH": path, **git, **extra}


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


def stage(folder: Path, *words: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """A stage, as `python -m flows.stage` runs it."""
    return in_fork(folder, [words], check, extra)


def stages_at_once(folder: Path, *every: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Stages one after the other, as `dvc repro` runs them, in one process."""
    return in_fork(folder, [words.split() for words in every], True, extra)


def in_fork(
    folder: Path, every: Sequence[Sequence[str]], check: bool, extra: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as temporary:
        done = forked.run_stages(folder, every, environment(**extra), Path(temporary) / "log")
    assert not check or done.returncode == 0, done.stdout
    return done


def dvc(folder: Path, *words: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    needs("dvc")
    return run(folder, "dvc", *words, check=check, **extra)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def shared(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name` that `make` makes, once for all workers of pytest-xdist (its page "How-to", session fixtures).

    Tests that share it only read it, or work on a copy.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # another worker failed in the middle
            make(folder)
            made.touch()
    return folder


@pytest.fixture(scope="session")
def empty_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store with nothing in it: to make one takes seconds, to copy it none."""
    needs("mlflow")

    def make(folder: Path) -> None:
        code = "from stages.records.uploader import open_client; open_client()"
        run(ROOT, sys.executable, "-c", code, MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")

    return shared(tmp_path_factory, "history", make) / "mlflow.db"


@pytest.fixture(scope="session")
def prepared(empty_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that is ready to train, with an empty history."""

    def make(folder: Path) -> None:
        make_project(folder)
        dvc(folder, "repro", "preload@tiny-cpu")
        shutil.copy(empty_history, folder / "mlruns")

    return shared(tmp_path_factory, "prepared", make)


@pytest.fixture
def ready(prepared: Path, tmp_path: Path) -> Path:
    """A project of the test's own that is ready to train."""
    return copy_of(prepared, tmp_path / "project")


@pytest.fixture(scope="session")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project after `dvc repro`."""

    def make(folder: Path) -> None:
        copy_of(prepared, folder)
        dvc(folder, "repro")
        settle(folder)

    return shared(tmp_path_factory, "trained", make)


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of `request.param` MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}m", "tmpfs", disk]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user, or this container, may not mount a tmpfs")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def wait_for(condition: Callable[[], Any], seconds: float = 300.0, what: str = "the condition") -> Any:
    """The first true value of `condition`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come about within {seconds} s")


def held(folder: Path, epoch: int, word: str = "train") -> dict[str, str]:
    """Environment of a training that waits after `epoch` until `folder`/go is there, if `word` is in its command.

    What must happen while it trains then happens on a quick machine and on a busy one.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"""
import builtins, pathlib, sys, time

def print_and_wait(*words, print=print, **options):
    print(*words, **options)
    while words and str(words[0]).startswith("epoch {epoch}/") and not pathlib.Path({str(folder / "go")!r}).exists():
        time.sleep(0.02)

if {word!r} in sys.orig_argv:
    builtins.print = print_and_wait
""")
    return {"PYTHONPATH": str(folder)}


def settle(project: Path) -> None:
    """Wait until MLflow has everything: an uploader finishes after the stage that started it."""
    journals = project / ".tandem/journals"
    wait_for(lambda: not any(path.is_dir() for path in journals.iterdir()), what="the end of every journal")


def recorded_runs(project: Path, experiment: str) -> list[dict[str, Any]]:
    """id, status, params and last metrics of an MLflow experiment's runs, from the database: mlflow's import is
    slow.
    """
    # Not read-only: only a reader that may write rolls back what a killed process left half-written.
    store = f"file:{project}/mlruns/mlflow.db?mode=rw"
    with closing(sqlite3.connect(store, uri=True, timeout=60)) as database:
        query = "select run_uuid, status from runs join experiments using (experiment_id) where experiments.name = ?"
        runs = [{"id": run_id, "status": status} for run_id, status in database.execute(query, [experiment])]
        for run in runs:
            for key, table in (("params", "params"), ("metrics", "latest_metrics")):
                rows = database.execute(f"select key, value from {table} where run_uuid = ?", [run["id"]])
                run[key] = dict(rows.fetchall())
    return runs


def tensors(num_sequences: int = 50) -> dict[str, "Tensor"]:
    import torch

    draw = torch.Generator().manual_seed(3)
    return {
        "values": torch.randn(num_sequences, 9, 4, generator=draw),
        "mask": torch.arange(9)[None, :] < torch.randint(3, 10, (num_sequences, 1), generator=draw),
        "targets": torch.randint(0, 3, (num_sequences,), generator=draw),
    }


def identity(device: str) -> dict:
    return {"kind": device, "name": device, "driver": None}


def new_trainer(device: str, residency: str, folder: Path, settings: Train = SETTINGS) -> "Trainer":
    """A small training on random sequences, from its start."""
    import torch
    from safetensors.torch import save_file

    from stages import models
    from stages.tasks import classify
    from stages.training.batches import load_split
    from stages.training.device import open_device
    from stages.training.trainer import Trainer

    where = open_device(identity(device), threads=1, deterministic=True, precision=settings.precision)
    path = folder / "split.safetensors"
    if not path.exists():
        save_file(tensors(), path)
    split = load_split(path, where, residency)
    torch.manual_seed(0)
    model = models.build(settings.model, models.Shape(4, 3, 9, per_step=False)).to(where)
    return Trainer(model, split, split, settings, classify.Task({"classes": ["a", "b", "c"]}))


def finish(trainer: "Trainer") -> tuple[dict[str, "Tensor"], list[float]]:
    """Train to the end: the weights, and the training loss of each epoch."""
    losses = []
    while trainer.epochs_done < trainer.params.epochs:
        losses.append(trainer.epoch().train_loss)
    return {name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()}, losses


# Memory that runs out, in a process of its own -----------------------------------------------------------------------

MIB = 2**20
FREED = "freed what the allocators keep"
RECOMPUTED = "activations are computed again instead of kept"
ONEDNN_LEFT = "the CPU computes without oneDNN, whose memory ran out"


def under_a_limit() -> None:
    """As `ulimit -d` before the process: with room for everything, until `leave`."""
    resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.RLIM_INFINITY))


def leave(mib: float) -> None:
    """From here on this process can allocate so much more. None of it is left over from before."""
    from stages.training.memory import free_cache

    free_cache()
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + int(mib * MIB), resource.RLIM_INFINITY))


def lift() -> None:
    under_a_limit()


def data_bytes() -> int:
    """What counts against the limit."""
    return int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * 1024


def leave_in_gpu(mib: float) -> None:
    """As `leave`, of the card's memory."""
    import torch

    from stages.training.memory import free_cache

    free_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + mib * MIB) / total)


def ladder(actions: list[str]) -> list[str]:
    """The actions without that about oneDNN: whether memory runs out in it depends on the processor."""
    return [action for action in actions if action != ONEDNN_LEFT]
