"""The publisher: one process per project that publishes run directories (tandem/tracking/run_dir.py) in MLflow.

    python -m tandem.tracking.publisher [PID]    ends with process PID, or when no stage has run for IDLE_SECONDS
    python -m tandem.tracking.publisher open     creates the project's own store if there is none, and publishes once

`run_dir.start_publisher` starts the first, `tandem ui` the second. One process imports mlflow for all stages of a
`dvc repro`, so no stage spends time on the import.

`Publication.publish` is idempotent: MLflow gets what it lacks of the directory (a run's name and parameters stay as
they were first sent). It can be killed at any point and called again. A point is published with the time in
timings.csv, so publishing it again sends an identical point, which MLflow stores once. Everything else is looked up
before it is created. An epoch that is trained again after a kill would add a second point, so the directory contains
only epochs that a checkpoint contains. If publishing fails, the data stays in its directory: `tandem sync` or the next
publisher publishes it.

`tandem sync` and the publisher also publish the evaluations that DVC has restored (restored.py): no stage writes a run
directory for those.
"""

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tandem import files
from tandem.files import IN_MLFLOW, REAL_ROOT, STATE, locked, read_json, read_numbers, relative, write_json
from tandem.runs.quantities import epoch_metrics
from tandem.tracking import headline, registry, run_dir
from tandem.tracking.connection import (
    explain,
    find_or_create_experiment,
    import_mlflow,
    make_schema_if_local,
    open_client,
    sentence,
)
from tandem.tracking.headline import PARENT_TAG
from tandem.tracking.restored import evaluations, publish_other_scores
from tandem.tracking.run_dir import GROUP_TAG, run_dirs

IDLE_SECONDS = 10.0
POLL_SECONDS = 0.1
RETRY_SECONDS = 3.0  # after a store did not answer
RUN_KEY_TAG = "tandem.run_key"
NOT_REGISTERED_TAG = "tandem.not_registered"
# The tags that the parent run of several seeds copies from the run that creates it.
COPIED_TAGS = ("workload", "device", "device.name", "host", "dvc.experiment")
MOST_METRICS = 1000  # limit of one call


class Publication:
    """What MLflow has of the run directory `folder`; `client` is MLflow's."""

    def __init__(self, folder: Path, client: Any) -> None:
        self.folder, self.client = folder, client
        self.published_state: tuple[dict[str, int], bool] | None = None  # of the files that are published
        self.has_failed, self.retry_at = False, 0.0  # of the last attempt, and the time of the next one
        self.info: dict[str, Any] = {}  # the published run.json
        self.run_id = self.experiment_id = self.parent_id = ""
        self.num_epochs = 0  # published so far
        self.ended: dict[str, Any] = {}  # stage -> its published end

    def publish(self) -> dict[str, str]:
        """Publish what is new, and remove the directory if no stage writes it any more.

        Returns the error (connection.explain), empty if there was none. The stage reads it in in_mlflow.json.
        """
        try:
            with locked(STATE / "publishing.lock"):
                self.published_state = self.state_of_files()  # first: what is written later is published next time
                times, has_writer = self.published_state
                path = self.folder / "run.json"
                if path.exists():  # otherwise the stage has not written it yet, or it was just published and removed
                    self.publish_new(read_json(path, fix=f"`rm -r {relative(self.folder)}` discards it"), has_writer)
                if not has_writer and not run_dir.remove(self.folder, lambda: self.times_of_files() == times):
                    self.published_state = None  # try again
        except Exception as error:  # after any error of the store, the directory stays and the training continues
            problem, self.published_state, self.info = explain(error), None, {}
            write_json(self.folder / IN_MLFLOW, {**self.ids, **problem})
            return problem
        return {}

    def publish_if_due(self) -> None:
        """Publish if there is something new; after an error, not before RETRY_SECONDS."""
        if self.published_state == self.state_of_files() or time.monotonic() <= self.retry_at:
            return
        problem = self.publish()
        self.has_failed = bool(problem)
        if problem:
            print(sentence(problem), flush=True)
            self.retry_at = time.monotonic() + RETRY_SECONDS
            with suppress(Exception):  # the next attempt reports it
                make_schema_if_local()  # the store's file may have been removed

    def state_of_files(self) -> tuple[dict[str, int], bool]:
        """Return a value that changes when the stage has written its files, and when it has ended."""
        return self.times_of_files(), run_dir.has_writer(self.folder)

    def times_of_files(self) -> dict[str, int]:
        times = {}
        for name in ("run.json", "artifacts/timings.csv", *(f"{stage}.end.json" for stage in files.RECORDED_STAGES)):
            with suppress(FileNotFoundError):
                times[name] = (self.folder / name).stat().st_mtime_ns
        return times

    def publish_new(self, info: dict[str, Any], has_writer: bool) -> None:
        self.find_or_create_run(info)
        if run_dir.read_publication(self.folder) != self.ids:  # a starting stage removes the ids of the stage before it
            write_json(self.folder / IN_MLFLOW, self.ids)
        if info != self.info:
            self.publish_info(info)
        self.publish_epochs()
        for stage in files.RECORDED_STAGES:
            self.publish_end(stage, info)
        self.set_status(has_writer)
        if self.parent_id:
            self.set_parent_status()

    @property
    def ids(self) -> dict[str, str]:
        return {"run_id": self.run_id, "experiment_id": self.experiment_id} if self.run_id else {}

    def find_or_create_run(self, info: dict[str, Any]) -> None:
        """Look the run up each time: a user may have deleted it, or the store may be another one, without the run."""
        self.experiment_id = find_or_create_experiment(self.client, info["experiment"])
        run = self.find_or_create(self.folder.name, info["name"], info, {})
        if run.info.run_id == self.run_id:
            return
        self.run_id, self.info, self.num_epochs, self.ended = run.info.run_id, {}, 0, {}
        end = self.folder / "train.end.json"
        if run.info.status == "FINISHED" and end.exists():  # an earlier publisher has published the training
            self.num_epochs, self.ended = sys.maxsize, {"train": read_json(end)}

    def find_or_create(self, run_key: str, name: str, info: dict[str, Any], tags: dict[str, str]) -> Any:
        """Return MLflow's run of `run_key`, which has these tags if it is new.

        A server that hangs may still create a run after the request was repeated. If there are two runs, the empty one
        is deleted.
        """
        runs = self.search(RUN_KEY_TAG, run_key)
        if not runs:
            tags = {RUN_KEY_TAG: run_key, **tags}
            return self.client.create_run(self.experiment_id, info["started_ms"], tags, run_name=name)
        is_empty = {run.info.run_id: not (run.data.params or run.data.metrics) for run in runs}
        by_content = sorted(runs, key=lambda run: (is_empty[run.info.run_id], run.info.run_id != self.run_id))
        for run in by_content[1:]:
            if is_empty[run.info.run_id]:
                self.client.delete_run(run.info.run_id)
        return by_content[0]

    def publish_info(self, info: dict[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        data = self.client.get_run(self.run_id).data
        self.parent_id = self.find_or_create_parent(info) if info.get("parent") else ""
        # Seeds that were added after this training have made a parent run.
        group = info["tags"].get(GROUP_TAG) or data.tags.get(GROUP_TAG)
        if not self.parent_id and group and (parents := self.search(RUN_KEY_TAG, group)):
            self.parent_id = parents[0].info.run_id
            self.client.set_tag(self.run_id, PARENT_TAG, self.parent_id)
        tags = [RunTag(name, value) for name, value in info["tags"].items()]
        # MLflow refuses to change a parameter: a resumed training keeps its parameters.
        params = [] if data.params else [Param(name, str(value)) for name, value in info.get("params", {}).items()]
        self.client.log_batch(self.run_id, params=params, tags=tags)
        if info.get("dataset"):
            dataset = DatasetInput(Dataset(**info["dataset"]), [InputTag("mlflow.data.context", "training")])
            self.client.log_inputs(self.run_id, [dataset])
        self.info = info

    def find_or_create_parent(self, info: dict[str, Any]) -> str:
        """Return the id of the parent run of several seeds, and set it on all their runs."""
        parent, copied_tags = info["parent"], {name: info["tags"][name] for name in COPIED_TAGS if name in info["tags"]}
        parent_id: str = self.find_or_create(parent["run_key"], parent["name"], info, copied_tags).info.run_id
        self.client.set_tag(self.run_id, PARENT_TAG, parent_id)
        for run in self.search(GROUP_TAG, parent["run_key"]):
            if run.data.tags.get(PARENT_TAG) != parent_id:
                self.client.set_tag(run.info.run_id, PARENT_TAG, parent_id)
        return parent_id

    def search(self, tag: str, value: str) -> list[Any]:
        return list(self.client.search_runs([self.experiment_id], f"tags.`{tag}` = '{value}'"))

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
            values = epoch_metrics(row, timing).items()
            metrics += [Metric(name, value, ms, epoch) for name, value in values if value is not None]
        self.log(metrics)
        self.num_epochs = min(len(history), len(timings))

    def publish_end(self, stage: str, info: dict[str, Any]) -> None:
        """Publish the end of a stage: its metrics, artifacts and model."""
        from mlflow.entities import Metric

        path = self.folder / f"{stage}.end.json"
        if not path.exists():  # a stage that runs again has removed it
            self.ended.pop(stage, None)
            return
        if (end := read_json(path)) == self.ended.get(stage):
            return
        artifacts = self.folder / "artifacts"
        if artifacts.exists():
            self.client.log_artifacts(self.run_id, str(artifacts))
        run, links, of_model = self.client.get_run(self.run_id), {}, end["metrics"]
        if "model" in end:
            model_id = registry.log_model(self.client, self.experiment_id, run, artifacts / "model")
            self.register(info["experiment"], run, model_id, end["model"])
            of_model = {metric.key: metric.value for metric in self.client.get_logged_model(model_id).metrics or ()}
            links = {"model_id": model_id, **registry.dataset_link(run)}
        # The metrics are logged for the run and for the model. A publisher may have been killed between these two.
        logged = [run.data.metrics, of_model]
        new_metrics = {
            name: value for name, value in end["metrics"].items() if any(table.get(name) != value for table in logged)
        }
        self.log([Metric(name, value, end["ms"], 0, **links) for name, value in new_metrics.items()])
        headline.write_run_figures(self.client, self.experiment_id, self.run_id, self.parent_id, end["ms"])
        self.ended[stage] = end

    def register(self, workload: str, run: Any, model_id: str, model_info: dict[str, Any]) -> None:
        """Make the model a version. If it is none, or if the account may not add one, a tag of the run says so."""
        from mlflow.exceptions import MlflowException

        reason = model_info.get("not_registered", "")
        if reason and registry.VERSIONS_TAG in self.client.get_logged_model(model_id).tags:
            reason = ""  # a later experiment evaluates the first seed again, whose model is a version
        try:
            if not reason:
                registry.register(self.client, workload, self.run_id, model_id, model_info)
        except MlflowException as error:
            if error.error_code != "PERMISSION_DENIED":
                raise
            reason = f"this account may not add versions to {registry.name_of(workload)}: it needs EDIT there"
            print(f"warning: the model of run {self.run_id} is not registered; {reason}", flush=True)
        if reason:
            self.client.set_tag(self.run_id, NOT_REGISTERED_TAG, reason)
        elif NOT_REGISTERED_TAG in run.data.tags:
            self.client.delete_tag(self.run_id, NOT_REGISTERED_TAG)

    def set_status(self, has_writer: bool) -> None:
        """Set the run's status to that of the training. MLflow itself would show a killed run as RUNNING forever."""
        train, run = self.ended.get("train"), self.client.get_run(self.run_id)
        status = train["status"] if train else "RUNNING" if has_writer else "KILLED"
        if run.info.status != status:
            self.change_status(run, status, train["ms"] if train else run_dir.now_ms())

    def set_parent_status(self) -> None:
        """Set the status of the parent run of several seeds: that of their newest runs which needs attention most."""
        runs = headline.newest_of_seeds(self.client, self.experiment_id, self.parent_id)
        statuses = {run.info.status for run in runs}
        status = next(status for status in ("RUNNING", "FAILED", "KILLED", "FINISHED") if status in statuses)
        parent, ms = self.client.get_run(self.parent_id), max(run.info.end_time or 0 for run in runs)
        if parent.info.status != status or (status != "RUNNING" and parent.info.end_time < ms):
            self.change_status(parent, status, ms)

    def change_status(self, run: Any, status: str, ms: int) -> None:
        """Set the status of MLflow's run, and when it ended unless it is RUNNING: never before its start."""
        if status == "RUNNING":
            self.client.update_run(run.info.run_id, status=status)
        else:
            self.client.set_terminated(run.info.run_id, status, max(ms, run.info.start_time))

    def log(self, metrics: list[Any]) -> None:
        for start in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + MOST_METRICS])


def publish_waiting() -> list[str]:
    """Publish the directories that no stage is writing, and evaluations of which MLflow has other scores. Returns an
    error message for each one that failed; if the store does not answer, one message.
    """
    waiting = [folder for folder in run_dirs() if not run_dir.has_writer(folder)]
    if not (waiting or any(evaluations())):
        return []
    try:
        client = open_client()
    except Exception as error:
        return [sentence(explain(error))]
    problems = [Publication(folder, client).publish() for folder in waiting]
    return [sentence(problem) for problem in (*problems, *publish_other_scores(client)) if problem]


def publish_until_idle(dvc_process: Any) -> None:
    """Publish until `dvc_process` (psutil.Process) has ended; if it is None, until no stage has run for IDLE_SECONDS.
    Then publish the evaluations of which MLflow has other scores.

    Ends only when it has tried to publish every directory after its stage had ended.
    """
    client: Any = None
    publications: dict[Path, Publication] = {}
    last_written, open_at = time.monotonic(), 0.0
    while True:
        now, folders = time.monotonic(), run_dir.run_dirs()
        has_writer = any(map(run_dir.has_writer, folders))
        if has_writer:
            last_written = now
        if client is None and folders and now > open_at:
            client, open_at = client_or_none(folders), time.monotonic() + RETRY_SECONDS
        publications = {folder: publications.get(folder) or Publication(folder, client) for folder in folders if client}
        for publication in publications.values():
            publication.publish_if_due()
        is_idle = now - last_written > IDLE_SECONDS if dvc_process is None else not dvc_process.is_running()
        # A published directory has been removed. So those that are still here have failed, or were not tried yet.
        only_failed_left = all(publication.has_failed for publication in publications.values())
        if is_idle and not has_writer and only_failed_left:
            if client is None and not folders:
                client = client_or_none([])
            for problem in publish_other_scores(client) if client else ():
                print(sentence(problem), flush=True)
            return
        time.sleep(POLL_SECONDS)


def client_or_none(folders: list[Path]) -> Any:
    """Return MLflow's client; None if the store does not answer. The stages then read the error."""
    try:
        client = open_client()
    except Exception as error:
        problem = explain(error)
        print(sentence(problem), flush=True)
        for folder in folders:
            write_json(folder / IN_MLFLOW, problem)
        return None
    # Lower the priority only now: while a new store is created, this process holds a lock that others wait for.
    os.setpriority(os.PRIO_PROCESS, 0, max(10, os.getpriority(os.PRIO_PROCESS, 0)))
    return client


def prepare_own_store() -> int:
    """Prepare the project's own store for MLflow's server. Returns the exit status.

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
    publish_waiting()
    return 0


def main(arguments: list[str]) -> None:
    import psutil  # here, because `tandem sync` uses this module

    os.chdir(REAL_ROOT)  # the copy in which `dvc exp run` trains may be removed before everything is published
    import_mlflow()
    for leftover in run_dir.RUNS.glob(".*"):  # of a process that was killed while it removed a directory
        shutil.rmtree(leftover, ignore_errors=True)
    pids = [int(pid) for pid in arguments if psutil.pid_exists(int(pid))]
    publish_until_idle(psutil.Process(pids[0]) if pids else None)
    sys.stdout.flush()
    # Python's normal exit takes a second with mlflow loaded, and more on a busy machine. A stage that starts meanwhile
    # would find the lock held and start no publisher.
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:] == ["open"]:
        sys.exit(prepare_own_store())
    main(sys.argv[1:])
