"""Stages in processes that are forked from one which has imported torch and the like: to import them takes longer than
a tiny training. Each is a process of its own, which imports `stages` and `flows` from the project it works in.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

# Nothing of this project, which a test may have edited. torch's optimizers import the second.
IMPORTED = ["torch", "torch._dynamo", "safetensors.torch", "pandas", "scipy.stats", "matplotlib.figure", "jinja2"]


def context() -> ForkServerContext:
    """One server for each worker of pytest-xdist; it starts with the first process."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(IMPORTED)
    return found


def run_stages(
    folder: Path, every: Sequence[Sequence[str]], environment: dict[str, str], log: Path
) -> subprocess.CompletedProcess[str]:
    """One stage after the other in a project, up to the first that fails, as `python -m tandem.stage` runs it."""
    process = context().Process(target=work, args=(str(folder), every, environment, str(log)))
    process.start()
    process.join(1800)
    assert process.exitcode is not None, f"{every} is not done after half an hour"
    return subprocess.CompletedProcess(every, process.exitcode, log.read_text())


def work(folder: str, every: Sequence[Sequence[str]], environment: dict[str, str], log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, folder)
    from tandem import stage

    for words in every:
        if status := stage.main(list(words)):
            sys.exit(status)
