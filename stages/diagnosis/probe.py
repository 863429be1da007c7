"""Where a training step's time goes, found by running its parts apart, and what would help most, found by trying it.

In: a `Fit` about to start. Out: a `Probe`. The fit, torch's generators and its threads are left as they were, bit for bit. Takes one to two
seconds where a step takes at most a tenth of one, and as long as compiling does where the step is compiled.

The parts are run in turns, because a machine's speed drifts, and in the way the training steps (eager, graph or compiled):

- loop: batches and steps, as in an epoch
- batches: the batches alone: gathering, augmentation, and the copy to the device where the data is streamed
- step: the step alone, on one batch that is already there, synchronized only at the ends of a turn
- single: an eager step on a single sequence, which computes next to nothing

From these come the shares of a step:

- data and copy: on the CPU, where nothing overlaps, what the batches alone take; on a GPU what the loop takes longer than the step alone,
  and at most that. Streamed data is gathered on the host while the batch before is copied: what is waited for is the slower of the two,
  each run alone as well.
- compute: on the CPU what the step takes longer than a single sequence; on a GPU the time in which one of its kernels ran, as
  torch.profiler saw it.
- launch: the rest of the step. A GPU that waits for its host is told by the host's time for a step without synchronization: launch-bound is
  what takes longer to enqueue than to compute.

An alternative is run as the loop is. Its gain is in sequences per second, compared with the loop's in the same turn; median over the turns.

The work is counted, not timed. FLOP: `FlopCounterMode` on a copy of the model on the CPU, where recurrent layers fall apart into products.
Bytes: what the operators of one step read and write, so that what a cache keeps counts too, and the rate can exceed the memory's.
"""

import copy
import itertools
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from stages.diagnosis.counts import bytes_of, count_bytes, count_flop, device_memory_mib, memory_needs
from stages.machine.nvml import Gpu
from stages.machine.rates import host_to_device_rate, matrix_rate, memory_rate
from stages.machine.regions import free_bytes, seconds_of, synchronize
from stages.training.batches import TENSORS, Batch, Split
from stages.training.device import use_tf32
from stages.training.memory import OomPolicy, is_out_of_memory, shorten
from stages.training.step import AUTOCAST, NUM_WARMUP_STEPS, Graph, why_no_graph
from stages.training.trainer import Trainer

BUDGET_SECONDS = 1.0  # for all turns together
TURN_SECONDS = 0.02  # of one part: many short turns, because what disturbs comes in bursts
MIN_TURNS = 3  # one where steps are so long that these take twice the budget
PART_SECONDS = 0.05  # for a part that is run alone, not in turns
LONGEST_SECONDS = 0.1  # a larger batch is tried where its step should take no longer
THREADS_GAIN = 1.2  # of two threads for a product of matrices, less than which the second has no core
HOPELESS = 3.0  # times as long per sequence as now: an alternative that begins so is given up
NUM_TRIES = 3  # before a step counts as that slow: something else may have come between
ROOM = 0.5  # of the free memory, which streamed data may take to be called resident
MIN_GAIN = 1.1  # an alternative must promise this much to be worth a sentence
SHARE_THAT_BOUNDS = 0.5
SMALL_SHARE = 0.1  # of the device's memory: less than that is explained
PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("tf32", "bf16")}
NO_GPU = "the device is the CPU: it computes what it launches"
OF_GPU = ("host_seconds", "device_seconds", "num_kernels", "memory_context_mib")

Result = TypeVar("Result")
Steps = Iterator[int]  # does some work at each `next` and says how many sequences that was
Changes = dict[str, Any]  # settings of params.yaml: those of `train`, and `residency`


@dataclass(frozen=True)
class Probe:
    """Seconds are per step of `batch_size` sequences. None: not measured; `absent` says why."""

    batch_size: int
    data_seconds: float  # the batches alone
    copy_seconds: float  # the copy of a batch to the device alone; 0: none is made
    wait_seconds: float  # for a batch, in the loop
    step_seconds: float
    overhead_seconds: float  # a single sequence
    gather_seconds: float | None  # of streamed data, on the host
    host_seconds: float | None  # until the host has enqueued the step
    device_seconds: float | None  # in which a kernel ran
    num_kernels: int | None
    flop_per_second: float  # of the step
    peak_flop_per_second: float  # in the precision of the step
    bytes_per_second: float  # of the step
    data_bytes_per_second: float  # of the batches alone, read and written
    peak_bytes_per_second: float
    peak_data_bytes_per_second: float  # where the data lies
    copy_bytes_per_second: float | None
    pinned_bytes_per_second: float | None  # at most, from the host to the device
    memory_mib: dict[str, float]  # what for -> how much
    device_mib: float  # of memory there is
    gains: dict[str, float]  # alternative -> times as many sequences per second
    missing_reasons: dict[str, str]

    @property
    def total_seconds(self) -> float:
        return self.wait_seconds + self.step_seconds

    @property
    def bound(self) -> str:
        """data, copy, launch or compute."""
        shares = self.shares()
        waiting = max(("data", "copy"), key=lambda name: shares[name])
        if shares[waiting] >= SHARE_THAT_BOUNDS:
            return waiting
        if self.host_seconds is not None and self.device_seconds is not None:
            return "launch" if self.host_seconds > self.device_seconds else "compute"
        return max(("launch", "compute"), key=lambda name: shares[name])

    def shares(self) -> dict[str, float]:
        """Of a step's time, adding up to 1."""
        is_copy = self.gather_seconds is not None and self.copy_seconds > self.gather_seconds
        if self.device_seconds is None:
            compute = max(self.step_seconds - self.overhead_seconds, 0.0)
        else:
            compute = min(self.device_seconds, self.step_seconds)
        parts = {
            "data": 0.0 if is_copy else self.wait_seconds,
            "copy": self.wait_seconds if is_copy else 0.0,
            "launch": self.step_seconds - compute,
            "compute": compute,
        }
        return {name: seconds / self.total_seconds for name, seconds in parts.items()}

    def rates_of_peak(self) -> dict[str, float]:
        """Every rate as a share of the largest that was measured here."""
        found = {
            "flop": self.flop_per_second / self.peak_flop_per_second,
            "bytes": self.bytes_per_second / self.peak_bytes_per_second,
            "data_bytes": self.data_bytes_per_second / self.peak_data_bytes_per_second,
        }
        if self.copy_bytes_per_second is not None and self.pinned_bytes_per_second is not None:
            found["copy_bytes"] = self.copy_bytes_per_second / self.pinned_bytes_per_second
        return found

    def sentence(self) -> str:
        """What bounds the run and what would help most."""
        message = {"data": self.of_data, "copy": self.of_copy, "launch": self.of_launch, "compute": self.of_compute}
        found = f"{self.bound}-bound: {message[self.bound]()}"
        best = sorted(((gain, what) for what, gain in self.gains.items() if gain >= MIN_GAIN), reverse=True)
        if not best:
            return f"{found}; nothing that was tried would make it {MIN_GAIN} times as fast"
        return f"{found}; {' or '.join(f'{what}: about {gain:.1f} times' for gain, what in best[:2])}"

    def of_data(self) -> str:
        share, rate = self.shares()["data"], self.rates_of_peak()["data_bytes"]
        return f"{share:.0%} of a step is waiting for its batch, which is made at {rate:.0%} of the memory rate measured here"

    def of_copy(self) -> str:
        share, rate = self.shares()["copy"], self.rates_of_peak()["copy_bytes"]
        return f"{share:.0%} of a step is waiting for the copy to the GPU, at {rate:.0%} of the rate from pinned memory"

    def of_launch(self) -> str:
        if self.device_seconds is None or self.host_seconds is None:
            return f"{self.shares()['launch']:.0%} of a step is what even a single sequence costs"
        computing = f"the GPU computes {self.device_seconds / self.total_seconds:.0%} of the step"
        host = f"{1000 * self.host_seconds:.2g} ms"
        return f"{computing}, to enqueue its {self.num_kernels} kernels takes the host {host}"

    def of_compute(self) -> str:
        share, rates = self.shares()["compute"], self.rates_of_peak()
        rate = f"{rates['flop']:.0%} of the matrix rate"
        if rates["bytes"] > max(rates["flop"], SHARE_THAT_BOUNDS):
            rate = f"{rates['bytes']:.0%} of the memory rate (what a cache keeps counts too) and {rate}"
        return f"{share:.0%} of a step is computing, at {rate} measured here"

    def memory_sentence(self) -> str:
        parts = ", ".join(f"{name} {mib:.1f}" for name, mib in self.memory_mib.items())
        total = sum(self.memory_mib.values())
        message = f"{total:.1f} MiB is what this training needs: {parts}"
        if total > SMALL_SHARE * self.device_mib:
            return message
        why = "because model and data are small, not because the device is unused"
        return f"{message}; little of the {self.device_mib:,.0f} MiB there are, {why}"

    def missing_sentence(self) -> str:
        """What this device should have told and did not, and why; nothing about what it cannot have."""
        missing = [
            f"{name} ({reason})" for name, reason in self.missing_reasons.items() if name in OF_GPU and reason != NO_GPU
        ]
        return f"not measured: {', '.join(missing)}" if missing else ""

    def numbers(self) -> dict[str, float]:
        """Everything measured, flat."""
        flat = {name: value for name, value in asdict(self).items() if isinstance(value, int | float)}
        shares = {f"{name}_share": share for name, share in self.shares().items()}
        rates = {f"{name}_of_peak": rate for name, rate in self.rates_of_peak().items()}
        memory = {f"memory_{name}_mib": mib for name, mib in self.memory_mib.items()}
        return {**flat, **shares, **rates, **memory, **{f"gain {what}": gain for what, gain in self.gains.items()}}


def probe(trainer: Trainer) -> Probe | str:
    """Measure `fit`'s step; or say why it cannot be. Leaves the fit, and torch's generators and threads, as they were."""
    before, threads = copy.deepcopy(trainer.state()), torch.get_num_threads()
    try:
        return measure_parts(trainer)
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        return "the batch does not fit into the memory in one piece"
    finally:
        trainer.restore(before)
        trainer.optimizer.zero_grad(set_to_none=True)
        torch.set_num_threads(threads)
        if trainer.device.type == "cuda":
            torch.cuda.empty_cache()  # or what was tried would count as reserved by the training


def measure_parts(trainer: Trainer) -> Probe:
    now, device = variant(trainer, {}), trainer.device
    batch = now.one_batch(trainer.params.batch_size)
    parts = {
        "loop": Part(now, training(now)),
        "batches": Part(now, batches_alone(now)),
        "step": Part(now, repeating(now.step, batch)),
        "single": Part(now, repeating(now.step.eager, batch.first(1))),
    }
    now.model.train()
    for part in parts.values():
        part.warm_up()
    tried, not_tried = start_alternatives(trainer, min(parts["loop"].turn(0.0) for _ in range(NUM_TRIES)))
    turns = in_turns({**parts, **tried})
    gains = {
        name: statistics.median(loop / other for loop, other in zip(turns["loop"], turns[name], strict=True))
        for name in tried
    }
    longer = [loop - step for loop, step in zip(turns["loop"], turns["step"], strict=True)]
    data, step, wait = (
        len(batch) * statistics.median(seconds) for seconds in (turns["batches"], turns["step"], longer)
    )

    use(now)
    # A text is why there is no number.
    alone: dict[str, Any] = {**streaming(trainer), **on_gpu(lambda: now.step(batch), device)}
    missing_reasons = {name: text for name, text in alone.items() if isinstance(text, str)} | not_tried
    context = alone.pop("memory_context_mib")
    measured: dict[str, Any] = {name: None if isinstance(value, str) else value for name, value in alone.items()}
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
        memory_mib=memory_needs(now, batch) | ({} if isinstance(context, str) else {"context": context}),
        device_mib=device_memory_mib(device),
        gains=gains,
        missing_reasons=missing_reasons,
        **measured,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Parts and alternatives, in turns


class NoFallbacks(OomPolicy):
    """Memory that runs out here is an answer, and must not change how the training goes on."""

    def run_with_fallbacks(self, work: Callable[[], Result], *fallbacks: Callable[[], str]) -> Result:
        return work()


@dataclass(frozen=True)
class Part:
    """What is run in a turn, and the fit whose threads and numerics it is run with."""

    trainer: Trainer
    steps: Steps

    def warm_up(self) -> float:
        """Steps until kernels are chosen, and a graph is captured; then the seconds per sequence of one."""
        use(self.trainer)
        for _ in range(NUM_WARMUP_STEPS + 1 if self.trainer.device.type == "cuda" else 0):
            next(self.steps)
        return self.turn(0.0)

    def turn(self, seconds: float) -> float:
        """Seconds per sequence. The first step is not counted: what ran before it has left its own data in the caches."""
        use(self.trainer)
        next(self.steps)
        synchronize(self.trainer.device)
        count, start = 0, time.perf_counter()
        while True:
            count += next(self.steps)
            if time.perf_counter() - start > seconds:
                synchronize(self.trainer.device)
                return (time.perf_counter() - start) / count


def in_turns(parts: dict[str, Part]) -> dict[str, list[float]]:
    """Seconds per sequence of each part, turn by turn; every turn begins with another part."""
    found: dict[str, list[float]] = {name: [] for name in parts}
    order, start = deque(parts), time.perf_counter()
    for number in itertools.count(1):
        for name in order:
            found[name].append(parts[name].turn(TURN_SECONDS))
        order.rotate()
        spent = time.perf_counter() - start
        if spent > 2 * BUDGET_SECONDS or (spent > BUDGET_SECONDS and number >= MIN_TURNS):
            break
    return found


def training(trainer: Trainer) -> Steps:
    """Epoch after epoch, without end."""
    while True:
        for batch in trainer.training_batches():
            trainer.step(batch)
            yield len(batch)


def batches_alone(trainer: Trainer) -> Steps:
    while True:
        for batch in trainer.training_batches():
            yield len(batch)


def repeating(step: Callable[[Batch], Any], batch: Batch) -> Steps:
    while True:
        step(batch)
        yield len(batch)


def use(trainer: Trainer) -> None:
    """Set what counts for the whole process."""
    if torch.get_num_threads() != trainer.params.threads:
        torch.set_num_threads(trainer.params.threads)
    use_tf32(trainer.step.precision == "tf32")


def alternatives(trainer: Trainer) -> dict[str, Changes]:
    """Settings of params.yaml that could make this training faster: what to call a change, and what it changes."""
    params, device, precision = trainer.params, trainer.device, trainer.step.precision
    if params.step == "compile":  # another batch or precision would have to be compiled for
        return {"step eager": {"step": "eager"}}
    sizes = (2 * params.batch_size, 8 * params.batch_size)
    found: list[Changes] = [{"batch_size": size} for size in sizes if size <= len(trainer.train_split)]
    if params.precision != "auto":  # which has just been chosen by measuring
        current = "fp32" if device.type == "cpu" and precision == "tf32" else precision
        found += [{"precision": name} for name in PRECISIONS[device.type] if name != current]
    if trainer.step.accumulation > 1:
        found.append({"accumulation": 1})
    if device.type == "cuda" and params.step == "eager" and not why_no_graph(device, precision, trainer.model):
        found.append({"step": "graph"})
    if is_streamed(trainer) and bytes_of(trainer.train_split) + bytes_of(trainer.val_split) < ROOM * free_bytes(device):
        found.append({"residency": "device"})
    if device.type == "cpu" and (os.cpu_count() or 1) > 1:
        found.append({"threads": 1 if params.threads > 1 else 2})
    return {f"{key.removesuffix('_size')} {value}": change for change in found for key, value in change.items()}


def start_alternatives(trainer: Trainer, now: float) -> tuple[dict[str, Part], dict[str, str]]:
    """Those worth their turns, warm, and why the others are not. `now`: seconds per sequence as things are."""
    parts: dict[str, Part] = {}
    reasons: dict[str, str] = {}
    for name, changes in alternatives(trainer).items():
        if changes.get("batch_size", 0) * now > LONGEST_SECONDS:
            reasons[name] = f"not tried: its step would take more than {LONGEST_SECONDS} s"
            continue
        if changes.get("threads", 0) > trainer.params.threads and not has_cores(changes["threads"]):
            reasons[name] = "not tried: not even a product of matrices gains from them, the cores are taken"
            continue
        try:
            other = variant(trainer, changes)
            part = Part(other, training(other))
            # Threads without a core for each may take a hundred times as long, every time.
            is_long = "threads" in changes or now * other.params.batch_size > LONGEST_SECONDS / HOPELESS
            num_tries = 1 if is_long else NUM_TRIES
            times_as_long = first_seconds(part, HOPELESS * now, num_tries) / now
        except (RuntimeError, MemoryError) as error:  # no memory, or an operator without a kernel for the precision
            reasons[name] = f"failed: {shorten(error)}"
            continue
        if "step" in changes and other.step.fallback_reason:
            reasons[name] = other.step.fallback_reason
        elif times_as_long > HOPELESS:
            reasons[name] = f"given up: it began {times_as_long:.1f} times as slow"
        else:
            parts[name] = part
    return parts, reasons


def first_seconds(part: Part, hopeless: float, num_tries: int) -> float:
    """Seconds per sequence of the first steps; tried again before they count as hopeless."""
    seconds = part.warm_up()
    for _ in range(num_tries - 1):
        if seconds > hopeless:
            seconds = min(seconds, part.turn(0.0))
    return seconds


def has_cores(threads: int) -> bool:
    """Whether so many threads are faster than one right now. Where a core is taken, every small part of a step would wait for it."""
    square = torch.ones(512, 512)
    seconds: dict[int, list[float]] = {1: [], threads: []}
    for _ in range(5):
        for number, found in seconds.items():
            torch.set_num_threads(number)
            start = time.perf_counter()
            square @ square
            found.append(time.perf_counter() - start)
    return statistics.median(seconds[1]) > THREADS_GAIN * statistics.median(seconds[threads])


def variant(trainer: Trainer, changes: Changes) -> Trainer:
    """`fit` with other settings: it shares weights, optimizer and generator, so that trying takes little memory."""
    params = replace(trainer.params, **{name: value for name, value in changes.items() if name != "residency"})
    if changes.get("step") == "graph":  # wants an optimizer of its own kind, and so weights of its own
        other = Trainer(copied(trainer.model), trainer.train_split, trainer.val_split, params, trainer.task)
    else:
        other = copy.copy(trainer)
        other.params, other.step = params, copy.copy(trainer.step)
    step = other.step
    step.may_adapt = False
    step.oom = other.oom = NoFallbacks()
    step.graph = Graph() if step.graph else None
    step.accumulation = changes.get("accumulation", trainer.step.accumulation)
    step.precision = changes.get("precision", trainer.step.precision)
    if "precision" in changes:
        step.scaler = torch.amp.GradScaler(trainer.device.type, enabled=False)  # none of the alternatives is fp16
    if changes.get("step") == "eager":
        step.forward = trainer.model
    if "residency" in changes:
        other.train_split = resident(trainer.train_split, 8 * params.batch_size)
    return other


def copied(model: torch.nn.Module) -> torch.nn.Module:
    model = copy.deepcopy(model)
    for part in model.modules():
        if isinstance(part, torch.nn.RNNBase):
            part.flatten_parameters()  # a copy's weights lie apart, and cuDNN would gather them in every step
    return model


def is_streamed(trainer: Trainer) -> bool:
    return trainer.train_split.tensors["values"].device.type != trainer.device.type


def resident(split: Split, count: int) -> Split:
    """The split's first sequences on the device: enough to see how fast training is from there."""
    return replace(split, tensors={name: tensor[:count].to(split.device) for name, tensor in split.tensors.items()})


# ---------------------------------------------------------------------------------------------------------------------
# Parts run once, alone


def streaming(trainer: Trainer) -> dict[str, float | str]:
    """A batch gathered on the host, and one copied to the device from pinned memory."""
    if not is_streamed(trainer):
        where = "the device is the CPU" if trainer.device.type == "cpu" else "the data lies on the GPU"
        names = ("gather_seconds", "copy_bytes_per_second", "pinned_bytes_per_second")
        return {"copy_seconds": 0.0, **dict.fromkeys(names, f"no copy to a device: {where}")}
    split, device, size = trainer.train_split, trainer.device, trainer.params.batch_size
    rows = torch.randperm(len(split))[:size]
    buffers = {name: split.tensors[name][: len(rows)].clone().pin_memory() for name in TENSORS}

    def gather() -> None:
        for name, buffer in buffers.items():
            torch.index_select(split.tensors[name], 0, rows, out=buffer)

    def send() -> None:
        for buffer in buffers.values():
            buffer.to(device, non_blocking=True)

    sent = seconds_of(send, device, PART_SECONDS)
    return {
        "copy_seconds": sent,
        "gather_seconds": seconds_of(gather, device, PART_SECONDS),
        "copy_bytes_per_second": sum(buffer.nbytes for buffer in buffers.values()) / sent,
        "pinned_bytes_per_second": host_to_device_rate(device, pinned=True),
    }


def on_gpu(step: Callable[[], Any], device: torch.device) -> dict[str, float | str]:
    """What only a GPU has: the host's time for a step apart from the device's, kernels, and CUDA's own memory."""
    if device.type != "cuda":
        return dict.fromkeys(OF_GPU, NO_GPU)
    host = []
    for _ in range(9):
        synchronize(device)
        start = time.perf_counter()
        step()
        host.append(time.perf_counter() - start)
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
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        synchronize(device)
    return [
        (event.name, event.time_range.start, event.time_range.end)
        for event in seen.events() or []
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]


def covered(spans: list[tuple[float, float]]) -> float:
    """The time in at least one of the spans (kernels on several streams overlap)."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total
