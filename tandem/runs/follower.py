"""The follower: one process per project that publishes run directories while stages write them.

    python -m tandem.runs.follower [PID]    ends with process PID, or when no stage has run for IDLE_SECONDS

`run_dir.start_follower` starts it. It imports mlflow once for all stages of a `dvc repro`, so no stage spends time on
the import.

If publishing fails, the data stays in its directory. `tandem sync` or the next follower publishes it.
"""

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tandem.files import HOME, write_json
from tandem.runs import run_dir
from tandem.runs.connection import explain, import_mlflow, open_client, sentence
from tandem.runs.publish import Publisher, run_dirs

IDLE_SECONDS = 10.0
POLL_SECONDS = 0.1
RETRY_SECONDS = 3.0  # after a store did not answer


class Followed:
    """One run directory, and what of it is already published."""

    def __init__(self, folder: Path, client: Any) -> None:
        self.folder, self.publisher = folder, Publisher(folder, client)
        self.version: object = None  # of its files at the last publication
        self.retry_at = 0.0  # if it has failed

    def publish_if_due(self) -> None:
        version = self.present_version()
        if version == self.version or time.monotonic() < self.retry_at:
            return
        problem = self.publisher.publish()
        self.version = None if problem else version
        self.retry_at = time.monotonic() + RETRY_SECONDS if problem else 0.0
        if problem:
            print(sentence(problem), flush=True)

    def present_version(self) -> object:
        """Return a value that changes with the stage's files and when the stage ends."""
        times = {}
        for name in ("run.json", "artifacts/timings.csv", *(f"{stage}.end.json" for stage in run_dir.STAGES)):
            with suppress(FileNotFoundError):
                times[name] = (self.folder / name).stat().st_mtime_ns
        return times, run_dir.has_writer(self.folder)


def serve(dvc_process: psutil.Process | None) -> None:
    """Publish until `dvc_process` has ended; without `dvc_process`, until no stage has run for IDLE_SECONDS."""
    client: Any = None
    followed: dict[Path, Followed] = {}
    last_written, retry_at = time.monotonic(), 0.0
    while True:
        folders = run_dirs()
        is_written = any(map(run_dir.has_writer, folders))
        if is_written:
            last_written = time.monotonic()
        if client is None and folders and time.monotonic() > retry_at:
            client, retry_at = open_store(folders), time.monotonic() + RETRY_SECONDS
        followed = {folder: followed.get(folder) or Followed(folder, client) for folder in folders if client}
        for each in followed.values():
            each.publish_if_due()
        is_idle = (
            time.monotonic() - last_written > IDLE_SECONDS if dvc_process is None else not dvc_process.is_running()
        )
        only_failures_left = all(each.retry_at for each in followed.values())
        if is_idle and not is_written and only_failures_left and set(run_dirs()) <= set(folders):
            return
        time.sleep(POLL_SECONDS)


def open_store(folders: list[Path]) -> Any:
    """Return MLflow's client; None if the store does not answer. The stages then read the error."""
    try:
        client = open_client()
    except Exception as error:
        problem = explain(error)
        print(sentence(problem), flush=True)
        for folder in folders:
            write_json(run_dir.publish_status_file(folder), problem)
        return None
    # Lower the priority only now: while a new store is created, this process holds a lock that others wait for.
    os.setpriority(os.PRIO_PROCESS, 0, max(10, os.getpriority(os.PRIO_PROCESS, 0)))
    return client


def process_of(pid: str) -> psutil.Process | None:
    try:
        return psutil.Process(int(pid))
    except psutil.NoSuchProcess:
        return None


def main(arguments: list[str]) -> None:
    os.chdir(HOME)  # the copy in which `dvc exp run` trains may be removed before everything is published
    import_mlflow()
    for leftover in run_dir.RUNS.glob(".*"):  # of a process that was killed while it removed a directory
        shutil.rmtree(leftover, ignore_errors=True)
    serve(process_of(arguments[0]) if arguments else None)
    sys.stdout.flush()
    # Python's normal exit takes a second with mlflow loaded, and more on a busy machine. A stage that starts meanwhile
    # would find the lock held and start no follower.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
