"""Curves of what the machine does while a training runs, as lines in its journal's folder.

The uploader reads them, so they cost the training's process nothing: no thread, no lock, no call. The training says
when: `Journal.watched` leaves the file `watched` there, with the GPU's UUID, from its first epoch to its last.
"""

import json
import time
from pathlib import Path
from typing import Any

import psutil

from stages.machine.activity import Activity

# Every second in the first minute, then less and less often, as often as MLflow itself from the tenth minute on.
FIRST_SECONDS, LAST_SECONDS, SHARE = 1.0, 10.0, 1 / 60
SEND_SECONDS = 5.0  # each call makes the store's disk sync


class Live:
    """Of the journal in `folder`: `read_if_due` while it is written, `points` for MLflow at any time."""

    def __init__(self, folder: Path) -> None:
        self.watched, self.lines, self.writer = (folder / name for name in ("watched", "live.jsonl", "writer"))
        self.activity: Activity | None = None
        self.begin = self.due = self.sent_at = 0.0
        self.position = 0

    def read_if_due(self) -> None:
        now = time.monotonic()
        if now < self.due or not self.watched.exists():
            return
        try:
            if self.activity is None:
                pid, gpu_uuid = int(self.writer.read_text()), self.watched.read_text()
                self.activity, self.begin = Activity(pid, gpu_uuid), now
            else:
                self.write(self.activity.read())
        except (OSError, ValueError, psutil.Error):  # the process is gone, or the disk is full: no result is in it
            return
        self.due = now + min(LAST_SECONDS, max(FIRST_SECONDS, (now - self.begin) * SHARE))

    def write(self, found: dict[str, float]) -> None:
        with self.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"ms": int(time.time() * 1000), "metrics": found}) + "\n")

    def points(self, is_last: bool) -> list[dict[str, Any]]:
        """What has been written since the last call, now and then; where it `is_last`, at once."""
        now = time.monotonic()
        if not self.lines.exists() or not (is_last or now - self.sent_at > SEND_SECONDS):
            return []
        self.sent_at = now
        with self.lines.open("rb") as file:
            file.seek(self.position)
            lines = file.read().split(b"\n")[:-1]  # the rest is of a process that was killed, or of a full disk
        self.position += sum(len(line) + 1 for line in lines)
        return [point for line in lines if (point := parsed(line))]


def parsed(line: bytes) -> dict[str, Any]:
    """Empty where a full disk has cut the line."""
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError):
        return {}
