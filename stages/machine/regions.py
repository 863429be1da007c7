"""Measuring a region of work: seconds synchronized at both ends, memory, how busy the device was, and the energy it took; and what a device
can do at most: the rates of a large product of matrices and of large copies.

What cannot be had is None, with the reason in `absent`. torch's own peaks leave the CUDA context and other processes out; NVML counts them,
by process and for the device. NVML is asked for the GPU by UUID, because its order is not CUDA's, and is read by a thread beside the work.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from stages.machine.nvml import Gpu

# What only a GPU has.
OF_GPU = (
    "peak_allocated_mib",
    "peak_reserved_mib",
    "process_mib",
    "device_mib",
    "gpu_busy_share",
    "power_watts",
    "energy_joules",
)


@dataclass
class Measurement:
    """One measured region. None means not measured; `absent` says why."""

    seconds: float = 0.0
    peak_allocated_mib: float | None = None  # by torch, for tensors
    peak_reserved_mib: float | None = None  # by torch, from the driver
    process_mib: float | None = None  # by the driver, for this process, CUDA context included; the largest sample
    device_mib: float | None = None  # by the driver, for everybody on this GPU; the largest sample
    gpu_busy_share: float | None = None  # of the time, during which a kernel ran; mean of the samples
    power_watts: float | None = None  # mean of the samples
    energy_joules: float | None = None  # by the GPU's own counter
    peak_rss_mib: float | None = None  # of this process since it started
    cpu_share: float | None = None  # CPU seconds of this process per second: 1.0 is one core kept busy
    missing_reasons: dict[str, str] = field(default_factory=dict)


@contextmanager
def measure(device: torch.device) -> Iterator[Measurement]:
    """Time the body and record what it used.

    The device is idle when the clock starts and when it stops; everything else that is read here is read outside the two clock readings.
    """
    result = Measurement()
    gpu = Gpu.of(device) if device.type == "cuda" else None
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
        gpu.start()
    synchronize(device)
    cpu_before = time.process_time()
    start = time.perf_counter()
    yield result
    synchronize(device)
    result.seconds = time.perf_counter() - start
    result.cpu_share = (time.process_time() - cpu_before) / result.seconds
    result.peak_rss_mib = peak_rss_mib()
    if gpu:
        found, result.missing_reasons = gpu.stop(result.seconds)
        for name, value in found.items():
            setattr(result, name, value)
        result.peak_allocated_mib = torch.cuda.max_memory_allocated(device) / 2**20
        result.peak_reserved_mib = torch.cuda.max_memory_reserved(device) / 2**20
    else:
        result.missing_reasons = dict.fromkeys(OF_GPU, "the device is the CPU: there is no GPU to measure")


def peak_rss_mib() -> float:
    """This process's largest resident memory since it started (the kernel keeps no peak per region)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


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


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it; nothing to wait for on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on `device` right now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available
