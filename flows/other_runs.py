"""The other run that uses this project, in one sentence: which it is, since when, and what to do.

`tandem repro` and Prefect's runs hold LOCK, so one executes at a time. A plain `dvc repro` does not: DVC's own list of
running processes (`.dvc/tmp/rwlock`) has it, and DVC's error names it.
"""

import re
from datetime import datetime
from pathlib import Path

import psutil

from tandem import files

LOCK = files.STATE / "pipeline.lock"
BUSY = "is busy, it is being blocked by:"  # in DVC's error
MAX_LETTERS = 80  # of a command


def busy_sentence(error: str) -> str:
    """DVC's `error` in one sentence if another process uses what DVC needs; else empty."""
    if BUSY not in error:
        return ""
    if running := blockers_in(error):
        return in_use(running[0])
    lock = re.search(r"manually remove '(.+)' and try again", error)
    path = files.relative(Path(lock[1])) if lock else ".dvc/tmp/rwlock"
    return f"DVC takes a process that has ended for running, because another program has its number; run: rm {path}"


def in_use(pid: int) -> str:
    return f"{described(pid)} uses this project; wait for its end or stop it"


def blockers_in(error: str) -> list[int]:
    """The running processes that DVC's `error` names. It names one for each file that it uses."""
    named = re.findall(r"\(PID (\d+)\): (.*)", error) if BUSY in error else []
    return [int(pid) for pid, command in dict.fromkeys(named) if is_running(int(pid), command)]


def is_running(pid: int, command: str) -> bool:
    """Whether the process `pid` runs `command`, as DVC has noted it. If not, that process has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline()).endswith(command.split()[-1])
    except psutil.AccessDenied:  # another user's
        return True
    except psutil.Error:
        return False


def described(pid: int) -> str:
    """`tandem repro sign` (process 4711, since 2026-01-02 03:04)"""
    try:
        process = psutil.Process(pid)
        words, started = process.cmdline(), datetime.fromtimestamp(process.create_time())
    except psutil.Error:
        return f"another run (process {pid})"
    names = {"tandem.cli": "tandem", "dvc": "dvc"}
    place = next((place for place, word in enumerate(words) if Path(word).name in names), None)
    if place is not None:
        command = " ".join([names[Path(words[place]).name], *words[place + 1 :]])
        name = f"`{command[:MAX_LETTERS]}`"
    else:
        name = "a run in Prefect" if re.search(r"prefect|flows\.", " ".join(words)) else "another run"
    return f"{name} (process {pid}, since {started:%Y-%m-%d %H:%M})"
