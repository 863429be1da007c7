"""The uploader: sends journals to MLflow and removes what has arrived. The only module that imports mlflow.

    python -m stages.records.uploader sync             send the journals that could not be sent
    python -m stages.records.uploader open             make the store's tables, where it is a SQLite file without any
    python -m stages.records.uploader follow FOLDER    send a journal while it is written (`journal.start` runs this)

`follow` outlives a killed trainer, and then sets the run's status to KILLED. Sending is idempotent: what a run
already has is not sent twice, so a journal can always be sent again.

MLflow can neither replace nor remove a metric's point. So the metrics of an epoch are sent once a checkpoint holds that
epoch: one that is trained again after a kill has another time, and it is that time which timings.csv has. A journal
says `hold` where its writer makes checkpoints, `saved` after each of them; what was held when the writer was killed
belongs to no result, and is not sent.
"""

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from stages.files import FULL, HOME, MLRUNS, STATE, locked, relative, write_json
from stages.records import journal, store
from stages.records.store import shown, tracking_uri
from stages.urls import without_password

TOKEN_TAG = "tandem.token"
GROUP_TAG = "tandem.group"  # of runs that differ in their seed alone: the token of the run above them
PARENT_TAG = "mlflow.parentRunId"  # the one that MLflow's pages read
# What the run above several seeds sums up: the scores, and these.
SUMMED_UP = (
    "time/epoch_seconds_median",
    "throughput/samples_per_second_median",
    "vram/peak_allocated_mib_max",
    "vram/peak_process_mib_max",
)
# The exceptions, or causes of one, that mean that no server answered; the most telling first.
UNREACHABLE = {
    "ConnectionRefusedError": " (connection refused)",
    **dict.fromkeys(("Timeout", "TimeoutError", "ReadTimeoutError"), " (no answer in time)"),
    "gaierror": " (its name is not known)",
    "ConnectionError": "",
}
# Each run has one byte of this file, which the process that sends to it locks.
CLAIMS = STATE / "claims.lock"
# A file that changed more recently may belong to a process that is still making its schema.
QUIET_SECONDS = 10.0


class RunIsBusy(Exception):
    """Another process sends to the same run."""


class Uploader:
    """Sends one journal through `client`. Every method can be called again after a failure.

    Two journals may belong to one run: that of a training that was killed, and that of the same training which goes
    on. They are sent one after the other: the second waits, or with `may_wait` False raises RunIsBusy.
    """

    def __init__(self, folder: Path, client: Any, may_wait: bool = True):
        self.folder = folder
        self.client = client
        self.may_wait = may_wait
        self.claims = CLAIMS.open("a")
        self.run_id = self.experiment_id = self.parent_id = self.token = ""
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
        self.token = entry["token"]
        self.claim(self.token)
        found = self.find_run(self.token)
        if found:
            self.run_id = found.info.run_id
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
            self.run_id = run.info.run_id
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
                tags = {TOKEN_TAG: parent["token"], "workload": entry["experiment"]}
                name, since = parent["name"], entry["ms"]
                found = self.client.create_run(self.experiment_id, start_time=since, tags=tags, run_name=name)
        parent_id: str = found.info.run_id
        self.client.set_tag(self.run_id, PARENT_TAG, parent_id)
        for run in self.client.search_runs([self.experiment_id], f"tags.`{GROUP_TAG}` = '{parent['token']}'"):
            self.client.set_tag(run.info.run_id, PARENT_TAG, parent_id)
        return parent_id

    def sum_up(self, ms: int) -> None:
        """Give the run above this one means and ranges over its seeds, of each the run that is newest."""
        from mlflow.entities import Metric

        children = self.client.search_runs([self.experiment_id], f"tags.`{PARENT_TAG}` = '{self.parent_id}'")
        by_seed = {run.data.params.get("seed"): run.data.metrics for run in reversed(children)}  # the newest come first
        scored = [metrics for metrics in by_seed.values() if any(name.startswith("test/") for name in metrics)]
        found = {"num_seeds": float(len(scored))}
        for name in dict.fromkeys(name for metrics in scored for name in metrics):
            values = [metrics[name] for metrics in scored if name in metrics]
            if len(values) == len(scored) and (name.startswith("test/") or name in SUMMED_UP):
                for how, reduce in (("mean", statistics.fmean), ("lowest", min), ("highest", max)):
                    found[f"{name}_{how}"] = reduce(values)
        self.client.log_batch(self.parent_id, metrics=[Metric(name, value, ms, 0) for name, value in found.items()])
        self.client.set_tag(self.parent_id, "seeds", ",".join(sorted(filter(None, by_seed), key=int)))
        self.client.set_terminated(self.parent_id, "FINISHED", ms)

    def send_tags(self, entry: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        self.client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in entry["tags"].items()])

    def send_end(self, entry: dict[str, Any]) -> None:
        if entry["status"] == "FINISHED":  # the last epochs need no checkpoint: the results hold them
            self.flush(self.held)
        artifacts = self.folder / "artifacts"
        if self.run_id and artifacts.exists():
            self.client.log_artifacts(self.run_id, str(artifacts))
            if (artifacts / "model" / "MLmodel").exists():
                self.register_model(artifacts / "model")
        if self.run_id and entry["status"] and not self.is_late:
            self.client.set_terminated(self.run_id, entry["status"], entry["ms"])
        if self.run_id and self.parent_id:
            self.sum_up(entry["ms"])
        if self.run_id:
            self.find_run(self.token)  # a second one may have come late
        self.ended = True

    def register_model(self, folder: Path) -> None:
        """Make the model artifact a logged model, which MLflow lists beside the run and loads by `models:/<id>`."""
        from mlflow.entities import LoggedModelOutput

        outputs = self.client.get_run(self.run_id).outputs
        if outputs and outputs.model_outputs:
            return
        # One that was begun when an uploader was killed, or the server hung, is gone on with.
        begun = self.client.search_logged_models([self.experiment_id], f"source_run_id = '{self.run_id}'")
        for extra in begun[1:]:
            self.client.delete_logged_model(extra.model_id)
        model = begun[0] if begun else None
        model = model or self.client.create_logged_model(self.experiment_id, name="model", source_run_id=self.run_id)
        self.client.log_model_artifacts(model.model_id, str(folder))
        self.client.finalize_logged_model(model.model_id, "READY")
        self.client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step=0)])


def open_client() -> Any:
    """MLflow's client on a store that answers. Raises what MLflow raises, and what `make_schema` does."""
    set_environment()
    uri = tracking_uri()
    if path := store.database_file(uri):
        path.parent.mkdir(parents=True, exist_ok=True)
        make_schema(path)
        if moved := store.keep_to_this_project(timeout_seconds=20.0):
            print(moved, flush=True)
    return connect(uri)


def connect(uri: str) -> Any:
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # MLflow also logs, with tracebacks, what it raises
    client = MlflowClient(uri)
    client.search_experiments(max_results=1)
    return client


def set_environment() -> None:
    """Set MLflow's variables in this process."""
    # MLflow's defaults keep trying a dead server for four minutes, and one that never answers for twenty.
    defaults = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "3"}
    switches = ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT")
    for name, value in {**defaults, **dict.fromkeys(switches, "true")}.items():
        os.environ.setdefault(name, value)
    uri = tracking_uri()
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https") and parts.username is not None:
        # In variables of their own, because MLflow prints the address in exceptions and links.
        os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
        os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
        os.environ["MLFLOW_TRACKING_URI"] = without_password(uri)


def make_schema(path: Path) -> None:
    """Make MLflow's schema in the SQLite file at `path` where it is missing. Raises RuntimeError where that is unsafe.

    A kill in the middle of MLflow's migrations leaves a file that no MLflow opens, so the schema is made in a file
    aside and renamed into place, under a lock beside it: projects may share one file. An unfinished schema without
    records is moved aside first.
    """
    if store.inspect(path, timeout_seconds=20.0).kind == "whole":
        return
    with locked(path.with_name(f"{path.name}.lock")):
        condition = quiet_condition(path)
        if condition.kind == "whole":
            return
        if condition.kind == "unfinished" and condition.is_empty:
            aside = path.with_name(f"{path.name}.unfinished-{time.strftime('%Y%m%dT%H%M%S')}")
            for old, kept in zip(with_journals(path), with_journals(aside), strict=True):
                if old.exists():
                    os.replace(old, kept)
        elif condition.kind != "absent":
            raise RuntimeError(condition.message)  # `explain` finds the command that mends it
        new = path.with_name(f"{path.name}.new")
        for leftover in (*with_journals(new), *with_journals(path)[1:]):  # of a process that was killed here
            leftover.unlink(missing_ok=True)
        connect(f"sqlite:///{new}")
        with new.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(new, path)


def quiet_condition(path: Path) -> store.Condition:
    """The condition of `path`, once no process that ignores our lock (`mlflow server`) changes its schema."""
    while True:
        condition = store.inspect(path, timeout_seconds=20.0)
        may_change = condition.kind in ("absent", "unfinished") and path.exists()
        if not (may_change and 0 <= time.time() - path.stat().st_mtime < QUIET_SECONDS):
            return condition
        time.sleep(0.5)


def with_journals(path: Path) -> list[Path]:
    """`path` and SQLite's files of unfinished transactions: SQLite would apply one that is left to a new `path`."""
    return [path, *(path.with_name(path.name + suffix) for suffix in ("-journal", "-wal", "-shm"))]


def find_or_create_experiment(client: Any, name: str) -> str:
    from mlflow.exceptions import MlflowException

    if found := client.get_experiment_by_name(name):
        return found.experiment_id
    # A sqlite store would put artifacts under the working directory; a server has a place of its own.
    location = f"{MLRUNS.as_uri()}/artifacts/{name}" if tracking_uri().startswith("sqlite:") else None
    try:
        # The kind makes MLflow's pages open on training runs instead of traces.
        return client.create_experiment(name, location, {"mlflow.experimentKind": "custom_model_development"})
    except MlflowException:
        if found := client.get_experiment_by_name(name):  # another run was faster
            return found.experiment_id
        raise


def explain(error: Exception, refused: str = "did not take the record") -> dict[str, str]:
    """What went wrong (`error`, a clause without a password) and the command that mends it (`fix`, may be empty).

    `refused`: what a store that was reached did not do.
    """
    if isinstance(error, journal.Damaged):
        return {"error": f"{error}: that line cannot be sent", "fix": error.fix}
    uri = tracking_uri()
    if (path := store.database_file(uri)) and (condition := store.inspect(path)).fix:
        return {"error": condition.message, "fix": condition.fix}
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    names = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    if any(getattr(cause, "errno", None) in FULL or "disk is full" in str(cause) for cause in causes):
        reason = "has no space left on its disk; free some"
    elif known := [clause for name, clause in UNREACHABLE.items() if name in names]:
        reason = f"could not be reached{known[0]}"
    else:
        first_line = str(error).strip().partition("\n")[0].replace(uri, shown(uri))
        reason = f"{refused} ({type(error).__name__}: {first_line[:300]})"
    return {"error": f"MLflow at {shown(uri)} {reason}", "fix": ""}


def sentence(problem: dict[str, str]) -> str:
    return problem["error"] + (f"; run: {problem['fix']}" if problem["fix"] else "")


def follow(folder: Path, is_live: bool, client: Any = None) -> str:
    """Send the journal in `folder`; where it `is_live`, until its end, or until the process that writes it is gone.

    Returns why not all has arrived, an empty text where it has. While the writer lives, a store that does not answer
    is tried again every few seconds.
    """
    with locked(folder / "lock", wait=is_live) as holder:
        if holder is not None:
            return f"process {holder or 'unknown'} is sending {relative(folder)}"
        if not (folder / "journal.jsonl").exists():  # another process has just sent it
            shutil.rmtree(folder)
            return ""
        uploader: Uploader | None = None
        while True:
            alive = is_live and journal.has_writer(folder)
            try:
                if uploader is None:
                    uploader = Uploader(folder, client or open_client(), may_wait=is_live)
                    if is_live:  # a nice process would hold the lock of a new store for long
                        os.setpriority(os.PRIO_PROCESS, 0, max(10, os.getpriority(os.PRIO_PROCESS, 0)))
                uploader.send_new()
                if uploader.ended or not alive:
                    uploader.send_new()  # what was written between our reading and its death
                    # Killed: MLflow would show it RUNNING for ever.
                    if uploader.is_training and not uploader.ended and not uploader.is_late:
                        uploader.client.set_terminated(uploader.run_id, "KILLED")
                    break
            except RunIsBusy:
                return f"another process is sending the run of {relative(folder)}"
            except Exception as error:  # whatever the store's trouble is, the journal stays and the training goes on
                problem = explain(error)
                print(sentence(problem), flush=True)
                write_json(journal.answer_file(folder), {**(uploader.ids() if uploader else {}), **problem})
                if uploader:
                    uploader.claims.close()
                uploader = None
                if not alive or journal.is_complete(folder):
                    return sentence(problem)
                time.sleep(3)
            time.sleep(0.1)
        uploader.claims.close()
        if not journal.has_writer(folder):  # nobody is left to read the answer
            journal.answer_file(folder).unlink(missing_ok=True)
        shutil.rmtree(folder)
        return ""


def sync() -> list[str]:
    """Send every journal that nobody writes any more, oldest first; returns why each of the others could not be
    sent."""
    waiting = [path for path in sorted(journal.JOURNALS.glob("*")) if is_waiting(path)]
    for path in journal.JOURNALS.glob("*.json"):  # answers that nobody is left to read
        if not path.with_suffix("").exists() and time.time() - path.stat().st_mtime > 60:
            path.unlink(missing_ok=True)
    if not waiting:
        return []
    try:
        client = open_client()
    except Exception as error:
        return [sentence(explain(error))] * len(waiting)
    return [problem for folder in waiting if (problem := follow(folder, False, client))]


def is_waiting(folder: Path) -> bool:
    """Whether `folder` is a journal that nobody writes any more; one without its file is just being made."""
    return (folder / "journal.jsonl").exists() and not journal.is_written(folder)


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "follow":
        folder = Path(arguments[1])
        os.chdir(HOME)  # the copy in which `dvc exp run` trains may be removed before all is sent
        if follow(folder, is_live=True):
            return 1
        sync()  # the store answers: what could not be sent earlier goes now
        return 0
    if arguments == ["sync"]:
        problems = sync()
        for problem in dict.fromkeys(problems):
            print(problem)
        kept = f"{len(problems)} journals are kept in {relative(journal.JOURNALS)}" if problems else "up to date"
        print(f"MLflow at {shown(tracking_uri())}: {kept}")
        return 1 if problems else 0
    if arguments == ["open"]:
        try:
            open_client()
            return 0
        except Exception as error:
            print(sentence(explain(error)), file=sys.stderr)
            return 1
    print("usage: python -m stages.records.uploader sync", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
