"""MLflow on the real thing: a real sqlite store, a real server that dies, a real kill."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest

from stages.records.history import RUN_METRICS
from stages.records.journal import locked
from tests.conftest import environment, make_project, run, stage

LONG = ("epochs: 3", "epochs: 4000")


def client_of(project: Path) -> mlflow.MlflowClient:
    with locked(project / ".tandem/mlflow.lock"):  # the trainer's uploader may be making the tables right now
        uri = f"sqlite:///{project}/mlruns/mlflow.db"
        mlflow.set_tracking_uri(uri)  # the client's downloads go by the global one, which would make a database here
        return mlflow.MlflowClient(uri)


def runs_of(client: mlflow.MlflowClient, experiment: str = "tiny") -> list:
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id])) if found else []


def prepare(project: Path) -> None:
    for words in (("hardware",), ("preprocess", "tiny"), ("preload", "tiny", "cpu")):
        stage(project, *words)


def start_training(project: Path, **extra: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "flows.stage", "train", "tiny", "cpu"], cwd=project, env=environment(**extra), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for(condition, seconds: float = 60.0):
    """The first true value of `condition`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s")


def epochs_logged(project: Path) -> int:
    runs = runs_of(client_of(project)) if (project / "mlruns" / "mlflow.db").exists() else []
    return len(client_of(project).get_metric_history(runs[0].info.run_id, "train/loss")) if runs else 0


def test_a_run_tells_what_where_and_how_well(trained: Path):
    client = client_of(trained)
    [entry] = runs_of(client)
    history = (trained / "results/runs/tiny/cpu/history.csv").read_text().splitlines()
    metrics = json.loads((trained / "results/runs/tiny/cpu/metrics.json").read_text())
    timings = json.loads((trained / "results/runs/tiny/cpu/timings.json").read_text())
    assert entry.info.status == "FINISHED"
    assert entry.data.metrics["test/accuracy"] == metrics["accuracy"] > 0.5
    assert entry.data.metrics["time/epoch_seconds_median"] == timings["epoch_seconds"]
    losses = client.get_metric_history(entry.info.run_id, "train/loss")
    assert [(metric.step, str(metric.value)) for metric in losses] == [
        (int(row.split(",")[0]), row.split(",")[2]) for row in history[1:]
    ]
    for tag in (
        "device.name",
        "cpu.cores",
        "cpu.threads",
        "cpu.memory_mib",
        "torch",
        "data.sha256",
        "mlflow.source.git.commit",
        "dvc.stage",
    ):
        assert entry.data.tags[tag], tag
    assert entry.data.tags["git.dirty"] == "false"
    assert entry.data.params["train.model.hidden_size"] == "8"
    assert not [name for name in entry.data.metrics if name.startswith("vram/")], "absent on a CPU, not 0"
    [dataset] = entry.inputs.dataset_inputs
    assert entry.data.tags["data.sha256"].startswith(dataset.dataset.digest)
    artifacts = {file.path for file in client.list_artifacts(entry.info.run_id, "evaluation")}
    assert {"evaluation/result.png", "evaluation/predictions.csv"} <= artifacts


def table_of(path: Path) -> dict[str, list[float]]:
    """Column -> its numbers, bit for bit."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


def test_the_same_number_is_the_same_to_the_last_digit_everywhere(trained: Path):
    """In MLflow, in the epochs' tables, in the run's totals and in the summary that compares."""
    client, folder = client_of(trained), trained / "results/runs/tiny/cpu"
    [entry] = runs_of(client)
    history, timings = (table_of(folder / name) for name in ("history.csv", "timings.csv"))
    columns = {
        "train/loss": history["train_loss"],
        "train/learning_rate": history["learning_rate"],
        "val/loss": history["val_loss"],
        "val/accuracy": history["val_accuracy"],
        "time/epoch_seconds": timings["epoch_seconds"],
        "time/validation_seconds": timings["validation_seconds"],
        "throughput/samples_per_second": timings["samples_per_second"],
        "memory/peak_rss_mib": timings["peak_rss_mib"],
        "cpu/share": timings["cpu_share"],
    }
    for name, column in columns.items():
        logged = [metric.value for metric in client.get_metric_history(entry.info.run_id, name)]
        assert logged == column and len(logged) == 3, name
    totals, metrics = (json.loads((folder / name).read_text()) for name in ("timings.json", "metrics.json"))
    for name, key in RUN_METRICS.items():
        assert entry.data.metrics.get(name) == totals[key], name
    for name, value in metrics.items():
        assert entry.data.metrics[f"test/{name}"] == value, name
    [row] = json.loads((trained / "results/compare.json").read_text())["rows"]
    assert row["score"] == metrics["accuracy"] and row["metrics"] == metrics
    shared = row.keys() & totals.keys()
    assert {"epoch_seconds", "samples_per_second", "train_seconds", "peak_rss_mib"} <= shared
    assert {key: row[key] for key in shared} == {key: totals[key] for key in shared}


def test_the_logged_model_loads_without_pickle_and_predicts_the_same(trained: Path):
    client = client_of(trained)
    [entry] = runs_of(client)
    folder = client.download_artifacts(entry.info.run_id, "model")
    names = {path.name for path in Path(folder).iterdir()}
    assert {"model.safetensors", "model.json", "MLmodel"} <= names
    assert not [name for name in names if name.endswith((".pkl", ".pth", ".pt"))]
    code = f"""
import mlflow, pandas as pd, warnings
warnings.simplefilter("ignore")
mlflow.set_tracking_uri("sqlite:///{trained}/mlruns/mlflow.db")
model = mlflow.pyfunc.load_model("runs:/{entry.info.run_id}/model")
table = pd.read_csv("data/raw/tiny/table.csv").drop(columns="label")
expected = pd.read_csv("results/runs/tiny/cpu/predictions.csv", dtype=str).set_index("sequence")
found = model.predict(table).astype({{"sequence": str}}).set_index("sequence").loc[expected.index]
assert (found["predicted"] == expected["predicted"]).all()
assert (found["confidence"] - expected["confidence"].astype(float)).abs().max() < 1e-5
"""
    run(trained, sys.executable, "-c", code)


def test_metrics_arrive_while_it_trains_and_a_killed_run_goes_on_as_one(tmp_path: Path):
    from tests.conftest import TINY

    project = make_project(tmp_path / "killed", TINY.replace(*LONG))
    prepare(project)
    training = start_training(project)
    try:
        wait_for(lambda: epochs_logged(project) > 5)  # live: it is still training
        assert training.poll() is None
        wait_for(lambda: list((project / ".tandem/checkpoints/tiny").glob("*.pt")))
    finally:
        os.killpg(training.pid, signal.SIGKILL)
        training.communicate()
    [entry] = wait_for(lambda: [e for e in runs_of(client_of(project)) if e.info.status == "KILLED"])
    # What it had written is all the same training: the same parameters, so the same checkpoint and the same MLflow run.
    second = start_training(project)
    try:
        first_line = second.stdout.readline()
        assert "going on from .tandem/checkpoints/tiny/" in first_line
        wait_for(lambda: [e for e in runs_of(client_of(project)) if e.info.status == "RUNNING"])
    finally:
        os.killpg(second.pid, signal.SIGINT)  # once: finishes the epoch, saves, ends with a failure
        second.communicate(timeout=30)
    assert second.returncode not in (0, None)
    [again] = wait_for(lambda: [e for e in runs_of(client_of(project)) if e.info.status == "KILLED"])
    assert again.info.run_id == entry.info.run_id
    steps = [metric.step for metric in client_of(project).get_metric_history(entry.info.run_id, "train/loss")]
    assert len(steps) == len(set(steps)), "an epoch was sent twice"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_that_is_down_costs_nothing_and_the_journal_is_sent_later(project: Path):
    prepare(project)
    uri = f"http://user:secret@127.0.0.1:{free_port()}"
    done = stage(project, "train", "tiny", "cpu", MLFLOW_TRACKING_URI=uri)
    assert done.stdout.count("could not be reached") == 1
    assert "secret" not in done.stdout and "python -m stages.records.uploader sync" in done.stdout
    assert (project / "results/runs/tiny/cpu/last.safetensors").exists()
    assert "run_id" not in json.loads((project / "results/runs/tiny/cpu/tracking.json").read_text())
    assert not runs_of(client_of(project))
    stage(project, "evaluate", "tiny", "cpu", MLFLOW_TRACKING_URI=uri)
    synced = run(project, sys.executable, "-m", "stages.records.uploader", "sync")  # to the default store
    assert "up to date" in synced.stdout
    [entry] = runs_of(client_of(project))
    assert entry.info.status == "FINISHED"
    assert len(client_of(project).get_metric_history(entry.info.run_id, "train/loss")) == 3
    assert len(client_of(project).get_metric_history(entry.info.run_id, "test/accuracy")) == 1
    assert not [path for path in (project / ".tandem/journals").iterdir() if path.is_dir()]


def test_a_black_hole_costs_bounded_seconds(project: Path):
    prepare(project)
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()  # takes connections, never answers
        start = time.monotonic()
        done = stage(project, "train", "tiny", "cpu", MLFLOW_TRACKING_URI=f"http://127.0.0.1:{hole.getsockname()[1]}")
        seconds = time.monotonic() - start
    assert "could not be reached" in done.stdout
    assert seconds < 60


def test_many_processes_open_a_fresh_store_at_once(tmp_path: Path):
    from tests.conftest import TINY

    project = make_project(tmp_path / "many", TINY)
    code = "from stages.records.uploader import open_client, find_or_create_experiment as f; f(open_client(), 'same')"
    together = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=project,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = [process.communicate()[0] for process in together]
    assert [process.returncode for process in together] == [0, 0, 0], outputs
    assert len([e for e in client_of(project).search_experiments() if e.name == "same"]) == 1


def test_passwords_are_not_shown():
    from stages.records.journal import without_password

    assert without_password("https://me:secret@host:5000/path") == "https://me:***@host:5000/path"
    assert without_password("sqlite:////x/y.db") == "sqlite:////x/y.db"


@pytest.mark.parametrize("variable", [None, "http://127.0.0.1:1"])
def test_the_store_is_the_projects_wherever_one_stands(
    variable: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from stages import files
    from stages.records import journal

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if variable:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    assert journal.tracking_uri() == (variable or f"sqlite:///{files.HOME}/mlruns/mlflow.db")
