"""Child processes of flows/: `run` reads the lines of one in its own session, and stops it with all its children;
`output_of` waits for a short one.

If this process is killed, the kernel sends SIGTERM to the child. Only this module handles process groups in flows/.
"""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from flows.other_runs import busy_sentence
from tandem import files
from tandem.terminal.command import NO_ANSWER, CommandError

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# Runs a module that gets SIGTERM when its parent ends, even by kill -9 (PR_SET_PDEATHSIG). It handles Ctrl+C even if
# the caller ignores it, as a background job of a shell does. It imports nothing of the project, because `tandem verify`
# runs it with the code of older commits. With the usual threshold of 700 objects, garbage collection takes a sixth of
# the start of Prefect's server.
RUN_MODULE = """
import ctypes, gc, os, runpy, signal, sys
gc.set_threshold(50_000)
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("error: the process that started this one has ended")
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# (signal, seconds to wait for the end): Ctrl+C saves a checkpoint. Prefect gives a cancelled run 30 s.
ESCALATION = ((signal.SIGINT, 12.0), (signal.SIGTERM, 6.0), (signal.SIGKILL, 5.0))
SECONDS_BETWEEN_TICKS = 1.0


def run(
    command: list[str], on_line: Callable[[str], object], on_tick: Callable[[], object] = lambda: None, **options: Any
) -> int:
    """Run `python -m <command>` and return its exit status. `options`: see `start`.

    Calls `on_line` with each line that the child and its children print, and `on_tick` after each line and after each
    second without one. If one of these or a signal handler raises, the child and its children are stopped first.
    """
    process = start(command, subprocess.PIPE, **options)
    assert process.stdout
    with process.stdout:
        try:
            for line in lines_of(process):
                if line is not None:
                    on_line(line)
                on_tick()
            return process.wait()
        except BaseException:  # a cancel arrives as Prefect's TerminationSignal, which is no Exception
            stop(process)
            for line in lines_of(process):
                if line is None:  # a process outlives the group and holds the pipe open
                    break
                on_line(line)  # a stage prints where it has saved its checkpoint
            raise


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[str | None]:
    """Yield the lines that the process and its children print, and None after each second without one."""
    assert process.stdout
    descriptor, rest = process.stdout.fileno(), b""
    while True:
        if not select.select([descriptor], [], [], SECONDS_BETWEEN_TICKS)[0]:
            if process.poll() is not None and process.returncode >= 0:
                return  # a process that outlives DVC holds the pipe open; a killed DVC's stages end soon
            yield None
            continue
        chunk = os.read(descriptor, 65536)
        *whole, rest = (rest + chunk).split(b"\n")
        yield from map(as_text, whole)
        if not chunk:
            yield as_text(rest)
            return


def as_text(line: bytes) -> str:
    """A line without colours; for a progress bar, its last state."""
    return ANSI.sub("", line.decode(errors="replace").rstrip().rpartition("\r")[2])


def start(
    command: list[str],
    output: int | IO[bytes],
    environment: Mapping[str, str] = os.environ,
    folder: Path = files.ROOT,
) -> subprocess.Popen[bytes]:
    """Start `python -m <command>` in its own session; it ends when this process ends."""
    # Prefect's own variables describe this process's flow run.
    variables = {name: value for name, value in environment.items() if not name.startswith("PREFECT__")}
    return subprocess.Popen(
        [sys.executable, "-c", RUN_MODULE, str(os.getpid()), *command],
        cwd=folder,
        env={**variables, "PYTHONUNBUFFERED": "1"},  # lines arrive as they are printed
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes], escalation: tuple[tuple[int, float], ...] = ESCALATION) -> None:
    """End the process group that `start` created. A signal that arrives meanwhile does not interrupt this."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
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
        for number, handler in handlers.items():
            signal.signal(number, handler)


def output_of(*command: str, seconds: float | None = None) -> str:
    """The output of a command. Raises CommandError with its error line if it fails or takes longer than `seconds`."""
    with subprocess.Popen(
        command, cwd=files.ROOT, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"}, text=True,  # git asks for no password
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise CommandError(f"did not end within {seconds:g} s", NO_ANSWER) from None
        except BaseException:
            process.terminate()  # on SIGTERM, git removes its locks
            raise
    if process.returncode != 0:
        lines = ANSI.sub("", errors or output).strip().splitlines() or [exit_text(process.returncode)]
        reason = next((line for line in lines if line.lower().startswith(("error: ", "fatal: "))), lines[-1])
        raise CommandError(busy_sentence(errors) or reason.removeprefix("error: ").removeprefix("ERROR: "), NO_ANSWER)
    return output.strip()


def exit_text(status: int) -> str:
    """How a process ended, by its exit status."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
