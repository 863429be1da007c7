"""MLflow's store, a SQLite file: made by many at once, killed in, old, slow, locked, damaged; and where it is."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.tracking import store
from tests.projects import TINY, at_once, make_project, python, run, shell, start, unpublished, wait_until_published
from tests.recording import RECORD, record, said_of_tracking, statuses

mlflow = pytest.importorskip("mlflow")


def killed_at(path: Path, num_bytes: int, folder: Path) -> Path:
    """For PYTHONPATH: a process ends by SIGKILL once `path` has grown to so many bytes, however quick it is."""
    (folder / "sitecustomize.py").write_text(f"""
import os, signal, threading, time

def watch():
    while not os.path.exists({str(path)!r}) or os.path.getsize({str(path)!r}) < {num_bytes}:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=watch, daemon=True).start()
""")
    return folder


@pytest.mark.long
@pytest.mark.case(43)
def test_a_kill_while_the_schema_is_made_leaves_a_store_that_opens(project: Path, saw: Callable[[str], None]):
    """kill -9 at three moments of making a fresh store's tables."""
    new = project / "mlruns/mlflow.db.new"
    saw("nothing: the next one makes the tables, and sends the record")
    for num_bytes in (1, 200_000, 500_000):
        new.unlink(missing_ok=True)
        command = (sys.executable, "-m", "tandem.tracking.publisher", "open")
        making = start(project, *command, PYTHONPATH=str(killed_at(new, num_bytes, project)))
        output = making.communicate()[0]
        assert making.returncode == -signal.SIGKILL, output
        assert new.stat().st_size >= num_bytes
    assert '"run_id"' in record(project, "after")
    wait_until_published(project)
    assert statuses(project) == {"after": "FINISHED"}
    names = {entry.name for entry in (project / "mlruns").iterdir()} - {"README.md", "artifacts"}
    assert names == {"mlflow.db", "mlflow.db.lock"}


@pytest.mark.parametrize(("num_projects", "of_each"), [(2, 1), pytest.param(8, 2, marks=pytest.mark.long)])
@pytest.mark.case(43)
def test_projects_open_one_fresh_store_at_once(
    tmp_path: Path, num_projects: int, of_each: int, saw: Callable[[str], None]
):
    """Two projects, and two processes of each of eight, open one SQLite file that is not there yet."""
    projects = [make_project(tmp_path / str(number), TINY) for number in range(num_projects)]
    shared = f"sqlite:///{tmp_path}/shared/mlflow.db"
    code = (
        "from tandem.tracking.connection import open_client, find_or_create_experiment as f; f(open_client(), 'same')"
    )
    at_once(lambda project: python(project, code, MLFLOW_TRACKING_URI=shared), projects * of_each)
    saw("nothing: one of them makes the tables, the others wait")
    client = mlflow.MlflowClient(shared)
    assert sorted(experiment.name for experiment in client.search_experiments()) == ["Default", "same"]


def migrate_part_way(path: Path, revisions: int) -> None:
    """Make the schema as MLflow does, but stop before its last `revisions` migrations."""
    from alembic import command
    from alembic.script import ScriptDirectory
    from mlflow.store.db.utils import _get_alembic_config
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    config = _get_alembic_config(str(engine.url))
    config.attributes["connection"] = engine
    newest_first = list(ScriptDirectory.from_config(config).walk_revisions())
    command.upgrade(config, newest_first[revisions].revision)
    engine.dispose()


@pytest.mark.long
@pytest.mark.case(37)
def test_an_older_store_is_kept_and_the_given_command_upgrades_it(project: Path, saw: Callable[[str], None]):
    """A store three versions old, then the command that the sentence gives; half upgraded; of the future."""
    path = project / "mlruns/mlflow.db"
    migrate_part_way(path, 3)
    with sqlite3.connect(path) as database:
        database.execute(
            "INSERT INTO experiments (experiment_id, name, lifecycle_stage) VALUES (0, 'Default', 'active')"
        )
        database.execute("INSERT INTO runs (run_uuid, experiment_id, lifecycle_stage) VALUES ('old', 0, 'active')")
    database.close()
    before = path.read_bytes()
    output = record(project, "new")
    assert "mlruns/mlflow.db has schema" in output and "could not be reached" not in output
    assert path.read_bytes() == before
    saw(said_of_tracking(output))
    fix, next_command = re.search(r"run: (.*); then: (.*)", output).groups()
    shell(project, fix)
    assert "up to date" in shell(project, next_command.replace("python", sys.executable)).stdout
    assert statuses(project) == {"new": "FINISHED"}
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM runs WHERE run_uuid = 'old'").fetchone() == (1,)
        # What a kill in the middle of an upgrade leaves: there are records, so it stays where it is.
        database.execute("CREATE TABLE _alembic_tmp_experiments (experiment_id INTEGER)")
        [(version,)] = database.execute("SELECT version_num FROM alembic_version")
        before_it = sorted(store.schema_versions()[1] - {version})[0]
        database.execute("UPDATE alembic_version SET version_num = ?", (before_it,))
    database.close()
    state = store.inspect(path)
    assert (state.kind, state.is_empty) == ("unfinished", False) and state.fix.startswith("mv ")
    saw(f"{state.message}; run: {state.fix}")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = 'of the future'")
    database.close()
    state = store.inspect(path)
    assert state.kind == "newer"
    saw(f"{state.message}; run: {state.fix}")


@pytest.mark.case(37)
def test_a_slow_store_is_not_called_unreachable(ready: Path, tmp_path: Path, saw: Callable[[str], None]):
    """MLflow is not there yet when the training ends."""
    go_on = tmp_path / "go_on"
    (tmp_path / "sitecustomize.py").write_text(f"""
import pathlib, sys, time

class SlowImport:
    def find_spec(self, name, path=None, target=None):
        while name == "mlflow" and not pathlib.Path({str(go_on)!r}).exists():
            time.sleep(0.05)

if "tandem.tracking.publisher" in sys.orig_argv:
    sys.meta_path.insert(0, SlowImport())
""")
    output = record(ready, "slow", wait_seconds=0.5, PYTHONPATH=str(tmp_path))
    saw(said_of_tracking(output))
    assert "still starting" in output and "in the background" in output and "could not be reached" not in output
    assert len(unpublished(ready)) == 1
    go_on.touch()
    wait_until_published(ready)
    assert statuses(ready) == {"slow": "FINISHED"}


def test_without_mlflow_the_record_is_kept_and_no_publisher_starts(project: Path, tmp_path: Path):
    """An environment with all packages of this one except MLflow's, as `make gpu` may have it."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(mlflow.__file__).parents[1].iterdir():
        if not path.name.startswith("mlflow"):
            (packages / path.name).symlink_to(path)
    command = (sys.executable, "-S", "-c", RECORD, "120", "kept")
    output = run(project, *command, PYTHONPATH=f"{packages}{os.pathsep}{project}").stdout
    assert "tracking: MLflow is not installed; the record is kept in .tandem/runs/kept; run: pip install" in output
    assert "publisher" not in output and not (project / ".tandem/runs/publisher.log").exists()
    assert (project / ".tandem/runs/kept/artifacts/history.csv").exists()


@pytest.mark.case(37)
def test_a_damaged_store_is_named_and_the_given_command_mends_it(project: Path, saw: Callable[[str], None]):
    """mlruns/mlflow.db is overwritten with text; then the command that the sentence gives."""
    path = project / "mlruns/mlflow.db"
    path.write_text("no database at all " * 99)
    output = record(project, "kept")
    assert "mlruns/mlflow.db is damaged: file is not a database" in output and "could not be reached" not in output
    saw(said_of_tracking(output))
    assert path.read_text().startswith("no database")
    fix, next_command = re.search(r"run: (mv \S+ \S+) .*; then: (.*)", output).groups()
    result = shell(project, next_command.replace("python", sys.executable), check=False)
    assert result.returncode == 1 and fix in result.stdout
    shell(project, f"{fix}; {next_command.replace('python', sys.executable)}")
    assert statuses(project) == {"kept": "FINISHED"}


@pytest.mark.case(37)
def test_a_store_that_another_process_locks_is_called_locked(
    empty_history: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """A second process holds SQLite's exclusive lock."""
    path = Path(shutil.copy(empty_history, tmp_path / "mlflow.db"))
    hold = "import sqlite3, sys; database = sqlite3.connect(sys.argv[1]); database.execute('BEGIN EXCLUSIVE')"
    command = [sys.executable, "-c", f"{hold}; print('held', flush=True); sys.stdin.read()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        state = store.inspect(path, timeout_seconds=0.1)
        holder.communicate("")
    assert (state.kind, state.fix) == ("locked", f"fuser {path}")
    assert store.inspect(path).kind == "whole"
    saw(f"{state.message}; run: {state.fix}")
