"""The publisher: one process per project that publishes run directories while stages write them.

    python -m tandem.runs.publisher [PID]    ends with process PID, or when no stage has run for IDLE_SECONDS

`run_dir.start_publisher` starts it. It imports mlflow once for all stages of a `dvc repro`, so no stage spends time on
the import. If publishing fails, the data stays in its directory: `tandem sync` or the next publisher publishes it.
"""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tandem.files import HOME, write_json
from tandem.runs import run_dir
from tandem.runs.connection import explain, import_mlflow, open_client, sentence
from tandem.runs.publish import Publication

IDLE_SECONDS = 10.0
POLL_SECONDS = 0.1
RETRY_SECONDS = 3.0  # after a store did not answer


def serve(dvc_process: psutil.Process | None) -> None:
    """Publish until `dvc_process` has ended; without `dvc_process`, until no stage has run for IDLE_SECONDS.

    Ends only when it has tried to publish every directory after its stage had ended.
    """
    client: Any = None
    publications: dict[Path, Publication] = {}
    last_written, open_at = time.monotonic(), 0.0
    while True:
        now, folders = time.monotonic(), run_dir.run_dirs()
        is_written = any(map(run_dir.has_writer, folders))
        if is_written:
            last_written = now
        if client is None and folders and now > open_at:
            client, open_at = open_store(folders), time.monotonic() + RETRY_SECONDS
        publications = {folder: publications.get(folder) or Publication(folder, client) for folder in folders if client}
        for publication in publications.values():
            if publication.has_news() and time.monotonic() > publication.retry_at:
                if problem := publication.publish():
                    print(sentence(problem), flush=True)
                publication.retry_at = time.monotonic() + RETRY_SECONDS if problem else 0.0
        is_idle = now - last_written > IDLE_SECONDS if dvc_process is None else not dvc_process.is_running()
        if is_idle and not is_written and all(publication.retry_at for publication in publications.values()):
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
            write_json(folder / "published.json", problem)
        return None
    # Lower the priority only now: while a new store is created, this process holds a lock that others wait for.
    os.setpriority(os.PRIO_PROCESS, 0, max(10, os.getpriority(os.PRIO_PROCESS, 0)))
    return client


def main(arguments: list[str]) -> None:
    os.chdir(HOME)  # the copy in which `dvc exp run` trains may be removed before everything is published
    import_mlflow()
    for leftover in run_dir.RUNS.glob(".*"):  # of a process that was killed while it removed a directory
        shutil.rmtree(leftover, ignore_errors=True)
    pids = [int(pid) for pid in arguments if psutil.pid_exists(int(pid))]
    serve(psutil.Process(pids[0]) if pids else None)
    sys.stdout.flush()
    # Python's normal exit takes a second with mlflow loaded, and more on a busy machine. A stage that starts meanwhile
    # would find the lock held and start no publisher.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
