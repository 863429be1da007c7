"""The follower: one process per project that publishes run directories while stages write them.

    python -m stages.records.follower [PID]    ends with process PID, or when no stage has run for IDLE_SECONDS

`run_dir.start_follower` starts it. It imports mlflow once for all stages of a `dvc repro`, so no stage spends time on
the import. While a training runs, it also reads the machine's activity for MLflow's page "System metrics"; this costs
the training no thread and no call.

If publishing fails, the data stays in its directory. The next follower or `publish sync` publishes it.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from stages.files import HOME, write_json
from stages.machine.activity import Activity
from stages.records import run_dir
from stages.records.connection import explain, import_mlflow, open_client, sentence
from stages.records.publish import Publisher, publish, run_dirs

IDLE_SECONDS = 10.0
POLL_SECONDS = 0.1
RETRY_SECONDS = 3.0  # after a store did not answer
ACTIVITY_SECONDS = 5.0  # interval at which the machine's curves are published: each time, the store syncs its disk
# The machine is read every second in the first minute, then less and less often, from the tenth minute on every 10 s.
FIRST_SECONDS, LAST_SECONDS, SHARE = 1.0, 10.0, 1 / 60


class Followed:
    """One run directory: what is already published, and when it is due again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.publisher: Publisher | None = None
        self.version: object = None  # of its files at the last publication
        self.due = 0.0
        self.has_failed = False
        self.activity: Activity | None = None
        self.watched_since = self.read_due = 0.0

    def read_activity(self) -> None:
        """Read the activity of the machine and the stage's process, if a reading is due."""
        now, watched = time.monotonic(), self.folder / "watched"
        if now < self.read_due or not watched.exists():
            return
        try:
            if self.activity is None:
                self.activity = Activity(int((self.folder / "writer").read_text()), watched.read_text())
                self.watched_since = now
            else:
                point = {"ms": run_dir.now_ms(), "metrics": self.activity.read()}
                with (self.folder / "activity.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(point) + "\n")
        except (OSError, ValueError, psutil.Error):  # the process is gone, or the disk is full: no result is lost
            return
        self.read_due = now + min(LAST_SECONDS, max(FIRST_SECONDS, (now - self.watched_since) * SHARE))

    def publish_if_due(self, client: Any) -> None:
        now, version = time.monotonic(), self.present_version()
        if self.has_failed:
            if now < self.due:
                return
        elif version == self.version and now < self.due:
            return
        self.publisher = self.publisher or Publisher(self.folder, client)
        problem = publish(self.publisher)
        self.version, self.has_failed = version, bool(problem)
        self.due = time.monotonic() + (RETRY_SECONDS if problem else ACTIVITY_SECONDS)
        if problem:
            print(sentence(problem), flush=True)

    def present_version(self) -> object:
        """Return a value that changes with the stage's files and when the stage ends."""
        names = ("run.json", "artifacts/timings.csv", *(f"{stage}.json" for stage in run_dir.STAGES))
        paths = [self.folder / name for name in names]
        times = [modified_ns(path) for path in paths]
        return times, run_dir.has_writer(self.folder)


def modified_ns(path: Path) -> int:
    """0 if the file is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def serve(served: psutil.Process | None) -> None:
    """Publish until `served` has ended; without `served`, until no stage has run for IDLE_SECONDS."""
    client: Any = None
    followed: dict[tuple[Path, int], Followed] = {}
    last_written, retry_at = time.monotonic(), 0.0
    while True:
        followed = {key: followed.get(key) or Followed(key[0]) for key in keys()}
        written = [each for each in followed.values() if run_dir.has_writer(each.folder)]
        for each in written:
            each.read_activity()
        if written:
            last_written = time.monotonic()
        if client is None and followed and time.monotonic() > retry_at:
            client, retry_at = open_store(followed), time.monotonic() + RETRY_SECONDS
        for each in followed.values() if client else ():
            each.publish_if_due(client)
        is_idle = time.monotonic() - last_written > IDLE_SECONDS if served is None else not served.is_running()
        has_tried_all = client is None or all(each.has_failed for each in followed.values())
        if is_idle and not written and has_tried_all and not keys() - followed.keys():
            return
        time.sleep(POLL_SECONDS)


def keys() -> set[tuple[Path, int]]:
    """Return the run directories with their inodes. A directory that was removed and created again has
    another inode.
    """
    found = set()
    for folder in run_dirs():
        try:
            found.add((folder, folder.stat().st_ino))
        except FileNotFoundError:
            continue
    return found


def open_store(followed: dict[tuple[Path, int], Followed]) -> Any:
    """Return MLflow's client; None if the store does not answer. The stages then read the error."""
    try:
        client = open_client()
    except Exception as error:
        problem = explain(error)
        print(sentence(problem), flush=True)
        for each in followed.values():
            write_json(run_dir.state_file(each.folder), problem)
        return None
    # Lower the priority only now: while a new store is created, this process holds a lock that others wait for.
    os.setpriority(os.PRIO_PROCESS, 0, max(10, os.getpriority(os.PRIO_PROCESS, 0)))
    return client


def process_of(pid: str) -> psutil.Process | None:
    try:
        return psutil.Process(int(pid))
    except psutil.NoSuchProcess:
        return None


def main(arguments: list[str]) -> int:
    os.chdir(HOME)  # the copy in which `dvc exp run` trains may be removed before everything is published
    import_mlflow()
    for leftover in run_dir.RUNS.glob(".*"):  # of a process that was killed while it removed a directory
        shutil.rmtree(leftover, ignore_errors=True)
    serve(process_of(arguments[0]) if arguments else None)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
