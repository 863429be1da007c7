"""What `tandem repro` shows in the terminal while DVC runs: `StageLines`."""

import os
import re
import sys
import textwrap
import time
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TextIO

from flows.events import StageEvent
from tandem.runs.terminal import EPOCH_LINE, FIT_LINE

SECONDS_BETWEEN_LOOKS = 0.2
NOTICES = re.compile("warning|stopping|interrupted|out of memory", re.IGNORECASE)  # begin lines that a user must see
MAX_LETTERS = 67  # of what a stage said last; the log has all of it


class StageLines:
    """Within the `with` block, writes standard output and standard error to `log`, also those of child processes.

    The terminal gets a line when a stage ends: its name, its seconds and the beginning of the last line that it
    printed. It gets none if the stage printed nothing, because it had nothing to do. While a stage runs, a terminal
    shows its newest line and the seconds in one line that is overwritten; another output gets the lines of its
    progress. Both get the lines of NOTICES.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self.stage, self.newest, self.started = "", "", 0.0
        self.lock, self.ended = Lock(), Event()

    def __enter__(self) -> "StageLines":
        sys.stdout.flush()
        sys.stderr.flush()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.saved = [os.dup(1), os.dup(2)]
        self.terminal: TextIO = os.fdopen(os.dup(1), "w")
        self.log.unlink(missing_ok=True)  # another `tandem repro` may still write to it
        with self.log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        self.lines = self.log.open(errors="replace")
        self.reader = Thread(target=self.follow, daemon=True)
        self.reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.reader.join()
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in enumerate(self.saved, 1):
            os.dup2(saved, number)
            os.close(saved)
        self.write("")
        self.terminal.close()
        self.lines.close()

    def follow(self) -> None:
        while not self.ended.wait(SECONDS_BETWEEN_LOOKS):
            with self.lock:
                self.read()
                if self.stage and self.terminal.isatty():
                    text = f"{self.stage}  {time.monotonic() - self.started:.0f} s  {self.newest}"
                    # Not shutil's, which asks standard output, the log. Some terminals do not know their width.
                    width = os.get_terminal_size(self.terminal.fileno()).columns or 80
                    self.terminal.write(f"\r\x1b[K{text[: width - 1]}")
                    self.terminal.flush()

    def read(self) -> None:
        """Read the new lines of the log, and show those that must be shown at once."""
        shown = (NOTICES,) if self.terminal.isatty() else (NOTICES, EPOCH_LINE, FIT_LINE)
        while True:
            position = self.lines.tell()
            line = self.lines.readline()
            if not line.endswith("\n"):  # none, or not completely written
                self.lines.seek(position)
                return
            if (text := line.strip()) not in ("", self.stage):
                self.newest = text
                if any(pattern.match(text) for pattern in shown):
                    self.write(f"{self.stage}: {text}" if self.stage else text)

    def on_event(self, event: StageEvent) -> None:
        """Show that a stage started or ended."""
        with self.lock:
            self.read()
            if event.outcome == "running":
                self.stage, self.newest, self.started = event.stage, "", time.monotonic()
                print(f"\n{event.stage}", flush=True)
            elif event.outcome != "unchanged" and event.stage:
                message = self.newest if event.outcome == "ran" else event.outcome
                if event.is_interrupted:
                    message = "interrupted"
                if message:
                    message = textwrap.shorten(message, MAX_LETTERS, placeholder=" ...")
                    self.write(f"{event.stage:<22} {event.seconds:6.1f} s  {message}")
                self.stage = ""

    def write(self, text: str) -> None:
        clear = "\r\x1b[K" if self.terminal.isatty() else ""
        self.terminal.write(clear + (f"{text}\n" if text else ""))
        self.terminal.flush()
