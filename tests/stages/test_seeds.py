"""Several seeds: `replicate` trains those after the first at the same time; means and ranges over them; a run above
them in MLflow.
"""

import json
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.projects import (
    MODEL,
    TINY,
    copy_of,
    dvc,
    held,
    is_gone,
    python,
    read_record,
    recorded_runs,
    run_path,
    stage,
    stages_at_once,
    start,
    tandem,
    wait_for,
    wait_until_published,
)

SEEDS = [0, 1, 5]
PARAMS = TINY.replace("seeds: [0]", f"seeds: {SEEDS}")
# Because of -u, only the trainings that it starts are forked (tests/handover).
REPLICATE = (sys.executable, "-u", "-m", "tandem.stage", "replicate", "tiny", "cpu")


@pytest.fixture(scope="module")
def project(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained with seed 0 alone, then in an experiment with two more."""
    project = copy_of(trained, tmp_path_factory.mktemp("seeds") / "project", PARAMS)
    stages_at_once(project, "replicate tiny cpu", "evaluate tiny cpu", "compare", DVC_EXP_NAME="more")
    wait_until_published(project)
    return project


def results(project: Path, seed: int, name: str) -> Any:
    return read_record(project, name, seed=seed)


def weights(project: Path, seed: int) -> bytes:
    return (project / run_path("last.safetensors", seed=seed)).read_bytes()


def test_a_replicate_gives_the_bytes_of_its_training_alone_and_other_ones_than_the_other_seeds(
    project: Path, trained: Path, tmp_path: Path
) -> None:
    alone = copy_of(trained, tmp_path / "alone", TINY.replace("seeds: [0]", "seeds: [5]"))
    stage(alone, "train", "tiny", "cpu", "5", publishes=False)
    assert (alone / "results/runs/tiny/cpu/train/result/5/last.safetensors").read_bytes() == weights(project, 5)
    assert len({weights(project, seed) for seed in SEEDS}) == len(SEEDS)
    verified = tandem(project, "verify", "results/runs/tiny/cpu/replicate/result/5", TMPDIR=str(tmp_path))
    assert ": bit-equal\n" in verified.stdout


def test_the_comparison_has_mean_and_range_of_the_seeds_and_the_times_of_the_first(project: Path) -> None:
    for seed in SEEDS[1:]:
        timing = results(project, seed, "timing.json")["timing"]
        assert timing["epoch_seconds"] is None and "with other seeds" in timing["missing_reasons"]["epoch_seconds"]
    scores = [results(project, seed, "score.json")["metrics"]["accuracy"] for seed in SEEDS]
    (row,) = json.loads((project / "results/compare/compare.json").read_text())["rows"]
    assert row["epoch_seconds"] == results(project, 0, "timing.json")["timing"]["epoch_seconds"]
    assert row["score"] == pytest.approx(statistics.fmean(scores))
    assert (row["score_lowest"], row["score_highest"]) == (min(scores), max(scores))
    metrics = results(project, 0, "score.json")["metrics"]
    strongest = max(metrics[f"{name}_accuracy"] for name in ("most_frequent", "nearest_neighbour", "fitted"))
    num_above = sum(score > strongest for score in scores)
    assert f"; {num_above} of them are above " in row["sentence"] and f" ({strongest:.4f}); seed 0" in row["sentence"]
    tracked = json.loads((project / "results/scores.json").read_text())["tiny"]["cpu"]
    assert tracked == {"accuracy": row["score"], "lowest": min(scores), "highest": max(scores)}
    assert "mean of 3 seeds" in (project / "results/compare/compare.md").read_text()


def test_a_replicate_refuses_an_altered_record_of_the_first_seed(project: Path, tmp_path: Path) -> None:
    """Its precision would be taken from it."""
    altered = copy_of(project, tmp_path / "altered")
    path = altered / run_path("train.json", seed=0)
    path.write_text(path.read_text().replace('"precision": "fp32"', '"precision": "bf16"'))
    done = stage(altered, "train", "tiny", "cpu", "1", check=False, publishes=False)
    assert done.returncode == 1
    assert "train.json is altered (its sha256 is not the recorded one); make it again with `" in done.stdout, (
        done.stdout
    )


def test_the_memory_of_the_first_seed_limits_how_many_train_at_a_time(project: Path) -> None:
    peak_mib = results(project, 0, "timing.json")["timing"]["peak_rss_mib"]
    code = "from stages import replicate\nreplicate.usable_cores = lambda: 8.0\n"
    for free, expected in ((100.0, 5), (4.0, 3), (0.5, 1)):
        code += f"replicate.free_memory_bytes = lambda: {free * peak_mib * 2**20}\n"
        code += f"assert replicate.concurrency('tiny', 'cpu', 0, 5) == {expected}, {expected}\n"
    python(project, code)


@pytest.mark.long
def test_more_seeds_train_only_the_new_ones_and_fewer_restore_the_results(trained: Path, tmp_path: Path) -> None:
    project = copy_of(trained, tmp_path / "project", PARAMS)
    assert "'train@tiny-cpu' didn't change" in dvc(project, "repro", "replicate@tiny-cpu").stdout
    (project / "params.yaml").write_text(TINY.replace("seeds: [0]", "seeds: [0, 1, 5, 7]"))
    output = dvc(project, "repro", "replicate@tiny-cpu").stdout
    assert output.count("training is complete, the results are written again") == 2
    assert "seed 7, epoch 3/3" in output
    (project / "params.yaml").write_text(PARAMS)
    assert "is cached - skipping run" in dvc(project, "repro", "replicate@tiny-cpu").stdout
    assert not (project / run_path("train.json", seed=7)).exists()


@contextmanager
def replicating(project: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The stage, whose trainings wait after epoch 2, each with a checkpoint, until the body ends."""
    with start(project, *REPLICATE, **held(folder, 2)) as process:
        checkpoints = project / ".tandem/checkpoints/tiny"
        wait_for(lambda: len(list(checkpoints.glob("*.previous.pt"))) == 2, what="a checkpoint of each seed")
        yield process
        (folder / "go").touch()
        process.output = process.stdout.read()  # type: ignore[attr-defined, union-attr]


def test_killed_replicates_resume_from_their_checkpoints(project: Path, trained: Path, tmp_path: Path) -> None:
    killed = copy_of(trained, tmp_path / "killed", PARAMS)
    with replicating(killed, tmp_path / "held") as process:
        trainings = psutil.Process(process.pid).children()
        process.kill()
    wait_for(lambda: all(map(is_gone, trainings)), what="the trainings to end with their stage")
    output = stage(killed, "replicate", "tiny", "cpu", publishes=False).stdout
    assert output.count("resuming from ") == 2
    assert all(weights(killed, seed) == weights(project, seed) for seed in SEEDS[1:])


@pytest.mark.long
def test_the_seeds_of_a_killed_process_are_trained_by_another_one(project: Path, trained: Path, tmp_path: Path) -> None:
    folder = copy_of(trained, tmp_path / "project", PARAMS)
    with replicating(folder, tmp_path / "held") as process:
        next(child for child in psutil.Process(process.pid).children() if "train" in child.cmdline()).kill()
    assert "a process was killed; its seeds are trained one after the other" in process.output
    assert process.returncode == 0 and all(weights(folder, seed) == weights(project, seed) for seed in SEEDS[1:])


@pytest.mark.long
def test_ctrl_c_stops_all_seeds_with_a_checkpoint(trained: Path, tmp_path: Path) -> None:
    with replicating(copy_of(trained, tmp_path / "project", PARAMS), tmp_path / "held") as process:
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130 and process.output.count("interrupted after epoch") == 2, process.output


FAILS_WITH_SEED_1 = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.last = nn.Linear(shape.num_features, shape.num_outputs)
        self.scale = float("nan") if torch.initial_seed() == 1 else 1.0

    def forward(self, values, mask):
        return self.scale * self.last(values.mean(dim=1))
"""


def test_a_seed_whose_loss_is_not_finite_ends_alone(trained: Path, tmp_path: Path) -> None:
    project = copy_of(trained, tmp_path / "project", PARAMS.replace(MODEL, '{name: "net.py:Net"}'))
    (project / "workloads/tiny/net.py").write_text(FAILS_WITH_SEED_1)
    stages = ("hardware", "train tiny cpu 0", "replicate tiny cpu")
    result = stages_at_once(project, *stages, check=False)
    assert "error: seed 1: the training loss is nan in epoch 1" in result.stdout and result.returncode == 1
    assert weights(project, 5), "the other seed has its results"
    wait_until_published(project)
    runs = [run for run in recorded_runs(project, "tiny") if run["params"].get("train.model.name") != "gru"]
    by_seed = {run["params"].get("seed", "all"): run["status"] for run in runs}
    assert by_seed == {"0": "FINISHED", "1": "FAILED", "5": "FINISHED", "all": "FAILED"}


def family(project: Path) -> tuple[Any, list[Any]]:
    """The run above the seeds 0, 1 and 5 in MLflow, which has their mean, and the runs below it."""
    from tests.recording import client_of, runs_of

    runs = runs_of(client_of(project))
    (parent,) = [run for run in runs if "seeds" in run.data.tags]
    children = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(run.data.params["seed"] for run in children) == ["0", "1", "5"]
    assert {run.info.status for run in runs} == {"FINISHED"} and parent.data.tags["seeds"] == "0,1,5"
    mean = statistics.fmean(run.data.metrics["test/accuracy"] for run in children)
    assert parent.data.metrics["test/accuracy"] == pytest.approx(mean, rel=1e-5)
    return parent, children


def test_mlflow_has_a_run_above_the_seeds_with_their_mean_and_range(project: Path) -> None:

    parent, children = family(project)
    scores = [run.data.metrics["test/accuracy"] for run in children]
    assert parent.data.tags["score"].endswith(f" ({min(scores):.4f} to {max(scores):.4f})")
    assert parent.info.run_name.endswith("tiny-cpu, all seeds")


@pytest.mark.long
def test_runs_that_were_deleted_in_mlflow_come_back_below_one_parent(project: Path, tmp_path: Path) -> None:
    """The parent run and that of the first seed, which was trained before there were several."""
    from tests.recording import client_of

    project = copy_of(project, tmp_path / "project", PARAMS)
    parent, children = family(project)
    for run in (parent, *children):
        if run is parent or run.data.params["seed"] == "0":
            client_of(project).delete_run(run.info.run_id)
    stage(project, "evaluate", "tiny", "cpu")
    wait_until_published(project)
    assert family(project)[0].info.run_id != parent.info.run_id


@pytest.mark.long
def test_seeds_that_are_evaluated_with_other_weights_have_a_parent_run_of_their_own(
    trained: Path, tmp_path: Path
) -> None:
    """Their runs once kept the parameter of the weights before, and a parent had the mean over both kinds."""
    from tests.recording import client_of, runs_of

    project = copy_of(trained, tmp_path / "project", PARAMS)
    of_dvc = {"DVC_STAGE": "replicate@tiny-cpu"}  # so their checkpoints stay
    stage(project, "replicate", "tiny", "cpu", **of_dvc)
    stage(project, "evaluate", "tiny", "cpu")
    changed = PARAMS.replace(f"seeds: {SEEDS}", "seeds: [7, 1, 5]").replace("weights: last", "weights: best")
    (project / "params.yaml").write_text(changed)
    shutil.rmtree(project / "results/runs/tiny/cpu/train")  # as DVC does before the stage runs again
    stage(project, "train", "tiny", "cpu", "7")
    resumed = stage(project, "replicate", "tiny", "cpu", **of_dvc).stdout
    assert resumed.count("training is complete, the results are written again") == 2
    stage(project, "evaluate", "tiny", "cpu")
    wait_until_published(project)
    runs = runs_of(client_of(project))
    parents = {run.info.run_id: run for run in runs if "seeds" in run.data.tags}
    children = {name: [run for run in runs if run.data.tags.get("mlflow.parentRunId") == name] for name in parents}
    pairs = {
        (children[name][0].data.params["evaluate.weights"], parent.data.tags["seeds"])
        for name, parent in parents.items()
    }
    assert pairs == {("last", "0,1,5"), ("best", "1,5,7")}
    for name, parent in parents.items():
        assert len({run.data.params["evaluate.weights"] for run in children[name]}) == 1
        scores = [run.data.metrics["test/accuracy"] for run in children[name]]
        assert parent.data.metrics["test/accuracy"] == pytest.approx(statistics.fmean(scores), rel=1e-5)
    for seed in (7, 1, 5):
        [run] = [candidate for candidate in runs if candidate.data.params.get("seed") == str(seed)
                 and candidate.data.params["evaluate.weights"] == "best"]  # fmt: skip
        assert run.data.metrics["test/accuracy"] == results(project, seed, "score.json")["metrics"]["accuracy"]
