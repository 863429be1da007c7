"""A process that has imported what others need, and forks one of them for each that asks.

`ForkServer` is for whoever starts the process, `serve` is what runs in it, `ask` is for whoever wants a fork. They meet
at a socket whose name lies in an environment variable, in Linux's abstract namespace: no file stays behind where any of
them is killed. A fork gets the environment and the imports of the server, and runs in a session of its own.
multiprocessing's forkserver serves the children of one Python process; a stage is a child of DVC's shell.

flows/forked.py has a server whose forks end with who asked for them.
"""

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from stages.files import ROOT

ADDRESS = "TANDEM_FORK_SERVER"
SECONDS_BETWEEN_LOOKS = 0.5  # whether somebody asks
TAKEN = b"t"  # the server's word for: a fork has the connection now. Its exit status follows.
KILLED = -signal.SIGKILL


class ForkServer:
    """Puts the address into this process's environment. The server starts with `start`, and ends with this object, or
    this process, however that ends.
    """

    def __init__(self, module: str, extra: Mapping[str, str], variable: str = ADDRESS) -> None:
        """`python -m <module> serve DESCRIPTOR` serves; `extra` are variables for its environment."""
        self.module, self.extra, self.variable = module, extra, variable
        self.process: subprocess.Popen[bytes] | None = None
        self.listener: socket.socket | None = None
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            self.listener, address = socket.socket(socket.AF_UNIX), f"tandem-{os.urandom(16).hex()}"
            self.listener.bind(f"\0{address}")
            self.listener.listen()
            os.environ[self.variable] = address
            threading.Thread(target=self.start_when_asked, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop(self.variable, None)
        with self.lock:
            if self.listener:
                self.listener.close()
                self.listener = None
        if self.process and self.process.stdin:
            self.process.stdin.close()  # at which it ends

    def start_when_asked(self) -> None:
        """Nobody waits in vain where nothing called `start`: `dvc repro --quiet` says of no stage that it runs."""
        with suppress(OSError, ValueError):  # it has started, or nobody needs it any more
            while (listener := self.listener) and not select.select([listener], [], [], SECONDS_BETWEEN_LOOKS)[0]:
                pass
        self.start()

    def start(self) -> None:
        """It imports what it imports; who has asked before is served then. Without this it starts when asked. Twice
        does nothing.
        """
        with self.lock:
            if not self.listener:
                return
            with self.listener as listener:  # the server has it from here on: where that ends, nobody waits for it
                self.listener = None
                self.process = self.started(listener.fileno())

    def started(self, descriptor: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", self.module, "serve", str(descriptor)],
            cwd=ROOT,
            env={**os.environ, **self.extra},
            stdin=subprocess.PIPE,  # its end says that this process has ended
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[descriptor],
            start_new_session=True,
        )


def serve(descriptor: int, work: Callable[[str], int]) -> None:
    """Fork for each path that is asked for, to do `work` with it, until stdin ends. A fork's exit status is `work`'s.

    This process must have no threads of Python's: a lock that one holds while it is forked stays locked. (jemalloc and
    OpenBLAS, which MLflow's imports bring, see to theirs.)
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(fileno=descriptor) as listener:
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            with connection:
                path = os.fsdecode(connection.recv(4096)) if peer_user(connection) == os.getuid() else ""
                if path and os.fork() == 0:
                    listener.close()
                    become(connection, path, work)


def peer_user(connection: socket.socket) -> int:
    """The user whose process connected: an abstract name can be read, and connected to, by everybody."""
    credentials = struct.Struct("3i")  # pid, uid, gid
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(found)[1])


def become(connection: socket.socket, path: str, work: Callable[[str], int]) -> None:
    """In a fork: what a process of its own would be. Does not return."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        connection.sendall(TAKEN)
        status = work(path)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):  # who asked is gone
            sys.stdout.flush()
            sys.stderr.flush()
            connection.sendall(bytes([status]))
        os._exit(status)


class Forked:
    """A fork, as the process that asked for it sees it. `poll` is that of subprocess.Popen."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.returncode: int | None = None
        self.is_taken = False

    def poll(self) -> int | None:
        """Its exit status, KILLED where it left none; None as long as it runs. Raises ConnectionError where the server
        ended before it forked.
        """
        while self.returncode is None:
            try:
                said = self.connection.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if not said and not self.is_taken:
                raise ConnectionError("the fork server has ended")
            if said == TAKEN and not self.is_taken:
                self.is_taken = True
            else:
                self.returncode = said[0] if said else KILLED
        return self.returncode


def ask(path: Path) -> Forked | None:
    """A fork for `path`; None where there is no server."""
    if not (address := os.environ.get(ADDRESS)):
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{address}")
        connection.sendall(os.fsencode(path))
        return Forked(connection)
    except OSError:
        connection.close()
        return None
