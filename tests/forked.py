"""Python in processes that are forked from one which has imported torch and the like: to import them takes longer than
a tiny training. Each is a process of its own, which imports the code of the project it works in.
"""

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerContext
from pathlib import Path

# Nothing of this project, which a test may have edited. torch's optimizers import the second.
IMPORTED = ["torch", "torch._dynamo", "safetensors.torch", "pandas", "scipy.stats", "matplotlib.figure", "jinja2"]


def context() -> ForkServerContext:
    """One server for each worker of pytest-xdist; it starts with the first process."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(IMPORTED)
    return found


def run(folder: Path, code: str, environment: dict[str, str], stdout: Path, stderr: Path) -> int:
    """`python -c code` in a project: its exit status. The output is in two files, which may be the same."""
    process = context().Process(target=work, args=(str(folder), code, environment, str(stdout), str(stderr)))
    process.start()
    process.join(1800)
    assert process.exitcode is not None, f"{code} is not done after half an hour"
    return process.exitcode


def work(folder: str, code: str, environment: dict[str, str], stdout: str, stderr: str) -> None:
    for descriptor, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, folder)
    exec(code, {"__name__": "__main__"})  # noqa: S102
