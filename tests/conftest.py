"""What every test finds: an environment without the caller's, folders in memory, and projects that are made once."""

import atexit
import compileall
import fcntl
import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tandem.code_dependencies import Code
from tests import catalogue, forked
from tests.projects import (
    OF_SESSION,
    ROOT,
    SERVERS,
    copy_of,
    dvc,
    make_project,
    needs,
    python,
    run,
    wait_until_published,
)

# A browser, for what only a page shows; None where there is none.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# What the caller's shell may hold and no test may see: servers, another repository (a git hook sets GIT_DIR), a colour
# or a width of the terminal, warnings that are errors in every process.
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

# Otherwise the garbage collection at the end of Python leaves out triton, whose nanobind then reports leaks. Pytest's
# own, at its end, leave out what was imported: each takes a second otherwise.
atexit.register(gc.unfreeze)

sys.dont_write_bytecode = False  # pytest's own: to compile the tests takes each worker five seconds

# `nohup make test` ignores SIGHUP in every child, and `make test &` in a script SIGINT; tests send both.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def has_room(folder: Path, gib: float) -> bool:
    """Whether files of so many GiB may lie and be executed in a folder that is memory."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    free = min(disk.f_bavail * disk.f_frsize, psutil.virtual_memory().available / 2)
    return os.access(folder, os.W_OK) and not disk.f_flag & os.ST_NOEXEC and free > gib * 2**30


# The tests' folders are in memory, where there is room and nobody has chosen another place: a commit of SQLite (MLflow,
# Prefect, DVC) and a sync of a file wait milliseconds for a disk, and a run of the tests has ten thousands of them.
if "TMPDIR" not in os.environ and has_room(Path("/dev/shm"), gib=4):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


# The files that take long, roughly by their seconds: they must not come last, where other workers have nothing left to
# do, nor may the first three wait for `trained`.
SLOWEST = (
    "gpu_stages",  # before any test of this process has a context on the GPU: it would be another process there
    "flow_runs", "pipeline", "workloads", "show", "tracking", "cli", "seeds", "parts", "folders", "dvc_faults",
    "own_metrics", "verify", "threads", "memory", "check", "refused_shapes", "loop", "parameters", "new_workload",
    "sources", "model_selection", "devices", "tasks", "store", "code_dependencies", "repro", "rally", "cells",
    "worker_processes", "published", "wide_tables", "doctor", "workers", "outages", "roles", "team", "headers",
    "memory_trainings", "model_package",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--catalogue", type=Path, metavar="FILE", help="write the table of cases into this document")


def pytest_configure(config: pytest.Config) -> None:
    (ROOT / ".tandem").mkdir(exist_ok=True)  # in a new clone, Prefect warns that it cannot make a folder in it
    if not hasattr(config, "workerinput"):  # a project is a copy of these, and its processes would compile them each
        for name in ("tandem", "stages", "flows"):
            compileall.compile_dir(ROOT / name, quiet=2)
        code = Code()  # nor do they parse them: make_project copies what this leaves
        for module in code.files:
            with suppress(SyntaxError):  # the tests that import it say so
                code.describe(module)
        code.save()
        if config.getoption("numprocesses", None):  # of pytest-xdist: what the server imports is imported once
            os.environ[forked.SHARED] = forked.address()
    if config.getoption("--catalogue") and not hasattr(config, "workerinput"):  # xdist's workers report to this one
        config.pluginmanager.register(catalogue.Catalogue(), "catalogue")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: a test waits for servers and publishers, and another one runs meanwhile."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    collected = config.pluginmanager.get_plugin("catalogue")
    if collected and collected.rows:  # --collect-only ran none, and the table of those that ran stays
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
        catalogue.record_cases(item)
    order = {f"test_{name}": rank for rank, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))  # keeps the order within a file
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_tests:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU that this torch can use on this machine"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Garbage collections take a fifth of the imports. Those of the tests, which free_cache makes, leave out what was
    imported: each takes a second otherwise.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _collections_are_quick() -> None:
    """They leave out what the tests before have imported too."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _the_gpu_is_open(request: pytest.FixtureRequest) -> None:
    """A gpu test finds the GPU as a stage opens it, whatever ran before: without TF32, deterministic."""
    if request.node.get_closest_marker("gpu"):
        from tandem.training.execution import open_device
        from tests.trainers import identity

        open_device(identity("cuda"), threads=1, deterministic=True)


@pytest.fixture(scope="session", autouse=True)
def _dvcs_indices(tmp_path_factory: pytest.TempPathFactory) -> None:
    """DVC keeps indices of each project in /var/tmp, on a disk, and a project of a test never again."""
    OF_SESSION["DVC_SITE_CACHE_DIR"] = str(tmp_path_factory.getbasetemp() / "dvc")


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
    folder, marker = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists():
            shutil.rmtree(folder, ignore_errors=True)  # another worker failed in the middle
            make(folder)
            marker.touch()
    return folder


@pytest.fixture(scope="session")
def empty_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store with nothing in it: to make one takes seconds, to copy it none."""
    needs("mlflow")

    def make(folder: Path) -> None:
        code = "from tandem.tracking.connection import open_client; open_client()"
        python(ROOT, code, MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")

    return shared(tmp_path_factory, "history", make) / "mlflow.db"


@pytest.fixture(scope="session")
def prepared(empty_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that is ready to train, with an empty history."""

    def make(folder: Path) -> None:
        make_project(folder)
        dvc(folder, "repro", "preload@tiny-cpu", "baseline@tiny")
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
        run(folder, "dvc", "repro")  # each stage a process from its beginning, as a user has it
        wait_until_published(folder)

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
        subprocess.run(["umount", "--lazy", disk], check=True)  # the publisher may still have files open there
