"""Python in processes that are forked from one which has imported torch and the like: to import them takes longer than
a tiny training. Each is a process of its own, which imports the code of the project it works in.

So are the commands, stages and publishers that such a process starts, as DVC does: `python -m tandem.stage` hands
itself over (tests/handover/sitecustomize.py) and ends as the forked process does. Signals reach that one, and kill -9
of the first ends both. What a test starts otherwise (tests/projects.py: run, start) is a process from its beginning.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import re
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.handover.forking import ask

# Nothing of this project, which a test may have edited. torch's optimizers import the second.
IMPORTED = ["torch", "torch._dynamo", "safetensors.torch", "pandas", "scipy.stats", "matplotlib.figure", "jinja2"]
# For commands and stages only: what these imports free is memory that a test with little memory would find.
OF_COMMANDS = ["mlflow", "mlflow.store.model_registry.sqlalchemy_store", "mlflow.store.tracking.sqlalchemy_store"]
# DVC imports the others in its functions: half of what `dvc exp show` takes.
OF_COMMANDS += ["dvc.repo", "dvc.cli.parser", "dvc.commands.repro", "dvc.commands.experiments.run", "dvc.data_cloud"]
OF_COMMANDS += ["dvc.lock", "dvc.repo.datasets", "dvc.repo.experiments.executor.local", "dvc.repo.experiments.run"]
OF_COMMANDS += ["dvc.repo.experiments.queue.celery", "dvc.repo.experiments.queue.workspace", "dvc.repo.metrics.show"]
OF_COMMANDS += ["dvc.repo.experiments.serialize", "dvc.repo.experiments.show", "dvc.repo.graph", "dvc.repo.plots"]
OF_COMMANDS += ["dvc.rwlock", "dvc.utils.hydra", "dvc.utils.strictyaml", "dulwich.porcelain", "networkx", "pygit2"]
OF_COMMANDS += ["dvc._debug", "dvc.cachemgr", "dvc.repo.artifacts", "dvc.repo.brancher", "dvc.repo.open_repo"]
OF_COMMANDS += ["dvc.repo.stage", "dvc_data.fs", "dvc_data.index.checkout", "dvc_task.app", "dvc_task.proc.manager"]
OF_COMMANDS += ["dulwich.worktree", "celery.worker.worker", "hydra.core.override_parser.overrides_parser"]
OF_COMMANDS += ["rich.json", "safetensors.numpy", "sqlalchemy.dialects.sqlite", "torch.utils.flop_counter"]
OF_COMMANDS += ["matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "pyarrow.csv", "pyarrow.parquet"]
OF_COMMANDS += ["pydantic.dataclasses", "ruamel.yaml"]
HERE = Path(__file__).resolve().parent
SHARED = "SHARED_FORK_SERVER"  # the variable that has the address of the server of all workers of pytest-xdist
BARE = "-bare"  # ends the address of the server that has not imported OF_COMMANDS


def context() -> ForkServerContext:
    """A server of this process alone; it starts with the first one that it forks."""
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(IMPORTED)
    return forkserver


def run(folder: Path, code: str, environment: dict[str, str], stdout: Path, stderr: Path, is_bare: bool = False) -> int:
    """`python -c code` in a project: its exit status. The output is in two files, which may be the same."""
    server = address() + BARE * is_bare
    caller = {"parent": os.getpid(), "group": os.getpgrp(), "environment": handing_over(environment)}
    request = {"code": code, "words": ["-c"], "folder": str(folder), **caller}
    with open(os.devnull) as no_input, stdout.open("ab") as out, stderr.open("ab") as err:
        with socket.socket(socket.AF_UNIX) as connection:
            return ask(connection, server, request, (no_input.fileno(), out.fileno(), err.fileno()))


def handing_over(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a process whose commands of DVC and Tandem are forked."""
    path = [*path_of(environment), str(HERE / "handover")]  # a test's own sitecustomize.py comes first
    return environment | {"FORK_SERVER": address(), "PYTHONPATH": os.pathsep.join(path)}


def path_of(environment: dict[str, str]) -> list[str]:
    return [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


@cache
def address() -> str:
    """Of the server of this process, which is forked from that of `context`, or of all workers of pytest-xdist."""
    if SHARED in os.environ:
        return os.environ[SHARED]
    name = f"tandem-tests-{os.getpid()}"
    for end, imported in (("", OF_COMMANDS), (BARE, [])):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{name}{end}")
            listener.listen(64)
            context().Process(target=serve, args=(listener, os.getpid(), imported), daemon=True).start()
    return name


def serve(listener: socket.socket, client: int, imported: list[str]) -> None:
    """Fork a process for each connection and send its exit status, until the process `client` has ended."""
    gc.disable()
    for name in imported:
        if find_spec(name.partition(".")[0]):  # `make gpu` needs none of these packages
            import_module(name)
    if "dvc.cli.parser" in sys.modules:
        sys.modules["dvc.cli.parser"].get_main_parser()  # which it makes once
    gc.freeze()
    gc.enable()
    if imported:
        use_large_pages()
    end = os.pidfd_open(client)
    running: dict[int, tuple[int, socket.socket]] = {}  # a process's descriptor -> its id and the connection
    while True:
        ready, _, _ = select.select([end, listener, *running, *(peer for _, peer in running.values())], [], [])
        if end in ready:
            os._exit(0)
        for descriptor, (pid, connection) in list(running.items()):
            if connection in ready and descriptor not in ready:
                os.kill(pid, received_signal(connection))
            if descriptor in ready:
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(OSError):  # who asked was killed
                    connection.sendall(struct.pack("i", status))
                connection.close()
                os.close(descriptor)
                del running[descriptor]
        if listener in ready:
            connection, _ = listener.accept()
            try:
                _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
                [size] = struct.unpack("I", connection.recv(4, socket.MSG_WAITALL))
                request = json.loads(connection.recv(size, socket.MSG_WAITALL))
            except (OSError, ValueError, struct.error):  # who asked was killed
                connection.close()
                continue
            if not (pid := os.fork()):
                for inherited in (end, *running):
                    os.close(inherited)
                for opened in (listener, connection, *(peer for _, peer in running.values())):
                    opened.close()
                work(request, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            running[os.pidfd_open(pid)] = pid, connection


def use_large_pages() -> None:
    """Move the memory of this process into pages of 2 MiB, where Linux is 6.1 or later. A fork copies, and an exit
    frees, an entry for each page, so both take a third of the time.
    """
    size, collapse = 2 << 20, 25  # MADV_COLLAPSE
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    maps = Path("/proc/self/maps").read_text()
    for start, end in re.findall(r"^(\w+)-(\w+) rw-p 0+ 00:00 0 *(?:\[heap\])?$", maps, re.MULTILINE):
        for address in range(-(-int(start, 16) // size) * size, int(end, 16) - size + 1, size):
            madvise(address, size, collapse)


def received_signal(connection: socket.socket) -> int:
    """The signal that who asked has got; SIGKILL if it has ended."""
    with suppress(OSError):
        if number := connection.recv(1):
            return number[0]
    return signal.SIGKILL


def work(request: dict, descriptors: list[int]) -> None:
    """Do what is asked in this process, and end it as Python ends."""
    status = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.dont_write_bytecode = False  # as where the caller's shell has no PYTHONDONTWRITEBYTECODE
        multiprocessing.current_process().daemon = False  # unlike the server, it may start processes, as `speed` does
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None
        omitted = {"", str(HERE.parent)}  # the code of this repository is not that of the project
        sys.path[:] = [request["folder"], *path_of(request["environment"]), *(p for p in sys.path if p not in omitted)]
        os.getppid, os.getpgrp = lambda: request["parent"], lambda: request["group"]
        sys.argv, sys.orig_argv = request["words"], [sys.executable, "-m", *request["words"]]
        sys.is_forked = True
        for place in path_of(request["environment"]):
            if (own_start := Path(place) / "sitecustomize.py").exists() and Path(place) != HERE / "handover":
                runpy.run_path(str(own_start))
        if "PYTHONUNBUFFERED" in os.environ:
            sys.stdout.reconfigure(write_through=True)
        if request["code"]:
            exec(request["code"], {"__name__": "__main__"})  # noqa: S102
        else:
            runpy.run_module(request["words"][0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ending:
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        multiprocessing.util._exit_function()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)
