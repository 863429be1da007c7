"""Child processes of flows/: start one in a session of its own, read what it writes, stop it with all its children.

All control of process groups in flows/ is here. Needs the standard library and stages/ alone.
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

from flows.stage import watch
from stages import files

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# Starts a module that ends when its parent ends, even by kill -9. It takes Ctrl+C even where the caller ignores it, as
# a shell's background job does.
BOUND = """
import runpy, signal, sys
from flows.stage import die_with
signal.signal(signal.SIGINT, signal.default_int_handler)
die_with(int(sys.argv[1]))
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# (signal, seconds to end after it): Ctrl+C saves a checkpoint. Prefect gives a cancelled run 30 s.
ESCALATION = ((signal.SIGINT, 12.0), (signal.SIGTERM, 6.0), (signal.SIGKILL, 5.0))
SECONDS_BETWEEN_TICKS = 1.0

Outcome = Literal["running", "ran", "restored", "unchanged", "failed"]


@dataclass(frozen=True)
class Event:
    """What flows/reproduce.py reports of a stage: that it starts to run, or how it ended."""

    stage: str  # empty where DVC failed before a stage or between two
    outcome: Outcome
    seconds: float = 0.0  # since DVC began to look at the stage
    message: str = ""  # why it failed
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

    Calls `on_line` with each line that the child and its children print, `on_event` with each event that it writes to
    the file descriptor $TANDEM_EVENTS, and `on_tick` after each of these and each second without one. If one of these,
    or a signal's handler, raises, the child and its children are stopped first.
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
        descriptors = (output.fileno(), receiver)  # in this order: a line comes before an event that was written later
        try:
            for found in read(process, *descriptors):
                if found:
                    handle(*found)
                on_tick()
            return process.wait()
        except BaseException:  # Prefect's TerminationSignal, with which a cancel arrives, is no Exception
            stop(process)
            for found in read(process, *descriptors):
                if found is None:  # something outlives the group and holds the pipe
                    break
                handle(*found)  # a stage says where it has saved
            raise


def read(process: subprocess.Popen[bytes], *descriptors: int) -> Iterator[tuple[int, str] | None]:
    """(descriptor, line) as the process writes them, until it closes the first one; None after each second without any.

    Of several descriptors that can be read, the first in this order comes first.
    """
    rest = dict.fromkeys(descriptors, b"")
    while descriptors[0] in rest:
        ready, _, _ = select.select(list(rest), [], [], SECONDS_BETWEEN_TICKS)
        if not ready:
            if process.poll() is not None and process.returncode >= 0:
                break  # a process that outlives DVC holds the pipe open; the stages of a DVC that was killed end soon
            yield None
        for descriptor in ready:
            chunk = os.read(descriptor, 65536)
            *whole, rest[descriptor] = (rest[descriptor] + chunk).split(b"\n")
            if not chunk:
                whole = [rest.pop(descriptor)]
            for line in whole:
                yield descriptor, as_text(line)


def as_text(line: bytes) -> str:
    """A line without colours; of a progress bar, its last state."""
    return ANSI.sub("", line.decode(errors="replace").rstrip().rpartition("\r")[2])


def start(
    command: list[str],
    output: int | IO[bytes],
    events: int | None = None,
    environment: Mapping[str, str] = os.environ,
    python: str = sys.executable,
    folder: Path = files.ROOT,
) -> subprocess.Popen[bytes]:
    """Start `python -m <command>` in a session of its own; it ends when this process ends.

    `events`: the file descriptor that it writes events to.
    """
    # Prefect's own variables are about this process's flow run.
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
    """End the group of a process that `start` made. A signal that arrives meanwhile does not cut this short."""
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
    """Have this process end as by a cancel when the one that started it is killed: Prefect's runner, of its flow."""
    if sys.platform == "linux":
        watch(os.getppid())


def ending(status: int) -> str:
    """How a process ended, by its exit status."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
