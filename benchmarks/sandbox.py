"""Copies of this project, commands and servers that are apart from the user's own: for benchmarks that run DVC."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tandem.files import ROOT
from tandem.params.loading import load_params
from tandem.params.schema import takes_no_steps

STAGE = [sys.executable, "-m", "tandem.stage"]
FOREIGN = ("PREFECT", "MLFLOW", "DVC", "TANDEM", "GIT_")  # how the variables begin that lead to the user's own servers
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def environment(**settings: str) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**variables, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}", **settings}


def call(command: list[str], folder: Path, **settings: str) -> None:
    """Raises SystemExit with the output if `command` fails. `settings`: environment variables."""
    result = subprocess.run(
        command, cwd=folder, env=environment(**settings), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout}")


def copy_project(folder: Path) -> None:
    """The files that git tracks or would track, with uncommitted changes and without results."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0"):
        # Skip links to folders, and the results that git tracks.
        if name and (ROOT / name).is_file() and not name.startswith("results/") and not name.endswith("dvc.lock"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def commit(folder: Path) -> None:
    author = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], [*author, "commit", "-qm", "as it is"]):
        call(["git", *words], folder)


def make_ready(folder: Path, workload: str, device: str) -> Path:
    """A copy of this project with one workload, ready to train it on the device."""
    copy_project(folder)
    params = YAML().load(folder / "params.yaml")
    params["workloads"], params["devices"], params["seeds"] = [workload], [device], [0]
    write_params(folder, params)
    (folder / "mlruns").mkdir(exist_ok=True)
    commit(folder)
    for words in (["hardware"], ["preprocess", workload], ["preload", workload, device]):
        call([*STAGE, *words], folder)
    return folder


def shorten(params: Any, **train: Any) -> None:
    """Change `train` of every block, except of those with a network that is fitted in closed form, in one epoch."""
    for name, block in load_params().blocks.items():
        if not takes_no_steps(block.train.model):
            params[name]["train"].update(train)


def write_params(folder: Path, params: Any) -> None:
    with (folder / "params.yaml").open("w") as file:
        YAML().dump(params, file)


def free_port() -> int:
    with socket.socket() as endpoint:
        endpoint.bind(("127.0.0.1", 0))
        return int(endpoint.getsockname()[1])


class Server:
    """`python -m` with the words of `command`, whose {port} is a free one; it is ready when `address` answers."""

    def __init__(self, command: str, address: str, **settings: str) -> None:
        self.port = free_port()
        self.command = [sys.executable, "-m", *command.format(port=self.port).split()]
        self.url = f"http://127.0.0.1:{self.port}"
        self.address, self.environment = f"{self.url}/{address}", environment(**settings)
        self.launch()
        try:
            self.wait()
        except BaseException:
            self.kill()
            raise

    def launch(self) -> None:
        self.process = subprocess.Popen(self.command, env=self.environment, start_new_session=True, **QUIET)

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(self.address, timeout=5):
                return
            time.sleep(0.1)
        raise SystemExit(f"no answer from {self.address}")

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()
