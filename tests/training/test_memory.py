"""Memory that really runs out: a limit on a process of its own (CPU), a fraction of the card's (GPU). It costs time,
not the result.

A scenario is a function that runs in a process of its own under RLIMIT_DATA, which limits what it can allocate. A file
that is mapped to be read does not count, as it does not where memory is short: the system takes its pages back. Which
fallback comes last depends on the processor and its libraries; limits are stated in sizes of tensors, so that no
machine can do without the fallback that a test is about. Whole trainings: test_memory_trainings.py.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tandem import models
from tandem.devices.device import Device
from tandem.devices.memory import is_out_of_memory
from tandem.devices.names import kind_of
from tandem.diagnosis.counts import saved_for_backward
from tandem.machine.measure import Measurement
from tandem.runs.quantities import summarize, timing_row
from tandem.tasks import classify
from tandem.training.batches import Batch, Split, load_split
from tandem.training.execution import Execution, open_device, requested_execution
from tandem.training.executor import Executor, OutOfMemory
from tandem.training.step import Step
from tandem.training.trainer import Epoch, Trainer
from tests import forked
from tests.limits import FREED, MIB, RECOMPUTED, leave, under_a_limit
from tests.networks import GRU
from tests.projects import ROOT
from tests.trainers import SETTINGS, TRANSFORMER, assert_same_bits, finish, identity, new_trainer

CPU = kind_of("cpu")()


def apart(scenario: Callable[..., Any], *arguments: Any) -> Any:
    """What `scenario` returns in a process of its own, forked from one that has imported torch."""
    code = f"from tests.training import test_memory as here; here.answer(here.{scenario.__name__}, *{arguments})"
    with TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        status = forked.run(ROOT, code, dict(os.environ), output, output, is_bare=True)
        assert status == 0, output.read_text()
        return json.loads(output.read_text().splitlines()[-1])


def answer(scenario: Callable[..., Any], *arguments: Any) -> None:
    under_a_limit()
    result = scenario(*arguments)
    under_a_limit()
    print(json.dumps(result))


def without_onednn() -> Device:
    """The CPU, where bits are compared: it depends on the processor whether memory runs out in oneDNN, and to go on
    without it changes bits.
    """
    torch.backends.mkldnn.enabled = False
    return open_device(identity("cpu"), threads=1, deterministic=True)


def digest(model: torch.nn.Module) -> str:
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()


def random_batch(num_sequences: int, num_steps: int) -> Batch:
    draw = torch.Generator().manual_seed(1)
    mask = torch.ones(num_sequences, num_steps, dtype=torch.bool)
    rows = torch.arange(num_sequences)
    return Batch(torch.randn(num_sequences, num_steps, 4, generator=draw), mask, rows % 3, rows)


def step_of(model: torch.nn.Module, max_grad_norm: float = 1.0, **changed: Any) -> Step:
    task = classify.Task({"classes": ["a", "b", "c"]})
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    executor = Executor(replace(requested_execution(SETTINGS, CPU, model), **changed), model)
    return Step(
        model,
        lambda outputs, batch: task.loss(outputs, batch.targets, batch.mask, 0.0),
        optimizer,
        executor,
        max_grad_norm,
    )


# ---------------------------------------------------------------------------------------------------------------------
# The data

DATA_MIB = 24


def train_on(path: str, at_load: float | None, at_first_step: float | None) -> dict[str, Any]:
    """24 steps on a resident split of DATA_MIB, with so many MiB left from there on. A step needs a tenth of that."""
    device = without_onednn()
    split = load_split(Path(path), device)
    model = GRU(name="gru", hidden_size=16, num_layers=1, bidirectional=True, dropout=0.3)
    settings = replace(SETTINGS, model=model, batch_size=32, epochs=1)
    torch.manual_seed(0)
    network = models.build(model, models.Shape(32, 3, 64, per_step=False))
    val = Split({name: tensor[:64].clone() for name, tensor in split.tensors.items()}, device)
    trainer = Trainer(network, split, val, settings, classify.Task({"classes": ["a", "b", "c"]}))
    if at_load is not None:
        leave(at_load)
    trainer.executor.make_resident()
    network.train()
    for number, batch in enumerate(islice(trainer.drawn_batches(trainer.start_draws()), 24)):
        if number == 0 and at_first_step is not None:
            leave(at_first_step)
        trainer.step(batch)
    return {
        "weights": digest(network),
        "parts": trainer.execution.grad_accum_steps,
        "actions": trainer.executor.fallbacks,
    }


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    draw = torch.Generator().manual_seed(0)
    num = DATA_MIB * 2**20 // (64 * 32 * 4)
    tensors = {
        "values": torch.randn(num, 64, 32, generator=draw),
        "mask": torch.ones(num, 64, dtype=torch.bool),
        "targets": torch.arange(num) % 3,
    }
    path = tmp_path_factory.mktemp("packed") / "train.safetensors"
    save_file(tensors, path)
    return str(path)


@pytest.mark.long
@pytest.mark.case(21)
def test_where_the_data_does_not_fit_streaming_alone_is_enough_and_gives_the_same_bits(
    packed: str, saw: Callable[[str], None]
):
    """memory (the CPU's, by setrlimit) without room for the data at the start, and from the first step on"""
    resident = apart(train_on, packed, None, None)
    assert resident["actions"] == []
    # The data does not fit beside the rest; and where it is there, not even a batch fits until the data has made room.
    for at_load, at_first_step in ((0.75 * DATA_MIB, None), (None, 0.25)):
        result = apart(train_on, packed, at_load, at_first_step)
        assert (result["weights"], result["parts"]) == (resident["weights"], 1)
        freed, streamed = result["actions"]
        assert freed == FREED and streamed.startswith("the data (")
        saw(streamed)
        assert streamed.endswith(" MiB) is read from its file batch by batch instead of held in memory")


# ---------------------------------------------------------------------------------------------------------------------
# The step, and passes without gradients


NUM_SEQUENCES, NUM_STEPS = 16, 256  # a batch of few long sequences


def one_step(share: float | None) -> dict[str, Any]:
    """A step with room for a share of what autograd keeps of it."""
    without_onednn()
    torch.manual_seed(0)
    step = step_of(models.build(TRANSFORMER, models.Shape(4, 3, NUM_STEPS, per_step=False)))
    batch = random_batch(NUM_SEQUENCES, NUM_STEPS)
    if share is not None:
        with saved_for_backward(()) as saved:  # the least that a step on the whole batch needs
            step.model(*batch.inputs())
        leave(share * sum(saved.values()) / MIB)
    try:
        outcome = {"loss": step(batch).item()}
    except OutOfMemory as error:
        outcome = {"error": str(error)}
    under_a_limit()
    weights = [parameter.double().abs().sum().item() for parameter in step.weights]
    return {**outcome, "weights": weights, "parts": step.execution.grad_accum_steps, "actions": step.executor.fallbacks}


@pytest.mark.case(20)
def test_smaller_parts_give_what_the_whole_batch_gives_and_the_end_is_one_sentence(saw: Callable[[str], None]):
    """memory (the CPU's, by setrlimit) for 0.6 of a batch, and for a tenth of a sequence"""
    plenty, little, too_little = (apart(one_step, share) for share in (None, 0.6, 0.1 / NUM_SEQUENCES))
    assert (plenty["parts"], plenty["actions"]) == (1, [])
    parts = [f"a batch of {NUM_SEQUENCES} is trained on in {2**power} parts" for power in range(1, 5)]
    assert 1 < little["parts"] <= NUM_SEQUENCES
    assert little["actions"] == [FREED, *parts[: little["parts"].bit_length() - 1]]
    assert little["loss"] == pytest.approx(plenty["loss"], rel=1e-5)
    assert little["weights"] == pytest.approx(plenty["weights"], rel=1e-5)
    saw("; ".join(little["actions"]))
    saw(too_little["error"])
    assert too_little["actions"] == [FREED, *parts, RECOMPUTED]
    assert too_little["error"].startswith("out of memory (") and "\n" not in too_little["error"]


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_a_step_in_fp16_that_fails_at_its_very_end_is_taken_again_with_the_same_loss_scale(max_grad_norm: float):
    """Planted: the optimizer has no memory for its moments. Without clipping it divides by the scale itself."""
    weights = []
    for num_failures in (0, 1):
        torch.manual_seed(0)
        step = step_of(
            models.build(TRANSFORMER, models.Shape(4, 3, 4, per_step=False)),
            precision="fp16",
            max_grad_norm=max_grad_norm,
        )
        allocate, failures = step.optimizer._init_group, iter(range(num_failures))

        def fails_first(*arguments: Any, allocate: Any = allocate, failures: Iterator[int] = failures) -> Any:
            if next(failures, None) is not None:
                raise torch.OutOfMemoryError("CUDA out of memory. Planted")
            return allocate(*arguments)

        step.optimizer._init_group = fails_first
        step(random_batch(4, 4)), step(random_batch(4, 4))
        assert len(step.executor.fallbacks) == num_failures
        weights.append(digest(step.model))
    assert weights[0] == weights[1]


@pytest.mark.parametrize("fails_at", [0, 6, 7], ids=["first", "middle", "smaller"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_whose_memory_runs_out_once_is_taken_again_with_the_same_bits(
    where: str, fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Planted: dropout draws the same again, and no gradient, no loss and no statistic of a BatchNorm counts twice."""

    def opened() -> Trainer:
        trainer = new_trainer("cpu", "device", tmp_path, SETTINGS)
        trainer.model.norm = torch.nn.BatchNorm1d(4, affine=False)
        trainer.model.register_forward_pre_hook(lambda model, inputs: (model.norm(inputs[0].mean(dim=1)), None)[1])
        return trainer

    expected = finish(opened())
    trainer, steps = opened(), iter(range(10**9))

    def planted(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            result = work(*arguments)
            if torch.is_grad_enabled() and next(steps) == fails_at:
                raise torch.OutOfMemoryError("CUDA out of memory. Planted")
            return result

        return run

    if where == "forward":
        trainer.step.forward = planted(trainer.step.forward)
    else:
        monkeypatch.setattr(torch.Tensor, "backward", planted(torch.Tensor.backward))
    assert_same_bits(finish(trainer), expected)
    assert trainer.executor.fallbacks == [FREED] and "norm.num_batches_tracked" in expected[0]


@pytest.mark.parametrize("where", ["forward", "loss", "predict"])
def test_a_validation_whose_memory_runs_out_anywhere_goes_on_in_smaller_parts(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Planted, because each needs its memory at another size: more than 20 sequences at a time are too many."""
    settings = replace(SETTINGS, epochs=1)
    expected = new_trainer("cpu", "device", tmp_path, settings).train_epoch()
    trainer, refused = new_trainer("cpu", "device", tmp_path, settings), []

    def limited(work: Callable[..., Any], rows: int) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if not torch.is_grad_enabled() and len(arguments[rows]) > 20:
                refused.append(len(arguments[rows]))
                raise torch.OutOfMemoryError("CUDA out of memory. Planted")
            return work(*arguments, **named)

        return run

    if where == "forward":
        trainer.model.forward = limited(trainer.model.forward, 0)
    else:
        monkeypatch.setattr(trainer.task, where, limited(getattr(trainer.task, where), 0))
    epoch = trainer.train_epoch()
    assert refused == [50, 50, 50, 25] and trainer.execution.num_eval_parts == 4  # freeing and streaming come first
    assert epoch.val_loss == pytest.approx(expected.val_loss, rel=1e-6) and epoch.val_score == expected.val_score


@pytest.mark.parametrize(
    ("error", "is_lack"),
    [
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), False),
        (RuntimeError("cuDNN SDPA execution failed\nCUDA ran out of memory outside PyTorch's allocator. If"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm(`"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), False),  # this GPU, or none, has memory
        (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), True),
        (RuntimeError("could not create a primitive descriptor for a matmul primitive"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (FileNotFoundError("out of memory"), False),
    ],
    ids=str,
)
def test_fallbacks_answer_the_lack_of_memory_of_every_library_and_nothing_else(error: Exception, is_lack: bool):
    errors = iter([error])

    def work() -> str:
        for failure in errors:
            raise failure
        return "done"

    executor = Executor(Execution(CPU))
    assert is_out_of_memory(error) == is_lack
    with nullcontext() if is_lack else pytest.raises(type(error)):
        assert executor.run_with_fallbacks(work) == "done"
    assert executor.fallbacks == ([FREED] if is_lack else [])


# ---------------------------------------------------------------------------------------------------------------------
# Activations computed again


def gradients(recomputes: bool, precision: str, grad_accum_steps: int) -> tuple[list[torch.Tensor], int]:
    """Gradients of a step after clipping, and the bytes that autograd kept for one."""
    config = replace(TRANSFORMER, dropout=0.2, checkpoint_activations=recomputes)
    torch.manual_seed(0)
    model = models.build(config, models.Shape(4, 3, 40, per_step=False)).train()
    step = step_of(model, precision=precision, grad_accum_steps=grad_accum_steps, max_grad_norm=0.01)
    with saved_for_backward(()) as saved:
        step(random_batch(12, 40))
    return [parameter.grad for parameter in model.parameters()], sum(saved.values())


@pytest.mark.parametrize(("precision", "grad_accum_steps"), [("fp32", 1), ("bf16", 3), ("fp16", 3)])
def test_activations_computed_again_give_the_same_gradients_from_less(precision: str, grad_accum_steps: int):
    """Dropout included. fp16 scales the loss: clipped before that is taken out again, the norm would be thousands of
    times smaller."""
    stored, stored_bytes = gradients(False, precision, grad_accum_steps)
    recomputed, recomputed_bytes = gradients(True, precision, grad_accum_steps)
    assert recomputed_bytes < 0.5 * stored_bytes
    norm = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in stored]))
    assert norm.item() == pytest.approx(0.01, rel=1e-3)
    for expected, actual in zip(stored, recomputed, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-8)


# ---------------------------------------------------------------------------------------------------------------------
# What is said of times


def test_epochs_of_another_number_of_workers_count_only_in_the_training_seconds():
    rows = []
    for number, epoch_seconds in enumerate((50.0, 60.0, 1.0, 3.0), 1):
        measured = Measurement(seconds=epoch_seconds, cpu_share=1.0, peak_allocated_mib=7.0)
        validation = Measurement(seconds=0.5, peak_allocated_mib=8.0)  # the larger peak counts
        rows.append(timing_row(Epoch(number, 0.1, 1.0, 1.0, 0.5, measured, validation, {}), 100, 1))
    summary = summarize(rows, first_epoch=3)
    assert (summary["epoch_seconds"], summary["samples_per_second"]) == (2.0, pytest.approx((100 + 100 / 3) / 2))
    assert (summary["num_epochs_measured"], summary["num_epochs_warmup"], summary["peak_allocated_mib"]) == (2, 0, 8.0)
    assert summary["train_seconds"] == 50 + 60 + 1 + 3 + 4 * 0.5


# ---------------------------------------------------------------------------------------------------------------------
# A GPU


def on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint saves and loads it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, map_location="cpu", weights_only=True)


@pytest.mark.gpu
def test_a_gpus_training_goes_on_from_a_state_on_the_cpu_on_either_device(tmp_path: Path):
    """A captured step keeps its rate in a tensor on the device, which an eager one on the CPU does not."""
    settings = replace(SETTINGS, model=replace(SETTINGS.model, dropout=0.0), step="graph")
    expected, losses = finish(new_trainer("cuda", "device", tmp_path, settings))
    for device in ("cuda", "cpu"):
        begun = new_trainer("cuda", "device", tmp_path, settings)
        begun.train_epoch(), begun.train_epoch()
        trainer = new_trainer(device, "device", tmp_path, settings)
        trainer.restore(on_cpu(begun.state()))
        weights, last_losses = finish(trainer)
        assert last_losses == pytest.approx(losses[2:], rel=1e-3)
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-2, atol=1e-3)
