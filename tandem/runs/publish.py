"""Publishes run directories (tandem/runs/run_dir.py) in MLflow.

`Publisher.publish` is idempotent: it makes MLflow equal to the directory, and can be killed at any point and called
again. A point is published with the time in timings.csv, so publishing it again sends an identical point, which
MLflow stores once. Everything else is looked up before it is created. An epoch that is trained again after a kill would
add a second point, so the directory contains only epochs that a checkpoint contains.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tandem.files import STATE, locked, read_json, read_numbers, relative, write_json
from tandem.runs import headline, registry, run_dir
from tandem.runs.connection import explain, find_or_create_experiment, open_client, sentence
from tandem.runs.headline import PARENT_TAG
from tandem.runs.history import epoch_metrics
from tandem.runs.run_dir import RUNS, STAGES
from tandem.runs.store import tracking_uri

TOKEN_TAG = "tandem.token"
GROUP_TAG = "tandem.group"  # on runs that differ only in their seed: the token of their parent run
# The tags that the parent run of several seeds copies from the run that creates it.
OF_GROUP = ("workload", "device", "device.name", "host", "preset", "dvc.experiment")
MEASURED = {"test/seconds", "test/samples_per_second"}  # differ between two evaluations with the same scores
MOST_METRICS = 1000  # limit of one call


class Publisher:
    """Publishes the run directory `folder` through MLflow's `client`, repeatedly while a stage writes it."""

    def __init__(self, folder: Path, client: Any) -> None:
        self.folder, self.client = folder, client
        self.about: dict[str, Any] = {}  # the published run.json
        self.run_id = self.experiment_id = self.parent_id = ""
        self.num_epochs = 0  # published so far
        self.is_watched = False  # MLflow logs system metrics of the run
        self.ended: dict[str, Any] = {}  # stage -> its published end

    def publish(self) -> dict[str, str]:
        """Publish what is new, and remove the directory if no stage writes it any more.

        Returns the error (connection.explain), empty if there was none. It is also written to the publication file,
        where the stage reads it.
        """
        publication = run_dir.publish_status_file(self.folder)
        try:
            if self.publish_or_remove():
                publication.unlink(missing_ok=True)  # the stage has read it
        except Exception as error:  # after any error of the store, the directory stays and the training continues
            problem = explain(error)
            write_json(publication, {**(self.ids if self.run_id else {}), **problem})
            return problem
        return {}

    def publish_or_remove(self) -> bool:
        """Return whether the directory is removed."""
        with locked(self.folder / "lock"):
            is_written = run_dir.has_writer(
                self.folder
            )  # checked first: the next call publishes what is written from now on
            path = self.folder / "run.json"
            if path.exists():  # else the stage has not opened the run, or another process has just published all
                self.publish_new(read_json(path, mend=f"`rm -r {relative(self.folder)}` gives it up"), is_written)
            # Under the lock: another process that publishes the directory must not see half of it.
            return not is_written and run_dir.remove(self.folder)

    def publish_new(self, about: dict[str, Any], is_written: bool) -> None:
        if not self.run_id:
            self.find_or_create_run(about)
        if run_dir.read_publication(self.folder) != self.ids:  # a starting stage removes the ids of the stage before it
            write_json(run_dir.publish_status_file(self.folder), self.ids)
        if about != self.about:
            self.publish_about(about)
        self.publish_epochs()
        for stage in STAGES:
            self.publish_end(stage, about)
        self.set_status(is_written)
        if is_written and about.get("params") and not self.is_watched:
            self.is_watched = True
            self.watch_machine()

    def watch_machine(self) -> None:
        """Start MLflow's thread that logs system metrics. It ends when the run is no longer RUNNING."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        SystemMetricsMonitor(self.run_id, resume_logging=True, tracking_uri=tracking_uri()).start()

    @property
    def ids(self) -> dict[str, str]:
        return {"run_id": self.run_id, "experiment_id": self.experiment_id}

    def find_or_create_run(self, about: dict[str, Any]) -> None:
        self.experiment_id = find_or_create_experiment(self.client, about["experiment"])
        token = self.folder.name
        found = self.find_run(token)
        if found is None:
            tags = {TOKEN_TAG: token}
            found = self.client.create_run(self.experiment_id, about["ms"], tags, run_name=about["name"])
        self.run_id, self.parent_id = found.info.run_id, found.data.tags.get(PARENT_TAG, "")

    def find_run(self, token: str) -> Any:
        """Return the run of `token`, or None.

        A server that hangs may still create a run after the request was repeated. If there are two runs, the empty one
        is deleted.
        """
        found = self.client.search_runs([self.experiment_id], f"tags.`{TOKEN_TAG}` = '{token}'")
        is_empty = {run.info.run_id: not (run.data.params or run.data.metrics) for run in found}
        by_content = sorted(found, key=lambda run: (is_empty[run.info.run_id], run.info.run_id != self.run_id))
        for run in by_content[1:]:
            if is_empty[run.info.run_id]:
                self.client.delete_run(run.info.run_id)
        return by_content[0] if found else None

    def publish_about(self, about: dict[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        if about.get("parent"):
            self.parent_id = self.find_or_create_parent(about)
        tags = [RunTag(name, value) for name, value in about["tags"].items()]
        # MLflow refuses to change a parameter: a resumed training keeps its parameters.
        has_params = self.client.get_run(self.run_id).data.params
        params = [] if has_params else [Param(name, str(value)) for name, value in about.get("params", {}).items()]
        self.client.log_batch(self.run_id, params=params, tags=tags)
        if about.get("dataset"):
            dataset = DatasetInput(Dataset(**about["dataset"]), [InputTag("mlflow.data.context", "training")])
            self.client.log_inputs(self.run_id, [dataset])
        self.about = about

    def find_or_create_parent(self, about: dict[str, Any]) -> str:
        """Return the id of the parent run of several seeds, and set it on all their runs."""
        parent = about["parent"]
        with locked(STATE / "parents.lock"):  # two seeds may be published at the same time
            found = self.find_run(parent["token"])
            if not found:
                of_group = {name: value for name, value in about["tags"].items() if name in OF_GROUP}
                tags = {TOKEN_TAG: parent["token"], **of_group}
                found = self.client.create_run(self.experiment_id, about["ms"], tags, run_name=parent["name"])
        parent_id: str = found.info.run_id
        self.client.set_tag(self.run_id, PARENT_TAG, parent_id)
        for run in self.client.search_runs([self.experiment_id], f"tags.`{GROUP_TAG}` = '{parent['token']}'"):
            self.client.set_tag(run.info.run_id, PARENT_TAG, parent_id)
        return parent_id

    def publish_epochs(self) -> None:
        from mlflow.entities import Metric

        tables = [self.folder / f"artifacts/{name}.csv" for name in ("history", "timings")]
        if not all(path.exists() for path in tables):
            return
        history, timings = map(read_numbers, tables)  # written one after the other: one may have more rows
        metrics = []
        for row, timing in list(zip(history, timings, strict=False))[self.num_epochs :]:
            assert timing["ended_ms"] and row["epoch"]
            ms, epoch = int(timing["ended_ms"]), int(row["epoch"])
            found = epoch_metrics(row, timing).items()
            metrics += [Metric(name, value, ms, epoch) for name, value in found if value is not None]
        self.log(metrics)
        self.num_epochs = min(len(history), len(timings))

    def publish_end(self, stage: str, about: dict[str, Any]) -> None:
        """Publish the end of a stage: its metrics, artifacts and model."""
        from mlflow.entities import Metric

        path = self.folder / f"{stage}.end.json"
        if not path.exists() or (end := read_json(path)) == self.ended.get(stage):
            return
        present = self.client.get_run(self.run_id).data.metrics
        new = {name: value for name, value in end["metrics"].items() if present.get(name) != value}
        if set(new) - MEASURED:  # otherwise the same evaluation was repeated after a kill: it has no second point
            self.log([Metric(name, value, end["ms"], 0) for name, value in new.items()])
        artifacts = self.folder / "artifacts"
        if artifacts.exists():
            self.client.log_artifacts(self.run_id, str(artifacts))
        if "model" in end:
            folder = artifacts / "model"
            model_id = registry.log_model(self.client, self.experiment_id, self.run_id, folder)
            registry.register(self.client, about["experiment"], self.run_id, model_id, end["model"])
        headline.describe(self.client, self.run_id, end["ms"], [self.client.get_run(self.run_id)])
        if self.parent_id:
            headline.describe_parent(self.client, self.experiment_id, self.parent_id, end["ms"])
        self.ended[stage] = end

    def set_status(self, is_written: bool) -> None:
        """Set the run's status to that of the training. MLflow itself would show a killed run as RUNNING forever."""
        if not self.about.get("params"):
            return
        train, status = self.ended.get("train"), self.client.get_run(self.run_id).info.status
        wanted = train["status"] if train else "RUNNING" if is_written else "KILLED"
        if status == wanted:
            return
        if wanted == "RUNNING":
            self.client.update_run(self.run_id, status=wanted)
        else:
            self.client.set_terminated(self.run_id, wanted, train["ms"] if train else None)

    def log(self, metrics: list[Any]) -> None:
        for start in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + MOST_METRICS])


def sync() -> list[str]:
    """Publish the directories that no stage is writing. Returns an error message for each one that failed."""
    waiting = [folder for folder in run_dirs() if not run_dir.has_writer(folder)]
    if not waiting:
        return []
    try:
        client = open_client()
    except Exception as error:
        return [sentence(explain(error))] * len(waiting)
    return [sentence(problem) for folder in waiting if (problem := Publisher(folder, client).publish())]


def run_dirs() -> list[Path]:
    """The run directories, the oldest first."""
    found = []
    for path in RUNS.glob("[!.]*"):
        with suppress(FileNotFoundError):  # another process has just removed it
            if path.is_dir():
                found.append((path.stat().st_ctime_ns, path))
    return [path for _, path in sorted(found)]


def main() -> int:
    """Prepare the project's own store for MLflow's server: `tandem ui` runs this before it starts the server.

    Creates missing tables, and publishes: runs that ended with the machine would otherwise show as RUNNING.
    """
    uri = os.environ.pop("MLFLOW_TRACKING_URI", None)  # a server that may be elsewhere
    try:
        open_client()
    except Exception as error:
        print(sentence(explain(error)), file=sys.stderr)
        return 1
    if uri:
        os.environ["MLFLOW_TRACKING_URI"] = uri
    sync()
    return 0


if __name__ == "__main__":
    sys.exit(main())
