"""Measure a region of code: seconds (with synchronization at both ends), memory, device utilization and energy.

A value that cannot be measured is None, and `missing_reasons` says why. torch's own peaks exclude the CUDA context and
other processes; NVML includes them, per process and for the device (a thread reads nvml.py, see sampler.py).
"""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from tandem.machine import energy, nvml
from tandem.machine.conditions import waited_seconds
from tandem.machine.hardware import free_memory_bytes
from tandem.machine.sampler import SampledWindow, sampling

MIN_CALLS = 2  # that are timed on a GPU, also if one takes longer than the budget


@dataclass
class Measurement:
    """One measured region. None means not measured; `missing_reasons` says why."""

    seconds: float = 0.0
    peak_allocated_mib: float | None = None  # memory of tensors, from torch
    peak_reserved_mib: float | None = None  # memory that torch reserved from the driver
    process_mib: float | None = None  # this process's memory from the driver, with the CUDA context; largest sample
    device_mib: float | None = None  # memory of all processes on this GPU, from the driver; largest sample
    other_processes: float | None = None  # number of other processes on this GPU; largest sample
    gpu_busy_share: float | None = None  # share of the time in which a kernel ran; mean of the samples
    power_watts: float | None = None  # mean of the samples
    sm_mhz: float | None = None  # clock of the GPU's processors; mean of the samples
    throttled_share: float | None = None  # of the samples in which heat or the power limit lowered its clocks
    energy_joules: float | None = None  # of the whole device, including that of other processes (energy.py)
    peak_rss_mib: float | None = None  # of this process since it started
    cpu_share: float | None = None  # CPU seconds of this process per second: 1.0 means one busy core
    threads: float | None = None  # with which the steps ran: the mean over their time
    waiting_threads: float | None = None  # seconds in which threads of this process waited for a core, per second
    missing_reasons: dict[str, str] = field(default_factory=dict)

    def add(self, other: "Measurement") -> None:
        """Add the seconds and the energy of another region. The sum of the energy is unknown if one of both is."""
        self.seconds += other.seconds
        if self.energy_joules is None or other.energy_joules is None:
            self.energy_joules = None
            self.missing_reasons = {**other.missing_reasons, **self.missing_reasons}
        else:
            self.energy_joules += other.energy_joules


@contextmanager
def measure(device: torch.device) -> Iterator[Measurement]:
    """Measure the time and resources of the body. The device is synchronized at both readings of the clock."""
    result = Measurement()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with sampled(device) as readings:
        synchronize(device)
        meter, waited_before = energy.Meter(gpu_uuid(device)), waited_seconds()
        cpu_before = time.process_time()
        start = time.perf_counter()
        yield result
        synchronize(device)
        result.seconds = time.perf_counter() - start
        result.cpu_share = (time.process_time() - cpu_before) / result.seconds
        joules, waited = meter.joules(), waited_seconds()
    if waited is None or waited_before is None:
        result.missing_reasons["waiting_threads"] = "the kernel does not report how long threads wait (schedstat)"
    else:  # a thread that ended took its seconds with it
        result.waiting_threads = max(0.0, waited - waited_before) / result.seconds
    result.peak_rss_mib = peak_rss_mib()
    for name, value in {**readings.found(), "energy_joules": joules}.items():
        if isinstance(value, str):
            result.missing_reasons[name] = value
        else:
            setattr(result, name, value)
    if device.type == "cuda":
        result.peak_allocated_mib = torch.cuda.max_memory_allocated(device) / 2**20
        result.peak_reserved_mib = torch.cuda.max_memory_reserved(device) / 2**20
    else:
        others = ("energy_joules", "waiting_threads")
        only_gpu = [name for name, value in vars(result).items() if value is None and name not in others]
        result.missing_reasons |= dict.fromkeys(only_gpu, "the device is the CPU: there is no GPU to measure")


def sampled(device: torch.device) -> AbstractContextManager[SampledWindow]:
    """Sample the GPU while the body runs. On the CPU there are no readings and no thread."""
    uuid = gpu_uuid(device)
    return sampling(nvml.cached_gpu(uuid)) if uuid else nullcontext(SampledWindow({}))


def peak_rss_mib() -> float:
    """The largest resident memory of this process since it started (the kernel has no peak per region)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def seconds_of(work: Callable[[], Any], device: torch.device, budget: float) -> float:
    """Mean seconds per call of `work`, which is repeated until `budget` seconds have passed."""
    return seconds_per_item(lambda: len([work()]), device, budget)


def seconds_per_item(work: Callable[[], int], device: torch.device, budget: float) -> float:
    """Mean seconds per item; `work` returns its number of items. The device is synchronized at both ends.

    The first call does not count: it may still choose kernels, and the caches contain data of earlier work. On a GPU
    the second call tells how many calls fit into the budget: calls return before the GPU has done their work, so the
    host's clock alone would queue hundreds of them, and the last synchronization would wait for all.
    """
    work()
    synchronize(device)
    start = time.perf_counter()
    if device.type == "cuda":
        work()
        synchronize(device)
        num = max(MIN_CALLS, int(budget / (time.perf_counter() - start)))
        start = time.perf_counter()
        count = sum(work() for _ in range(num))
        synchronize(device)
        return (time.perf_counter() - start) / count
    count = 0
    while True:
        count += work()
        if (seconds := time.perf_counter() - start) > budget:
            return seconds / count


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work. A no-op on the CPU, whose calls return after the work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_bytes(device: torch.device) -> int:
    """Bytes that can currently be allocated on `device`."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory_bytes()


def gpu_uuid(device: torch.device) -> str | None:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None
