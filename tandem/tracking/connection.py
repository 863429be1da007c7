"""Connects to MLflow's store, and explains why a store does not answer.

tandem/tracking/store.py decides which store is used. If it is a SQLite file, this module creates its tables.
"""

import gc
import logging
import os
import shlex
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tandem.files import FULL, MLRUNS, locked
from tandem.terminal.messages import without_password
from tandem.tracking import store, view
from tandem.tracking.store import shown_uri, tracking_uri

# Exceptions, also as causes of others, that mean that no server answered; the most specific first.
UNREACHABLE = {
    "ConnectionRefusedError": " (connection refused)",
    **dict.fromkeys(("Timeout", "TimeoutError", "ReadTimeoutError"), " (no answer in time)"),
    "gaierror": " (unknown host name)",
    "ConnectionError": "",
}
KIND_TAG = "mlflow.experimentKind"
KIND = "custom_model_development"  # training runs, not traces of language models


class DeletedExperiment(Exception):
    """A user has deleted the experiment in MLflow. `fix` is the command that restores it."""

    def __init__(self, name: str, experiment_id: str) -> None:
        uri = tracking_uri()
        super().__init__(f"MLflow at {shown_uri(uri)} has the experiment {name} among its deleted ones")
        path = store.database_file(uri)
        address = shlex.quote(f"sqlite:///{shown_uri(uri)}" if path else shown_uri(uri))
        self.fix = f"MLFLOW_TRACKING_URI={address} mlflow experiments restore --experiment-id {experiment_id}"


def open_client() -> Any:
    """Return an MLflow client whose store answers. Raises MLflow's exceptions and those of `make_schema`."""
    set_environment()
    make_schema_if_local()
    if moved := store.update_artifact_locations(timeout_seconds=20.0):
        print(moved, flush=True)
    return connect(tracking_uri())


def make_schema_if_local() -> None:
    """If the store is a SQLite file, create the file and its tables if they are missing."""
    if path := store.database_file(tracking_uri()):
        path.parent.mkdir(parents=True, exist_ok=True)
        make_schema(path)


def import_mlflow() -> Any:
    """Import mlflow and what opening a store needs. Without `gc.disable`, garbage collection takes a third of 1.9 s."""
    set_environment()
    gc.disable()
    try:
        import mlflow
        import mlflow.store.model_registry.sqlalchemy_store
        import mlflow.store.tracking.sqlalchemy_store
    finally:
        gc.enable()
    return mlflow


def connect(uri: str) -> Any:
    mlflow = import_mlflow()
    logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # MLflow also logs its exceptions, with tracebacks
    client = mlflow.MlflowClient(uri)
    client.search_experiments(max_results=1)
    return client


def set_environment() -> None:
    """Set MLflow's environment variables in this process."""
    # With MLflow's defaults, a dead server is retried for four minutes, and one that never answers for twenty.
    defaults = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "3"}
    switches = ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT")
    for name, value in {**defaults, **dict.fromkeys(switches, "true")}.items():
        os.environ.setdefault(name, value)
    uri = tracking_uri()
    if store.database_file(uri):
        # MLflow opens the file for each request. A connection that it keeps open would go on writing into a file that
        # was removed or moved meanwhile.
        os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https") and parts.username is not None:
        # Separate variables, because MLflow prints the address in exceptions and links.
        os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
        os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
        os.environ["MLFLOW_TRACKING_URI"] = without_password(uri)


def make_schema(path: Path) -> None:
    """Create MLflow's schema in the SQLite file at `path` if it is missing. Raises RuntimeError if that is unsafe.

    If a process is killed during MLflow's migrations, no MLflow can open the file. Therefore the schema is created in a
    temporary file and renamed into place. A lock file beside `path` is held, because projects may share one store. An
    unfinished schema without records is moved aside first.
    """
    if store.inspect(path, timeout_seconds=20.0).kind == "whole":
        return
    with locked(path.with_name(f"{path.name}.lock")):
        condition = store.inspect(path, timeout_seconds=20.0)
        if condition.kind == "whole":
            return
        if condition.kind == "unfinished" and condition.is_empty:
            backup = path.with_name(f"{path.name}.unfinished-{time.strftime('%Y%m%dT%H%M%S')}")
            for source, target in zip(with_journals(path), with_journals(backup), strict=True):
                if source.exists():
                    os.replace(source, target)
        elif condition.kind != "absent":
            raise RuntimeError(condition.message)  # `explain` finds the command that repairs it
        temporary = path.with_name(f"{path.name}.new")
        for leftover in (*with_journals(temporary), *with_journals(path)[1:]):  # left by a process that was killed here
            leftover.unlink(missing_ok=True)
        connect(f"sqlite:///{temporary}")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)


def with_journals(path: Path) -> list[Path]:
    """Return `path` and SQLite's journal files: SQLite would apply a leftover journal to a new `path`."""
    return [path, *(path.with_name(path.name + suffix) for suffix in ("-journal", "-wal", "-shm"))]


def find_or_create_experiment(client: Any, name: str) -> str:
    """Return the id of the experiment. Raises DeletedExperiment: MLflow does not give the name to another one."""
    from mlflow.exceptions import MlflowException

    if experiment := client.get_experiment_by_name(name):
        if experiment.lifecycle_stage == "deleted":
            raise DeletedExperiment(name, experiment.experiment_id)
        return str(experiment.experiment_id)
    # By default a SQLite store puts artifacts under the working directory. A server has its own location.
    location = f"{MLRUNS.as_uri()}/artifacts/{name}" if tracking_uri().startswith("sqlite:") else None
    try:
        tags = {KIND_TAG: KIND, view.VIEW_TAG: view.saved_view()}
        return str(client.create_experiment(name, location, tags))
    except MlflowException:
        if experiment := client.get_experiment_by_name(name):  # another run has created it meanwhile
            return str(experiment.experiment_id)
        raise


def explain(error: Exception, refused: str = "refused the record") -> dict[str, str]:
    """Return the error (`error`, a clause without a password) and the command that fixes it (`fix`, may be empty).

    `refused`: the operation that failed if the store was reached.
    """
    if type(error) is ValueError:  # a damaged file of this project, which the message names
        return {"error": str(error), "fix": ""}
    if isinstance(error, DeletedExperiment):
        return {"error": str(error), "fix": error.fix}
    uri = tracking_uri()
    if (path := store.database_file(uri)) and (condition := store.inspect(path)).fix:
        return {"error": condition.message, "fix": condition.fix}
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    names = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    if any(getattr(cause, "errno", None) in FULL or "disk is full" in str(cause) for cause in causes):
        reason = "has a full disk; free some space"
    elif clauses := [clause for name, clause in UNREACHABLE.items() if name in names]:
        reason = f"could not be reached{clauses[0]}"
    else:
        # The database's own error, if the store is one: MLflow may raise another one that does not name the reason.
        of_database = [str(original) for cause in causes if (original := getattr(cause, "orig", None))]
        text = of_database[-1] if of_database else str(error)
        reason = f"{refused} ({type(error).__name__}: {reason_in(text).replace(uri, shown_uri(uri))[:300]})"
    return {"error": f"MLflow at {shown_uri(uri)} {reason}", "fix": ""}


def reason_in(text: str) -> str:
    """Return the first line of an error's text that gives the reason. SQLAlchemy, also that of a server, writes a hint
    before it and the statement after it.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith(("(raised as a result", "[SQL:"))), "no reason given")


def sentence(problem: dict[str, str]) -> str:
    return problem["error"] + (f"; run: {problem['fix']}" if problem["fix"] else "")
