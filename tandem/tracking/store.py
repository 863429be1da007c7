"""MLflow's tracking store: its address and, for a SQLite file, its condition. Imports neither mlflow nor torch.

The store is the one that `MLFLOW_TRACKING_URI` names; otherwise the SQLite file `mlruns/mlflow.db` with artifacts in
`mlruns/artifacts`.
"""

import json
import os
import re
import shlex
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlencode

from tandem.files import MLRUNS, relative
from tandem.terminal.messages import without_password

# Without this, MLflow opens its pages for language-model applications, whatever the experiment's tag is.
FOR_TRAINING = "workflowType=machine_learning"
# Tables into which MLflow itself writes rows in a new store.
BOOKKEEPING = {"alembic_version", "experiments", "experiment_tags", "workspaces"}
# Columns into which MLflow writes absolute locations.
LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def tracking_uri() -> str:
    """Return MLFLOW_TRACKING_URI, otherwise an absolute URI: a relative one would depend on the working directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{MLRUNS}/mlflow.db"


def database_file(uri: str) -> Path | None:
    """Return the SQLite file that `uri` names; None if the store is a server or in memory."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    return Path(match[1]).absolute() if match and match[1] != ":memory:" else None


def run_page(server: str, experiment_id: str, run_id: str) -> str:
    return f"{experiment_page(server, experiment_id)}/{run_id}?{FOR_TRAINING}"


def compare_page(server: str, experiment_id: str, run_ids: Sequence[str]) -> str:
    query = urlencode({"runs": json.dumps(run_ids), "experiments": json.dumps([experiment_id])})
    return f"{without_password(server).rstrip('/')}/#/compare-runs?{query}&{FOR_TRAINING}"


def experiment_page(server: str, experiment_id: str) -> str:
    return f"{without_password(server).rstrip('/')}/#/experiments/{experiment_id}/runs"


def shown_uri(uri: str) -> str:
    """Return `uri` for messages: a path, or an address without its password."""
    path = database_file(uri)
    return relative(path) if path else without_password(uri)


@dataclass(frozen=True)
class Condition:
    """`message` describes the file; `fix` is the command that repairs it, empty if nothing is wrong."""

    kind: Literal["absent", "whole", "locked", "unreadable", "damaged", "older", "newer", "unfinished", "foreign"]
    message: str
    fix: str = ""
    is_empty: bool = False  # it contains no recorded data


def inspect(path: Path, thorough: bool = False, timeout_seconds: float = 2.0) -> Condition:
    """Return the condition of the SQLite file at `path` as a store of the installed MLflow. `thorough` reads all of it.

    "unfinished": the process that created or upgraded the schema was killed. MLflow can neither open nor upgrade such a
    file.
    """
    name = relative(path)
    file = shlex.quote(name)
    move_command = f"mv {file} {file}.old"
    if not path.exists():
        return Condition("absent", f"no {name} yet")
    try:
        # Not read-only: SQLite must be able to roll back a transaction that a killed process left half-written.
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=timeout_seconds)) as database:
            if thorough and (problem := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(problem)
            tables = {table for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:
                return Condition("absent", f"no tables in {name} yet", is_empty=True)
            has_version = "alembic_version" in tables
            row = database.execute("SELECT version_num FROM alembic_version").fetchone() if has_version else None
            leftovers = {table for table in tables if table.startswith("_alembic_tmp_")}
            # A leftover may be the only copy: a migration fills it, drops the original table, and renames the leftover.
            records = {table for table in tables if table.removeprefix("_alembic_tmp_") not in BOOKKEEPING}
            is_empty = not any(database.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone() for table in records)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Condition("locked", f"{name} is locked by another process", f"fuser {file}")
        if code.startswith(("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_READONLY", "SQLITE_IOERR")):
            return Condition("unreadable", f"{name} cannot be opened: {error}", f"ls -ld {file} {file}*")
        recover = f"{move_command} (a new history starts; sqlite3 {file}.old .recover prints what is readable)"
        return Condition("damaged", f"{name} is damaged: {error}", recover)
    version, (latest, known_versions) = row[0] if row else "", schema_versions()
    if version and (version == latest or not latest):
        return Condition("whole", f"{name} is intact, schema {version}")
    differs = f"{name} has schema {version}, the installed MLflow needs {latest}"
    if version and version not in known_versions:
        update = f"git pull && make -B setup (a newer MLflow wrote it), or start a new history: {move_command}"
        return Condition("newer", differs, update)
    if not (version or leftovers or "experiments" in tables):
        return Condition("foreign", f"{name} is a database, but not MLflow's", "unset MLFLOW_TRACKING_URI")
    if is_empty:
        return Condition("unfinished", f"{name} has an incomplete schema and no records", move_command, is_empty=True)
    if leftovers or not version:
        backup = f"{move_command} (a new history starts; or copy a backup to {file})"
        return Condition("unfinished", f"{name} has an incomplete schema, after an interrupted change", backup)
    upgrade = f"mlflow db upgrade sqlite:///{file}.new && mv {file}.new {file}"  # atomic
    return Condition("older", differs, f"cp {file} {file}.old && cp {file} {file}.new && {upgrade}")


def schema_versions() -> tuple[str, set[str]]:
    """Return the schema version of the installed MLflow and all versions that it knows.

    They are read from its migration files, because importing mlflow takes 1.6 s.
    """
    spec = find_spec("mlflow")
    folder = Path(spec.origin).parent / "store/db_migrations/versions" if spec and spec.origin else None
    text = "\n".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py")) if folder else ""
    versions = set(re.findall(r"^revision = [\"'](\w+)", text, re.MULTILINE))
    latest = versions - set(re.findall(r"^down_revision = [\"'](\w+)", text, re.MULTILINE))
    return latest.pop() if len(latest) == 1 else "", versions


def update_artifact_locations(timeout_seconds: float) -> str:
    """Make the artifact locations in this project's own store point to this project. Returns a message if they changed.

    MLflow writes absolute locations into its experiments, runs and models. After a project is copied, moved or restored
    from a backup, they point to the old place. If the store is still locked after `timeout_seconds`, nothing changes.
    """
    path, num_runs = MLRUNS / "mlflow.db", 0
    if database_file(tracking_uri()) != path or not path.exists():
        return ""
    # Locations that a user has chosen do not end like this.
    query = "SELECT artifact_location FROM experiments WHERE artifact_location LIKE '%/mlruns/artifacts/' || name"
    try:
        # The second `database` is one transaction.
        with closing(sqlite3.connect(path, timeout=timeout_seconds)) as database, database:
            former = {location.rpartition("/artifacts/")[0] for (location,) in database.execute(query)}
            for root in former - {MLRUNS.as_uri()}:
                for table, column in LOCATIONS:
                    update = f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1)"
                    where = f"WHERE substr({column}, 1, length(:old) + 1) = :old || '/'"
                    cursor = database.execute(f"{update} {where}", {"old": root, "new": MLRUNS.as_uri()})
                    num_runs += cursor.rowcount if table == "runs" else 0
    except sqlite3.Error:  # no table, locked or damaged: opening the store reports it
        return ""
    if not num_runs:
        return ""
    old_places = " and ".join(unquote(root.removeprefix("file://")) for root in sorted(former - {MLRUNS.as_uri()}))
    change = f"the artifact locations of its {num_runs} runs now point to this project"
    return f"{relative(path)} was copied or moved from {old_places}; {change}"
