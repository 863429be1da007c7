"""MLflow's server and store fail, publishers are killed, projects are copied: nothing is lost, nothing there twice."""

import hashlib
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
import pytest

from benchmarks.sandbox import free_port
from tests.projects import (
    TINY,
    at_once,
    copy_of,
    held,
    python,
    recorded_runs,
    run,
    run_path,
    shell,
    stage,
    start_training,
    tandem,
    unpublished,
    wait_for,
    wait_until_published,
)
from tests.recording import (
    EPOCHS,
    LONG,
    client_of,
    record,
    runs_of,
    server_of,
    statuses,
    table_of,
)
from tests.served import processes
from tests.servers import answers

mlflow = pytest.importorskip("mlflow")

# Writes one run after another, and publishes each by a process that is killed before the last of so many calls: before
# the first, the second, ... until it has made them all. Prints how many were killed.
KILLED_BEFORE_EACH_CALL = f"""
{EPOCHS}
import os, shutil, signal
from mlflow import MlflowClient
from tandem.files import write_json
from tandem.tracking import run_dir
from tandem.tracking.publisher import Publication
from tandem.tracking.connection import open_client

run_dir.start_publisher = lambda: None  # nobody else publishes
CALLS = (
    "create_run", "update_run", "set_tag", "log_batch", "log_inputs", "log_artifacts", "create_logged_model",
    "log_model_artifacts", "finalize_logged_model", "log_outputs", "set_terminated", "create_registered_model",
    "create_model_version", "set_logged_model_tags", "set_registered_model_alias",
)

def write(name):
    run = run_dir.RunDir(run_dir.RUNS / name)
    (run.folder / "artifacts/model").mkdir(parents=True)
    (run.folder / "writer").touch()
    for file in ("MLmodel", "model.json"):
        (run.folder / "artifacts/model" / file).write_text("x: 1")
    dataset = {{"name": "d", "digest": "1", "source_type": "local", "source": "{{}}"}}
    above = {{"run_key": "all", "name": "above"}}
    run.write_info("tiny", name, {{"b": "2"}}, params={{"a": 1}}, dataset=dataset, parent=above)
    run.save_epochs(epochs(340))
    run.add_metrics({{"test/accuracy": 0.5}})
    run.add_model(0.5, {{"train": "x"}}, "")
    write_json(run.folder / "train.end.json", {{**run.stage_end, "status": "FINISHED", "ms": run_dir.now_ms()}})
    return run.folder

def kill_before(call):
    calls_left = [call]
    def counted(made):
        def make(*arguments, **options):
            calls_left[0] -= 1
            if not calls_left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return made(*arguments, **options)
        return make
    for name in CALLS:
        setattr(MlflowClient, name, counted(getattr(MlflowClient, name)))
    shutil.copyfileobj = counted(shutil.copyfileobj)  # between two files of the artifacts

call, status = 0, 9
while status == 9:
    call += 1
    folder = write(f"{{call:02}}")
    if not (child := os.fork()):
        kill_before(call)
        Publication(folder, open_client()).publish()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
print("killed", call - 1, "status", status)
"""


@pytest.mark.long
@pytest.mark.case(35)
def test_a_publisher_killed_before_any_of_its_calls_leaves_nothing_out_and_nothing_twice(
    ready: Path, saw: Callable[[str], None]
):
    """kill -9 of the publisher before each of its calls to MLflow, one run a call; then one sync."""
    words = python(ready, KILLED_BEFORE_EACH_CALL).stdout.split()
    num_killed = int(words[words.index("killed") + 1])
    assert words[-1] == "0" and num_killed > 5
    synced = tandem(ready, "sync").stdout
    saw(f"{num_killed} times killed; {synced}")
    client = client_of(ready)
    runs = {entry.info.run_name: entry for entry in runs_of(client)}
    assert set(runs) == {f"{call:02}" for call in range(1, num_killed + 2)} | {"above"}
    assert len(runs_of(client)) == len(runs)
    assert {entry.info.status for entry in runs.values()} == {"FINISHED"}
    above = runs.pop("above")
    for entry in runs.values():
        run_id = entry.info.run_id
        for name, scale in (("train/loss", 1), ("val/loss", 2)):
            points = [(point.step, point.value) for point in client.get_metric_history(run_id, name)]
            expected = [(epoch, scale / epoch) for epoch in range(1, 341)]
            assert sorted(points) == expected, (entry.info.run_name, name)
        assert len(client.get_metric_history(run_id, "test/accuracy")) == 1
        assert entry.data.params == {"a": "1"} and entry.data.tags["b"] == "2"
        assert entry.data.tags["mlflow.parentRunId"] == above.info.run_id
        assert len(entry.inputs.dataset_inputs) == 1
        assert {file.path for file in client.list_artifacts(run_id, "model")} == {"model/MLmodel", "model/model.json"}
        models = client.search_logged_models([entry.info.experiment_id], f"source_run_id = '{run_id}'")
        assert [str(model.status) for model in models] == ["READY"]
        assert [model.model_id for model in entry.outputs.model_outputs] == [models[0].model_id]
        assert [metric.value for metric in models[0].metrics if metric.key == "test/accuracy"] == [0.5]
        assert "tandem-tiny" in models[0].tags["mlflow.modelVersions"]
        assert len(list((Path(models[0].artifact_location.removeprefix("file://"))).iterdir())) == 2
    versions = client.search_model_versions("name='tandem-tiny'")
    assert sorted(version.run_id for version in versions) == sorted(entry.info.run_id for entry in runs.values())
    assert client.get_model_version_by_alias("tandem-tiny", "best").run_id in {version.run_id for version in versions}
    assert not unpublished(ready)


# A small run whose publisher is killed at once.
KILLED_PUBLISHER = f"""
{EPOCHS}
from tandem.tracking import run_dir
from tandem.tracking.publisher import Publication
run_dir.start_publisher()
with run_dir.open_run_dir("key", "train") as run:
    run.write_info("tiny", "one", params={{"a": 1}})
    run_dir.publishers[0].kill()
    run_dir.publishers[0].wait()
    run.save_epochs(epochs(2))
print(len(run_dir.publishers), "publishers")
"""


@pytest.mark.case(35)
def test_a_killed_publisher_is_started_again(ready: Path, saw: Callable[[str], None]):
    """kill -9 of the publisher while it starts."""
    assert "2 publishers" in python(ready, KILLED_PUBLISHER).stdout
    wait_until_published(ready)
    [entry] = recorded_runs(ready, "tiny")
    assert entry["status"] == "FINISHED" and entry["metrics"]["train/loss"] == 0.5
    saw("nothing: the training starts another publisher")


@pytest.mark.case(35)
def test_a_damaged_run_directory_is_named_and_does_not_stop_the_others(ready: Path, saw: Callable[[str], None]):
    """run.json is overwritten while the server is away; then sync."""
    record(ready, "damaged", "whole", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    (ready / ".tandem/runs/damaged/run.json").write_bytes(bytes(40))
    refused = tandem(ready, "sync", check=False)
    message = refused.stdout.splitlines()[0]
    saw(message)
    assert refused.returncode == 1 and message.startswith(".tandem/runs/damaged/run.json is damaged (")
    assert statuses(ready) == {"whole": "FINISHED"}
    shell(ready, message.split("`")[1])
    assert "up to date" in tandem(ready, "sync").stdout


@pytest.mark.long
@pytest.mark.case(35)
def test_two_processes_that_publish_the_same_runs_publish_each_once(ready: Path, saw: Callable[[str], None]):
    """Six runs wait for their server; then sync, three times at once."""
    write = "for number in range(6):\n    with run_dir.open_run_dir(str(number), 'train') as run:\n"
    write += "        run.write_info('tiny', str(number), params={'a': 1})\n        run.save_epochs(epochs(3))\n"
    offline = f"{EPOCHS}\nfrom tandem.tracking import run_dir\nrun_dir.start_publisher = lambda: None\n"
    python(ready, f"{offline}run_dir.WAIT_SECONDS = 0\n{write}")
    at_once(lambda _: tandem(ready, "sync"), range(3))
    assert statuses(ready) == {str(number): "FINISHED" for number in range(6)} and len(runs_of(client_of(ready))) == 6
    assert not unpublished(ready)
    saw("nothing: one waits for the other")


@pytest.mark.long
@pytest.mark.case(30)
def test_a_run_that_the_machines_restart_ended_is_killed_and_goes_on_when_its_training_does(
    prepared: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """kill -9 of the trainer before its first epoch has ended; of trainer and publisher in the middle."""
    project = copy_of(prepared, tmp_path / "restarted", TINY.replace(*LONG))
    training = start_training(project, **held(tmp_path / "held first", 1))
    try:
        [first] = wait_for(lambda: recorded_runs(project, "tiny"), what="the run in MLflow")
        assert not list((project / ".tandem/checkpoints").rglob("*.previous.pt"))
    finally:
        training.kill()
        training.communicate()
    wait_until_published(project)
    training = start_training(project, **held(tmp_path / "held", 6))
    pids = [training.pid]
    try:
        wait_for(lambda: recorded_runs(project, "tiny")[0]["status"] == "RUNNING", what="the run in MLflow, again")
        pids += [publisher.pid for publisher in processes(project, "tandem.tracking.publisher")]
        assert len(pids) == 2
        wait_for(lambda: list((project / ".tandem/checkpoints").rglob("*.previous.pt")), what="a checkpoint")
    finally:
        for pid in reversed(pids):  # the publisher first, or it would notice
            os.kill(pid, signal.SIGKILL)
        training.communicate()
    [folder] = unpublished(project)
    [entry] = recorded_runs(project, "tiny")
    assert (entry["id"], entry["status"]) == (first["id"], "RUNNING"), "a second run, though nothing was trained before"
    never_again = tmp_path / "never_again"
    shutil.copytree(project, never_again)
    saw(tandem(never_again, "sync").stdout)
    assert [entry["status"] for entry in recorded_runs(never_again, "tiny")] == ["KILLED"]
    assert [entry["status"] for entry in recorded_runs(project, "tiny")] == ["RUNNING"], "the copy's is another history"
    done = stage(project, "train", "tiny", "cpu", "0")
    assert "resuming from .tandem/checkpoints/tiny/" in done.stdout
    saw(next(line for line in done.stdout.splitlines() if line.startswith("resuming from")))
    wait_until_published(project)
    [finished] = recorded_runs(project, "tiny")
    assert (finished["id"], finished["status"]) == (entry["id"], "FINISHED")
    seconds = client_of(project).get_metric_history(entry["id"], "time/epoch_seconds")
    timings = table_of(project / run_path("timings.csv"))
    assert [point.value for point in seconds] == timings["epoch_seconds"] and len(seconds) == 20


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.long
@pytest.mark.case(35)
def test_a_copied_project_keeps_to_itself(trained: Path, tmp_path: Path, saw: Callable[[str], None]):
    """cp -r of a trained project, mv of the copy, a training there: the first one is as it was."""
    before = digests(trained)
    copied = tmp_path / "first copy" / "project"
    shutil.copytree(trained, copied, symlinks=True)
    project = copied.rename(tmp_path / "a project")
    run(project, "sed", "-i", "s/epochs: 3/epochs: 2/", "params.yaml")
    first = stage(project, "train", "tiny", "cpu", "0").stdout
    second = stage(project, "evaluate", "tiny", "cpu").stdout
    wait_until_published(project)
    assert digests(trained) == before
    warning = f"mlruns/mlflow.db was copied or moved from {trained}/mlruns"
    assert warning in first and "copied or moved" not in second
    saw(next(line for line in first.splitlines() if warning in line))
    client = client_of(project)
    entries = runs_of(client)
    assert len(entries) == 2
    root = (project / "mlruns").as_uri()
    for entry in entries:  # the old one and the new one
        assert entry.info.artifact_uri.startswith(f"{root}/artifacts/tiny/")
        assert (Path(unquote(urlsplit(entry.info.artifact_uri).path)) / "model/model.safetensors").is_file()
        [logged] = client.search_logged_models([entry.info.experiment_id], f"source_run_id = '{entry.info.run_id}'")
        assert logged.artifact_location.startswith(root)
    # An experiment that somebody has put elsewhere stays there.
    elsewhere = client.create_experiment("elsewhere", "file:///data/mine/artifacts")
    moved = project.rename(tmp_path / "moved")
    assert "copied or moved from" in run(moved, sys.executable, "-m", "tandem.tracking.publisher", "open").stdout
    assert client_of(moved).get_experiment(elsewhere).artifact_location == "file:///data/mine/artifacts"


@pytest.mark.long
@pytest.mark.case(35, 53)
def test_a_server_that_freezes_or_restarts_in_the_middle_costs_nothing_and_no_password_is_left_anywhere(
    prepared: Path, empty_history: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """A real server with a password in its address: SIGSTOP in the middle; kill -9 and a restart; grep."""
    project = copy_of(prepared, tmp_path / "project", TINY.replace("epochs: 3", "epochs: 6"))
    run(project, "git", "remote", "add", "origin", "https://me:pa55word@example.org/project.git")
    port, printed = free_port(), ""
    (tmp_path / "server").mkdir()
    shutil.copy(empty_history, tmp_path / "server/mlflow.db")
    uri = f"http://me:pa55word@127.0.0.1:{port}"
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/server/mlflow.db")
    num_epochs = lambda entry: client.get_metric_history(entry.info.run_id, "train/loss")  # noqa: E731
    synced = lambda: tandem(project, "sync", MLFLOW_TRACKING_URI=uri, check=False).stdout  # noqa: E731
    with server_of(tmp_path / "server", port) as send:
        for number, fault in enumerate((signal.SIGSTOP, signal.SIGKILL), 1):
            waiting = held(tmp_path / f"held{number}", 3)
            training = start_training(project, MLFLOW_TRACKING_URI=uri, **waiting)
            wait_for(lambda: [entry for entry in runs_of(client) if num_epochs(entry) and is_running(entry)])
            commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
            assert not [words for words in commands if "pa55word" in " ".join(words)], "what `ps` shows"
            send(fault)
            (tmp_path / f"held{number}/go").touch()
            output = training.communicate(timeout=1200)[0]
            assert training.returncode == 0, output
            printed += output
            if fault == signal.SIGSTOP:
                message = wait_for(lambda: "(no answer in time)" in (text := synced()) and text, what="no answer")
                saw(message)
                printed += message
                logs = list((project / ".tandem").rglob("publisher.log"))
                assert logs
                printed += "".join(log.read_text() for log in logs)
                send(signal.SIGCONT)
            wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"), what="the server")
            printed += synced()
            wait_until_published(project)
            assert len(runs_of(client)) == number
        printed += stage(project, "evaluate", "tiny", "cpu", MLFLOW_TRACKING_URI=uri).stdout
        wait_until_published(project)
    for entry in runs_of(client):
        assert entry.info.status == "FINISHED"
        assert [point.step for point in num_epochs(entry)] == [1, 2, 3, 4, 5, 6]
    assert "pa55word" not in printed
    files = [path for folder in (project, tmp_path / "server") for path in folder.rglob("*") if path.is_file()]
    leaks = [path for path in files if b"pa55word" in path.read_bytes()]
    assert leaks == [project / ".git/config"], "where the user wrote it"
    saw(f"no password in {len(files)} files, in what was printed, in any command line")


def is_running(entry: mlflow.entities.Run) -> bool:
    return entry.info.status == "RUNNING"


@pytest.mark.long
@pytest.mark.parametrize("small_disk", [6], indirect=True)
@pytest.mark.parametrize("moment", ["start", "middle"])
@pytest.mark.case(35)
def test_a_store_whose_disk_is_full_is_named_and_gets_everything_later(
    prepared: Path, tmp_path: Path, small_disk: Path, moment: str, saw: Callable[[str], None]
):
    """mlruns on a tmpfs that is full at the start, or from the middle of a training on; room again, sync."""
    project = copy_of(prepared, tmp_path / "project", TINY.replace("epochs: 3", "epochs: 6"))
    shutil.move(project / "mlruns", small_disk / "mlruns")
    (project / "mlruns").symlink_to(small_disk / "mlruns")

    def fill() -> None:
        with (small_disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
            for size in (4096, 1):
                while file.write(bytes(size)):
                    pass

    if moment == "start":
        fill()
    training = start_training(project, **held(tmp_path / "held", 3))
    if moment == "middle":
        wait_for(lambda: steps_of(project))
        fill()
    (tmp_path / "held/go").touch()
    output = training.communicate(timeout=1200)[0]
    assert training.returncode == 0 and "Traceback" not in output, output
    full = "MLflow at mlruns/mlflow.db has a full disk; free some space"
    # The training waits neither for a publisher that has given the run's id before, nor long for a slow machine's.
    saw(wait_for(lambda: full in (text := tandem(project, "sync", check=False).stdout) and text, what=full))
    (small_disk / "filler").unlink()
    tandem(project, "sync")
    [entry] = recorded_runs(project, "tiny")
    assert entry["status"] == "FINISHED" and steps_of(project) == [1, 2, 3, 4, 5, 6]


def steps_of(project: Path) -> list[int]:
    """The epochs that are in the store, each as often as it is there. No client: it would keep the file open."""
    with closing(sqlite3.connect(f"file:{project}/mlruns/mlflow.db?mode=rw", uri=True, timeout=60)) as database:
        return [step for (step,) in database.execute("select step from metrics where key = 'train/loss' order by step")]


@pytest.mark.long
@pytest.mark.case(35)
def test_a_store_that_is_lost_in_the_middle_of_a_training_gets_all_of_it_again(
    prepared: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """mlruns/mlflow.db is moved aside while it trains; the evaluation names the run that the new store has."""
    project = copy_of(prepared, tmp_path / "project", TINY.replace("epochs: 3", "epochs: 6"))
    training = start_training(project, **held(tmp_path / "held", 3))
    [first] = wait_for(lambda: steps_of(project) and recorded_runs(project, "tiny"), what="the run in MLflow")
    (project / "mlruns/mlflow.db").rename(project / "mlruns/mlflow.db.old")
    (tmp_path / "held/go").touch()
    output = training.communicate(timeout=1200)[0]
    assert training.returncode == 0 and "Traceback" not in output, output
    evaluated = stage(project, "evaluate", "tiny", "cpu").stdout.splitlines()[-1]
    wait_until_published(project)
    [entry] = runs_of(client_of(project))
    assert evaluated.endswith(f"MLflow run {entry.info.run_id}") and entry.info.run_id != first["id"]
    assert entry.info.status == "FINISHED" and entry.data.params == first["params"]
    assert steps_of(project) == [1, 2, 3, 4, 5, 6]
    saw("nothing: the new store gets the whole run")


@pytest.mark.long
def test_a_deleted_experiment_is_named_with_the_command_that_restores_it(ready: Path):
    record(ready, "before")
    client = client_of(ready)
    client.delete_experiment(client.get_experiment_by_name("tiny").experiment_id)
    output = record(ready, "after")
    synced = tandem(ready, "sync", check=False)
    assert synced.returncode == 1
    for text in (output, synced.stdout):
        assert "MLflow at mlruns/mlflow.db has the experiment tiny among its deleted ones" in text, text
        assert "mlflow experiments restore --experiment-id" in text
    shell(ready, synced.stdout.splitlines()[0].partition("; run: ")[2])
    assert "up to date" in tandem(ready, "sync").stdout
    assert statuses(ready) == {"before": "FINISHED", "after": "FINISHED"}


def test_a_refused_record_gives_the_reason_of_the_database(ready: Path):
    """SQLAlchemy begins with a hint about autoflush, and MLflow's own error about tags names no reason at all."""

    def in_store(command: str) -> None:
        with closing(sqlite3.connect(ready / "mlruns/mlflow.db")) as database:
            database.execute(command)

    record(ready, "refused", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    for table in ("tags", "params", "metrics"):
        in_store(
            f"CREATE TRIGGER refuse BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'the quota is used up'); END"
        )
        output = tandem(ready, "sync", check=False).stdout
        reason = "MLflow at mlruns/mlflow.db refused the record (MlflowException: the quota is used up)"
        assert output.startswith(reason), (table, output)
        in_store("DROP TRIGGER refuse")
    assert "up to date" in tandem(ready, "sync").stdout
    assert statuses(ready) == {"refused": "FINISHED"}
