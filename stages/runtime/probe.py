"""Where a training step's time goes, found by running its parts apart, and what would help most, found by trying it.

In: a `Fit` about to start. Out: a `Probe`. The fit is put back as it was, bit for bit. Takes about BUDGET_SECONDS.

- data: the batches alone (gathering, augmentation, and the copy to the device where the data is streamed)
- step: forward, backward and update on one batch that is already there
- overhead: the same step on a single sequence, which computes next to nothing: what launching and the host cost at least
- peak: the largest rate of a matrix product and of a copy on this device

The arithmetic is counted, not timed: `FlopCounterMode` on a copy of the model on the CPU, where recurrent layers fall apart into products.
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from stages.runtime.batches import Batch
from stages.runtime.device import synchronize
from stages.runtime.fit import Fit
from stages.runtime.step import autocast, is_out_of_memory

BUDGET_SECONDS = 1.0
NUM_TRIALS = 7  # parts and alternatives that share the budget
MATMUL_SIZE = 1024
COPY_BYTES = 64 * 2**20
MIN_GAIN = 1.1  # an alternative must promise this much to be worth a sentence
SHARE_THAT_BOUNDS = 0.5


@dataclass(frozen=True)
class Probe:
    """Seconds are per step of `batch_size` sequences."""

    batch_size: int
    data_seconds: float
    step_seconds: float
    overhead_seconds: float
    flop_per_second: float  # of the step alone
    peak_flop_per_second: float
    bytes_per_second: float  # of the batches alone
    peak_bytes_per_second: float
    bound: str  # data, launch or compute
    memory_mib: dict[str, float]  # what for -> how much
    gains: dict[str, float] = field(default_factory=dict)  # alternative -> times as many sequences per second

    @property
    def total_seconds(self) -> float:
        return self.data_seconds + self.step_seconds

    def shares(self) -> dict[str, float]:
        """Of a step's time: waiting for data, overhead, and what is left for computing."""
        overhead = min(self.overhead_seconds, self.step_seconds)
        parts = {"data": self.data_seconds, "launch": overhead, "compute": self.step_seconds - overhead}
        return {name: seconds / self.total_seconds for name, seconds in parts.items()}

    def sentence(self) -> str:
        """What bounds the run and what would help most."""
        share = self.shares()[self.bound]
        said = {
            "data": f"data-bound: {share:.0%} of a step is waiting for its batch",
            "launch": f"launch-bound: {share:.0%} of a step is what even a single sequence costs",
            "compute": f"compute-bound: {share:.0%} of a step is arithmetic, at {self.flop_per_second / self.peak_flop_per_second:.0%} "
            "of the matrix rate measured here",
        }[self.bound]
        best = sorted(((gain, what) for what, gain in self.gains.items() if gain >= MIN_GAIN), reverse=True)
        if not best:
            return f"{said}; nothing that was tried would make it {MIN_GAIN} times as fast"
        return f"{said}; {' or '.join(f'{what}: about {gain:.1f} times' for gain, what in best[:2])}"

    def memory_sentence(self) -> str:
        parts = ", ".join(f"{name} {mib:.1f}" for name, mib in self.memory_mib.items())
        return f"{sum(self.memory_mib.values()):.1f} MiB is what this training needs: {parts}"

    def numbers(self) -> dict[str, float]:
        """Everything measured, flat."""
        flat = {name: value for name, value in asdict(self).items() if isinstance(value, int | float)}
        shares = {f"{name}_share": share for name, share in self.shares().items()}
        memory = {f"memory_{name}_mib": mib for name, mib in self.memory_mib.items()}
        return {**flat, **shares, **memory, **{f"gain {what}": gain for what, gain in self.gains.items()}}


def probe(fit: Fit) -> Probe | str:
    """Measure `fit`'s step, taken eagerly; or say why it cannot be. Leaves the fit, and torch's generators, as they were."""
    before = copy.deepcopy(fit.state())
    fit.step.may_adapt = False  # what runs out of memory here must not change how the training goes on
    try:
        return measure_parts(fit)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return "the batch does not fit into the memory in one piece"
    finally:
        fit.restore(before)
        fit.optimizer.zero_grad(set_to_none=True)
        fit.step.may_adapt = True


def measure_parts(fit: Fit) -> Probe:
    budget, params = BUDGET_SECONDS / NUM_TRIALS, fit.params
    fit.model.train()
    batch = one_batch(fit, params.batch_size)
    data = per_batch(fit, budget)
    step = seconds_of(lambda: fit.step.eager(batch), fit.device, budget)
    overhead = seconds_of(lambda: fit.step.eager(first(batch, 1)), fit.device, budget)
    matmul, copying = peak_rates(fit.device, budget)
    moved = sum(tensor.nbytes for tensor in (batch.values, batch.mask, batch.targets))
    found = Probe(
        len(batch),
        data,
        step,
        overhead,
        count_flop(fit, batch) / step,
        matmul,
        moved / data if data else 0.0,
        copying,
        "compute",
        memory_needs(fit, batch),
    )
    shares = found.shares()
    bound = "data" if shares["data"] >= SHARE_THAT_BOUNDS else max(("launch", "compute"), key=lambda name: shares[name])
    return replace(found, bound=bound, gains=try_alternatives(fit, found, budget))


def try_alternatives(fit: Fit, found: Probe, budget: float) -> dict[str, float]:
    """What other settings would bring, each taken for a few steps: times as many sequences per second, data included."""
    params, now = fit.params, found.batch_size / found.total_seconds
    gains = {}
    for size in (2 * params.batch_size, 8 * params.batch_size):
        if size <= len(fit.train_split):
            try:
                batch = one_batch(fit, size)
                seconds = seconds_of(lambda batch=batch: fit.step.eager(batch), fit.device, budget)  # type: ignore[misc]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                break
            gains[f"batch {size}"] = size / (seconds + found.data_seconds * size / found.batch_size) / now
    batch = one_batch(fit, params.batch_size)
    if params.precision == "fp32":
        fit.step.precision = "bf16"
        try:
            seconds = seconds_of(lambda: fit.step.eager(batch), fit.device, budget)
            gains["precision bf16"] = found.batch_size / (seconds + found.data_seconds) / now
        except RuntimeError:  # an operator that has no bf16 kernel here
            pass
        finally:
            fit.step.precision = params.precision
    return gains


def one_batch(fit: Fit, size: int, repeat: bool = False) -> Batch:
    """The first `size` sequences as a batch on the device, with a teacher where the decoder takes one.

    Where there are fewer it is all of them, or with `repeat` some of them again.
    """
    there = len(fit.train_split)
    rows = torch.arange(size if repeat else min(size, there)) % there
    batch = next(fit.train_split.batches(rows, size))
    return replace(batch, teacher=batch.targets) if hasattr(fit.params.model, "teacher_forcing") else batch


def first(batch: Batch, count: int) -> Batch:
    teacher = None if batch.teacher is None else batch.teacher[:count]
    return Batch(batch.values[:count], batch.mask[:count], batch.targets[:count], batch.rows[:count], teacher)


def per_batch(fit: Fit, budget: float) -> float:
    """Seconds to get one batch when nothing is done with it."""
    synchronize(fit.device)
    count, start = 0, time.perf_counter()
    while True:
        for _ in fit.training_batches():
            count += 1
            if count >= 3 and time.perf_counter() - start > budget:
                synchronize(fit.device)
                return (time.perf_counter() - start) / count


def seconds_of(work: Callable[[], Any], device: torch.device, budget: float) -> float:
    """Mean seconds of `work`, synchronized at both ends; the first call, which may still choose kernels, is left out."""
    work()
    synchronize(device)
    count, start = 0, time.perf_counter()
    while True:
        work()
        count += 1
        if time.perf_counter() - start > budget:
            synchronize(device)
            return (time.perf_counter() - start) / count


def peak_rates(device: torch.device, budget: float) -> tuple[float, float]:
    """(FLOP/s of a large fp32 matrix product, bytes/s read and written by a large copy) on this device."""
    square = torch.ones(MATMUL_SIZE, MATMUL_SIZE, device=device)
    product = seconds_of(lambda: square @ square, device, budget / 2)
    block = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(block)
    copying = seconds_of(lambda: target.copy_(block), device, budget / 2)
    return 2 * MATMUL_SIZE**3 / product, 2 * COPY_BYTES / copying


def count_flop(fit: Fit, batch: Batch) -> float:
    """FLOP of forward and backward for `batch`, from two sequences of it."""
    model = copy.deepcopy(fit.model).cpu()
    part = first(batch, 2)
    inputs = [tensor.cpu() for tensor in part.inputs()]
    # oneDNN's LSTM is one operator, which the counter does not see into.
    with without_onednn(), FlopCounterMode(display=False) as counter:
        outputs = model(*inputs)
        fit.task.loss(outputs.float(), part.targets.cpu(), part.mask.cpu(), 0.0).backward()
    return counter.get_total_flops() * len(batch) / len(part)


@contextmanager
def without_onednn() -> Iterator[None]:
    """`torch.backends.mkldnn.flags` would also set its TF32 switch, which warns where there is no Intel GPU."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def memory_needs(fit: Fit, batch: Batch) -> dict[str, float]:
    """MiB that training takes for itself, by what for: counted from the tensors, on any device.

    Activations are what autograd keeps of one forward pass for the backward one, every storage once, weights and inputs left out.
    """
    kept: dict[int, int] = {}
    own = {tensor.untyped_storage().data_ptr() for tensor in (*fit.model.parameters(), *batch.inputs(), batch.targets)}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(fit.params.precision, fit.device),
    ):
        outputs = fit.model(*batch.inputs())
        fit.task.loss(outputs.float(), batch.targets, batch.mask, 0.0)
    weights = sum(parameter.nbytes for parameter in fit.model.parameters())
    states = [value for state in fit.optimizer.state.values() for value in state.values()]
    resident = [split for split in (fit.train_split, fit.val_split) if split.tensors["values"].device == fit.device]
    in_bytes = {
        "weights": weights,
        "gradients": weights,
        "optimizer": sum(value.nbytes for value in states if isinstance(value, torch.Tensor)),
        "activations": sum(kept.values()) / fit.step.accumulation,
        "data": sum(tensor.nbytes for split in resident for tensor in split.tensors.values()),
    }
    return {name: count / 2**20 for name, count in in_bytes.items()}
