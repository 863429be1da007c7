"""Several workers train what one trains: the same gradients within rounding, the same draws.

The workers are forks of this process, which has torch already, with gloo between them.
"""

import importlib
import io
import multiprocessing
import os
import re
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tandem.devices.memory import ONEDNN
from tandem.devices.names import kind_of
from tandem.models.kernels import dropout
from tandem.params.loading import load_params
from tandem.params.schema import Train
from tandem.training.batches import Split
from tandem.training.opening import stop_on_out_of_memory
from tandem.training.step import take_step
from tandem.training.trainer import Trainer
from tandem.training.workers import (
    LOST_WORKER_STATUS,
    OUT_OF_MEMORY_STATUS,
    Workers,
    lost_workers_noticed,
    require_usable_workers,
    scaled,
)
from tests.limits import leave, under_a_limit
from tests.networks import Rocket
from tests.trainers import SETTINGS, new_trainer, tensors, trainer_on

NUM_STEPS, NUM_SEQUENCES = 12, 37
# Of a sum of gradients, or of a loss, in another order: on the three processors tried up to 5e-7.
ROUNDING = 1e-6


def trainer_of(workload: str, **changes: Any) -> Trainer:
    """As params.yaml trains the workload, on random sequences: two batches of 18, in parts of 9 that two
    workers cannot share evenly, and one of a single sequence, of which the second worker has no share."""
    block = load_params().blocks[workload]
    small = {"batch_size": 18, "grad_accum_steps": 2, "epochs": 2, "warmup_epochs": 1, "threads": 1, "step": "eager"}
    settings: Train = replace(block.train, **(small | changes))
    split = Split(tensors(NUM_SEQUENCES, NUM_STEPS, block.task), kind_of("cpu")())
    return trainer_on(split, settings, block.task, seed=1)


def together(work: Callable[[Workers], Any], count: int, folder: Path) -> list[Any]:
    """What `work` returns in each of `count` processes, the first worker's first."""
    if torch.cuda.is_initialized():
        pytest.skip("a process that has started CUDA cannot be forked")
    importlib.import_module("torch._dynamo")  # DistributedDataParallel does: once here, and not in each fork
    start = multiprocessing.get_context("fork")
    pipes = [start.Pipe(duplex=False) for _ in range(count)]

    def run(rank: int) -> None:
        try:
            torch.set_num_threads(1)  # the parent's threads are not there any more
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            store = dist.FileStore(str(folder / "store"), count)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
            pipes[rank][1].send_bytes(as_bytes(work(Workers(rank, count, rank, count))))
        except BaseException:
            pipes[rank][1].send_bytes(as_bytes(traceback.format_exc()))
        os._exit(0)

    processes = [start.Process(target=run, args=(rank,)) for rank in range(count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, from Python 3.12 on
        for process in processes:
            process.start()
    results = [torch.load(io.BytesIO(pipe.recv_bytes())) for pipe, _ in pipes]
    for process in processes:
        process.join()
    (folder / "store").unlink(missing_ok=True)
    assert not any(isinstance(result, str) for result in results), results
    return results


def as_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def first_gradients(trainer: Trainer) -> Tensor:
    take_step(trainer.step, next(trainer.drawn_batches(trainer.start_draws())))
    return torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])


def finish(trainer: Trainer) -> tuple[list[float], str]:
    """The losses and scores of the epochs that are left, and the digest of the weights after them."""
    values = []
    while trainer.epochs_done < trainer.settings.epochs:
        epoch = trainer.train_epoch()
        values += [epoch.train_loss, epoch.val_loss, epoch.val_score]
    return values, trainer.weights_sha256()


def joined(workers: Workers, workload: str, **changes: Any) -> Trainer:
    trainer = trainer_of(workload, **changes)
    trainer.use_workers(workers)
    return trainer


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_workers_equal_one_for_every_workload(count: int, tmp_path: Path):
    """With dropout, augmentation, teacher forcing, padding, a ragged batch and accumulation, as the workloads have
    them: other draws than one worker's would show in the first digit.
    """
    workloads = ["sign", "pen", "price", "rally"]  # not those that a user has added

    def work(workers: Workers) -> Any:
        return {name: (first_gradients(joined(workers, name)), finish(joined(workers, name))) for name in workloads}

    results = together(work, count, tmp_path)
    for name in workloads:
        gradients, (losses, _) = first_gradients(trainer_of(name)), finish(trainer_of(name))
        for worker_gradients, (worker_losses, sha256) in (result[name] for result in results):
            assert (worker_gradients - gradients).norm() <= ROUNDING * gradients.norm(), name
            assert worker_losses == pytest.approx(losses, rel=10 * ROUNDING, abs=ROUNDING), name
            assert sha256 == results[0][name][1][1], f"{name}: the workers' weights differ"


def test_a_checkpoint_knows_no_number_of_workers(tmp_path: Path):
    """From one of two workers go on two, to the bit, and one; and from one of one, two."""
    alone = trainer_of("sign")
    alone.train_epoch()
    of_one = as_bytes(alone.state())
    expected = finish(alone)

    def begin(workers: Workers) -> Any:
        trainer = joined(workers, "sign")
        trainer.train_epoch()
        state = as_bytes(trainer.state())
        return state, finish(trainer)

    results = together(begin, 2, tmp_path)
    of_two = results[0][0]

    def go_on(workers: Workers) -> Any:
        outcomes = []
        for state in (of_two, of_one):
            trainer = trainer_of("sign")
            trainer.restore(torch.load(io.BytesIO(state), weights_only=True))
            trainer.use_workers(workers)
            if not workers.is_first:  # whatever its processor has made of it
                torch.rand(7)
                trainer.model.head.bias.data += 1e-3
            outcomes.append(finish(trainer))
        return outcomes

    for same, other in together(go_on, 2, tmp_path):
        assert same == results[0][1]
        assert other[0] == pytest.approx(expected[0], rel=10 * ROUNDING)
    trainer = trainer_of("sign")
    trainer.restore(torch.load(io.BytesIO(of_two), weights_only=True))
    assert finish(trainer)[0] == pytest.approx(expected[0], rel=10 * ROUNDING)


def test_workers_with_other_code_or_another_torch_are_refused(tmp_path: Path):
    def work(workers: Workers) -> Any:
        inputs = {"seed": 0, "parameters": {}, "data": {"train": "a"}, "code": {}}
        hardware = {"name": workers.rank, "torch": "2.15.0"}
        workers.require_same(inputs | {"hardware": hardware})
        inputs |= {"code": {"file": str(workers.rank)}, "hardware": hardware | {"torch": f"2.{workers.rank}"}}
        with pytest.raises(ValueError) as raised:
            workers.require_same(inputs)
        return [str(raised.value)]

    [first], [second] = together(work, 2, tmp_path)
    assert "worker 1 has other code and torch than worker 0" in second and "one has other inputs" in first


def test_the_cpu_seconds_of_other_workers_are_counted_once(tmp_path: Path):
    def work(workers: Workers) -> float:
        while time.process_time() < 0.2:  # a fork's begins at 0
            pass
        return workers.cpu_seconds_of_others()

    first, second = together(work, 2, tmp_path)
    assert first == second >= 0.2, "of the second worker alone: each counts its own"


def freed_before() -> list[torch.Tensor]:
    """All but a few MiB of what this process can still allocate: also what it was given before, and has freed."""
    blocks: list[torch.Tensor] = []
    for size in (2**22, 2**20, 2**16):
        with suppress(RuntimeError):
            while True:
                blocks.append(torch.empty(size, dtype=torch.uint8))
    return blocks[: -2 * 2**4]


def test_where_memory_runs_out_on_one_worker_all_end_and_smaller_parts_are_asked_for(tmp_path: Path):
    """A step that needs more than 50 MiB, and a worker with 8."""
    large = {"hidden_size": 256, "feedforward_size": 1024, "num_layers": 4}

    def work(workers: Workers) -> Any:
        model = replace(load_params().blocks["pen"].train.model, **large)
        trainer, blocks, output = joined(workers, "pen", model=model), [], io.StringIO()
        trainer.executor.fallbacks.append("the data is streamed")
        try:
            with redirect_stderr(output), lost_workers_noticed(), stop_on_out_of_memory(trainer):
                if not workers.is_first:
                    under_a_limit()
                    leave(8)
                    blocks += freed_before()
                trainer.train_epoch()
        except SystemExit as ending:
            return {ending.code: output.getvalue()}

    first, second = together(work, 2, tmp_path)
    assert list(first) == [LOST_WORKER_STATUS]
    said = second[OUT_OF_MEMORY_STATUS]  # torch's words, or oneDNN's if that asks for memory first; no advice
    assert re.fullmatch(rf"worker 1: out of memory \(.*(allocate|{ONEDNN}).*\)\n", said)


def test_all_workers_validate_with_the_statistics_of_the_first(tmp_path: Path):
    """Those of a BatchNorm follow each worker's own share; the saved weights have the first worker's."""

    def work(workers: Workers) -> Any:
        model = torch.nn.BatchNorm1d(2)
        model(torch.full((4, 2), float(workers.rank)))
        workers.broadcast_buffers(model)
        return model.running_mean

    assert torch.equal(*together(work, 2, tmp_path))


def test_workers_without_a_gpu_or_a_sequence_of_their_own_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-6e3a")
    words = (
        "device '2xcuda' needs 2 GPUs here, one per worker, but the driver shows 1 (CUDA_VISIBLE_DEVICES='GPU-6e3a')"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        kind_of("cuda").require_several("2xcuda", 2, {"count": 1})
    monkeypatch.setenv("PET_NNODES", "2")
    kind_of("cuda").require_several("2xcuda", 2, {"count": 1})
    with pytest.raises(
        ValueError, match=r"too many workers for sign's batch of 16 .* in 2 parts .*accepted: at most 8xcpu"
    ):
        require_usable_workers("sign", "9xcpu", replace(SETTINGS, grad_accum_steps=2))
    require_usable_workers("sign", "8xcpu", replace(SETTINGS, grad_accum_steps=2))
    fitted = replace(SETTINGS, model=Rocket(name="rocket", num_kernels=84, num_groups=4))
    with pytest.raises(ValueError, match="one process fits mine's model rocket in closed form; accepted: cpu"):
        require_usable_workers("mine", "2xcpu", fitted)


def test_weak_scaling_gives_each_worker_a_batch_and_raises_the_rate():
    for rule, rate in (("strong", 0.01), ("weak-linear", 0.04), ("weak-sqrt", 0.02)):
        settings = scaled(replace(SETTINGS, learning_rate=0.01, scaling=rule), 4)
        assert (settings.batch_size, settings.learning_rate) == (16 if rule == "strong" else 64, pytest.approx(rate))
    assert scaled(replace(SETTINGS, scaling="weak-linear"), 1).batch_size == 16


@pytest.mark.gpu
def test_the_shares_of_dropout_on_a_gpu_are_those_of_one_draw():
    """Of the shapes that a layer of several sequences has; torch draws by the place in the tensor."""
    inputs, state = torch.ones(12, 7, 5, device="cuda"), torch.cuda.get_rng_state()
    expected = torch.nn.functional.dropout(inputs, 0.4)
    for first in (0, 5):
        torch.cuda.set_rng_state(state)
        with dropout.sharing(first, 12):
            assert torch.equal(dropout.dropout(inputs[first : first + 5], 0.4), expected[first : first + 5])


@pytest.mark.gpu
def test_a_model_wrapped_for_nccl_has_the_gradients_of_the_bare_one(tmp_path: Path):
    """One process: what one GPU can show."""
    settings = replace(SETTINGS, model=replace(SETTINGS.model, num_layers=1))
    bare, wrapped = (new_trainer("cuda", "device", tmp_path, settings) for _ in range(2))
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    try:
        wrapped.step.use_workers(Workers())
        state, gradients = torch.cuda.get_rng_state(), []
        for trainer in (bare, wrapped):
            torch.cuda.set_rng_state(state)
            gradients.append(first_gradients(trainer))
        torch.testing.assert_close(*gradients)
        assert torch.equal(Workers().sum(torch.ones(1, device="cuda")), torch.ones(1, device="cuda"))
    finally:
        dist.destroy_process_group()


NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:94, {kind} error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n"
    "nccl{name}: System call failed or device error.\nLast error:\n{cause}"
)


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        (
            "SystemError",
            "Error while creating shared memory segment /dev/shm/nccl-8c, error: No space left on device",
            "No space left on device; make /dev/shm larger (docker run --shm-size=1g)",
        ),
        ("UnhandledCudaError", "Cuda failure 1 'invalid argument'", "'invalid argument'; NCCL_DEBUG=INFO shows more"),
        ("RemoteError", "socketProgress: Connection closed by remote peer", ""),
    ],
)
def test_an_error_of_nccl_itself_is_said_and_not_repeated(
    capsys: pytest.CaptureFixture[str], name: str, cause: str, words: str
):
    error = dist.DistBackendError(NCCL.format(kind="unhandled system", name=name, cause=cause))
    with pytest.raises(ValueError if words else SystemExit) as raised, lost_workers_noticed():
        raise error
    if words:
        assert words in str(raised.value) and "\n" not in str(raised.value)
    else:
        assert raised.value.code == LOST_WORKER_STATUS and "another worker has ended" in capsys.readouterr().err
