"""Measures where a training step's time goes, by running its parts apart, and what would help most, by trying it.

In: a `Trainer` about to start. Out: a `Probe` (findings.py), or why there is none. The trainer, torch's generators and
its threads stay as they were, bit for bit. Takes one to two seconds where a step takes at most 0.1 s, less those that
choosing has taken, and as long as compiling where the step is compiled.

The parts run in turns, as the training runs its steps (eager, graph or compiled):

- loop: batches and steps, as in an epoch
- batches: the batches alone: gathering, augmentation, and the copy to the device where the data is streamed
- step: the step alone, on one batch that is already there
- single: the step on a single sequence, which computes next to nothing

Waiting for a batch takes, on the CPU, where nothing overlaps, as long as the batches alone; on a GPU the time that the
loop takes longer than the step alone, and at most as long as the batches alone. A GPU's time in kernels comes from
torch.profiler, the host's from a step without synchronization. An alternative (alternatives.py) runs as the loop does;
its gain is in sequences per second, against the loop in the same turn, as the median over the turns. FLOP and bytes are
counted, not timed (counts.py).
"""

import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from stages.diagnosis.alternatives import Changes, alternatives, variant
from stages.diagnosis.counts import count_bytes, count_flop, device_memory_mib, memory_needs
from stages.diagnosis.findings import NO_GPU, OF_GPU, Probe
from stages.machine.nvml import Gpu
from stages.machine.rates import has_cores, host_to_device_rate, matrix_rate, memory_rate
from stages.machine.regions import seconds_of, seconds_per_item, synchronize
from stages.machine.threads import threads_kept
from stages.machine.turns import interleave
from stages.training.batches import Batch
from stages.training.device import use_tf32
from stages.training.graphs import NUM_WARMUPS
from stages.training.memory import is_out_of_memory, shorten
from stages.training.step import AUTOCAST
from stages.training.trainer import Trainer

BUDGET_SECONDS = 1.0  # for all turns together
TURN_SECONDS = 0.02  # of one part: many short turns, because disturbances come in bursts
MIN_TURNS = 3  # fewer where steps are so long that these take twice the budget
PART_SECONDS = 0.05  # for a part that runs alone, not in turns
LONGEST_SECONDS = 0.1  # a larger batch is tried where its step should take no longer
HOPELESS = 3.0  # an alternative that begins with this many times the seconds per sequence is given up
NUM_TRIES = 3  # before it counts as that slow: something else may have disturbed it

Result = TypeVar("Result")
Steps = Iterator[int]  # each `next` does some work and returns the number of sequences in it


def probe(trainer: Trainer, spent_seconds: float = 0.0) -> Probe | str:
    """Measures the trainer's step, or says why it cannot.

    `spent_seconds` of its time are spent already, on the choice of threads and precision (stages/training/auto.py).
    """
    before = copy.deepcopy(trainer.state())
    try:
        with threads_kept():
            return measure_parts(trainer, BUDGET_SECONDS - spent_seconds)
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        return f"memory ran out while it was tried ({shorten(error)})"
    finally:
        trainer.restore(before)
        trainer.optimizer.zero_grad(set_to_none=True)
        if trainer.device.type == "cuda":
            torch.cuda.empty_cache()  # or the memory of the trials would count as reserved by the training


def measure_parts(trainer: Trainer, seconds: float) -> Probe:
    now, device = variant(trainer, {}), trainer.device
    batch = now.one_batch(trainer.params.batch_size)
    parts = {
        "loop": ProbePart(now, epochs(now.training_steps)),
        "batches": ProbePart(now, map(len, epochs(now.training_batches))),
        "step": ProbePart(now, repeated(now, batch)),
        "single": ProbePart(now, repeated(now, batch.first(1))),
    }
    now.model.train()
    for part in parts.values():
        part.warm_up()
    loop_seconds = min(parts["loop"].turn(0.0) for _ in range(NUM_TRIES))
    started = {name: start(trainer, changes, loop_seconds) for name, changes in alternatives(trainer).items()}
    tried = {name: part for name, part in started.items() if isinstance(part, ProbePart)}
    turns = interleave(
        {name: partial(part.turn, TURN_SECONDS) for name, part in {**parts, **tried}.items()},
        rounds=MIN_TURNS,
        seconds=seconds,
        longest_seconds=2 * BUDGET_SECONDS,
    )
    gains = {
        name: statistics.median(loop / other for loop, other in zip(turns["loop"], turns[name], strict=True))
        for name in tried
    }
    longer = [loop - step for loop, step in zip(turns["loop"], turns["step"], strict=True)]
    data, step, wait = (
        len(batch) * statistics.median(seconds) for seconds in (turns["batches"], turns["step"], longer)
    )

    use(now)
    alone: dict[str, Any] = {**streaming(trainer), **on_gpu(now.step.repeated(batch), device)}
    missing_reasons = {name: value for name, value in (alone | started).items() if isinstance(value, str)}
    measured: dict[str, Any] = {name: None if isinstance(value, str) else value for name, value in alone.items()}
    context = measured.pop("memory_context_mib")
    rate, place = memory_rate(device), trainer.train_split.tensors["values"].device
    return Probe(
        batch_size=len(batch),
        data_seconds=data,
        wait_seconds=data if device.type == "cpu" else min(max(wait, 0.0), data),
        step_seconds=step,
        overhead_seconds=statistics.median(turns["single"]),
        flop_per_second=count_flop(trainer, batch) / step,
        peak_flop_per_second=matrix_rate(device, AUTOCAST.get(now.step.precision, torch.float32)),
        bytes_per_second=count_bytes(now, batch) / step,
        peak_bytes_per_second=rate,
        data_bytes_per_second=2 * batch.num_bytes / data,  # read where the data lies, and written
        peak_data_bytes_per_second=rate if place == device else memory_rate(place),
        memory_mib=memory_needs(now, batch) | ({} if context is None else {"context": context}),
        device_mib=device_memory_mib(device),
        gains=gains,
        missing_reasons=missing_reasons,
        **measured,
    )


@dataclass(frozen=True)
class ProbePart:
    """What runs in a turn, and the trainer whose threads and numerics it runs with."""

    trainer: Trainer
    steps: Steps

    def warm_up(self) -> float:
        """Steps until kernels are chosen and a graph is captured; then seconds per sequence of one step."""
        use(self.trainer)
        # Twice, because the ragged batch is captured too, in the second epoch.
        for _ in range(2 * (NUM_WARMUPS + 1) if self.trainer.device.type == "cuda" else 0):
            next(self.steps)
        return self.turn(0.0)

    def turn(self, seconds: float) -> float:
        """Seconds per sequence."""
        use(self.trainer)
        return seconds_per_item(partial(next, self.steps), self.trainer.device, seconds)


def use(trainer: Trainer) -> None:
    """Applies the settings that hold for the whole process."""
    if torch.get_num_threads() != trainer.params.threads:
        torch.set_num_threads(trainer.params.num_threads)
    use_tf32(trainer.step.precision == "tf32")


def epochs(following: Callable[[], Iterator[Result]]) -> Iterator[Result]:
    """One epoch after the other, without end."""
    while True:
        yield from following()


def repeated(trainer: Trainer, batch: Batch) -> Steps:
    step = trainer.step.repeated(batch)
    while True:
        step()
        yield len(batch)


def start(trainer: Trainer, changes: Changes, now: float) -> ProbePart | str:
    """The loop with `changes`, warmed up, or why it gets no turns. `now`: seconds per sequence without them."""
    if changes.get("batch_size", 0) * now > LONGEST_SECONDS:
        return f"not tried: its step would take more than {LONGEST_SECONDS} s"
    if changes.get("threads", 0) > trainer.params.threads and not has_cores(changes["threads"]):
        return "not tried: not even a product of matrices gains from them, the cores are taken"
    try:
        other = variant(trainer, changes)
        part = ProbePart(other, epochs(other.training_steps))
        seconds = part.warm_up()
        # Threads without a core for each may take a hundred times as long, in every try.
        is_long = "threads" in changes or now * other.params.batch_size > LONGEST_SECONDS / HOPELESS
        for _ in range(0 if is_long else NUM_TRIES - 1):
            if seconds > HOPELESS * now:
                seconds = min(seconds, part.turn(0.0))
    except (RuntimeError, MemoryError) as error:  # no memory, or an operator without a kernel for the precision
        return f"failed: {shorten(error)}"
    if "step" in changes and other.step.fallback_reason:
        return other.step.fallback_reason
    return part if seconds <= HOPELESS * now else f"given up: it began {seconds / now:.1f} times as slow"


def streaming(trainer: Trainer) -> dict[str, float | str]:
    """Gathering a batch on the host, and copying one from pinned memory, each alone; or why there is no number."""
    if not trainer.train_split.is_streamed:
        where = "the device is the CPU" if trainer.device.type == "cpu" else "the data lies on the GPU"
        names = ("gather_seconds", "copy_bytes_per_second", "pinned_bytes_per_second")
        return {"copy_seconds": 0.0, **dict.fromkeys(names, f"no copy to a device: {where}")}
    split, device, size = trainer.train_split, trainer.device, trainer.params.batch_size
    rows = torch.randperm(len(split))[:size]
    buffers = split.buffers(len(rows))

    def send() -> None:
        for buffer in buffers.values():
            buffer.to(device, non_blocking=True)

    gather_seconds = seconds_of(partial(split.tensors_at, rows, buffers), device, PART_SECONDS)
    copy_seconds = seconds_of(send, device, PART_SECONDS)
    return {
        "copy_seconds": copy_seconds,
        "gather_seconds": gather_seconds,
        "copy_bytes_per_second": sum(buffer.nbytes for buffer in buffers.values()) / copy_seconds,
        "pinned_bytes_per_second": host_to_device_rate(device, pinned=True),
    }


def on_gpu(step: Callable[[], Any], device: torch.device) -> dict[str, float | str]:
    """The host's time for a step, the device's, the kernels, and CUDA's own memory; or why there is no number."""
    if device.type != "cuda":
        return dict.fromkeys(OF_GPU, NO_GPU)
    host = []
    for _ in range(9):
        synchronize(device)
        begin = time.perf_counter()
        step()
        host.append(time.perf_counter() - begin)
    total, reason = Gpu.of(device).process_mib()
    found: dict[str, float | str] = {
        "host_seconds": statistics.median(host),
        "memory_context_mib": reason if total is None else total - torch.cuda.memory_reserved(device) / 2**20,
    }
    try:
        kernels = kernels_of(step, device)
    except (RuntimeError, AssertionError) as error:  # a torch without its profiler asserts
        kernels, reason = [], f"torch.profiler: {shorten(error)}"
    else:
        reason = "torch.profiler saw no kernel (it needs CUPTI, and no other profiler beside it)"
    if not kernels:
        return {**found, "device_seconds": reason, "num_kernels": reason}
    copies = sum(name.startswith(("Memcpy", "Memset")) for name, _, _ in kernels)
    busy = covered([(start, end) for _, start, end in kernels])
    return {**found, "device_seconds": busy / 1e6, "num_kernels": len(kernels) - copies}


def kernels_of(step: Callable[[], Any], device: torch.device) -> list[tuple[str, float, float]]:
    """Name, start and end in microseconds of all that the GPU does in one step."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints two lines of its own about its start
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        synchronize(device)
    return [
        (event.name, event.time_range.start, event.time_range.end)
        for event in seen.events() or []
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]


def covered(intervals: list[tuple[float, float]]) -> float:
    """The time in at least one of the intervals (kernels on several streams overlap)."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total
