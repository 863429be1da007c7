"""Sends journals to MLflow: the only module that imports mlflow."""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from stages.files import MLRUNS, STATE, write_json
from stages.records.journal import JOURNALS, TOKEN_TAG, is_alive, locked, opened_file, tracking_uri, without_password

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
    print("usage: python -m stages.records.uploader sync", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
