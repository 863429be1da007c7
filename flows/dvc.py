"""One DVC process, from its start to the end of its last child: start, lines, events, cancel.

Goes in: DVC's arguments and environment. Comes out: its lines, what they say of each stage, its exit status, and why it
failed. All control of process groups in flows/ is here. Standard library only.

The wording of the lines is DVC 3.67's, in its stage/__init__.py, stage/run.py, stage/cache.py, dvcfile.py and
repo/reproduce.py.
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
from typing import IO, Literal, NamedTuple

from flows.damaged_files import explain
from flows.stage import LAST_ERROR, watch
from stages import files
from stages.machine.identity import read_words

Kind = Literal["running", "saved", "skipped", "restored", "failed"]

NAME = r"'[^']+'"
PATTERNS: dict[Kind, re.Pattern[str]] = {
    "running": re.compile(rf"^Running stage (?P<stages>{NAME}):"),
    # the stage before this line has ended
    "saved": re.compile(r"^(?:Generating lock file|Updating lock file|Use `dvc push`)(?P<stages>)"),
    "skipped": re.compile(rf"^(?:Stage )?(?P<stages>{NAME}) didn't change, skipping"),
    "restored": re.compile(rf"^Stage (?P<stages>{NAME}) is cached - skipping run, checking out outputs"),
    "failed": re.compile(rf"failed to reproduce(?: stages:)? (?P<stages>{NAME}(?:(?:, | and ){NAME})*)"),
}
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


def run(
    arguments: list[str], environment: Mapping[str, str], on_line: Callable[[str], None], on_tick: Callable[[], None]
) -> int:
    """Run `dvc <arguments>` and return its exit status.

    Calls `on_line` with each line it prints, `on_tick` after each line and each second without one. Stops DVC and its
    stages where one of these, or a signal's handler, raises.
    """
    process = start(["dvc", *arguments], environment, subprocess.PIPE)
    assert process.stdout
    with process.stdout as output:
        try:
            for line in lines(process, output.fileno()):
                if line:
                    on_line(line)
                on_tick()
            return process.wait()
        except BaseException:  # Prefect's TerminationSignal, with which a cancel arrives, is no Exception
            stop(process)
            for line in lines(process, output.fileno()):
                if line is None:  # something outlives the group and holds the pipe
                    break
                if line:
                    on_line(line)  # a stage says where it has saved
            raise


def lines(process: subprocess.Popen[bytes], descriptor: int) -> Iterator[str | None]:
    """The lines of a process as it prints them; None after each second without any."""
    rest = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], SECONDS_BETWEEN_TICKS)
        if not ready and process.poll() is not None and process.returncode >= 0:
            break  # a process that outlives DVC holds the pipe open; the stages of a DVC that was killed end soon
        chunk = os.read(descriptor, 65536) if ready else b""
        if ready and not chunk:
            break
        *whole, rest = (rest + chunk).split(b"\n")
        yield from map(as_text, whole) if whole else (None,)
    yield as_text(rest)


def as_text(line: bytes) -> str:
    """A line without colours; of a progress bar, its last state."""
    return ANSI.sub("", line.decode(errors="replace").rstrip().rpartition("\r")[2])


def start(command: list[str], environment: Mapping[str, str], output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `python -m <command>` in a session of its own; it ends when this process ends."""
    return subprocess.Popen(
        [sys.executable, "-c", BOUND, str(os.getpid()), *command],
        cwd=files.ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
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


def prepare_environment() -> str:
    """Set what DVC and its stages inherit in this process. Returns the token that marks this run's errors."""
    token = os.urandom(6).hex()
    binaries = str(Path(sys.executable).parent)  # dvc.yaml says `python` and means this one
    os.environ["PATH"] = os.pathsep.join([binaries, os.environ.get("PATH", os.defpath)])
    os.environ["TANDEM_RUN"] = token
    os.environ["DVC_NO_ANALYTICS"] = "true"
    for name in ("DVC_ROOT", "DVC_STAGE"):  # of a stage that calls this
        os.environ.pop(name, None)
    return token


class Event(NamedTuple):
    kind: Kind
    stages: list[str]  # one; none for `saved`; several for `failed` under --keep-going


def parse(line: str) -> Event | None:
    """The event that a line of DVC's log reports; None for every other line.

    A stage of a dvc.yaml in a folder (`hw/dvc.yaml:hardware`) has its own name (`hardware`).
    """
    for kind, pattern in PATTERNS.items():
        if match := pattern.search(line):
            return Event(kind, re.findall(r"'(?:[^':]*:)?([^']+)'", match["stages"]))
    return None


@dataclass(frozen=True)
class Failure:
    """Why a run failed. `stage` is empty where no stage failed, `killed_by` where no signal ended the stage."""

    stage: str
    message: str
    killed_by: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.message}" if self.stage else self.message


class Progress:
    """What DVC's log lines have reported so far.

    `outcomes` has each stage's last event, in DVC's order; `seconds` how long those that ran took, DVC's part included.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, Kind] = {}
        self.seconds: dict[str, float] = {}
        self.running = ("", 0.0)  # the stage that runs, and since when
        self.error = ""
        self.oom_kills = out_of_memory_kills()

    def read(self, line: str) -> Event | None:
        if line.startswith("ERROR:"):
            self.error = line.removeprefix("ERROR:").strip()
        event = parse(line)
        if event:
            self.outcomes |= dict.fromkeys(event.stages, event.kind)
            name, since = self.running
            if name:
                self.seconds[name] = time.monotonic() - since
            self.running = (event.stages[0], time.monotonic()) if event.kind == "running" else ("", 0.0)
        return event

    def failure(self, token: str, otherwise: str) -> Failure:
        """Why the run `token` failed: in the stage's own words, else in DVC's, else `otherwise`."""
        killer = killed_by(self.error)
        if entry := last_error(token):
            return Failure(entry["stage"], entry["message"], killer)
        if killer:
            failed = ", ".join(stage for stage, kind in self.outcomes.items() if kind == "failed")
            out_of_memory = killer == "SIGKILL" and out_of_memory_kills() > self.oom_kills
            where = " while the machine or its container ran out of memory" if out_of_memory else ""
            return Failure(failed, f"killed by {killer}{where}", killer)
        return Failure("", explain(self.error) or otherwise, "")


def last_error(token: str) -> dict[str, str] | None:
    """What the stage that failed in the run `token` left: its name under `stage`, the reason under `message`."""
    try:
        entry = json.loads(Path(LAST_ERROR).read_text(encoding="utf-8"))
        return {key: entry[key] for key in ("stage", "message")} if entry["run"] == token else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def ending(status: int) -> str:
    """How a process ended, by its exit status."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def killed_by(error: str) -> str:
    """`SIGKILL`, where DVC's error says that this ended the stage; empty where it says something else."""
    match = re.search(r"exited with (-\d+|1[2-9]\d)\b", error)
    status = int(match[1]) if match else 0
    number = -status if status < 0 else status - 128  # a shell that does not exec its command reports 128 + signal
    return signal.Signals(number).name if number in set(signal.Signals) else ""


def out_of_memory_kills() -> int:
    """How often the kernel has killed for memory: in this container where it says so (cgroup v2), or on the machine."""
    for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        words = read_words(path)
        if "oom_kill" in words:
            return int(words[words.index("oom_kill") + 1])
    return 0
