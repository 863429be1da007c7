"""Runs of several machines side by side: clones of one project that share a real MLflow server, and no folder."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.sandbox import free_port
from tandem.runs.run import open_folder
from tests.projects import TINY, copy_of, stages_at_once, tandem, wait_until_published
from tests.recording import server_of

mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.long  # three trainings; test_judgements.py has the short form, from manifests

RUN = "results/runs/tiny/cpu"
PATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}  # a server on a busy machine


@dataclass(frozen=True)
class Machines:
    """Two clones that recorded their runs on the server at `uri`."""

    uri: str
    one: Path
    other: Path

    def run_id(self, clone: Path, seed: int = 0) -> str:
        return open_folder(clone / RUN, seed).timing["mlflow"]["run_id"]

    def compare(self, clone: Path, *words: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
        settings = {"MLFLOW_TRACKING_URI": self.uri} | PATIENT | extra
        return tandem(clone, "compare", *words, check=check, **settings)


@pytest.fixture(scope="module")
def machines(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    with server_of(folder / "server", port):
        one = copy_of(prepared, folder / "one")
        other = copy_of(prepared, folder / "other", TINY.replace("seeds: [0]", "seeds: [1, 0]"))
        for clone, stages in ((one, ["train tiny cpu 0"]), (other, ["train tiny cpu 1", "replicate tiny cpu"])):
            commands = (*stages, "evaluate tiny cpu")
            stages_at_once(clone, *commands, MLFLOW_TRACKING_URI=uri, **PATIENT)
            wait_until_published(clone)
        yield Machines(uri, one, other)


def rows(text: str) -> dict[str, list[str]]:
    """The table's rows by name: the mark, and a cell for each side."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {name: [mark, *values] for mark, name, *values in cells[2:]}


def test_runs_of_two_machines_are_compared_by_their_ids(machines: Machines):
    ids = [machines.run_id(machines.one), machines.run_id(machines.other, 1)]
    assert not (machines.one / "mlruns/artifacts").exists() and not (machines.other / "mlruns/artifacts").exists()
    result = machines.compare(machines.one, *ids)
    table = rows(result.stdout)
    assert table["seed"] == ["*", "0", "1"] and table["device"] == ["", "cpu", "cpu"]
    assert "raw table" not in table and "code" not in table, "they agree, so there is nothing to read"
    for clone, seed, cell in ((machines.one, 0, 1), (machines.other, 1, 2)):
        seconds = open_folder(clone / RUN, seed).timing["timing"]["epoch_seconds"]
        assert table["seconds per epoch"][cell] == f"{seconds:,.4g} s"
    assert "1 process each, not alternating, so drift of the machines is included" in result.stdout
    assert "accuracy" in result.stdout and "not compared" not in result.stdout


def test_a_name_means_the_run_in_results_with_its_seeds_and_a_path_the_files_there(machines: Machines):
    result = machines.compare(machines.other, str(machines.one / RUN), "tiny@cpu")
    assert rows(result.stdout)["seed"] == ["*", "0", "1, 0"], "the seeds of params.yaml, in their order"
    refused = machines.compare(machines.one, machines.run_id(machines.other, 1), "tiny@cpu-1", check=False)
    assert refused.returncode == 2 and "are the same run" in refused.stdout


def test_what_cannot_be_had_is_one_sentence_that_names_it(machines: Machines, tmp_path: Path):
    run = machines.run_id(machines.one)

    def refused(*words: str, status: int = 1, **extra: str) -> str:
        result = machines.compare(machines.one, *words, check=False, **extra)
        assert result.returncode == status and result.stdout.count("\n") == 1, result.stdout
        return result.stdout

    older, altered = tmp_path / "older", tmp_path / "altered"
    for folder in (older, altered):
        shutil.copytree(machines.one / RUN, folder)
    record = older / "train/result/0/train.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "schema": 0}))
    assert "has schema 0, but this Tandem reads 2" in refused(run, str(older))
    (predictions,) = altered.glob("evaluate/*/*/predictions.csv")
    predictions.write_text("\n".join(predictions.read_text().splitlines()[:-1]) + "\n")
    assert "predictions.csv" in (message := refused(run, str(altered))) and "altered" in message
    assert "no finished run 'tiny@cuda'; the latest are tiny@cpu-0, tiny@cpu-1" in refused(run, "tiny@cuda", status=2)
    assert "accepted: an MLflow run id, a name such as sign@cpu" in refused(run, "sing", status=2)
    client = mlflow.MlflowClient(machines.uri)
    experiment = client.get_experiment_by_name("tiny").experiment_id
    tags = {"workload": "tiny", "requested_device": "cuda"}
    assert "status is RUNNING" in refused(run, client.create_run(experiment, tags=tags).info.run_id)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://user:secret@127.0.0.1:{closed.getsockname()[1]}"
        message = refused(run, "tiny@cpu", MLFLOW_TRACKING_URI=address)
    assert "could not be reached" in message and "secret" not in message
