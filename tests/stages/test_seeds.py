"""Several seeds: one training each on one split, means and ranges over them, a run above them in MLflow."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.runs import recorded
from tandem.runs.run import open_folder
from tests.projects import (
    TINY,
    copy_of,
    read_record,
    stage,
    stages_at_once,
    wait_until_published,
)

SEEDS = [0, 1, 5]
PARAMS = TINY.replace("seeds: [0]", f"seeds: {SEEDS}")


@pytest.fixture(scope="module")
def project(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained with seed 0 alone, then with two more."""
    project = copy_of(trained, tmp_path_factory.mktemp("seeds") / "project", PARAMS)
    stages_at_once(
        project, *(f"{name} tiny cpu {seed}" for name in ("train", "evaluate") for seed in (1, 5)), "compare"
    )
    wait_until_published(project)
    return project


def results(project: Path, seed: int, name: str) -> Any:
    return read_record(project, name, seed=seed)


def test_a_seed_gives_the_same_bytes_beside_others_and_other_ones_than_its_siblings(
    project: Path, trained: Path, tmp_path: Path
) -> None:
    alone = copy_of(trained, tmp_path / "alone", TINY.replace("seeds: [0]", "seeds: [5]"))
    stage(alone, "train", "tiny", "cpu", "5")
    weights = "results/runs/tiny/cpu/{}/train/result/last.safetensors"
    assert (alone / weights.format(5)).read_bytes() == (project / weights.format(5)).read_bytes()
    assert len({(project / weights.format(seed)).read_bytes() for seed in SEEDS}) == len(SEEDS)


def test_the_comparison_has_mean_range_and_what_the_seeds_vary(project: Path) -> None:
    scores = [results(project, seed, "score.json")["metrics"]["accuracy"] for seed in SEEDS]
    (row,) = json.loads((project / "results/compare/compare.json").read_text())["rows"]
    assert row["seeds"] == SEEDS and [run["score"] for run in row["runs"]] == scores
    assert row["score"] == pytest.approx(statistics.fmean(scores))
    assert (row["score_lowest"], row["score_highest"]) == (min(scores), max(scores))
    seconds = [results(project, seed, "timing.json")["timing"]["epoch_seconds"] for seed in SEEDS]
    assert row["epoch_seconds"] == statistics.median(seconds)
    assert "mean of 3 seeds" in (project / "results/compare/compare.md").read_text()


def test_mlflow_has_a_run_above_the_seeds_with_their_mean_and_range(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{project}/mlruns/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    (parent,) = [run for run in runs if "seeds" in run.data.tags]
    children = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(run.data.params["seed"] for run in children) == ["0", "1", "5"]
    assert parent.info.status == "FINISHED" and parent.data.tags["seeds"] == "0,1,5"
    scores = [run.data.metrics["test/accuracy"] for run in children]
    assert parent.data.metrics["test/accuracy"] == pytest.approx(statistics.fmean(scores), rel=1e-5)
    assert parent.data.tags["score"].endswith(f" ({min(scores):.4f} to {max(scores):.4f})")
    monkeypatch.setattr(recorded, "ask_store", lambda question: question(client))
    one = replace(open_folder(project / "results/runs/tiny/cpu/1"), run_id=children[0].info.run_id)
    recorded.tag(one, {"verified": "reproduced", "compared": "faster"})
    tags = client.get_run(parent.info.run_id).data.tags
    assert (tags["verified"], tags["compared"]) == ("seed 1: reproduced", "faster")
    described = tags["mlflow.note.content"]
    assert described.startswith(
        f"**accuracy {tags['score']}** on the test split, mean of the seeds 0, 1, 5; best baseline"
    )
    assert "verified: seed 1: reproduced" in described
