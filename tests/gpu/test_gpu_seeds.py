"""Several seeds on a GPU: each bit-equal to its training alone."""

import signal
import sys
from pathlib import Path

import pytest

from tandem.files import sha256_file
from tests.projects import (
    MODEL,
    TINY,
    copy_of,
    held,
    make_project,
    read_record,
    stage,
    stages_at_once,
    start,
    tandem,
)
from tests.stages.test_seeds import FAILS_WITH_SEED_1

pytestmark = pytest.mark.gpu

SEEDS = [0, 1, 2, 5]
# Dropout draws on the GPU; the last batch of 36 sequences is smaller.
ALONE = TINY.replace("devices: [cpu]", "devices: [cuda]").replace("step: eager", "step: auto")
ALONE = ALONE.replace("epochs: 3", "epochs: 4")
PARAMS = ALONE.replace("seeds: [0]", f"seeds: {SEEDS}")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained with the first seed."""
    project = make_project(tmp_path_factory.mktemp("seeds") / "project", PARAMS)
    before = ("hardware", "preprocess tiny", "preload tiny cuda", "baseline tiny")
    stages_at_once(project, *before, "train tiny cuda 0", publishes=False)
    return project


def files_of(project: Path, stage: str, seed: int) -> dict[str, str]:
    folder = project / f"results/runs/tiny/cuda/{stage}/result/{seed}"
    return {name: sha256_file(folder / name) for name in ("last.safetensors", "best.safetensors", "history.csv")}


def require_as_alone(project: Path, ready: Path, folder: Path) -> None:
    for seed in SEEDS[1:]:
        alone = copy_of(ready, folder / f"alone {seed}", ALONE.replace("seeds: [0]", f"seeds: [{seed}]"))
        stage(alone, "train", "tiny", "cuda", str(seed), publishes=False)
        assert files_of(project, "replicate", seed) == files_of(alone, "train", seed), seed


def replicate(project: Path, check: bool = True, **extra: str) -> str:
    return stage(project, "replicate", "tiny", "cuda", check=check, publishes=False, **extra).stdout


def test_each_seed_is_bit_equal_to_its_training_alone(ready: Path, tmp_path: Path):
    project = copy_of(ready, tmp_path / "project", PARAMS)
    replicate(project)
    require_as_alone(project, ready, tmp_path)
    assert read_record(project, "train.json", device="cuda", seed=1)["realized"]["step"] == "graph"
    stage(project, "evaluate", "tiny", "cuda", publishes=False)
    assert all(read_record(project, "score.json", device="cuda", seed=seed)["metrics"] for seed in SEEDS)
    verified = tandem(project, "verify", "results/runs/tiny/cuda/replicate/result/1", TMPDIR=str(tmp_path))
    assert ": bit-equal\n" in verified.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_seeds_that_are_ended_go_on_to_the_same_bits(number: signal.Signals, ready: Path, tmp_path: Path):
    project = copy_of(ready, tmp_path / "project", PARAMS)
    command = (sys.executable, "-m", "tandem.stage", "train", "tiny", "cuda", *map(str, SEEDS[1:]))
    with start(project, *command, **held(tmp_path / "held", epoch=2)) as process:
        assert process.stdout
        next(line for line in process.stdout if "epoch 2/" in line)
        process.send_signal(number)
        (tmp_path / "held/go").touch()
        output = process.stdout.read()
    assert process.returncode != 0 and "Traceback" not in output, output
    assert replicate(project).count("resuming from") == 1
    require_as_alone(project, ready, tmp_path)


def test_a_seed_whose_loss_is_not_finite_leaves_the_others(ready: Path, tmp_path: Path):
    project = copy_of(ready, tmp_path / "project", PARAMS.replace(MODEL, '{name: "net.py:Net"}'))
    (project / "workloads/tiny/net.py").write_text(FAILS_WITH_SEED_1)
    stages_at_once(project, "hardware", "train tiny cuda 0", publishes=False)
    output = replicate(project, check=False)
    assert "error: seed 1: the training loss is nan in epoch 1" in output
    assert files_of(project, "replicate", 2) and files_of(project, "replicate", 5)
