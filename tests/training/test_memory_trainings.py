"""Whole trainings whose memory runs out: what they keep over a kill, and what they say.

Processes of their own run under RLIMIT_DATA, with the CPU in the place of a GPU that has as much memory as they may
allocate. What limits are stated in: test_memory.py.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from tests.limits import FREED, RECOMPUTED, leave, leave_in_gpu, under_a_limit
from tests.projects import (
    MODEL,
    ROOT,
    TINY,
    copy_of,
    environment,
    make_project,
    make_table,
    manifest_of,
    read_record,
    recorded_runs,
    run,
    run_path,
    stages_at_once,
    wait_until_published,
)

# A sequence of 512 steps passes layers of 2048: autograd keeps two tensors of 4 MiB of it, and 18 sequences are a
# batch.
NETWORK = (
    "{name: transformer, hidden_size: 16, num_layers: 1, num_heads: 2, feedforward_size: 2048, dropout: 0.1, "
    "checkpoint_activations: false}"
)
ON_AUTO = TINY.replace("devices: [cpu]", "devices: [auto]").replace("batch_size: 16", "batch_size: 32")
ON_AUTO = ON_AUTO.replace("epochs: 3", "epochs: 2")
LONG = ON_AUTO.replace(MODEL, NETWORK)
ENOUGH = 2**14  # MiB
TOO_LITTLE_FOR_A_BATCH = 75
TOO_LITTLE_FOR_THE_TEST_SPLIT = 24  # of 6 sequences; without gradients too, two of these tensors are there at a time
TOO_LITTLE_FOR_A_SEQUENCE = 6


def prepared(folder: Path, params: str, num_sequences: int, num_steps: int) -> Path:
    """A project whose training on `auto` can start."""
    project = make_project(folder, params, make_table(num_sequences, num_steps))
    stages_at_once(project, "hardware", "preprocess tiny", "preload tiny auto", "baseline tiny")
    return project


@pytest.fixture(scope="module")
def long_sequences(empty_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared project; tests train in copies. No machine has its GPU, whose memory is what the process may
    allocate."""
    project = prepared(tmp_path_factory.mktemp("long") / "project", LONG, 30, 512)
    shutil.copy(empty_history, project / "mlruns")
    hardware = project / "results/hardware/devices/auto.json"
    simulated = {**json.loads(hardware.read_text()), "kind": "cuda", "name": "simulated GPU", "driver": "none"}
    hardware.write_text(json.dumps(simulated))
    return project


@pytest.fixture
def project(long_sequences: Path, tmp_path: Path) -> Path:
    return copy_of(long_sequences, tmp_path / "project", LONG)


def start(project: Path, stage: str, mib: float = ENOUGH, *, dies: bool = False) -> subprocess.Popen[str]:
    """A stage on the simulated GPU, which has so much memory. `dies`: once it has saved a checkpoint."""
    arguments = (stage, mib, dies)
    return subprocess.Popen(
        [sys.executable, "-c", f"from tests.training import test_memory_trainings as t; t.on_simulated_gpu{arguments}"],
        cwd=project,
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def on_simulated_gpu(stage: str, mib: float, dies: bool) -> None:
    """Run the stage with the CPU in the place of the GPU."""
    under_a_limit()
    import torch._dynamo  # an optimizer imports it, and it is large  # noqa: F401

    for module in (np, scipy):  # the OpenBLAS of each allocates its buffers now; without memory it tries forever
        module.linalg.eigh(np.eye(64))
    from stages import evaluate, train  # noqa: F401  (the limit is for what they do, not for importing them)
    from tandem.devices import cuda
    from tandem.stage import main
    from tandem.training import context
    from tandem.training.checkpoint import Checkpoint
    from tandem.training.trainer import Epoch, Trainer

    torch.backends.mkldnn.enabled = False  # whether memory runs out in oneDNN depends on the processor
    open_cpu, epoch, evaluate_split = context.open_device, Trainer.train_epoch, evaluate.evaluate
    save = Checkpoint.save
    context.open_device = lambda identity, *settings: open_cpu({**identity, "kind": "cpu"}, *settings)
    cuda.Kind.require_same = lambda identity: None

    def epoch_with_little_memory(training: Trainer) -> Epoch:
        if training.epochs_done == 0:
            leave(mib)
        return epoch(training)

    def evaluate_with_little_memory(*arguments: Any) -> Any:
        leave(mib)
        result = evaluate_split(*arguments)
        under_a_limit()
        return result

    def save_and_die(checkpoint: Checkpoint, state: dict[str, Any]) -> None:
        save(checkpoint, state)
        if state["trainer"]:  # the first one has no epoch yet
            os.kill(os.getpid(), signal.SIGKILL)

    Trainer.train_epoch, evaluate.evaluate = epoch_with_little_memory, evaluate_with_little_memory
    if dies:
        Checkpoint.save = save_and_die
    status = main([stage, "tiny", "auto", *(["0"] if stage == "train" else [])])
    under_a_limit()  # torch._dynamo imports modules when the process ends
    sys.exit(status)


def finished(process: subprocess.Popen[str]) -> str:
    """What it said."""
    message, errors = process.communicate()
    assert process.returncode == 0, errors
    return message


def printed_actions(output: str) -> list[str]:
    return [line.removeprefix("out of memory: ") for line in output.splitlines() if line.startswith("out of memory: ")]


def sha256_of_weights(project: Path) -> str:
    return hashlib.sha256((project / run_path("last.safetensors", device="auto")).read_bytes()).hexdigest()


def the_run_in_mlflow(project: Path) -> dict[str, str]:
    """Tags and status of the only run."""
    wait_until_published(project)
    [recorded] = recorded_runs(project, "tiny")
    return {**recorded["tags"], "status": recorded["status"]}


@pytest.mark.long
def test_a_killed_training_keeps_what_it_did_about_memory_and_says_it_everywhere(long_sequences: Path, tmp_path: Path):
    killed = copy_of(long_sequences, tmp_path / "killed", LONG)
    process = start(killed, "train", TOO_LITTLE_FOR_A_BATCH, dies=True)
    output, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    # Whatever the processor makes of it: what was done before the checkpoint is in it, in that order.
    before = printed_actions(output.partition("epoch 1/")[0])

    resumed = finished(start(killed, "train"))
    assert "resuming from" in resumed and "out of memory" not in resumed
    measured = read_record(killed, "timing.json", device="auto")
    actions = measured["placement"]["out_of_memory"]
    assert actions == before
    assert actions[0] == FREED and actions[1].startswith("the data (") and "is trained on in 2 parts" in actions[2]
    assert measured["summary_lines"]["out_of_memory"] == f"memory ran out: {', then '.join(actions)}"
    tags = the_run_in_mlflow(killed)
    assert (tags["out_of_memory"], tags["status"]) == ("; ".join(actions), "FINISHED")

    # An epoch is one step here: the result is that of a training which did all of it from its first step on.
    parts = 2 ** sum("is trained on in" in action for action in actions)
    params = LONG.replace("grad_accum_steps: 1", f"grad_accum_steps: {parts}")
    if RECOMPUTED in actions:
        params = params.replace("checkpoint_activations: false", "checkpoint_activations: true")
    asked = copy_of(long_sequences, tmp_path / "asked", params)
    finished(start(asked, "train"))
    assert manifest_of(asked, device="auto")["realized"]["out_of_memory"] == []
    assert sha256_of_weights(asked) == sha256_of_weights(killed)


@pytest.mark.long
@pytest.mark.case(22)
def test_at_the_end_stands_advice_in_one_sentence_and_nothing_passes_for_a_result(
    project: Path, saw: Callable[[str], None]
):
    """a training with too little memory (by setrlimit) for one sequence"""
    output, errors = start(project, "train", TOO_LITTLE_FOR_A_SEQUENCE).communicate()
    (sentence,) = errors.splitlines()
    saw(sentence)
    assert sentence.startswith("error: out of memory (") and "set train.precision to bf16, then lower" in sentence
    actions = printed_actions(output)
    assert actions[0] == FREED and RECOMPUTED in actions
    assert f"{', '.join(actions)}; next, " in sentence
    assert not (project / run_path("timing.json", device="auto")).exists()
    tags = the_run_in_mlflow(project)
    assert (tags["status"], tags["out_of_memory"]) == ("FAILED", "; ".join(actions))


@pytest.mark.long
def test_an_evaluation_takes_smaller_parts(project: Path):
    finished(start(project, "train", ENOUGH))
    finished(start(project, "evaluate", TOO_LITTLE_FOR_THE_TEST_SPLIT))
    actions = the_run_in_mlflow(project)["out_of_memory.evaluate"].split("; ")
    assert actions[0] == FREED and "is evaluated in" in actions[-1]


# A GPU -------------------------------------------------------------------------------------------------------------


def stage_in_gpu(mib: float, words: tuple[str, ...]) -> None:
    from tandem.stage import main

    leave_in_gpu(mib)
    sys.exit(main(list(words)))


@pytest.mark.gpu
def test_a_gpu_without_room_for_a_step_ends_the_training_with_advice(tmp_path: Path):
    """24 MiB of the card: cuBLAS wants more for itself."""
    project = prepared(tmp_path / "project", TINY.replace("devices: [cpu]", "devices: [auto]"), 60, 12)
    code = "from tests.training import test_memory_trainings as t; t.stage_in_gpu(24, ('train', 'tiny', 'auto', '0'))"
    extra = {"PYTHONPATH": str(ROOT), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = run(project, sys.executable, "-c", code, check=False, **extra)
    errors = [line for line in done.stdout.splitlines() if line.startswith("error: out of memory")]
    assert done.returncode == 1 and len(errors) == 1, done.stdout
    assert "after these fallbacks" in errors[0] and "; next, " in errors[0]
