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

from tandem.files import ROOT

FOREIGN = ("PREFECT", "MLFLOW", "DVC", "TANDEM", "GIT_")  # how the variables begin that lead to the user's own servers
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def environment(**settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", **settings}


def call(command: list[str], folder: Path, **settings: str) -> None:
    """Raises SystemExit with the output if `command` fails. `settings`: environment variables."""
    done = subprocess.run(
        command, cwd=folder, env=environment(**settings), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}")


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


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


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
