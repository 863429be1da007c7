"""Several seeds: one training each on one split, means and ranges over them, a run above them in MLflow."""

import json
import os
import signal
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, copy_of, dvc, environment, held, settle, wait_for

from stages.records import recorded

SEEDS = [0, 1, 5]
PARAMS = TINY.replace("seeds: [0]", f"seeds: {SEEDS}")


@pytest.fixture(scope="module")
def seeded(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Trained with seed 0, then with three, killed in the third; and what the run after that printed."""
    folder = tmp_path_factory.mktemp("seeds")
    project, log = copy_of(trained, folder / "project", PARAMS), folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["dvc", "repro"], cwd=project, env=environment(**held(folder / "held", epoch=2, word="5")),
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            third = lambda: log.read_text().partition("Running stage 'train@tiny-cpu-5'")[2]  # noqa: E731
            wait_for(lambda: "epoch 2/3" in third() or process.poll() is not None, what="the third training")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "epoch 2/3" in third(), log.read_text()
    output = dvc(project, "repro").stdout
    settle(project)
    return project, output


def results(project: Path, seed: int, name: str) -> Any:
    return json.loads((project / f"results/runs/tiny/cpu/{seed}/{name}").read_text())


@pytest.mark.long
def test_the_run_goes_on_in_the_third_seed(seeded: tuple[Path, str]) -> None:
    _, output = seeded
    assert "'train@tiny-cpu-0' didn't change, skipping" in output, "trained before there were several"
    assert "'train@tiny-cpu-1' didn't change, skipping" in output
    assert "going on from" in output.partition("Running stage 'train@tiny-cpu-5'")[2]


def test_a_seed_gives_the_same_bytes_resumed_or_not_and_other_ones_than_its_siblings(
    seeded: tuple[Path, str], trained: Path, tmp_path: Path
) -> None:
    project, _ = seeded
    alone = copy_of(trained, tmp_path / "alone", TINY.replace("seeds: [0]", "seeds: [5]"))
    dvc(alone, "repro", "train@tiny-cpu-5")
    weights = "results/runs/tiny/cpu/{}/last.safetensors"
    assert (alone / weights.format(5)).read_bytes() == (project / weights.format(5)).read_bytes()
    assert len({(project / weights.format(seed)).read_bytes() for seed in SEEDS}) == len(SEEDS)


def test_the_comparison_has_mean_range_and_what_the_seeds_vary(seeded: tuple[Path, str]) -> None:
    project, _ = seeded
    scores = [results(project, seed, "metrics.json")["accuracy"] for seed in SEEDS]
    (row,) = json.loads((project / "results/compare.json").read_text())["rows"]
    assert row["seeds"] == SEEDS and [run["score"] for run in row["runs"]] == scores
    assert row["score"] == pytest.approx(statistics.fmean(scores))
    assert (row["score_lowest"], row["score_highest"]) == (min(scores), max(scores))
    seconds = [results(project, seed, "timings.json")["epoch_seconds"] for seed in SEEDS]
    assert row["epoch_seconds"] == statistics.median(seconds)
    table = (project / "results/compare.md").read_text()
    assert "mean of 3 seeds" in table and "of 3 processes" in table
    assert "which vary weights, order and draws and leave the split as it is" in table


def test_mlflow_has_a_run_above_the_seeds_with_their_mean_and_range(
    seeded: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    project, _ = seeded
    client = mlflow.MlflowClient(f"sqlite:///{project}/mlruns/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    (parent,) = [run for run in runs if "seeds" in run.data.tags]
    children = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(run.data.params["seed"] for run in children) == ["0", "1", "5"]
    assert parent.info.status == "FINISHED" and parent.data.tags["seeds"] == "0,1,5"
    scores = [run.data.metrics["test/accuracy"] for run in children]
    metrics = parent.data.metrics
    assert metrics["num_seeds"] == 3
    assert metrics["test/accuracy_mean"] == pytest.approx(statistics.fmean(scores), rel=1e-5)
    assert metrics["0/1_score"] == metrics["test/accuracy_mean"], "in the column of the runs below"
    shown = f"{statistics.fmean(scores):.4f} ({min(scores):.4f} to {max(scores):.4f})"
    assert parent.data.tags["score"] == shown and shown in parent.data.tags["mlflow.note.content"]
    assert parent.data.tags["device"] == "cpu"
    monkeypatch.setattr(recorded, "asked", lambda question: question(client))
    one = recorded.Recorded("tiny@cpu-1", {"seed": 1}, children[0].info.run_id, lambda _: b"")
    recorded.tag(one, {"verified": "reproduced", "compared": "faster"})
    tags = client.get_run(parent.info.run_id).data.tags
    assert (tags["verified"], tags["compared"]) == ("seed 1: reproduced", "faster")
    assert (metrics["test/accuracy_lowest"], metrics["test/accuracy_highest"]) == (min(scores), max(scores))
    assert metrics["time/epoch_seconds_median_lowest"] > 0
