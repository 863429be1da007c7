"""Workers as a user starts them: killed, interrupted and continued with another number, on two machines, on GPUs."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tandem import files
from tandem.training.launcher import MAX_RESTARTS, next_step
from tandem.training.workers import LOST_WORKER_STATUS, OUT_OF_MEMORY_STATUS
from tests.projects import (
    copy_of,
    dvc,
    held,
    is_gone,
    manifest_of,
    read_record,
    recorded_runs,
    run_path,
    stage,
    stages_at_once,
    start_training,
    wait_for,
    wait_until_published,
    without_publisher,
)


@pytest.fixture
def several(prepared: Path, tmp_path: Path) -> Path:
    """A project that is ready to train on one worker and on two."""
    project = copy_of(
        prepared, tmp_path / "project", (prepared / "params.yaml").read_text().replace("[cpu]", "[cpu, 2xcpu]")
    )
    dvc(project, "repro", "preload@tiny-2xcpu", "preload@tiny-cpu")
    return project


@pytest.fixture
def on_gpus(prepared: Path, tmp_path: Path) -> Path:
    """A project that is ready to train on one GPU and on two, as captured graphs where that is possible."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU: two workers on it are refused")
    params = (prepared / "params.yaml").read_text().replace("[cpu]", "[cuda, 2xcuda]")
    project = copy_of(prepared, tmp_path / "project", params.replace("step: eager", "step: auto"))
    stages_at_once(project, "hardware", "preload tiny cuda", "preload tiny 2xcuda")
    return project


PROJECTS = {"cpu": "several", "cuda": "on_gpus"}
ON_CPUS, ON_GPUS = pytest.param("cpu", marks=pytest.mark.long), pytest.param("cuda", marks=pytest.mark.gpu)


def results(project: Path, device: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return files.read_numbers(project / run_path("history.csv", device=device)), manifest_of(project, device=device)


def assert_near(found: list[dict[str, Any]], expected: list[dict[str, Any]], rel: float = 1e-4) -> None:
    assert [list(row.values()) for row in found] == [pytest.approx(list(row.values()), rel=rel) for row in expected]


def workers_under(launcher: int) -> dict[int, psutil.Process]:
    """Rank -> process."""
    return {int(child.environ()["RANK"]): child for child in psutil.Process(launcher).children() if child.is_running()}


def checkpoint_is_there(project: Path, kind: str = "cpu") -> bool:
    return any((project / ".tandem/checkpoints/tiny").glob(f"{kind}-*.pt"))


def interrupt(project: Path, device: str, kind: str, folder: Path) -> None:
    """Start a training on `device` (of `kind`), and Ctrl+C it after its second epoch; all of its workers end."""
    training = start_training(project, device, **held(folder, epoch=2, forks=False))
    wait_for(lambda: checkpoint_is_there(project, kind))
    processes = psutil.Process(training.pid).children()
    assert processes or device[0] != "2"
    training.send_signal(signal.SIGINT)
    (folder / "go").touch()
    output, _ = training.communicate()
    assert training.returncode == 130 and "run again to resume" in output, output
    wait_for(lambda: all(map(is_gone, processes)), what="the end of all workers")


def test_what_follows_when_workers_fail():
    """The exit statuses of the failed workers alone decide; the other workers end because of the first one."""
    killed, lost = -signal.SIGKILL, LOST_WORKER_STATUS
    assert next_step({1: killed, 0: lost}, num_machines=1, num_restarts=0) == "restart"
    assert next_step({0: OUT_OF_MEMORY_STATUS, 1: lost}, num_machines=1, num_restarts=MAX_RESTARTS) == "split batches"
    assert next_step({0: 1, 1: killed}, num_machines=1, num_restarts=0) == 1, "its error is printed; it would recur"
    assert next_step({0: 130, 1: lost}, num_machines=2, num_restarts=0) == 130
    for statuses, num_machines, num_restarts, reason in (
        ({0: lost, 1: killed}, 1, MAX_RESTARTS, r"worker 1 was killed \(SIGKILL\), after 3 restarts; the system kills"),
        ({0: lost, 1: lost}, 1, MAX_RESTARTS, "worker 0 lost the connection .* fix the cause"),
        ({0: -signal.SIGTERM, 1: -signal.SIGABRT}, 1, 0, r"worker 1 was killed \(SIGABRT\) by a library"),
        ({1: killed}, 2, 0, "run the same command again on every machine"),
    ):
        with pytest.raises(ChildProcessError, match=reason):
            next_step(statuses, num_machines, num_restarts)


@pytest.mark.long
def test_the_pipeline_gives_the_same_with_one_worker_and_with_two(several: Path):
    """Both trained, evaluated and compared; equal within rounding; the weights are those of the bare model."""
    dvc(several, "repro")
    (of_one, _), (of_two, manifest) = results(several, "cpu"), results(several, "2xcpu")
    assert_near(of_two, of_one)
    realized = manifest["realized"]
    assert (realized["workers"], realized["step"]) == (2, "eager") and "threads" not in realized  # one each
    table = (several / "results/compare/compare.md").read_text()
    assert "2 workers on " in table and "`tandem compare tiny@cpu tiny@2xcpu` compares its runs" in table
    wait_until_published(several)
    assert [run["params"].get("workers") for run in recorded_runs(several, "tiny")] in ([None, "2"], ["2", None])
    assert dvc(several, "repro").stdout.count("didn't change, skipping") > 5, "nothing is left to do"


@pytest.mark.parametrize("kind", [ON_CPUS, ON_GPUS])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_costs_nothing_but_time(kind: str, rank: int, request: pytest.FixtureRequest, tmp_path: Path):
    project, device = request.getfixturevalue(PROJECTS[kind]), f"2x{kind}"
    stage(project, "train", "tiny", device, "0")
    expected = results(project, device)
    training = start_training(project, device, **held(tmp_path / "held", epoch=2, forks=False))
    wait_for(lambda: checkpoint_is_there(project, kind))
    workers_under(training.pid)[rank].kill()
    (tmp_path / "held/go").touch()
    output, _ = training.communicate()
    assert training.returncode == 0, output
    assert f"worker {rank} was killed (SIGKILL); all 2 resume from the last checkpoint (restart 1 of 3)" in output
    actual = results(project, device)
    assert actual[0] == expected[0] and actual[1]["digests"]["weights"] == expected[1]["digests"]["weights"]


@pytest.mark.long
def test_a_worker_that_a_library_ends_is_not_started_again(several: Path, tmp_path: Path):
    """As nccl's watchdog does after ten minutes without an answer: a restart would wait again. gloo may end the other
    worker with the same signal.
    """
    training = start_training(without_publisher(several), "2xcpu", **held(tmp_path / "held", epoch=2, forks=False))
    wait_for(lambda: checkpoint_is_there(several))
    workers_under(training.pid)[1].send_signal(signal.SIGABRT)
    (tmp_path / "held/go").touch()
    output, _ = training.communicate()
    assert training.returncode == 1 and re.search(r"worker [01] was killed \(SIGABRT\) by a library", output), output
    assert "restart" not in output and "Traceback" not in output, output


@pytest.mark.parametrize("kind", [ON_CPUS, ON_GPUS])
@pytest.mark.parametrize("first, then", [("2x", ""), ("", "2x")])
def test_an_interrupted_training_goes_on_with_another_number_of_workers(
    kind: str, first: str, then: str, request: pytest.FixtureRequest, tmp_path: Path
):
    project = request.getfixturevalue(PROJECTS[kind])
    stage(project, "train", "tiny", kind, "0")
    expected, _ = results(project, kind)
    interrupt(project, first + kind, kind, tmp_path / "held")
    output = stage(project, "train", "tiny", then + kind, "0").stdout
    assert re.search(rf"resuming from .*{kind}-\w+-0\.pt, epoch [12] of 3", output), output
    assert re.search(r"epochs? 1.* used \d workers?, the next ones use \d workers?: .* within rounding", output), output
    actual, manifest = results(project, then + kind)
    assert_near(actual, expected, rel=1e-4 if kind == "cpu" else 1e-3)
    assert set(manifest["realized"]["workers_from_epoch"].values()) == {1, 2}


@pytest.mark.long
def test_a_killed_launcher_leaves_no_worker_behind(several: Path, tmp_path: Path):
    training = start_training(several, "2xcpu", **held(tmp_path / "held", epoch=2, forks=False))
    wait_for(lambda: checkpoint_is_there(several))
    workers = workers_under(training.pid)
    assert len(workers) == 2
    training.kill()
    training.wait()  # its death is what the workers are told of
    (tmp_path / "held/go").touch()
    training.communicate()
    wait_for(lambda: all(map(is_gone, workers.values())), what="the end of all workers")
    assert "resuming from" in stage(several, "train", "tiny", "2xcpu", "0").stdout


@pytest.mark.long
def test_a_reason_ends_all_workers_at_once(several: Path):
    text = (several / "params.yaml").read_text()  # the largest values that are accepted, as in test_pipeline.py
    for usual, largest in (("1e-2", "10"), ("weight_decay: 0.01", "weight_decay: 100"), ("one-cycle", "cosine")):
        text = text.replace(usual, largest)
    (several / "params.yaml").write_text(text.replace("epochs: 3", "epochs: 12"))
    failed = stage(several, "train", "tiny", "2xcpu", "0", check=False)
    assert failed.returncode == 1 and "restart" not in failed.stdout
    assert failed.stdout.count("error: the training loss is") >= 1 and "Traceback" not in failed.stdout


@pytest.fixture
def two_machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them; their addresses are 10.77.0.1 and 10.77.0.2."""
    names = (f"tandem-a{os.getpid()}", f"tandem-b{os.getpid()}")
    commands = [f"ip netns add {name}" for name in names]
    commands += [f"ip link add name eth9 netns {names[0]} type veth peer name eth9 netns {names[1]}"]
    for number, name in enumerate(names, 1):
        commands += [f"ip -n {name} addr add 10.77.0.{number}/24 dev eth9"]
        commands += [f"ip -n {name} link set {interface} up" for interface in ("eth9", "lo")]
    try:
        for command in commands:
            if not shutil.which("ip") or subprocess.run(command.split(), stderr=subprocess.DEVNULL).returncode:
                pytest.skip(f"this user, or this container, may not do `{command}`")
        yield names
    finally:
        for name in names:
            if shutil.which("ip"):
                subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


@pytest.mark.long
def test_two_machines_train_what_one_does_and_go_on_where_a_worker_was_killed(
    several: Path, two_machines: tuple[str, str], tmp_path: Path
):
    """Each has its own copy of the project, and nothing in common but a network."""
    stage(several, "train", "tiny", "cpu", "0")
    expected, _ = results(several, "cpu")
    projects = [
        copy_of(several, tmp_path / name, (several / "params.yaml").read_text()) for name in ("first", "second")
    ]
    variables = held(tmp_path / "held", epoch=2, forks=False)
    trainings = [
        start_training(
            project, "2xcpu", inside=f"ip netns exec {name}",
            PET_NNODES="2", PET_RDZV_BACKEND="c10d", PET_RDZV_ID="tiny", PET_RDZV_ENDPOINT="10.77.0.1:29500",
            PET_RDZV_CONF=f"is_host={number == 1}".lower(), PET_LOCAL_ADDR=f"10.77.0.{number}",
            GLOO_SOCKET_IFNAME="eth9", **variables,
        )
        for number, (project, name) in enumerate(zip(projects, two_machines, strict=True), 1)
    ]  # fmt: skip
    wait_for(lambda: checkpoint_is_there(projects[0]))
    workers_under(trainings[1].pid)[1].kill()
    (tmp_path / "held/go").touch()
    outputs = [training.communicate()[0] for training in trainings]
    assert [training.returncode for training in trainings] == [0, 0], outputs
    assert "2 workers, 1 on this machine" in outputs[0] and "resuming from" in outputs[0], outputs[0]
    actual, manifest = results(projects[0], "2xcpu")
    assert_near(actual, expected)
    assert manifest["realized"]["workers"] == 2
    assert not (projects[1] / "results/runs/tiny/2xcpu").exists(), "the first worker alone writes"


@pytest.mark.gpu
def test_two_gpus_train_what_one_does_eagerly_and_their_weights_are_those_of_one(on_gpus: Path):
    stages_at_once(on_gpus, "train tiny cuda 0", "evaluate tiny cuda")
    output = stage(on_gpus, "train", "tiny", "2xcuda", "0").stdout
    assert "2 workers, a GPU each" in output and "nccl sums their gradients" in output
    assert "steps are taken eagerly instead of captured as a CUDA graph: several workers" in output
    stage(on_gpus, "evaluate", "tiny", "2xcuda", CUDA_VISIBLE_DEVICES="0")
    (of_one, _), (of_two, manifest) = results(on_gpus, "cuda"), results(on_gpus, "2xcuda")
    assert_near(of_two, of_one, rel=1e-3)
    assert manifest["realized"]["workers"] == 2 and manifest["realized"]["step"] == "eager"
    assert "several workers take their steps eagerly" in manifest["summary_lines"]["step"]
    scores = [read_record(on_gpus, "score.json", device=device)["metrics"]["accuracy"] for device in ("cuda", "2xcuda")]
    assert scores[0] == pytest.approx(scores[1], abs=0.1)


@pytest.mark.gpu
def test_workers_that_stream_their_data_use_no_gpu_but_their_own(on_gpus: Path):
    """A thread begins on GPU 0: one that copies for worker 1 would open a context there, and spoil the times."""
    params = on_gpus / "params.yaml"
    params.write_text(params.read_text().replace("data_location: auto", "data_location: host"))
    output = stages_at_once(on_gpus, "preload tiny 2xcuda", "train tiny 2xcuda 0").stdout
    _, manifest = results(on_gpus, "2xcuda")
    assert manifest["realized"]["data_location"] == "host"
    conditions = manifest["conditions"]  # this test's own process may have a context there
    assert conditions["between"].get("other_processes") == conditions["before"]["gpu"].get("other_processes"), output


@pytest.mark.gpu
def test_gpus_whose_memory_runs_out_all_take_smaller_parts(on_gpus: Path):
    """A layer of 16,384 over batches of 16 sequences: autograd keeps some tensors of 12 MiB of each half of one."""
    wide = (
        "{name: transformer, hidden_size: 16, num_layers: 2, num_heads: 2, feedforward_size: 16384, dropout: 0.0, "
        "checkpoint_activations: false}"
    )
    text = (on_gpus / "params.yaml").read_text()
    (on_gpus / "params.yaml").write_text(re.sub(r"\{name: gru[^}]*\}", wide, text))
    share = 96 * 2**20 / torch.cuda.get_device_properties(0).total_memory
    output = stage(
        on_gpus, "train", "tiny", "2xcuda", "0", PYTORCH_ALLOC_CONF=f"per_process_memory_fraction:{share:.6f}"
    ).stdout
    assert re.search(r"all 2 workers resume from the last checkpoint, with batches in \d+ parts", output), output
    _, manifest = results(on_gpus, "2xcuda")
    assert any("by all workers" in action for action in manifest["realized"]["out_of_memory"])
    assert manifest["realized"]["data_location"] == "host"
