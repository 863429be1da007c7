"""MLflow's side: a journal written while training, and an uploader that reads it.

The trainer only appends lines to `.tandem/journals/<name>/journal.jsonl`: it never imports mlflow (1.6 s), never talks to a server inside
a training, and loses nothing when the server is gone. The uploader is a process of its own (`python -m stages.records.journal follow`)
that starts before torch is imported, follows the journal live, and removes it when all has arrived. It outlives a killed trainer and then
says so in MLflow (status KILLED). Sending is idempotent: what a run already has is not sent twice, so a journal can always be sent again.

    python -m stages.records.journal sync        send the journals that could not be sent

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

from stages.files import HOME, MLRUNS, ROOT, STATE, read_json, relative, write_json

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
            f"{relative(self.folder)}, send it with `python -m stages.records.journal sync`",
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
            [sys.executable, "-m", "stages.records.journal", "follow", str(folder)],
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


# ---------------------------------------------------------------------------------------------------------------------
# The uploader's side: the only place that imports mlflow


class Uploader:
    """Sends one journal. Every method can be called again after a failure."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.client = open_client()
        self.run_id = self.experiment_id = ""
        self.sent_steps = -1  # the last epoch that MLflow already had when we opened the run
        self.sent_once: dict[str, float] = {}
        self.position = 0
        self.ended = False
        self.is_training = False

    def send_new(self) -> None:
        with (self.folder / "journal.jsonl").open("rb") as file:
            file.seek(self.position)
            lines = file.read().split(b"\n")
        complete = lines[:-1]  # what follows the last line end is still being written
        entries = [json.loads(line) for line in complete]
        metrics: list[Any] = []
        for entry in entries:
            if entry["kind"] == "metrics":
                metrics += self.to_metrics(entry)
            else:
                self.flush(metrics)
                getattr(self, f"send_{entry['kind']}")(entry)
        self.flush(metrics)
        self.position += sum(len(line) + 1 for line in complete)

    def to_metrics(self, entry: dict[str, Any]) -> list[Any]:
        from mlflow.entities import Metric

        step = entry["step"]
        if step is not None and step <= self.sent_steps:
            return []
        return [
            Metric(name, value, entry["ms"], step or 0)
            for name, value in entry["metrics"].items()
            if step is not None or self.sent_once.get(name) != value
        ]

    def flush(self, metrics: list[Any]) -> None:
        for first in range(0, len(metrics), 1000):  # the most that one call takes
            self.client.log_batch(self.run_id, metrics=metrics[first : first + 1000])
        metrics.clear()

    def send_run(self, entry: dict[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        self.is_training = bool(entry["params"])
        self.experiment_id = find_or_create_experiment(self.client, entry["experiment"])
        found = self.client.search_runs([self.experiment_id], f"tags.`{TOKEN_TAG}` = '{entry['token']}'")
        if found:
            self.run_id = found[0].info.run_id
            epochs = self.client.get_metric_history(self.run_id, "train/loss")
            self.sent_steps = max((metric.step for metric in epochs), default=-1)
            self.sent_once = dict(found[0].data.metrics)
            if self.is_training:  # the training itself goes on; an evaluation only adds
                self.client.update_run(self.run_id, status="RUNNING")
        else:
            run = self.client.create_run(
                self.experiment_id, start_time=entry["ms"], tags={TOKEN_TAG: entry["token"]}, run_name=entry["name"]
            )
            self.run_id = run.info.run_id
        write_json(opened_file(self.folder), {"run_id": self.run_id, "experiment_id": self.experiment_id})
        if self.is_training:
            # MLflow refuses to change a parameter: a run that goes on keeps those it has.
            params = {} if found and found[0].data.params else entry["params"]
            self.client.log_batch(
                self.run_id,
                params=[Param(name, str(value)) for name, value in params.items()],
                tags=[RunTag(name, value) for name, value in entry["tags"].items()],
            )
        if entry["dataset"]:
            dataset = Dataset(**entry["dataset"])
            self.client.log_inputs(self.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def send_tags(self, entry: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        self.client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in entry["tags"].items()])

    def send_end(self, entry: dict[str, Any]) -> None:
        if not self.run_id:
            self.ended = True
            return
        if (self.folder / "artifacts").exists():
            self.client.log_artifacts(self.run_id, str(self.folder / "artifacts"))
            if (self.folder / "artifacts" / "model" / "MLmodel").exists():
                self.register_model()
        if entry["status"]:
            self.client.set_terminated(self.run_id, entry["status"], entry["ms"])
        self.ended = True

    def register_model(self) -> None:
        """Make the model artifact a logged model, which MLflow lists beside the run and loads by `models:/<id>`."""
        from mlflow.entities import LoggedModelOutput

        if self.client.get_run(self.run_id).outputs and self.client.get_run(self.run_id).outputs.model_outputs:
            return
        model = self.client.create_logged_model(self.experiment_id, name="model", source_run_id=self.run_id)
        self.client.log_model_artifacts(model.model_id, str(self.folder / "artifacts" / "model"))
        self.client.finalize_logged_model(model.model_id, "READY")
        self.client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step=0)])

    def end_for_the_dead(self) -> None:
        """The writer is gone without a word: the run is not left RUNNING for ever."""
        if self.is_training and not self.ended:
            self.client.set_terminated(self.run_id, "KILLED")


def open_client() -> Any:
    """MLflow's client on the store. The schema of a fresh sqlite file is made once, under a lock: four at a time would collide."""
    # MLflow's defaults keep trying a dead server for four minutes, and one that never answers for twenty.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    from mlflow import MlflowClient

    uri = tracking_uri()
    if not uri.startswith("sqlite:"):
        return MlflowClient(uri)
    MLRUNS.mkdir(exist_ok=True)
    with locked(STATE / "mlflow.lock"):
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
        return client


def find_or_create_experiment(client: Any, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        # A sqlite store would put artifacts under the working directory; a server has a place of its own.
        location = f"{MLRUNS.as_uri()}/artifacts/{name}" if tracking_uri().startswith("sqlite:") else None
        try:
            # The kind makes MLflow's pages open on training runs instead of traces.
            return client.create_experiment(name, location, {"mlflow.experimentKind": "custom_model_development"})
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another run was faster
            if found is None:
                raise
    return found.experiment_id


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


def follow(folder: Path, writer: int | None) -> bool:
    """Send the journal in `folder` until its end, or until `writer` (a process; None: nobody writes any more) is gone.

    Returns whether all arrived. While the writer lives, a store that does not answer is tried again every few seconds.
    """
    with locked(folder / "lock", wait=False) as free:
        if not free:
            return False
        uploader: Uploader | None = None
        while True:
            alive = writer is not None and is_alive(writer)
            try:
                uploader = uploader or Uploader(folder)
                uploader.send_new()
                if uploader.ended or not alive:
                    uploader.send_new()  # what was written between our reading and its death
                    uploader.end_for_the_dead()
                    break
            except Exception as error:  # whatever the store's trouble is, the journal stays and the training goes on
                print(f"{type(error).__name__}: {error}", flush=True)
                uploader = None
                if not alive or said_end(folder):
                    return False
                time.sleep(3)
            time.sleep(0.1)
        shutil.rmtree(folder)
        return True


def said_end(folder: Path) -> bool:
    return b'{"kind": "end"' in (folder / "journal.jsonl").read_bytes()


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


def sync() -> list[Path]:
    """Send every journal whose writer is gone, oldest first; returns those that could not be sent."""
    left = []
    for folder in sorted(path for path in JOURNALS.glob("*") if path.is_dir()):
        writer = folder / "writer"
        if writer.exists() and is_alive(int(writer.read_text() or 0)) and not said_end(folder):
            continue
        if not follow(folder, None):
            left.append(folder)
    for path in JOURNALS.glob("*.json"):  # nobody was left to read it
        if not path.with_suffix("").exists() and time.time() - path.stat().st_mtime > 60:
            path.unlink(missing_ok=True)
    return left


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "follow":
        os.nice(10)
        folder = Path(arguments[1])
        if not follow(folder, int((folder / "writer").read_text())):
            return 1
        sync()  # the store answers: what could not be sent earlier goes now
        return 0
    if arguments == ["sync"]:
        left = sync()
        print(
            f"MLflow at {without_password(tracking_uri())}: "
            + (f"{len(left)} journals could not be sent, see their uploader.log" if left else "up to date")
        )
        return 1 if left else 0
    print("usage: python -m stages.records.journal sync", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
