"""The directory of a run in progress, `.tandem/runs/<token>/`: what a training or its evaluation has not yet published
in MLflow.

The stages write the directory and the follower publishes it (tandem/runs/publish.py). It is outside every DVC
output, because DVC deletes outputs before a stage runs. Writing it needs neither mlflow nor a server, so a slow or
unreachable store does not delay a run. Imports neither mlflow nor torch.

    run.json                the data of the MLflow run: experiment, name, parameters, tags, dataset, parent
    artifacts/history.csv   the losses of the epochs that a checkpoint contains (publish.py says why only those)
    artifacts/timings.csv   their measurements; `ended_ms` is their time in MLflow
    artifacts/              the other files for MLflow, in its folders
    train.end.json          the end of the training: status, time, metrics
    evaluate.end.json       the end of the evaluation; also the model to register
    writer                  the process that runs the stage; it holds a lock on this file
    lock                    held by the process that publishes the directory

The file `<token>.json` beside the directory contains MLflow's ids of the run, or the error and the command that fixes
it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tandem import files
from tandem.files import HOME, ROOT, STATE, read_json, relative, write_json
from tandem.runs.history import Record
from tandem.runs.store import keep_to_this_project, shown, tracking_uri

RUNS = STATE / "runs"
STAGES = ("train", "evaluate")  # each writes its end to <stage>.end.json
WAIT_SECONDS = 30.0  # timeout for MLflow's ids at the end of a stage
FOLLOWER = "tandem.runs.follower"
FOLLOWER_LOG = RUNS / "follower.log"
DVC_PID = "TANDEM_DVC_PID"  # the process that runs DVC; set by `make repro` and the flows
followers: list["subprocess.Popen[bytes]"] = []  # started by this process
PUBLISH = "tandem sync"


class RunDir:
    """The run directory for the stage that writes it. `recording` creates it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {}  # content of run.json
        self.end: dict[str, Any] = {"metrics": {}}
        self.ids: dict[str, str] = {}  # MLflow's, after the end; empty if they are not known

    @property
    def token(self) -> str:
        return self.folder.name

    def start(
        self,
        experiment: str,
        name: str,
        params: dict[str, Any] | None = None,
        tags: dict[str, str] | None = None,
        dataset: dict[str, Any] | None = None,
        parent: dict[str, str] | None = None,
    ) -> None:
        """Describe the MLflow run: the one from an earlier start of this training, or a new one.

        An evaluation passes no parameters: it adds to the training's run. `parent` ({"token", "name"}) is the parent
        run of the runs that differ only in their seed, if there are several.
        """
        path = self.folder / "run.json"
        before: dict[str, Any] = read_json(path) if path.exists() else {"ms": now_ms()}
        self.about = {**before, "experiment": experiment, "name": name, "tags": before.get("tags", {}) | (tags or {})}
        if params:
            self.about |= {"params": params, "dataset": dataset, "parent": parent}
        write_json(path, self.about)

    def add_tags(self, tags: dict[str, str]) -> None:
        self.about["tags"] |= tags
        write_json(self.folder / "run.json", self.about)

    def save_epochs(self, record: Record) -> None:
        """Save the epochs of `record`. Call this only after a checkpoint or the results contain them."""
        for name, rows in (("history", record.history), ("timings", record.timings)):
            files.write_table(self.folder / f"artifacts/{name}.csv", rows)
        start_follower()  # restarts it if it was killed

    def add_metrics(self, metrics: dict[str, float | None]) -> None:
        """Add metrics without a step, which are published at the end. Absent values (None) are left out."""
        self.end["metrics"] |= {name: value for name, value in metrics.items() if value is not None}

    @property
    def model_folder(self) -> Path:
        """The folder for the model (tandem/model_package.py)."""
        return self.folder / "artifacts" / "model"

    def add_model(self, val_score: float, data: dict[str, str]) -> None:
        """Have the model in artifacts/model registered. The best model among those with equal digests (`data`) gets the
        alias.
        """
        self.end["model"] = {"val_score": val_score, "data": data}

    def add_artifact(self, path: Path, folder: str = "", name: str = "") -> None:
        """Copy `path` for MLflow: the original belongs to DVC and may change before it is published."""
        target = self.folder / "artifacts" / folder
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / (name or path.name))

    def add_text(self, text: str, name: str) -> None:
        files.write_text(self.folder / "artifacts" / name, text)

    def wait_for_ids(self) -> None:
        """Wait at most WAIT_SECONDS for MLflow's ids of the run. The follower usually knows them already.

        If the run is not published, print the reason, where the record is kept, and the command that publishes it.
        """
        deadline, problem, fix = time.monotonic() + WAIT_SECONDS, "", ""
        while not (state := read_publication(self.folder)) and not problem:
            if find_spec("mlflow") is None:
                problem = "the package 'mlflow' is not installed here"
            elif (status := start_follower()) not in (None, 0):
                problem = f"{FOLLOWER} ended with exit status {status}, see {relative(FOLLOWER_LOG)}"
            elif time.monotonic() > deadline:
                problem = f"MLflow at {shown(tracking_uri())} is still starting and gets the record in the background"
            time.sleep(0.02)
        if "error" in state:
            problem, fix = state["error"], state["fix"] and f"run: {state['fix']}; then: "
        if problem:
            publish = f"{fix}{PUBLISH}" if fix else f"to publish it: {PUBLISH}"
            print(f"tracking: {problem}; the record is kept in {relative(self.folder)}; {publish}", file=sys.stderr)
        self.ids = {name: state[name] for name in ("run_id", "experiment_id") if name in state}


def start_follower() -> int | None:
    """Start the process that publishes the directories (tandem/runs/follower.py), unless the project has one.

    The follower ends with the process that DVC_PID names; without one, it ends when no stage has run for a while.
    Returns the exit status of an earlier follower that this process started and that has ended; otherwise None.
    """
    RUNS.mkdir(parents=True, exist_ok=True)
    status = followers[-1].poll() if followers else None
    with (RUNS / "follower.lock").open("a") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the follower inherits the lock and holds it until it ends
        with FOLLOWER_LOG.open("w") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", FOLLOWER, *([os.environ[DVC_PID]] if DVC_PID in os.environ else [])],
                cwd=ROOT,
                env={**os.environ, "DVC_ROOT": str(HOME)},
                pass_fds=[lock.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl+C must stop the stage only; the follower publishes how the stage ended
            )
        followers.append(started)
    return status


@contextmanager
def recording(token: str, stage: str) -> Iterator[RunDir]:
    """Open the run directory while `stage` (train or evaluate) writes it, and record how the stage ends."""
    folder = RUNS / token
    with write_lock(folder):
        start_follower()  # the last one may have ended, because no stage held a writer lock
        if moved := keep_to_this_project(timeout_seconds=0.1):  # a training does not wait for a store
            print(f"tracking: {moved}", flush=True)
        for stale in (folder / f"{stage}.end.json", publish_status_file(folder)):  # from an earlier start of this stage
            stale.unlink(missing_ok=True)
        run, status = RunDir(folder), "FAILED"
        try:
            yield run
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit):  # several workers end with SystemExit to be restarted
            status = "KILLED"
            raise
        finally:
            if run.about:
                write_json(folder / f"{stage}.end.json", {**run.end, "status": status, "ms": now_ms()})
                run.wait_for_ids()
    publish_status_file(folder).unlink(missing_ok=True)


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Create the directory and hold its writer lock. The lock is released when this process ends."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            writer = (folder / "writer").open("a+")
        except FileNotFoundError:  # the follower has just removed the directory
            continue
        with writer:
            fcntl.flock(writer, fcntl.LOCK_EX)
            if not is_same_file(writer.fileno(), folder / "writer"):
                continue
            writer.truncate(0)
            writer.write(str(os.getpid()))
            writer.flush()
            yield
            return


def is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


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


def remove(folder: Path) -> bool:
    """Remove a published directory. Returns False if a stage writes it again."""
    removed = folder.with_name(f".{folder.name}.{os.getpid()}")
    with suppress(FileNotFoundError), (folder / "writer").open("a") as writer:
        try:
            fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        folder.rename(removed)  # at once: another process may open a file in it meanwhile
        shutil.rmtree(removed)
    return True


def publish_status_file(folder: Path) -> Path:
    """Return the path of the file with MLflow's ids or the error. It is beside the directory, which may be removed
    before the stage reads its ids.
    """
    return folder.with_suffix(".json")


def read_publication(folder: Path) -> dict[str, str]:
    try:
        return dict(read_json(publish_status_file(folder)))
    except (OSError, ValueError):  # missing or damaged: the directory itself contains all data
        return {}


def now_ms() -> int:
    return int(time.time() * 1000)
