"""Child processes of flows/: start one in its own session, read its output, stop it with all its children.

Only this module controls process groups in flows/. It imports only the standard library and stages/.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from tandem import files
from tandem.stage import watch

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# Starts a module that ends when its parent ends, even by kill -9. It handles Ctrl+C even if the caller ignores it, as
# a background job of a shell does.
BOUND = """
import runpy, signal, sys
try:
    from tandem.stage import die_with
except ModuleNotFoundError:  # `tandem verify` of a commit before tandem/ existed
    from flows.stage import die_with
signal.signal(signal.SIGINT, signal.default_int_handler)
die_with(int(sys.argv[1]))
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# (signal, seconds to wait for the end): Ctrl+C saves a checkpoint. Prefect gives a cancelled run 30 s.
ESCALATION = ((signal.SIGINT, 12.0), (signal.SIGTERM, 6.0), (signal.SIGKILL, 5.0))
SECONDS_BETWEEN_TICKS = 1.0

Outcome = Literal["running", "ran", "restored", "unchanged", "failed"]


@dataclass(frozen=True)
class Event:
    """A report of flows/reproduce.py: a stage has started or ended."""

    stage: str  # empty if DVC failed before a stage or between two
    outcome: Outcome
    seconds: float = 0.0  # since DVC began to examine the stage
    message: str = ""  # the reason of the failure
    killed_by: str = ""  # the signal that ended it, such as SIGKILL

    @property
    def reason(self) -> str:
        return f"{self.stage}: {self.message}" if self.stage else self.message


def run(
    command: list[str],
    on_line: Callable[[str], object],
    on_event: Callable[[Event], object] = lambda event: None,
    on_tick: Callable[[], object] = lambda: None,
    **where: Any,
) -> int:
    """Run `python -m <command>` and return its exit status. `where`: see `start`.

    Calls `on_line` with each line that the child and its children print, `on_event` with each event that they write to
    the file descriptor $TANDEM_EVENTS, and `on_tick` after each of these and after each second without one. If one of
    these or a signal handler raises, the child and its children are stopped first.
    """
    receiver, sender = os.pipe()
    process = start(command, subprocess.PIPE, sender, **where)
    os.close(sender)
    assert process.stdout

    def handle(descriptor: int, line: str) -> None:
        if descriptor != receiver:
            on_line(line)
        elif line:
            on_event(Event(**json.loads(line)))

    with process.stdout as output, open(receiver, "rb"):
        descriptors = (output.fileno(), receiver)  # in this order: a line comes before a later event
        try:
            for found in read(process, *descriptors):
                if found:
                    handle(*found)
                on_tick()
            return process.wait()
        except BaseException:  # a cancel arrives as Prefect's TerminationSignal, which is no Exception
            stop(process)
            for found in read(process, *descriptors):
                if found is None:  # a process outlives the group and holds the pipe open
                    break
                handle(*found)  # a stage prints where it has saved its checkpoint
            raise


def read(process: subprocess.Popen[bytes], *descriptors: int) -> Iterator[tuple[int, str] | None]:
    """Yield (descriptor, line) as the process writes them, and None after each second without a line, until the
    process closes the first descriptor.

    If several descriptors are ready, the first in the given order comes first.
    """
    rest = dict.fromkeys(descriptors, b"")
    while descriptors[0] in rest:
        ready, _, _ = select.select(list(rest), [], [], SECONDS_BETWEEN_TICKS)
        if not ready:
            if process.poll() is not None and process.returncode >= 0:
                break  # a process that outlives DVC holds the pipe open; a killed DVC's stages end soon
            yield None
        for descriptor in ready:
            chunk = os.read(descriptor, 65536)
            *whole, rest[descriptor] = (rest[descriptor] + chunk).split(b"\n")
            if not chunk:
                whole = [rest.pop(descriptor)]
            for line in whole:
                yield descriptor, as_text(line)


def as_text(line: bytes) -> str:
    """A line without colours; for a progress bar, its last state."""
    return ANSI.sub("", line.decode(errors="replace").rstrip().rpartition("\r")[2])


def start(
    command: list[str],
    output: int | IO[bytes],
    events: int | None = None,
    environment: Mapping[str, str] = os.environ,
    python: str = sys.executable,
    folder: Path = files.ROOT,
) -> subprocess.Popen[bytes]:
    """Start `python -m <command>` in its own session; it ends when this process ends.

    `events`: the file descriptor to which it writes events.
    """
    # Prefect's own variables describe this process's flow run.
    variables = {name: value for name, value in environment.items() if not name.startswith("PREFECT__")}
    if events is not None:
        variables["TANDEM_EVENTS"] = str(events)
    return subprocess.Popen(
        [python, "-c", BOUND, str(os.getpid()), *command],
        cwd=folder,
        env={**variables, "PYTHONUNBUFFERED": "1"},  # lines arrive as they are printed
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=() if events is None else (events,),
    )


def stop(process: subprocess.Popen[bytes], escalation: tuple[tuple[int, float], ...] = ESCALATION) -> None:
    """End the process group that `start` created. A signal that arrives meanwhile does not interrupt this."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, seconds in escalation:
            os.killpg(process.pid, number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.05)
    except ProcessLookupError:  # the group is empty
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """End this process as if cancelled when its parent (Prefect's runner) is killed."""
    if sys.platform == "linux":
        watch(os.getppid())


def ending(status: int) -> str:
    """How a process ended, by its exit status."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
