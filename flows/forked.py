"""Runs a stage in a fork of a process that has imported its code. `make repro` and the flows have one (`servers`).

Goes in: what the stage's own process has: its item, environment, folder and standard streams. Comes out: its exit
status. That process, DVC's child, waits for the fork: it hands signals on to it and ends as it ends, and where it is
gone, however that came, the server kills the fork. So whoever interrupts or kills DVC's child does it to the stage.

The imports, torch's and matplotlib's above all, take 1.3 s, and a `make repro` of four workloads has eight such
stages. The code that runs is that of the server's start, just after `hardware` has recorded it. A stage on a GPU runs
in DVC's child: it is not known here what a fork of torch's CUDA libraries does. Linux only.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from flows.stage import CODE, RECORDED, ROOT, die_with, fail, full_name
from flows.stage import run as run_stage

ADDRESS = "TANDEM_STAGE_SERVER"
LONGEST_WAIT_SECONDS = 60.0  # for the server, which imports the stages meanwhile
NUMBER = struct.Struct("!i")  # the fork's process, then its exit status; -9: killed by signal 9
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def servers() -> Iterator[Callable[[], None]]:
    """For whoever starts several stages: yields what starts the processes that fork them and their uploaders."""
    from stages.records import journal
    from stages.records.forkserver import ForkServer

    with journal.uploaders() as uploaders, ForkServer("flows.forked", {}, ADDRESS) as stages:

        def start() -> None:
            uploaders.start()
            stages.start()

        yield start


def is_possible(item: list[str]) -> bool:
    """Whether there is a server to ask, for a stage with this item (workload, device, ...)."""
    if ADDRESS not in os.environ or os.path.realpath(ROOT) != os.path.realpath(CODE):  # a copy has code of its own
        return False
    try:
        with open(os.path.join(CODE, "results", "hardware", f"{item[1]}.json"), encoding="utf-8") as file:
            return bool(json.load(file)["kind"] == "cpu")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def run(stage: str, item: list[str]) -> int | None:
    """Run the stage in a fork. Returns its exit status; None where the server has gone, and nothing ran.

    Ends by the signal that ended the fork, if one did.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LONGEST_WAIT_SECONDS)
        try:
            fork = asked(
                connection, {"stage": stage, "item": item, "folder": os.getcwd(), "environment": {**os.environ}}
            )
        except KeyboardInterrupt:  # the server forks for nobody who has gone
            return fail(full_name(stage, item), "interrupted", 130)
        if fork is None:
            return None
        hand_on(fork)
        while not select.select([connection], [], [], 1.0)[0]:  # a signal that came to another thread is seen in time
            pass
        said = received(connection, NUMBER.size)
    status = NUMBER.unpack(said)[0] if said else -signal.SIGKILL  # the server was killed, and the fork with it
    if status < 0:
        end_by(-status)
    return int(status)


def asked(connection: socket.socket, request: dict[str, Any]) -> int | None:
    """The process of the fork that runs what `request` says; None where there is no server."""
    message = json.dumps(request).encode()
    try:
        connection.connect(f"\0{os.environ[ADDRESS]}")
        socket.send_fds(connection, [NUMBER.pack(len(message))], [0, 1, 2])
        connection.sendall(message)
        said = received(connection, NUMBER.size)
    except OSError:
        return None
    return int(NUMBER.unpack(said)[0]) if said else None


def received(connection: socket.socket, count: int) -> bytes:
    """`count` bytes; none where the other side has ended."""
    found = b""
    while len(found) < count:
        try:
            more = connection.recv(count - len(found))
        except ConnectionError:
            more = b""
        if not more:
            return b""
        found += more
    return found


def hand_on(fork: int) -> None:
    """Have signals that come to this process reach the fork, which is in a session of its own. Ctrl+Z stops both."""

    def forward(number: int, _: FrameType | None) -> None:
        send(fork, number)

    def stop(_: int, frame: FrameType | None) -> None:
        send(fork, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    for number in (*HANDED_ON, signal.SIGCONT):
        signal.signal(number, forward)
    signal.signal(signal.SIGTSTP, stop)


def send(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:  # it has just ended
        pass


def end_by(number: int) -> NoReturn:
    """What DVC, and whoever looks at it, sees then is what it would see of the stage itself."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    time.sleep(60)
    sys.exit(128 + number)


class Forks:
    """Those that run, in the server: the connection of who asked for it -> its process."""

    def __init__(self) -> None:
        self.of: dict[socket.socket, int] = {}
        self.ends: dict[int, socket.socket] = {}  # a descriptor that is readable when the process has ended

    def add(self, connection: socket.socket, process: int) -> None:
        self.of[connection] = process
        self.ends[os.pidfd_open(process)] = connection

    def kill(self, connection: socket.socket) -> None:
        send(self.of[connection], signal.SIGKILL)
        self.ended(next(descriptor for descriptor, own in self.ends.items() if own is connection))

    def ended(self, descriptor: int) -> None:
        """Say how, to who asked."""
        os.close(descriptor)
        connection = self.ends.pop(descriptor)
        _, status = os.waitpid(self.of.pop(connection), 0)
        tell(connection, os.waitstatus_to_exitcode(status))
        connection.close()

    def close(self) -> None:
        """In a fork: they are the server's."""
        for descriptor, connection in self.ends.items():
            os.close(descriptor)
            connection.close()


def serve(descriptor: int) -> None:
    """Import the stages, then fork for each that asks, until stdin has ended and all forks have."""
    import gc
    from importlib import import_module

    os.close(os.pidfd_open(os.getpid()))  # a system that has none is known before anybody is served
    gc.disable()
    for name in RECORDED:
        import_module(f"stages.{name}")
    gc.freeze()
    gc.enable()
    forks, own, is_open = Forks(), os.getpid(), True
    with socket.socket(fileno=descriptor) as listener:
        while is_open or forks.of:
            asking = [listener, sys.stdin] if is_open else []
            ready, _, _ = select.select([*asking, *forks.of, *forks.ends], [], [])
            for each in ready:
                if each is sys.stdin:
                    is_open = False
                    listener.close()
                elif each is listener and is_open:
                    fork(listener, forks, own)
                elif each in forks.ends:
                    forks.ended(each)
                elif each in forks.of:  # who asked never says anything more: it is gone
                    forks.kill(each)


def fork(listener: socket.socket, forks: Forks, server: int) -> None:
    from stages.records.forkserver import peer_user

    connection, _ = listener.accept()
    request, streams = read_request(connection) if peer_user(connection) == os.getuid() else (None, [])
    if request is None:
        connection.close()
    elif process := os.fork():
        tell(connection, process)
        forks.add(connection, process)
    else:
        listener.close()
        connection.close()
        forks.close()
        become(request, streams, server)
    for stream in streams:
        os.close(stream)


def read_request(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """What is asked for, and the standard streams; None where who asked has gone."""
    size, streams, _, _ = socket.recv_fds(connection, NUMBER.size, 3)
    message = received(connection, NUMBER.unpack(size)[0]) if len(size) == NUMBER.size else b""
    has_gone = bool(select.select([connection], [], [], 0)[0])
    return json.loads(message) if message and not has_gone else None, streams


def tell(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(NUMBER.pack(number))
    except OSError:  # it is gone
        pass


def become(request: dict[str, Any], streams: list[int], server: int) -> NoReturn:
    """In a fork: run the stage as its own process would."""
    status = 1
    try:
        die_with(server, signal.SIGKILL)
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(request["folder"])
        sys.argv = [run_stage.__module__, request["stage"], *request["item"]]
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, buffering=1, closefd=False)
        status = run_stage(request["stage"], request["item"], full_name(request["stage"], request["item"]))
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


if __name__ == "__main__":
    serve(int(sys.argv[2]))
