"""The directory of a run in progress, `.tandem/runs/<run key>/`: what MLflow gets of a training and its evaluation.

The stages write it. The publisher (publisher.py), a process of its own, publishes it and removes it when the stage has
ended. It is outside every DVC output, because DVC deletes outputs before a stage runs. Writing it needs neither mlflow
nor a server. A stage waits for the store 0.1 s at its start and WAIT_SECONDS at its end, at most. Imports neither
mlflow nor torch.

    run.json                the MLflow run: experiment, name, parameters, tags, dataset, machine, parent, started_ms
    artifacts/history.csv   the losses of the epochs that a checkpoint contains (publisher.py says why only those)
    artifacts/timings.csv   their measurements; `ended_ms` is their time in MLflow
    artifacts/              the other files for MLflow, in its folders
    train.end.json          the end of the training: status, time, metrics
    evaluate.end.json       the end of the evaluation; also the model to register
    in_mlflow.json          MLflow's ids of the run, if it has it; after a failure, also the error and its fix
    writer                  the stage's process holds a lock on this file
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tandem import files
from tandem.files import IN_MLFLOW, REAL_ROOT, ROOT, STATE, read_json, relative, write_json
from tandem.runs.record import Record
from tandem.tracking.store import shown_uri, tracking_uri, update_artifact_locations

RUNS = STATE / "runs"
GROUP_TAG = "tandem.group"  # on runs that differ only in their seed: the run key of their parent run
WAIT_SECONDS = 30.0  # timeout for MLflow's ids at the end of a stage
PUBLISHER = "tandem.tracking.publisher"
PUBLISHER_LOG = RUNS / "publisher.log"
DVC_PID = "TANDEM_DVC_PID"  # the process that runs DVC; the publisher ends with it
publishers: list["subprocess.Popen[bytes]"] = []  # started by this process


class RunDir:
    """The run directory for the stage that writes it. `open_run_dir` creates it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "run.json"  # an earlier start of the training has written it, if it is not published yet
        self.info: dict[str, Any] = read_json(path) if path.exists() else {"started_ms": now_ms(), "tags": {}}
        self.stage_end: dict[str, Any] = {"metrics": {}}  # of the stage that writes the directory
        self.opened = time.monotonic(), now_ms()
        self.ids: dict[str, str] = {}  # MLflow's, after the end; empty if they are not known

    def write_info(self, experiment: str, name: str, tags: dict[str, str] | None = None, **info: Any) -> None:
        """Write what the MLflow run is. `info`: `params`, `dataset`, `machine`, `inputs_key` and `parent`.

        `parent` ({"run_key", "name"}) is the parent run of the runs that differ only in their seed, if there are
        several.
        """
        if "machine" in info:
            self.add_text(json.dumps(info["machine"], indent=1), "machine.json")
        self.info |= {"experiment": experiment, "name": name, **info}
        self.add_tags(tags or {})

    def add_tags(self, tags: dict[str, str]) -> None:
        self.info["tags"] |= tags
        write_json(self.folder / "run.json", self.info)

    def save_epochs(self, record: Record) -> None:
        """Save the epochs of `record` for the publisher. Call this only after a checkpoint or the results contain them.

        The publisher waits for a new timings.csv, so that file is written last.
        """
        for name, rows in (("history", record.history), ("timings", record.timings)):
            files.write_table(self.folder / f"artifacts/{name}.csv", rows)
        start_publisher()  # restarts it if it was killed

    def add_metrics(self, metrics: Mapping[str, float | None]) -> None:
        """Add metrics without a step, which are published at the end. Absent values (None) are left out."""
        self.stage_end["metrics"] |= {name: value for name, value in metrics.items() if value is not None}

    def add_model(self, val_score: float, data: dict[str, str], not_registered: str) -> None:
        """Have the model in artifacts/model logged, and registered unless there is a reason against it. The best model
        among those with equal digests (`data`) gets the alias.
        """
        self.stage_end["model"] = {"val_score": val_score, "data": data, "not_registered": not_registered}

    def add_artifact(self, path: Path, folder: str = "") -> None:
        """Copy `path` for MLflow: the original belongs to DVC and may change before it is published."""
        target = self.folder / "artifacts" / folder
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / path.name)

    def add_text(self, text: str, name: str) -> None:
        files.write_text(self.folder / "artifacts" / name, text)

    def end_stage(self, status: str) -> None:
        """Complete `stage_end`. Its time counts from the start, because the clock may have been set meanwhile."""
        seconds = time.monotonic() - self.opened[0]
        ms = max(self.opened[1] + int(1000 * seconds), self.info["started_ms"])
        self.stage_end |= {"status": status, "ms": ms}

    def wait_for_ids(self) -> None:
        """Wait at most WAIT_SECONDS for MLflow's ids of the run. The publisher usually knows them already.

        If the run is not published, print the reason, where the record is kept, and the command that publishes it.
        """
        deadline, problem, fix = time.monotonic() + WAIT_SECONDS, "", ""
        if not has_mlflow():
            problem, fix = "MLflow is not installed", "pip install mlflow"
        while not (state := read_publication(self.folder)) and not problem:
            status = publishers[-1].poll() if publishers else None
            start_publisher()  # restarts it if it was killed
            if status:
                problem = f"{PUBLISHER} ended with exit status {status}, see {relative(PUBLISHER_LOG)}"
            elif time.monotonic() > deadline:
                problem = (
                    f"MLflow at {shown_uri(tracking_uri())} is still starting; publishing continues in the background"
                )
            time.sleep(0.02)
        if "error" in state:
            problem, fix = state["error"], state["fix"]
        if problem:
            publish = f"run: {fix}; then: tandem sync" if fix else "to publish it: tandem sync"
            print(f"tracking: {problem}; the record is kept in {relative(self.folder)}; {publish}", file=sys.stderr)
        self.ids = {name: state[name] for name in ("run_id", "experiment_id") if name in state}


def start_publisher() -> None:
    """Start the process that publishes the run directories, unless the project has one.

    It ends with the process that DVC_PID names; without one, it ends when no stage has run for a while.
    """
    if not has_mlflow():
        return
    RUNS.mkdir(parents=True, exist_ok=True)
    with (RUNS / "publisher.lock").open("a") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the publisher inherits the lock and holds it until it ends
        with PUBLISHER_LOG.open("w") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", PUBLISHER, *([os.environ[DVC_PID]] if DVC_PID in os.environ else [])],
                cwd=ROOT,
                env={**os.environ, "DVC_ROOT": str(REAL_ROOT)},
                pass_fds=[lock.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl+C must stop the stage only; the publisher publishes how the stage ended
            )
        publishers.append(started)


def has_mlflow() -> bool:
    """`make gpu` needs no MLflow. Its import takes seconds; this takes 0.1 ms."""
    return find_spec("mlflow") is not None


@contextmanager
def open_run_dir(run_key: str, stage: str) -> Iterator[RunDir]:
    """Open the run directory while `stage` (train or evaluate) writes it, and record how the stage ends."""
    folder = RUNS / run_key
    with write_lock(folder):
        start_publisher()  # an idle publisher has ended
        if moved := update_artifact_locations(timeout_seconds=0.1):  # a training does not wait for a store
            print(f"tracking: {moved}", flush=True)
        for name in (f"{stage}.end.json", IN_MLFLOW):  # from an earlier start of this stage
            (folder / name).unlink(missing_ok=True)
        run_dir, status = RunDir(folder), "FAILED"
        try:
            yield run_dir
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit):  # several workers end with SystemExit to be restarted
            status = "KILLED"
            raise
        finally:
            if "name" in run_dir.info:  # `write_info` was called
                run_dir.end_stage(status)
                write_json(folder / f"{stage}.end.json", run_dir.stage_end)
                run_dir.wait_for_ids()


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Create the directory and hold its writer lock. The lock is released when this process ends."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            writer = (folder / "writer").open("a")
        except FileNotFoundError:  # the publisher has just removed the directory
            continue
        with writer:
            fcntl.flock(writer, fcntl.LOCK_EX)
            try:
                is_same = os.path.samestat(os.fstat(writer.fileno()), (folder / "writer").stat())
            except FileNotFoundError:  # as above, while this process waited for the lock
                is_same = False
            if is_same:
                yield
                return


def has_writer(folder: Path) -> bool:
    """Whether a live process writes the directory."""
    try:
        with (folder / "writer").open() as writer:
            fcntl.flock(writer, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def run_dirs() -> list[Path]:
    """Return the run directories, the oldest first."""
    dated_folders = []
    for path in RUNS.glob("[!.]*"):
        with suppress(FileNotFoundError):  # another process has just removed it
            if path.is_dir():
                dated_folders.append((path.stat().st_ctime_ns, path))
    return [path for _, path in sorted(dated_folders)]


def remove(folder: Path, is_published: Callable[[], bool]) -> bool:
    """Remove a published directory. Returns False if another process holds its lock, such as a stage that writes it, or
    if a stage has ended meanwhile, so that not all is published.
    """
    removed = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError), (folder / "writer").open("a") as writer:
            fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_published():
                return False
            folder.rename(removed)  # at once: another process may open a file in it meanwhile
            shutil.rmtree(removed)
    except BlockingIOError:
        return False
    return True


def read_publication(folder: Path) -> dict[str, str]:
    """Return MLflow's ids (`run_id`, `experiment_id`), or `error` and `fix`; empty before the run is published."""
    try:
        return dict(read_json(folder / IN_MLFLOW))
    except (OSError, ValueError):  # missing or damaged: the other files contain all data
        return {}


def now_ms() -> int:
    return int(time.time() * 1000)
