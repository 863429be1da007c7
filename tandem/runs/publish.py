"""Publishes run directories (tandem/runs/run_dir.py) in MLflow.

`Publication.publish` is idempotent: it makes MLflow equal to the directory, and can be killed at any point and called
again. A point is published with the time in timings.csv, so publishing it again sends an identical point, which
MLflow stores once. Everything else is looked up before it is created. An epoch that is trained again after a kill would
add a second point, so the directory contains only epochs that a checkpoint contains. One process of the project
publishes at a time.
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
from tandem.runs.run_dir import STAGES, run_dirs
from tandem.runs.store import tracking_uri

RUN_KEY_TAG = "tandem.run_key"
GROUP_TAG = "tandem.group"  # on runs that differ only in their seed: the run key of their parent run
# The tags that the parent run of several seeds copies from the run that creates it.
OF_GROUP = ("workload", "device", "device.name", "host", "dvc.experiment")
MEASURED = {"test/seconds", "test/samples_per_second"}  # differ between two evaluations with the same scores
MOST_METRICS = 1000  # limit of one call


class Publication:
    """What MLflow has of the run directory `folder`; `client` is MLflow's."""

    def __init__(self, folder: Path, client: Any) -> None:
        self.folder, self.client = folder, client
        self.version: tuple[dict[str, int], bool] | None = None  # of the files that are published
        self.retry_at = 0.0  # after a failure
        self.about: dict[str, Any] = {}  # the published run.json
        self.run_id = self.experiment_id = self.parent_id = ""
        self.num_epochs = 0  # published so far
        self.is_watched = False  # MLflow logs system metrics of the run
        self.ended: dict[str, Any] = {}  # stage -> its published end

    def publish(self) -> dict[str, str]:
        """Publish what is new, and remove the directory if no stage writes it any more.

        Returns the error (connection.explain), empty if there was none. The stage reads it in published.json.
        """
        try:
            with locked(STATE / "publishing.lock"):
                self.version = self.present_version()  # first: the next call publishes what is written from now on
                _, is_written = self.version
                path = self.folder / "run.json"
                if path.exists():  # else the stage has not opened the run, or another process has just published all
                    self.publish_new(read_json(path, mend=f"`rm -r {relative(self.folder)}` gives it up"), is_written)
                if not is_written:
                    run_dir.remove(self.folder)
        except Exception as error:  # after any error of the store, the directory stays and the training continues
            problem, self.version = explain(error), None
            write_json(self.folder / "published.json", {**self.ids, **problem})
            return problem
        return {}

    def has_news(self) -> bool:
        return self.version != self.present_version()

    def present_version(self) -> tuple[dict[str, int], bool]:
        """Return a value that changes with the stage's files and when the stage ends."""
        times = {}
        for name in ("run.json", "artifacts/timings.csv", *(f"{stage}.end.json" for stage in STAGES)):
            with suppress(FileNotFoundError):
                times[name] = (self.folder / name).stat().st_mtime_ns
        return times, run_dir.has_writer(self.folder)

    def publish_new(self, about: dict[str, Any], is_written: bool) -> None:
        if not self.run_id:
            self.find_or_create_run(about)
        if run_dir.read_publication(self.folder) != self.ids:  # a starting stage removes the ids of the stage before it
            write_json(self.folder / "published.json", self.ids)
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
        return {"run_id": self.run_id, "experiment_id": self.experiment_id} if self.run_id else {}

    def find_or_create_run(self, about: dict[str, Any]) -> None:
        self.experiment_id = find_or_create_experiment(self.client, about["experiment"])
        found = self.find_or_create(self.folder.name, about["name"], about, {})
        self.run_id, self.parent_id = found.info.run_id, found.data.tags.get(PARENT_TAG, "")

    def find_or_create(self, run_key: str, name: str, about: dict[str, Any], tags: dict[str, str]) -> Any:
        """Return MLflow's run of `run_key`, which has these tags if it is new.

        A server that hangs may still create a run after the request was repeated. If there are two runs, the empty one
        is deleted.
        """
        found = self.client.search_runs([self.experiment_id], f"tags.`{RUN_KEY_TAG}` = '{run_key}'")
        if not found:
            tags = {RUN_KEY_TAG: run_key, **tags}
            return self.client.create_run(self.experiment_id, about["started_ms"], tags, run_name=name)
        is_empty = {run.info.run_id: not (run.data.params or run.data.metrics) for run in found}
        by_content = sorted(found, key=lambda run: (is_empty[run.info.run_id], run.info.run_id != self.run_id))
        for run in by_content[1:]:
            if is_empty[run.info.run_id]:
                self.client.delete_run(run.info.run_id)
        return by_content[0]

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
        headline.write_description(self.client, self.run_id)
        self.about = about

    def find_or_create_parent(self, about: dict[str, Any]) -> str:
        """Return the id of the parent run of several seeds, and set it on all their runs."""
        parent, of_group = about["parent"], {name: about["tags"][name] for name in OF_GROUP if name in about["tags"]}
        parent_id: str = self.find_or_create(parent["run_key"], parent["name"], about, of_group).info.run_id
        self.client.set_tag(self.run_id, PARENT_TAG, parent_id)
        for run in self.client.search_runs([self.experiment_id], f"tags.`{GROUP_TAG}` = '{parent['run_key']}'"):
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
        artifacts = self.folder / "artifacts"
        if artifacts.exists():
            self.client.log_artifacts(self.run_id, str(artifacts))
        run, links, of_model = self.client.get_run(self.run_id), {}, end["metrics"]
        if "model" in end:
            model_id = registry.log_model(self.client, self.experiment_id, run, artifacts / "model")
            registry.register(self.client, about["experiment"], self.run_id, model_id, end["model"])
            of_model = {metric.key: metric.value for metric in self.client.get_logged_model(model_id).metrics or ()}
            links = {"model_id": model_id, **registry.dataset_link(run)}
        present = [run.data.metrics, of_model]  # a publisher may have been killed between the two
        new = {
            name: value for name, value in end["metrics"].items() if any(each.get(name) != value for each in present)
        }
        if set(new) - MEASURED:  # otherwise the same evaluation was repeated after a kill: it has no second point
            self.log([Metric(name, value, end["ms"], 0, **links) for name, value in new.items()])
        headline.write_figures(self.client, self.run_id, end["ms"], [self.client.get_run(self.run_id)])
        if self.parent_id:
            headline.write_parent_figures(self.client, self.experiment_id, self.parent_id, end["ms"])
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
    return [sentence(problem) for folder in waiting if (problem := Publication(folder, client).publish())]


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
