"""Measuring a region of work: seconds synchronized at both ends, and memory peaks, each absent with a reason where it cannot be had."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from stages.runtime.device import synchronize


@dataclass
class Measurement:
    """One measured region. None means not measured; `absent` says why."""

    seconds: float = 0.0
    peak_allocated_mib: float | None = None
    peak_reserved_mib: float | None = None
    process_mib: float | None = None
    peak_rss_mib: float | None = None
    absent: dict[str, str] = field(default_factory=dict)


@contextmanager
def measure(device: torch.device) -> Iterator[Measurement]:
    """Time the body and record its memory peaks.

    The device is idle when the clock starts and when it stops; everything else that is read here is read outside the two clock readings.
    """
    result = Measurement()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    synchronize(device)
    start = time.perf_counter()
    yield result
    synchronize(device)
    result.seconds = time.perf_counter() - start
    result.peak_rss_mib = peak_rss_mib()
    if device.type == "cuda":
        result.peak_allocated_mib = torch.cuda.max_memory_allocated(device) / 2**20
        result.peak_reserved_mib = torch.cuda.max_memory_reserved(device) / 2**20
        result.process_mib, reason = process_vram_mib(device)
        if reason:
            result.absent["process_mib"] = reason
    else:
        result.absent = dict.fromkeys(
            ("peak_allocated_mib", "peak_reserved_mib", "process_mib"), "the device is the CPU: there is no VRAM"
        )


def peak_rss_mib() -> float:
    """This process's largest resident memory since it started (the kernel keeps no peak per region)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def process_vram_mib(device: torch.device) -> tuple[float | None, str]:
    """VRAM that the driver counts for this process, CUDA context included, or None and the reason.

    torch's own peaks leave the context out. NVML is asked for the GPU by UUID: its order is not CUDA's.
    """
    import os

    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML is not available: {error}"
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid():
                if process.usedGpuMemory is None:
                    return None, "the driver does not tell memory per process here (WSL and some containers)"
                return process.usedGpuMemory / 2**20, ""
        return None, "NVML does not list this process (a container with its own process numbers)"
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()
