"""MLflow's side: a journal written while training, and an uploader that reads it.

The trainer only appends lines to `.tandem/journals/<name>/journal.jsonl`: it never imports mlflow (1.6 s), never talks to a server inside
a training, and loses nothing when the server is gone. The uploader is a process of its own (`python -m stages.records.uploader follow`)
that starts before torch is imported, follows the journal live, and removes it when all has arrived. It outlives a killed trainer and then
says so in MLflow (status KILLED). Sending is idempotent: what a run already has is not sent twice, so a journal can always be sent again.

    python -m stages.records.uploader sync        send the journals that could not be sent

Store: `MLFLOW_TRACKING_URI`, else sqlite in `mlruns/mlflow.db` with artifacts in `mlruns/artifacts`.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from stages.files import HOME, MLRUNS, ROOT, STATE, read_json, relative

JOURNALS = STATE / "journals"
# A refused server answers at once; a black hole costs this many seconds at the end of a training.
WAIT_SECONDS = 20
TOKEN_TAG = "tandem.token"


def tracking_uri() -> str:
    """MLflow's own variable wins; else one absolute URI, because a relative one would follow the working directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{MLRUNS}/mlflow.db"


def without_password(uri: str) -> str:
    parts = urlsplit(uri)
    return (
        uri
        if parts.password is None
        else urlunsplit(parts._replace(netloc=f"{parts.username}:***@{parts.netloc.rpartition('@')[2]}"))
    )


# ---------------------------------------------------------------------------------------------------------------------
# The trainer's side


@dataclass
class Journal:
    """What one training or evaluation has to tell MLflow. `start` makes one and starts its uploader."""

    folder: Path
    uploader: subprocess.Popen
    is_open: bool = False  # whether there is a run to tell of

    def write(self, kind: str, **content: Any) -> None:
        line = json.dumps({"kind": kind, "ms": int(time.time() * 1000), **content})
        with (self.folder / "journal.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def run(
        self,
        token: str,
        experiment: str,
        name: str,
        params: dict[str, Any],
        tags: dict[str, str],
        dataset: dict[str, Any],
    ) -> None:
        """Open the MLflow run that `token` names: a new one, or the one an interrupted training had opened."""
        self.is_open = True
        self.write("run", token=token, experiment=experiment, name=name, params=params, tags=tags, dataset=dataset)

    def metrics(self, metrics: dict[str, float | None], step: int | None = None) -> None:
        """Absent values are left out: MLflow would store NaN as 0."""
        self.write("metrics", step=step, metrics={name: value for name, value in metrics.items() if value is not None})

    def tags(self, tags: dict[str, str]) -> None:
        """What is known only once the run is open."""
        self.write("tags", tags=tags)

    def artifact(self, path: Path, folder: str = "", name: str = "") -> None:
        """Keep a copy of `path` for MLflow: the original belongs to DVC and may change before it is sent."""
        target = self.folder / "artifacts" / folder
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / (name or path.name))

    def text(self, text: str, name: str) -> None:
        target = self.folder / "artifacts" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def end(self, status: str | None) -> dict[str, Any]:
        """Say how it ended and return MLflow's ids of the run, as soon as they are known; the uploader sends the rest by itself.

        Status None leaves the run's status as it is: who only adds to a finished training does not end it again. Waits a bounded time for
        a store that does not answer, and then says where the record is kept.
        """
        self.write("end", status=status)
        if not self.is_open:  # it failed before it began
            return {}
        opened, deadline = opened_file(self.folder), time.monotonic() + WAIT_SECONDS
        while not opened.exists() and self.uploader.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if opened.exists():
            known = read_json(opened)
            opened.unlink()
            return known
        self.uploader.terminate()
        print(
            f"tracking: MLflow at {without_password(tracking_uri())} could not be reached; the record is kept in "
            f"{relative(self.folder)}, send it with `python -m stages.records.uploader sync`",
            file=sys.stderr,
        )
        return {}


def opened_file(folder: Path) -> Path:
    """Where the uploader says which MLflow run it has opened for the journal in `folder`."""
    return folder.with_suffix(".json")


def start() -> Journal:
    folder = JOURNALS / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").touch()
    (folder / "writer").write_text(str(os.getpid()))
    with (folder / "uploader.log").open("w") as log:
        uploader = subprocess.Popen(
            [sys.executable, "-m", "stages.records.uploader", "follow", str(folder)],
            cwd=ROOT,
            env={**os.environ, "DVC_ROOT": str(HOME)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl+C is the trainer's; the uploader still has to say how the run ended
        )
    return Journal(folder, uploader)


def new_token() -> str:
    return uuid.uuid4().hex


def git_tags(root: Path = ROOT) -> dict[str, str]:
    """Commit and whether the sources differ from it. What DVC writes (dvc.lock) does not count as an edit."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {"git.absent": "not a git repository, or no commit yet"}
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock")
    return {"mlflow.source.git.commit": commit, "git.dirty": str(bool(changed)).lower()}


def caller_tags() -> dict[str, str]:
    """What started this run: DVC's stage and experiment, Prefect's flow run."""
    known = {
        "dvc.stage": "DVC_STAGE",
        "dvc.experiment": "DVC_EXP_NAME",
        "prefect.flow_run_id": "TANDEM_FLOW_RUN_ID",
        "prefect.parent_flow_run_id": "TANDEM_PARENT_FLOW_RUN_ID",
    }
    return {tag: os.environ[name] for tag, name in known.items() if os.environ.get(name)}


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold `path` as a lock of the kernel's; yields whether it could be had (always, where `wait`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def is_alive(process: int) -> bool:
    if process <= 0:  # an empty writer file; signal 0 to process 0 would ask for this very process group
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # killed, but not yet waited for by its parent
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True
