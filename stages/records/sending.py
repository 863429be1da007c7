"""Sends one journal to MLflow.

MLflow can neither replace nor remove a metric's point. So the metrics of an epoch are sent once a checkpoint holds that
epoch: one that is trained again after a kill has another time, and it is that time which timings.csv has. A journal
says `hold` where its writer makes checkpoints, `saved` after each of them; what was held when the writer was killed
belongs to no result, and is not sent.
"""

import errno
import fcntl
import hashlib
from pathlib import Path
from typing import Any

from stages.files import STATE, locked, write_json
from stages.records import journal, registry, summary
from stages.records.connection import find_or_create_experiment
from stages.records.headline import rounded
from stages.records.live import Live
from stages.records.summary import PARENT_TAG

TOKEN_TAG = "tandem.token"
GROUP_TAG = "tandem.group"  # of runs that differ in their seed alone: the token of the run above them
# What the run above several seeds takes from the one that opens it.
OF_GROUP = ("workload", "device", "device.name", "host", "preset", "dvc.experiment")
# Each run has one byte of this file, which the process that sends to it locks.
CLAIMS = STATE / "claims.lock"


class RunIsBusy(Exception):
    """Another process sends to the same run."""


class Sender:
    """Sends one journal through `client`. Every method can be called again after a failure.

    Two journals may belong to one run: that of a training that was killed, and that of the same training which goes
    on. They are sent one after the other: the second waits, or with `may_wait` False raises RunIsBusy.
    """

    def __init__(self, folder: Path, client: Any, may_wait: bool = True):
        self.folder = folder
        self.client = client
        self.may_wait = may_wait
        self.claims = CLAIMS.open("a")
        self.live = Live(folder)
        self.run_id = self.experiment_id = self.parent_id = self.token = self.workload = ""
        self.started_ms = 0
        self.model: dict[str, Any] = {}  # what a model among the artifacts is registered with
        self.sent_steps = -1  # the last epoch that MLflow has already where the run is not new
        self.sent_once: dict[str, float] = {}
        self.holds = False  # whether the metrics of epochs wait for a checkpoint
        self.held: list[Any] = []
        self.position = 0
        self.ended = False
        self.is_training = False
        self.is_late = False  # the run has finished since, so it is this journal's no longer

    def claim(self, token: str) -> None:
        """Have the run of `token` to ourselves until `claims` is closed, or this process ends, however it does."""
        how = fcntl.LOCK_EX | (0 if self.may_wait else fcntl.LOCK_NB)
        byte = int.from_bytes(hashlib.sha256(token.encode()).digest()[:6], "big")
        try:
            fcntl.lockf(self.claims, how, 1, byte)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise RunIsBusy from None

    def ids(self) -> dict[str, str]:
        return {"run_id": self.run_id, "experiment_id": self.experiment_id} if self.run_id else {}

    def send_new(self) -> None:
        """Send the lines written since the last call."""
        with (self.folder / "journal.jsonl").open("rb") as file:
            file.seek(self.position)
            lines = file.read().split(b"\n")
        complete = lines[:-1]  # what follows the last line end is still being written
        metrics: list[Any] = []
        for line in complete:
            entry = journal.parse(line, self.folder)
            if entry["kind"] == "metrics":
                (self.held if self.holds and entry["step"] is not None else metrics).extend(self.to_metrics(entry))
            else:
                self.flush(metrics)
                getattr(self, f"send_{entry['kind']}")(entry)
        self.flush(metrics)
        self.send_live(is_last=False)
        self.position += sum(len(line) + 1 for line in complete)

    def to_metrics(self, entry: dict[str, Any]) -> list[Any]:
        from mlflow.entities import Metric

        step = entry["step"]
        if step is not None and step <= self.sent_steps:
            return []
        return [
            Metric(name, value, entry["ms"], self.next_step(name) if step is None else step)
            for name, value in entry["metrics"].items()
            if step is not None or self.sent_once.get(name) != value
        ]

    def next_step(self, name: str) -> int:
        """0; where the run has another value already, as of an evaluation that is made again, the step after it."""
        if name not in self.sent_once:
            return 0
        return 1 + max(metric.step for metric in self.client.get_metric_history(self.run_id, name))

    def send_hold(self, entry: dict[str, Any]) -> None:
        self.holds = True

    def send_saved(self, entry: dict[str, Any]) -> None:
        self.flush(self.held)

    def flush(self, metrics: list[Any]) -> None:
        while metrics:
            end = min(len(metrics), 1000)  # the most that one call takes
            # An epoch's metrics arrive in one call, whole or not at all: `sent_steps` counts one of them.
            while end < len(metrics) and end > 1 and metrics[end].step == metrics[end - 1].step:
                end -= 1
            self.client.log_batch(self.run_id, metrics=metrics[:end])
            del metrics[:end]

    def send_run(self, entry: dict[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        self.is_training = bool(entry["params"])
        self.experiment_id = find_or_create_experiment(self.client, entry["experiment"])
        self.token, self.workload = entry["token"], entry["experiment"]
        self.claim(self.token)
        found = self.find_run(self.token)
        if found:
            self.run_id, self.started_ms = found.info.run_id, found.info.start_time
            epochs = self.client.get_metric_history(self.run_id, "train/loss")
            self.sent_steps = max((metric.step for metric in epochs), default=-1)
            self.sent_once = dict(found.data.metrics)
            self.is_late = self.is_training and found.info.status == "FINISHED"
            if self.is_training and not self.is_late:  # the training itself goes on; an evaluation only adds
                self.client.update_run(self.run_id, status="RUNNING")
        else:
            run = self.client.create_run(
                self.experiment_id, start_time=entry["ms"], tags={TOKEN_TAG: entry["token"]}, run_name=entry["name"]
            )
            self.run_id, self.started_ms = run.info.run_id, entry["ms"]
        write_json(journal.answer_file(self.folder), self.ids())
        self.parent_id = found.data.tags.get(PARENT_TAG, "") if found else ""
        if parent := entry.get("parent"):  # a journal of an older version has none
            self.parent_id = self.find_or_create_parent(parent, entry)
        if self.is_training:
            # MLflow refuses to change a parameter: a run that goes on keeps those it has.
            if not (found and found.data.params):
                params = [Param(name, str(value)) for name, value in entry["params"].items()]
                self.client.log_batch(self.run_id, params=params)
            self.send_tags(entry)
        if entry["dataset"]:
            dataset = Dataset(**entry["dataset"])
            self.client.log_inputs(self.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def find_run(self, token: str) -> Any:
        """The run of `token`; None where there is none.

        A server that hung when it was asked for a run, and answers after it was asked again, has made two: the empty
        one is removed.
        """
        found = self.client.search_runs([self.experiment_id], f"tags.`{TOKEN_TAG}` = '{token}'")
        is_empty = {run.info.run_id: not (run.data.params or run.data.metrics) for run in found}
        by_content = sorted(found, key=lambda run: (is_empty[run.info.run_id], run.info.run_id != self.run_id))
        for run in by_content[1:]:
            if is_empty[run.info.run_id]:
                self.client.delete_run(run.info.run_id)
        return by_content[0] if found else None

    def find_or_create_parent(self, parent: dict[str, str], entry: dict[str, Any]) -> str:
        """The id of the run above this one and above all of its group, what was trained with one seed included."""
        with locked(STATE / "parents.lock"):  # two seeds may be sent at once
            found = self.find_run(parent["token"])
            if not found:
                of_group = {name: value for name, value in entry["tags"].items() if name in OF_GROUP}
                tags = {TOKEN_TAG: parent["token"], **of_group}
                name, since = parent["name"], entry["ms"]
                found = self.client.create_run(self.experiment_id, start_time=since, tags=tags, run_name=name)
        parent_id: str = found.info.run_id
        self.client.set_tag(self.run_id, PARENT_TAG, parent_id)
        for run in self.client.search_runs([self.experiment_id], f"tags.`{GROUP_TAG}` = '{parent['token']}'"):
            self.client.set_tag(run.info.run_id, PARENT_TAG, parent_id)
        return parent_id

    def send_tags(self, entry: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        self.client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in entry["tags"].items()])

    def send_model(self, entry: dict[str, Any]) -> None:
        self.model = entry

    def send_live(self, is_last: bool) -> None:
        """The curves of what the machine did; their steps are seconds since the run began."""
        from mlflow.entities import Metric

        if not self.run_id:
            return
        points = [
            Metric(name, rounded(value), point["ms"], max(0, point["ms"] - self.started_ms) // 1000)
            for point in self.live.points(is_last)
            for name, value in point["metrics"].items()
        ]
        self.flush(points)

    def send_end(self, entry: dict[str, Any]) -> None:
        if entry["status"] == "FINISHED":  # the last epochs need no checkpoint: the results hold them
            self.flush(self.held)
        artifacts = self.folder / "artifacts"
        if self.run_id and artifacts.exists():
            self.client.log_artifacts(self.run_id, str(artifacts))
            if (folder := artifacts / "model").joinpath("MLmodel").exists():
                model_id = registry.log_model(self.client, self.experiment_id, self.run_id, folder)
                if self.model:
                    registry.register(self.client, self.workload, self.run_id, model_id, self.model)
        if self.run_id:
            self.send_live(is_last=True)
            summary.describe(self.client, self.client.get_run(self.run_id), entry["ms"])
        if self.run_id and entry["status"] and not self.is_late:
            self.client.set_terminated(self.run_id, entry["status"], entry["ms"])
        if self.run_id and self.parent_id:
            summary.sum_up(self.client, self.experiment_id, self.parent_id, entry["ms"])
        if self.run_id:
            self.find_run(self.token)  # a second one may have come late
        self.ended = True
