"""MLflow's server and store fail, uploaders are killed, projects are copied: nothing is lost, nothing there twice."""

import hashlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
import pytest

from tests.conftest import TINY, copy_of, held, recorded_runs, run, settle, stage, wait_for
from tests.test_tracking import LONG, client_of, runs_of, start_training, table_of

mlflow = pytest.importorskip("mlflow")

SYNC = (sys.executable, "-m", "stages.records.uploader", "sync")

# Writes one journal after another, and sends each by a process that is killed before the last of so many calls: before
# the first, the second, ... until it has made them all. Prints how many were killed.
KILLED_BEFORE_EACH_CALL = """
import os, shutil, signal
from mlflow import MlflowClient
from stages.records import journal, uploader

CALLS = (
    "create_run", "update_run", "set_tag", "log_batch", "log_inputs", "log_artifacts", "create_logged_model",
    "log_model_artifacts", "finalize_logged_model", "log_outputs", "set_terminated",
)

def write(name):
    written = journal.Journal(journal.JOURNALS / name, None, None)
    (written.folder / "artifacts/model").mkdir(parents=True)
    for file in ("MLmodel", "model.json"):
        (written.folder / "artifacts/model" / file).write_text("x: 1")
    dataset = {"name": "d", "digest": "1", "source_type": "local", "source": "{}"}
    written.run(name, "tiny", name, {"a": 1}, {"b": "2"}, dataset, {"token": "all", "name": "above"})
    written.hold()
    for epoch in range(1, 341):
        written.metrics({"train/loss": 1 / epoch, "val/loss": 2 / epoch, "time/epoch_seconds": 3.0}, step=epoch)
    written.saved()
    written.metrics({"test/accuracy": 0.5})
    written.write("end", status="FINISHED")
    return written.folder

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
    folder = write(f"{call:02}")
    if not (child := os.fork()):
        kill_before(call)
        uploader.follow(folder, False)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
print("killed", call - 1, "status", status)
"""


@pytest.mark.long
@pytest.mark.case(35)
def test_an_uploader_killed_before_any_of_its_calls_leaves_nothing_out_and_nothing_twice(
    ready: Path, saw: Callable[[str], None]
):
    """kill -9 of the uploader before each of its calls to MLflow, one journal a call; then one sync."""
    said = run(ready, sys.executable, "-c", KILLED_BEFORE_EACH_CALL).stdout.split()
    num_killed = int(said[said.index("killed") + 1])
    assert said[-1] == "0" and num_killed > 10
    synced = run(ready, *SYNC).stdout
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
            assert sorted(points) == [(epoch, scale / epoch) for epoch in range(1, 341)], (entry.info.run_name, name)
        assert len(client.get_metric_history(run_id, "test/accuracy")) == 1
        assert entry.data.params == {"a": "1"} and entry.data.tags["b"] == "2"
        assert entry.data.tags["mlflow.parentRunId"] == above.info.run_id
        assert len(entry.inputs.dataset_inputs) == 1
        assert {file.path for file in client.list_artifacts(run_id, "model")} == {"model/MLmodel", "model/model.json"}
        models = client.search_logged_models([entry.info.experiment_id], f"source_run_id = '{run_id}'")
        assert [str(model.status) for model in models] == ["READY"]
        assert [model.model_id for model in entry.outputs.model_outputs] == [models[0].model_id]
        assert len(list((Path(models[0].artifact_location.removeprefix("file://"))).iterdir())) == 2
    assert not list((ready / ".tandem/journals").iterdir())


@pytest.mark.case(30)
def test_a_run_that_the_machines_restart_ended_is_killed_and_goes_on_when_its_training_does(
    prepared: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """kill -9 of trainer and uploader in the middle; another process has the trainer's number afterwards."""
    project = copy_of(prepared, tmp_path / "restarted", TINY.replace(*LONG))
    training = start_training(project, **held(tmp_path / "held", 5))
    both = [training.pid]
    try:
        wait_for(lambda: recorded_runs(project, "tiny"), what="the run in MLflow")
        both += [child.pid for child in psutil.Process(training.pid).children()]
        assert len(both) == 2
        assert training.stdout
        wait_for(lambda: training.stdout.readline().startswith("epoch 2/"), what="a checkpoint")
    finally:
        for process in reversed(both):  # the uploader first, or it would notice
            os.kill(process, signal.SIGKILL)
        training.communicate()
    [folder] = [path for path in (project / ".tandem/journals").iterdir() if path.is_dir()]
    (folder / "writer").write_text(str(os.getpid()))  # of a process that has nothing to do with it
    [entry] = recorded_runs(project, "tiny")
    assert entry["status"] == "RUNNING"
    never_again = tmp_path / "never_again"
    shutil.copytree(project, never_again)
    saw(run(never_again, *SYNC).stdout)
    assert [found["status"] for found in recorded_runs(never_again, "tiny")] == ["KILLED"]
    assert [found["status"] for found in recorded_runs(project, "tiny")] == ["RUNNING"], "the copy's is another history"
    done = stage(project, "train", "tiny", "cpu", "0")
    assert "going on from .tandem/checkpoints/tiny/" in done.stdout
    settle(project)
    [finished] = recorded_runs(project, "tiny")
    assert (finished["id"], finished["status"]) == (entry["id"], "FINISHED")
    seconds = client_of(project).get_metric_history(entry["id"], "time/epoch_seconds")
    timings = table_of(project / "results/runs/tiny/cpu/0/timings.csv")
    assert [point.value for point in seconds] == timings["epoch_seconds"] and len(seconds) == 20


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.case(35)
def test_a_copied_project_keeps_to_itself(trained: Path, tmp_path: Path, saw: Callable[[str], None]):
    """cp -r of a trained project, mv of the copy, a training there: the first one is as it was."""
    before = digests(trained)
    copied = tmp_path / "first copy" / "project"
    shutil.copytree(trained, copied, symlinks=True)
    project = copied.rename(tmp_path / "a project")
    run(project, "sed", "-i", "s/epochs: 3/epochs: 2/", "params.yaml")
    first = stage(project, "train", "tiny", "cpu", "0").stdout
    second = stage(project, "evaluate", "tiny", "cpu", "0").stdout
    settle(project)
    assert digests(trained) == before
    said = f"mlruns/mlflow.db was copied or moved from {trained}/mlruns"
    assert said in first and "copied or moved" not in second
    saw(next(line for line in first.splitlines() if said in line))
    client = client_of(project)
    entries = runs_of(client)
    assert len(entries) == 2
    root = (project / "mlruns").as_uri()
    for entry in entries:  # the old one and the new one
        assert entry.info.artifact_uri.startswith(f"{root}/artifacts/tiny/")
        assert (Path(unquote(urlsplit(entry.info.artifact_uri).path)) / "model/model.safetensors").is_file()
        [logged] = client.search_logged_models([entry.info.experiment_id], f"source_run_id = '{entry.info.run_id}'")
        assert logged.artifact_location.startswith(root)
    default = client.get_experiment("0").artifact_location
    assert default == f"{project}/mlruns/0"
    # An experiment that somebody has put elsewhere stays there.
    elsewhere = client.create_experiment("elsewhere", "file:///data/mine/artifacts")
    moved = project.rename(tmp_path / "moved")
    assert "copied or moved from" in run(moved, sys.executable, "-m", "stages.records.uploader", "open").stdout
    assert client_of(moved).get_experiment(elsewhere).artifact_location == "file:///data/mine/artifacts"
