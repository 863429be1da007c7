"""Measures how the time of a training step is spent, by running its parts separately, and tries changes that could
help.

Takes a `Trainer` before its first step. Returns a `ProbeResult`, or the reason why there is none. The state of
the trainer, of torch's generators and of its threads is the same before and after, bit for bit. If a step takes at most
0.1 s, the probe takes one to two seconds, less the time that `auto` has spent; a compiled step adds its compile time.

The parts are interleaved and use the training's step execution (eager, graph or compiled):

- loop: batches and steps, as in an epoch
- batches: the batches alone: gathering, augmentation, and the copy to the device if the data is streamed. Always
  eager and one at a time: in a captured loop, which gathers within the graph, they take less
- step: the step alone, on one batch that is already on the device
- small: the step on two sequences at once, with almost no computation (BatchNorm refuses a single one)

Waiting for a batch: on the CPU nothing overlaps, so it takes as long as the batches alone. On a GPU it is the time of
the loop minus the time of the step alone, at most the time of the batches alone. A GPU's kernel time comes from
torch.profiler, the host's time from a step without synchronization. An alternative runs as the loop does; its gain is
in sequences per second relative to the loop: the median over the turns, in each of which both ran, or the quotient of
the fastest turns if that is less, because other processes may disturb most turns of one of them. A larger batch gains
at most what does not grow with it. FLOP are counted, not timed (counts.py).
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from tandem.devices.device import Device
from tandem.devices.graphs import NUM_WARMUPS
from tandem.devices.memory import free_cache, is_out_of_memory, shorten
from tandem.diagnosis.counts import count_flop, main_precision, memory_needs
from tandem.diagnosis.probe_result import GPU_FIELDS, NO_GPU, ProbeResult
from tandem.machine.interleaving import interleave
from tandem.machine.measure import seconds_of, seconds_per_item
from tandem.machine.rates import matrix_rate
from tandem.training.auto import PRECISIONS
from tandem.training.batches import Batch
from tandem.training.execution import AUTOCAST, Execution
from tandem.training.trainer import Trainer
from tandem.training.trials import alternative, one_batch, repeated_step, without_trace

BUDGET_SECONDS = 1.0  # for all turns together
TURN_SECONDS = 0.02  # per part: many short turns, because disturbances come in bursts
MIN_TURNS = 3  # fewer if the steps are so long that these take twice the budget
PART_SECONDS = 0.05  # for a part that is measured alone
LONGEST_SECONDS = 0.1  # a larger batch is tried only if its step should take no longer
HOPELESS = 3.0  # an alternative whose first steps are this many times as slow per sequence is not measured further
NUM_TRIES = 3  # attempts before it counts as too slow: a first attempt may be disturbed

Result = TypeVar("Result")
Changes = dict[str, Any]  # arguments of `alternative` (trials.py)
Steps = Iterator[int]  # each `next` runs some work and returns its number of sequences


def probe(trainer: Trainer, auto_seconds: float = 0.0) -> ProbeResult | str:
    """Measure the trainer's step, or return the reason why this is not possible.

    `auto_seconds`: the part of the budget that the choice of threads and precision has used (tandem/training/auto.py).
    """
    why = ""
    for why_not_others in ("", "not tried: memory ran out"):
        try:
            with without_trace(trainer):
                return measure_parts(trainer, BUDGET_SECONDS - auto_seconds, why_not_others)
        except Exception as error:
            has_run_out, why = is_out_of_memory(error), shorten(error)
        free_cache(trainer.device)  # outside the `except`, because the error references the tensors of the trial
        if not has_run_out:  # an error of the network, which need not take these batches in training
            return f"the probe failed ({why})"
    return f"memory ran out during the probe ({why})"


def measure_parts(trainer: Trainer, seconds: float, why_not_others: str = "") -> ProbeResult:
    """Measure the parts of the step, and the loop with other settings. The graphs of these stay in memory until the
    end. `why_not_others`: why no other setting is tried.
    """
    current, device = alternative(trainer), trainer.device
    batch = one_batch(current, trainer.settings.batch_size)
    small, undivided = batch.first(2), alternative(trainer, grad_accum_steps=1)
    parts = {
        "loop": ProbePart(current, epochs(current.training_steps)),
        "batches": ProbePart(current, map(len, epochs(lambda: current.drawn_batches(current.start_draws())))),
        "step": ProbePart(current, repeated(current, batch)),
        "small": ProbePart(undivided, repeated(undivided, small)),
    }
    current.model.train()
    for part in parts.values():
        part.warm_up()
    loop_seconds = min(parts["loop"].turn(0.0) for _ in range(NUM_TRIES))
    started = {
        name: why_not_others or start_alternative(trainer, changes, loop_seconds)
        for name, changes in alternatives(trainer).items()
    }
    tried = {name: part for name, part in started.items() if isinstance(part, ProbePart)}
    turns = interleave(
        {name: partial(part.turn, TURN_SECONDS) for name, part in {**parts, **tried}.items()},
        rounds=MIN_TURNS,
        seconds=seconds,
        longest_seconds=2 * BUDGET_SECONDS,
    )
    num_sequences, is_gpu = len(batch), device.is_accelerator
    fastest = {name: min(seconds) for name, seconds in turns.items()}
    # The share of the loop that grows with the batch. A GPU may compute a larger one in the same time.
    growing = 0.0 if is_gpu else max(fastest["step"] - fastest["small"] * len(small) / num_sequences, 0.0)
    growing /= fastest["step"] + fastest["batches"]
    sizes = {name: part.trainer.settings.batch_size for name, part in tried.items()}
    gains = {
        name: min(
            statistics.median(loop / other for loop, other in zip(turns["loop"], turns[name], strict=True)),
            fastest["loop"] / fastest[name],
            1 / (growing + (1 - growing) * num_sequences / size) if size > num_sequences else math.inf,
        )
        for name, size in sizes.items()
    }
    longer = [loop - step for loop, step in zip(turns["loop"], turns["step"], strict=True)]
    data, step, wait = (
        len(batch) * statistics.median(seconds) for seconds in (turns["batches"], turns["step"], longer)
    )

    alone: dict[str, Any] = {**measure_streaming(trainer), **measure_on_gpu(repeated_step(current.step, batch), device)}
    missing_reasons = {name: value for name, value in (alone | started).items() if isinstance(value, str)}
    measured: dict[str, Any] = {name: None if isinstance(value, str) else value for name, value in alone.items()}
    context = measured.pop("memory_context_mib")
    return ProbeResult(
        batch_size=len(batch),
        data_seconds=data,
        wait_seconds=min(max(wait, 0.0), data) if is_gpu else data,
        step_seconds=step,
        overhead_seconds=statistics.median(turns["small"]) * len(small),
        flop_per_second=count_flop(trainer, batch) / step,
        peak_flop_per_second=peak_rate(device, main_precision(current.step)),
        memory_mib=memory_needs(current, batch) | ({} if context is None else {"context": context}),
        device_mib=device.memory_bytes()[1] / 2**20,
        gains=gains,
        missing_reasons=missing_reasons,
        **measured,
    )


def peak_rate(device: Device, precision: str) -> float:
    """FLOP/s of a large matrix product in `precision`."""
    with Execution(device, precision, deterministic=False).active():
        return matrix_rate(device, AUTOCAST.get(precision, torch.float32))


@dataclass(frozen=True)
class ProbePart:
    """A part that runs in turns, and the trainer whose execution it has."""

    trainer: Trainer
    steps: Steps

    def warm_up(self) -> float:
        """Run steps until kernels are chosen and a graph is captured. Returns the seconds per sequence of one step."""
        with self.trainer.execution.active():
            # Twice, because the smaller last batch is captured as well, in the second epoch.
            for _ in range(2 * (NUM_WARMUPS + 1) if self.trainer.device.is_accelerator else 0):
                next(self.steps)
        return self.turn(0.0)

    def turn(self, seconds: float) -> float:
        """Run one turn. Returns its seconds per sequence."""
        with self.trainer.execution.active():
            return seconds_per_item(partial(next, self.steps), self.trainer.device, seconds)


def epochs(following: Callable[[], Iterator[Result]]) -> Iterator[Result]:
    """Yield the items of one epoch after another, endlessly."""
    while True:
        yield from following()


def repeated(trainer: Trainer, batch: Batch) -> Steps:
    step = repeated_step(trainer.step, batch)
    while True:
        step()
        yield len(batch)


def alternatives(trainer: Trainer) -> dict[str, Changes]:
    """Return settings that could make this training faster, by a name for the change."""
    params, device, precision = trainer.settings, trainer.device, trainer.execution.precision
    if params.step == "compile":  # another batch size or precision would need another compilation
        return {}
    sizes = (2 * params.batch_size, 8 * params.batch_size)
    changes: list[Changes] = [{"batch_size": size} for size in sizes if size <= len(trainer.train_split)]
    if params.precision != "auto":  # `auto` has just chosen by measuring
        precisions = [name for name in PRECISIONS if name in device.precisions() and name != precision]
        changes += [{"precision": name} for name in precisions if name != "fp32" or not device.is_accelerator]
    if trainer.execution.grad_accum_steps > 1:
        changes.append({"grad_accum_steps": 1})
    return {f"{key.removesuffix('_size')} {value}": change for change in changes for key, value in change.items()}


def start_alternative(trainer: Trainer, changes: Changes, loop_seconds: float) -> ProbePart | str:
    """The loop with `changes`, warmed up, or why it is not tried. `loop_seconds`: seconds per sequence without them."""
    if changes.get("batch_size", 0) * loop_seconds > LONGEST_SECONDS:
        return f"not tried: its step would take more than {LONGEST_SECONDS} s"
    try:
        part, seconds = warmed_up(trainer, changes, loop_seconds)
    except (RuntimeError, MemoryError) as error:  # no memory, or an operator without a kernel for the precision
        reason = f"failed: {shorten(error)}"
    else:
        is_slow = seconds > HOPELESS * loop_seconds
        return f"stopped: its first steps were {seconds / loop_seconds:.1f} times as slow" if is_slow else part
    free_cache(trainer.device)  # as in `probe`
    return reason


def warmed_up(trainer: Trainer, changes: Changes, loop_seconds: float) -> tuple[ProbePart, float]:
    """The loop with `changes`, and its seconds per sequence: of one step, or the least of several if it seems slow."""
    other = alternative(trainer, **changes)
    part = ProbePart(other, epochs(other.training_steps))
    seconds = part.warm_up()
    is_long = loop_seconds * other.settings.batch_size > LONGEST_SECONDS / HOPELESS
    for _ in range(0 if is_long else NUM_TRIES - 1):
        if seconds > HOPELESS * loop_seconds:
            seconds = min(seconds, part.turn(0.0))
    return part, seconds


def measure_streaming(trainer: Trainer) -> dict[str, float | str]:
    """Measure gathering a batch on the host and copying one from pinned memory, each alone, or say why not."""
    is_gpu = trainer.device.is_accelerator
    if not is_gpu or trainer.train_split.data_location == "device":
        reason = "the data is already on the GPU" if is_gpu else "the device is the CPU"
        return {"copy_seconds": 0.0, "gather_seconds": f"no copy to a device: {reason}"}
    split, device, size = trainer.train_split, trainer.device, trainer.settings.batch_size
    rows = torch.randperm(len(split))[:size]
    buffers = split.buffers(len(rows))

    def send() -> None:
        for buffer in buffers.values():
            buffer.to(device.torch_device, non_blocking=True)

    return {
        "copy_seconds": seconds_of(send, device, PART_SECONDS),
        "gather_seconds": seconds_of(partial(split.tensors_at, rows, buffers), device, PART_SECONDS),
    }


def measure_on_gpu(step: Callable[[], Any], device: Device) -> dict[str, float | str]:
    """Measure a step's time on the host and the device, its kernels, and CUDA's own memory, or say why not."""
    if not device.is_accelerator:
        return dict.fromkeys(GPU_FIELDS, NO_GPU)
    host = []
    for _ in range(NUM_WARMUPS + 1 + 9):  # the first ones warm up and capture the step
        device.synchronize()
        begin = time.perf_counter()
        step()
        host.append(time.perf_counter() - begin)
    total = device.driver.ask("process_mib") if device.driver else device.unmeasured
    measured: dict[str, float | str] = {
        "host_seconds": statistics.median(host[NUM_WARMUPS + 1 :]),
        "memory_context_mib": total if isinstance(total, str) else total - device.memory_mib()["reserved"],
    }
    try:
        kernels = device.activities(step)
    except (RuntimeError, AssertionError) as error:  # a torch without its profiler raises AssertionError
        kernels, reason = [], f"torch.profiler: {shorten(error)}"
    else:
        reason = "torch.profiler recorded no kernel (it needs CUPTI, and no other profiler may run)"
    if not kernels:
        return {**measured, "device_seconds": reason, "num_kernels": reason}
    copies = sum(name.startswith(("Memcpy", "Memset")) for name, _, _ in kernels)
    busy = covered_time([(start, end) for _, start, end in kernels])
    return {**measured, "device_seconds": busy / 1e6, "num_kernels": len(kernels) - copies}


def covered_time(intervals: list[tuple[float, float]]) -> float:
    """Return the time covered by at least one interval (kernels on several streams overlap)."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total
