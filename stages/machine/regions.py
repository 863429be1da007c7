"""Measuring a region of work: seconds with the device idle at both ends, memory, how busy the device was, and energy.

What cannot be measured is None, and `missing_reasons` says why. torch's own peaks leave out the CUDA context and other
processes; NVML counts them, by process and for the device (nvml.py, which a thread reads: sampler.py).
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from stages.machine.nvml import Gpu
from stages.machine.sampler import Window, sampling


@dataclass
class Measurement:
    """One measured region. None means not measured; `missing_reasons` says why."""

    seconds: float = 0.0
    peak_allocated_mib: float | None = None  # by torch, for tensors
    peak_reserved_mib: float | None = None  # by torch, from the driver
    process_mib: float | None = None  # by the driver, for this process, CUDA context included; the largest sample
    device_mib: float | None = None  # by the driver, for everybody on this GPU; the largest sample
    other_processes: float | None = None  # that computed on this GPU; the largest sample
    gpu_busy_share: float | None = None  # of the time, during which a kernel ran; mean of the samples
    power_watts: float | None = None  # mean of the samples
    energy_joules: float | None = None  # by the GPU's own counter
    peak_rss_mib: float | None = None  # of this process since it started
    cpu_share: float | None = None  # CPU seconds of this process per second: 1.0 is one core kept busy
    missing_reasons: dict[str, str] = field(default_factory=dict)


@contextmanager
def measure(device: torch.device) -> Iterator[Measurement]:
    """Times the body, with the device idle at both readings of the clock, and records what it used."""
    result = Measurement()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with sampled(device) as readings:
        synchronize(device)
        cpu_before = time.process_time()
        start = time.perf_counter()
        yield result
        synchronize(device)
        result.seconds = time.perf_counter() - start
        result.cpu_share = (time.process_time() - cpu_before) / result.seconds
    result.peak_rss_mib = peak_rss_mib()
    if device.type == "cuda":
        for name, value in readings.found().items():
            if isinstance(value, str):
                result.missing_reasons[name] = value
            else:
                setattr(result, name, value)
        result.peak_allocated_mib = torch.cuda.max_memory_allocated(device) / 2**20
        result.peak_reserved_mib = torch.cuda.max_memory_reserved(device) / 2**20
    else:
        only_gpu = [name for name, value in vars(result).items() if value is None]
        result.missing_reasons = dict.fromkeys(only_gpu, "the device is the CPU: there is no GPU to measure")


def sampled(device: torch.device) -> AbstractContextManager[Window]:
    """The GPU's readings while the body runs; on the CPU there are none, and no thread."""
    return sampling(Gpu.of(device)) if device.type == "cuda" else nullcontext(Window({}))


def peak_rss_mib() -> float:
    """The largest resident memory of this process since it started (the kernel keeps no peak per region)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def seconds_of(work: Callable[[], Any], device: torch.device, budget: float) -> float:
    """Mean seconds of a call of `work`, repeated until `budget` seconds have passed."""

    def counted() -> int:
        work()
        return 1

    return seconds_per_item(counted, device, budget)


def seconds_per_item(work: Callable[[], int], device: torch.device, budget: float) -> float:
    """Mean seconds per item, where a call of `work` returns how many it went through. The device is idle at both ends.

    The first call is not counted: it may still choose kernels, and what ran before has left its own data in the caches.
    """
    work()
    synchronize(device)
    count, start = 0, time.perf_counter()
    while True:
        count += work()
        if time.perf_counter() - start > budget:
            synchronize(device)
            return (time.perf_counter() - start) / count


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all its work; the CPU has done it when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on `device` right now."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def gpu_uuid(device: torch.device) -> str | None:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None
