"""What MLflow gets of a run, when, and once: on a real store, with a real server that dies, and a real kill."""

import base64
import json
import os
import re
import shutil
import signal
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.diagnosis.probe_result import ProbeResult
from tandem.runs import provenance, schemas
from tandem.runs.quantities import EPOCH_METRICS, RUN_METRICS
from tandem.runs.run import open_folder
from tandem.tracking import publisher, registry, view
from tandem.tracking.publisher import Publication
from tests.projects import (
    ROOT,
    TINY,
    copy_of,
    held,
    python,
    read_record,
    recorded_runs,
    run_path,
    stage,
    stages_at_once,
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
    refusing_server,
    runs_of,
    said_of_tracking,
    table_of,
)

mlflow = pytest.importorskip("mlflow")


def test_a_run_tells_what_where_and_how_well(trained: Path):
    client = client_of(trained)
    [entry] = runs_of(client)
    assert entry.info.status == "FINISHED" and entry.data.metrics["test/accuracy"] > 0.5
    assert all(entry.data.tags[tag] for tag in ("device.name", "host", "mlflow.source.git.commit", "dvc.stage"))
    assert (
        entry.data.params["torch"]
        and entry.data.metrics["cpu/threads_mean"] == 1
        and entry.data.params["git.dirty"] == "false"
    )
    assert entry.data.params["train.model.hidden_size"] == "8"
    machine = json.loads(Path(client.download_artifacts(entry.info.run_id, "machine.json")).read_text())
    assert {"cpu.cores", "cpu.memory_mib", "os", "python"} <= set(machine) - set(entry.data.tags)
    assert not [name for name in entry.data.metrics if name.startswith("vram/")], "absent on a CPU, not 0"
    reason = read_record(trained, "timing.json")["timing"]["missing_reasons"]["peak_allocated_mib"]
    assert entry.data.tags["vram.absent"] == reason
    assert entry.data.tags["peak memory"] == f"{entry.data.metrics['ram/peak_mib_max']:,.0f} MiB RAM"
    [dataset] = entry.inputs.dataset_inputs
    assert entry.data.params["data.sha256"].startswith(dataset.dataset.digest)
    artifacts = {file.path for file in client.list_artifacts(entry.info.run_id, "evaluation")}
    assert {"evaluation/result.png", "evaluation/predictions.csv"} <= artifacts
    # Its model has the metrics of its evaluation, on its dataset.
    model = client.get_logged_model(entry.outputs.model_outputs[0].model_id)
    of_test = {name: value for name, value in entry.data.metrics.items() if name.startswith("test/")}
    assert {metric.key: metric.value for metric in model.metrics} == of_test
    assert {metric.dataset_digest for metric in model.metrics} == {dataset.dataset.digest}


def test_the_saved_view_shows_first_what_runs_are_compared_by(trained: Path):
    client = client_of(trained)
    experiment, [entry] = client.get_experiment_by_name("tiny"), runs_of(client)
    saved = json.loads(experiment.tags["mlflow.sharedViewState.tandem"])
    state = json.loads(zlib.decompress(base64.b64decode(saved["state"].removeprefix("deflate;"))))
    in_view = re.findall("tags.`(.+?)`", " ".join(state["selectedColumns"]))
    assert in_view[:5] == ["score", "device", "s/epoch", "peak memory", "samples/s"]
    assert "verified" in in_view  # flows/verify.py sets it
    address = f"http://server/#/experiments/{experiment.experiment_id}/runs"
    page = view.runs_page("http://me:secret@server", experiment.experiment_id)
    assert page == f"{address}?workflowType=machine_learning&viewStateShareKey=tandem"
    assert entry.data.tags["score"] == f"{entry.data.metrics['test/accuracy']:.4f}"


def test_every_page_of_a_model_has_the_lines_that_load_it(trained: Path, tmp_path: Path):
    """Those of the logged model, of the version and of the registered model, as they are on the page."""
    client = client_of(trained)
    [entry] = runs_of(client)
    [version] = client.search_model_versions("name='tandem-tiny'")
    model = client.get_logged_model(entry.outputs.model_outputs[0].model_id)
    pages = [model.tags["mlflow.note.content"], version.description]
    code = "import mlflow\n"
    for text in (*pages, client.get_registered_model("tandem-tiny").description):
        [lines] = re.findall(r"```python\n(model = .+\n.+)\n```", text)
        code += re.sub(r"^(model\.predict\(.+\))", r"print(list(\1.columns))", lines, flags=re.MULTILINE) + "\n"
    uri = f"sqlite:///{trained}/mlruns/mlflow.db"
    predicted = python(tmp_path, code, MLFLOW_TRACKING_URI=uri).stdout.splitlines()
    [file] = (trained / "mlruns/artifacts/tiny/models").glob("*/artifacts/MLmodel")
    signature = json.loads(file.read_text())["signature"]
    inputs, outputs = ([column["name"] for column in json.loads(signature[side])] for side in ("inputs", "outputs"))
    assert [line for line in predicted if line.startswith("[")] == [str(outputs)] * 3
    assert inputs == ["sequence", "step", "x", "y"], "no label"


def test_the_same_number_is_the_same_to_the_last_digit_everywhere(trained: Path):
    """In the epochs' tables, in the run's totals, in the summary that compares and in MLflow."""
    client = client_of(trained)
    [entry] = runs_of(client)
    history, timings = (table_of(trained / run_path(name)) for name in ("history.csv", "timings.csv"))
    columns = {
        "train/loss": history["train_loss"],
        "val/accuracy": history["val_accuracy"],
        "time/epoch_seconds": timings["epoch_seconds"],
        "ram/peak_mib": timings["peak_rss_mib"],
    }
    for name, column in columns.items():
        logged = [metric.value for metric in client.get_metric_history(entry.info.run_id, name)]
        assert logged == column and len(logged) == 3, name
    totals, metrics = read_record(trained, "timing.json")["timing"], read_record(trained, "score.json")["metrics"]
    for name, metric in RUN_METRICS.items():
        assert entry.data.metrics.get(metric) == totals[name], name
    for name, value in metrics.items():
        assert entry.data.metrics[f"test/{name}"] == value, name
    [row] = json.loads((trained / "results/compare/compare.json").read_text())["rows"]
    assert row["score"] == metrics["accuracy"] and row["metrics"] == metrics
    shared = row.keys() & totals.keys()
    assert {"epoch_seconds", "samples_per_second", "train_seconds", "peak_rss_mib"} <= shared
    assert {key: row[key] for key in shared} == {key: totals[key] for key in shared}


def test_every_metric_of_every_run_is_explained_on_one_page(trained: Path):
    """Those of a real run, of a GPU and of a probe."""
    text = (ROOT / "docs/metrics.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    explained = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    patterns = [re.sub("<[^>]+>", ".+", re.escape(name)) for name in explained]
    numbers: dict[str, Any] = dict.fromkeys((field.name for field in fields(ProbeResult)), 1.0)
    words: dict[str, Any] = {"memory_mib": dict.fromkeys(("weights", "context"), 1.0), "gains": {"batch 112": 1.2}}
    probe = ProbeResult(**numbers | words | {"missing_reasons": {}})
    of_run = runs_of(client_of(trained))[0].data.metrics
    sent = {*of_run, *RUN_METRICS.values(), *EPOCH_METRICS.values(), *probe.numbers()}
    assert len(sent) > 50
    assert not [name for name in sent if not any(re.fullmatch(pattern, name) for pattern in patterns)]


def test_the_alias_is_on_the_best_model_of_those_with_the_same_data(empty_history: Path, tmp_path: Path):
    """And registering again, as after a kill, makes no second version."""
    client = mlflow.MlflowClient(f"sqlite:///{shutil.copy(empty_history, tmp_path / 'mlflow.db')}")
    experiment_id = client.create_experiment("tiny", tmp_path.as_uri())
    versions = []
    for score, data in ((0.5, "a"), (0.9, "a"), (0.7, "a"), (0.9, "a"), (0.1, "b"), (0.8, "a")):
        run_id = client.create_run(experiment_id).info.run_id
        model_id = client.create_logged_model(experiment_id, source_run_id=run_id).model_id
        for _ in range(2):
            registry.register(client, "tiny", run_id, model_id, {"val_score": score, "data": {"train": data}})
        versions.append(client.get_model_version_by_alias("tandem-tiny", "best").version)
    assert list(map(int, versions)) == [1, 2, 2, 2, 5, 2]
    again = {"val_score": 0.8, "data": {"train": "a"}, "not_registered": "an experiment with more seeds"}
    Publication.register(SimpleNamespace(client=client, run_id=run_id), "tiny", client.get_run(run_id), model_id, again)
    assert "tandem.not_registered" not in client.get_run(run_id).data.tags
    assert len(client.search_model_versions("name='tandem-tiny'")) == 6


# `tandem sync`, whose model versions go to a server that refuses them: EDIT on the experiment, READ on the model.
NO_VERSIONS = """
import sys, mlflow
from tandem.cli import main
create, refusing = mlflow.MlflowClient.create_model_version, mlflow.MlflowClient({address!r})
mlflow.MlflowClient.create_model_version = lambda client, *words, **options: create(refusing, *words, **options)
sys.exit(main(["sync"]))
"""


@pytest.mark.long
def test_an_account_that_may_not_register_models_still_ends_its_run(ready: Path):
    stages_at_once(ready, "train tiny cpu 0", "evaluate tiny cpu", publishes=False)
    with refusing_server() as (address, _):
        text = python(ready, NO_VERSIONS.format(address=f"http://{address}")).stdout
    [entry] = runs_of(client_of(ready))
    reason = "this account may not add versions to tandem-tiny: it needs EDIT there"
    assert f"warning: the model of run {entry.info.run_id} is not registered; {reason}" in text and "up to date" in text
    assert entry.info.status == "FINISHED" and entry.data.tags["tandem.not_registered"] == reason
    assert not unpublished(ready)


@pytest.mark.case(24, 35)
def test_metrics_arrive_while_it_trains_and_a_killed_run_goes_on_as_one(
    prepared: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """kill -9 of the trainer in the middle, Ctrl+C of what goes on, then to the end."""
    project = copy_of(prepared, tmp_path / "killed", TINY.replace(*LONG))
    waiting = held(tmp_path / "held", 10)
    training = start_training(project, **waiting)
    try:
        wait_for(lambda: any("train/loss" in entry["metrics"] for entry in recorded_runs(project, "tiny")))
        assert training.poll() is None
        assert list((project / ".tandem/checkpoints/tiny").glob("*.pt"))
    finally:
        os.killpg(training.pid, signal.SIGKILL)
        training.communicate()
    states = lambda: [entry["status"] for entry in recorded_runs(project, "tiny")]  # noqa: E731
    wait_for(lambda: states() == ["KILLED"])
    [entry] = runs_of(client_of(project))
    # What it had written is all the same training: the same parameters, so the same checkpoint and the same MLflow run.
    second = start_training(project, **waiting)
    try:
        going_on = second.stdout.readline()
        assert "resuming from .tandem/checkpoints/tiny/" in going_on
        saw(going_on)
        wait_for(lambda: states() == ["RUNNING"])
    finally:
        os.killpg(second.pid, signal.SIGINT)  # once: finishes the epoch, saves, ends with a failure
        (tmp_path / "held/go").touch()
        second.communicate(timeout=600)
    assert second.returncode not in (0, None)
    wait_for(lambda: states() == ["KILLED"])
    stage(project, "train", "tiny", "cpu", "0")
    wait_until_published(project)
    timings = table_of(project / run_path("timings.csv"))
    for name, column in (("time/epoch_seconds", "epoch_seconds"), ("cpu/busy_cores", "cpu_share")):
        points = client_of(project).get_metric_history(entry.info.run_id, name)
        assert [point.step for point in points] == list(range(1, 21)), "an epoch was sent twice, or not at all"
        values = timings[column]
        assert [point.value for point in points] == values, "the times of an epoch that was trained again"
    [finished] = runs_of(client_of(project))
    assert finished.data.metrics["time/epoch_seconds"] == timings["epoch_seconds"][-1]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Where nobody listens, and nobody else begins to."""
    with socket.socket() as endpoint:
        endpoint.bind(("127.0.0.1", 0))
        yield endpoint.getsockname()[1]


@pytest.mark.case(34)
def test_a_server_that_is_down_costs_nothing_and_gets_the_run_later(
    ready: Path, closed_port: int, saw: Callable[[str], None]
):
    """Nobody listens where MLFLOW_TRACKING_URI points; then sync."""
    uri = f"http://user:secret@127.0.0.1:{closed_port}"
    stages = ("train tiny cpu 0", "evaluate tiny cpu", "speed tiny", "compare")
    result = stages_at_once(ready, *stages, MLFLOW_TRACKING_URI=uri, DVC_EXP_NAME="down")
    assert result.stdout.count("could not be reached") == 2, "once a stage"
    saw(said_of_tracking(result.stdout))
    assert "secret" not in result.stdout and "tandem sync" in result.stdout
    assert "(connection refused)" in result.stdout
    paths = [path for path in (ready / ".tandem/runs").rglob("*") if path.is_file()]
    assert {"publisher.log", "run.json", "history.csv", "evaluate.end.json"} <= {path.name for path in paths}
    assert not [path for path in paths if b"secret" in path.read_bytes()]
    assert (ready / run_path("last.safetensors")).exists()
    assert "run_id" not in read_record(ready, "timing.json")["mlflow"]
    assert "MLflow run" not in (ready / "results/report.html").read_text()
    assert not runs_of(client_of(ready))
    synced = tandem(ready, "sync")  # to the default store
    assert "up to date" in synced.stdout
    [entry] = runs_of(client_of(ready))
    assert entry.info.status == "FINISHED"
    assert re.fullmatch(r"down: tiny-cpu-\d{4}-\d{6}", entry.info.run_name), "the name that the training gave"
    assert len(client_of(ready).get_metric_history(entry.info.run_id, "train/loss")) == 3
    assert len(client_of(ready).get_metric_history(entry.info.run_id, "test/accuracy")) == 1
    assert not unpublished(ready)


@pytest.mark.long
@pytest.mark.case(36)
def test_a_black_hole_costs_bounded_seconds(ready: Path, saw: Callable[[str], None]):
    """A server that takes connections and never answers."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()  # takes connections, never answers
        start = time.monotonic()
        result = stage(
            ready, "train", "tiny", "cpu", "0", MLFLOW_TRACKING_URI=f"http://127.0.0.1:{hole.getsockname()[1]}"
        )
        seconds = time.monotonic() - start
    assert "could not be reached" in result.stdout
    saw(said_of_tracking(result.stdout))
    assert seconds < 600  # mlflow's own limits add up to 1,200


def test_a_run_that_prefect_started_links_to_its_page_without_the_password(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TANDEM_FLOW_RUN_ID", "1a2b")
    monkeypatch.setenv("PREFECT_API_URL", "http://me:secret@host:4200/api")
    tags = provenance.caller_tags()
    assert tags["prefect.flow_run"] == "http://host:4200/runs/flow-run/1a2b"


def test_an_evaluation_with_other_settings_has_a_run_and_a_model_of_its_own(trained: Path, tmp_path: Path):
    """MLflow changes no parameter, and a served model must keep its weights."""
    project = copy_of(trained, tmp_path / "project", TINY.replace("weights: last", "weights: best"))
    client = client_of(project)
    [before] = runs_of(client)
    model = sorted(path.relative_to(project) for path in (project / "mlruns").rglob("*") if path.is_file())
    named = evaluate_again(project)
    folder = project / "results/runs/tiny/cpu"
    assert open_folder(folder).tracking["run_id"] == named, "for links, and for the verdict of `tandem verify`"
    runs = {run.info.run_id: run for run in runs_of(client_of(project))}
    assert runs.keys() == {before.info.run_id, named} and len(runs) == 2
    assert runs[before.info.run_id].data.metrics == before.data.metrics
    assert runs[before.info.run_id].data.params == before.data.params
    assert runs[named].data.params == before.data.params | {"evaluate.weights": "best"}
    assert runs[named].info.status == "FINISHED" and "weights=best" in runs[named].info.run_name
    assert len(client.get_metric_history(named, "train/loss")) == 3
    assert {version.run_id for version in client.search_model_versions("name='tandem-tiny'")} == set(runs)
    files = [path for path in model if path.suffix in (".safetensors", ".csv", ".json")]
    assert files and all((project / path).read_bytes() == (trained / path).read_bytes() for path in files)
    (project / "params.yaml").write_text(TINY)
    assert evaluate_again(project) == before.info.run_id  # as with the settings of the training
    assert open_folder(folder).tracking["run_id"] == before.info.run_id
    client = client_of(project)
    points = client.get_metric_history(before.info.run_id, "test/accuracy")
    assert len(points) == 1, "a repeated evaluation adds no second point"
    metrics = client.get_logged_model(before.outputs.model_outputs[0].model_id).metrics
    assert len(metrics) == len({metric.key for metric in metrics})


def evaluate_again(project: Path) -> str:
    """Evaluate, and return the id of the MLflow run that the stage names."""
    output = stage(project, "evaluate", "tiny", "cpu").stdout
    wait_until_published(project)
    return output.rstrip().rpartition("MLflow run ")[2]


def test_a_stage_that_ends_while_the_one_before_is_published_is_published_too(tmp_path: Path, monkeypatch):
    """As on a busy machine, where that takes longer than to evaluate. Its directory was removed all the same."""
    monkeypatch.setattr(publisher, "STATE", tmp_path)
    (folder := tmp_path / "run").mkdir()
    for name in ("run.json", "train.end.json", "writer"):
        (folder / name).write_text("{}")
    publication, seen = Publication(folder, client=None), []

    def publish_new(*_: object) -> None:
        seen.append((end := folder / "evaluate.end.json").exists())
        if not end.exists():
            end.touch()

    monkeypatch.setattr(publication, "publish_new", publish_new)
    while folder.exists():
        assert publication.publish() == {} and len(seen) <= 3
        publication.published_state = None
    assert seen[0] is False and seen[-1] is True


@pytest.mark.parametrize("lost", ["store", "run"])
def test_an_evaluation_brings_its_training_where_mlflow_lacks_it(
    trained: Path, empty_history: Path, tmp_path: Path, lost: str
):
    """As after `dvc pull` in another clone, and after the run was deleted in MLflow."""
    project = copy_of(trained, tmp_path / "project")
    client = client_of(project)
    [before] = runs_of(client)
    history = client.get_metric_history(before.info.run_id, "train/loss")
    if lost == "store":
        project = shutil.copytree(project, tmp_path / "clone", ignore=shutil.ignore_patterns("mlruns", ".tandem"))
        (project / "mlruns").mkdir()
        shutil.copy(empty_history, project / "mlruns")
    else:
        client.delete_run(before.info.run_id)
    named = evaluate_again(project)
    client = client_of(project)
    [entry] = runs_of(client)
    assert entry.info.run_id == named != before.info.run_id
    for name in ("run_name", "status", "start_time", "end_time"):
        assert getattr(entry.info, name) == getattr(before.info, name), name
    assert entry.info.status == "FINISHED" and entry.data.params == before.data.params
    assert entry.data.metrics.keys() == before.data.metrics.keys()
    points = client.get_metric_history(named, "train/loss")
    assert [(point.step, point.value, point.timestamp) for point in points] == [
        (point.step, point.value, point.timestamp) for point in history
    ]
    artifacts = {file.path for file in client.list_artifacts(named)}
    assert artifacts == {file.path for file in client_of(trained).list_artifacts(before.info.run_id)}
    if lost == "store":
        assert client.get_model_version_by_alias("tandem-tiny", "best").run_id == named


def test_other_scores_in_results_reach_mlflow_as_soon_as_it_answers(trained: Path, tmp_path: Path, closed_port: int):
    """As after DVC has restored an evaluation by other code, which no stage publishes."""
    project = copy_of(trained, tmp_path / "project")
    path = project / run_path("score.json")
    score = open_folder(path).score
    score["metrics"]["accuracy"] = 0.25
    schemas.write(path, schemas.ScoreRecord, score)
    shutil.copytree(project / "results/runs/tiny/cpu", project / "results/runs/tiny/auto")
    done = tandem(project, "sync", "--json", check=False, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{closed_port}")
    problems = json.loads(done.stdout)["problems"]
    assert done.returncode == 1 and len(problems) == 1, "two evaluations, of which none is known to be kept"
    assert "connection refused" in problems[0]
    shutil.rmtree(project / "results/runs/tiny/auto")
    assert "up to date" in tandem(project, "sync").stdout
    client = client_of(project)
    [entry] = runs_of(client)
    assert entry.data.metrics["test/accuracy"] == 0.25 and entry.data.tags["score"] == "0.2500"
    model = client.get_logged_model(entry.outputs.model_outputs[0].model_id)
    assert {metric.key: metric.value for metric in model.metrics}["test/accuracy"] == 0.25
    [sent] = (project / "mlruns").rglob(f"{entry.info.run_id}/artifacts/score.json")
    assert sent.read_bytes() == path.read_bytes()
    tandem(project, "sync")
    assert len(client.get_metric_history(entry.info.run_id, "test/accuracy")) == 2


@pytest.mark.long
def test_a_deleted_model_is_registered_again_by_the_next_evaluation(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    client = client_of(project)
    [entry] = runs_of(client)
    deleted = entry.outputs.model_outputs[0].model_id
    client.delete_logged_model(deleted)
    assert evaluate_again(project) == entry.info.run_id
    [model] = client.search_logged_models([entry.info.experiment_id], f"source_run_id = '{entry.info.run_id}'")
    assert model.model_id != deleted
    best = client.get_model_version_by_alias("tandem-tiny", "best")
    assert best.source == model.artifact_location
    evaluate_again(project)
    assert len(client.search_model_versions("name='tandem-tiny'")) == 2, "the deleted one's, and one of the new model"


# The clock is set back by an hour in the middle of the run.
CLOCK_SET_BACK = f"""
{EPOCHS}
import time
from tandem.tracking import run_dir
with run_dir.open_run_dir("set-back", "train") as run:
    run.write_info("tiny", "set back", params={{"a": 1}})
    run.save_epochs(epochs(1))
    now = time.time
    time.time = lambda: now() - 3600
"""


def test_no_run_ends_before_its_start_if_the_clock_is_set_back(ready: Path):
    """While it runs; and between the start of a run whose process was killed and its publication."""
    python(ready, CLOCK_SET_BACK)
    killed = ready / ".tandem/runs/killed"
    killed.mkdir()
    started = 1000 * (int(time.time()) + 3600)
    content = {"started_ms": started, "tags": {}, "experiment": "tiny", "name": "killed", "params": {"a": 1}}
    (killed / "run.json").write_text(json.dumps({**content, "parent": {"run_key": "all", "name": "all"}}))
    wait_until_published(ready)
    infos = {entry.info.run_name: entry.info for entry in runs_of(client_of(ready))}
    assert {name: info.status for name, info in infos.items()} == {
        "set back": "FINISHED", "killed": "KILLED", "all": "KILLED"
    }  # fmt: skip
    assert all(0 <= info.end_time - info.start_time < 600_000 for info in infos.values())
