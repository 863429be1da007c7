"""Measuring a region of work: seconds synchronized at both ends, memory, how busy the device was, and the energy it took; and what a device
can do at most: the rates of a large product of matrices and of large copies.

What cannot be had is None, with the reason in `absent`. torch's own peaks leave the CUDA context and other processes out; NVML counts them,
by process and for the device. NVML is asked for the GPU by UUID, because its order is not CUDA's, and is read by a thread beside the work.
"""

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from stages.training.device import synchronize

SAMPLE_SECONDS = 0.05
DRIVER_SECONDS = (
    1.0  # NVML's busy share and power are means over up to so long: of a shorter region they tell what came before it
)
# Large enough that a GPU's launch times do not show; a CPU would take seconds for as much.
MATRIX_SIZE = {"cpu": 1024, "cuda": 4096}
PRODUCTS_IN_A_ROW = {"cpu": 1, "cuda": 5}
COPIED_BYTES = {"cpu": 2**26, "cuda": 2**28}  # within a device's memory: more than its caches hold
SENT_BYTES = 2**26  # from the host to the device
RATE_SECONDS = 0.05  # of runs, after a warm-up
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
    absent: dict[str, str] = field(default_factory=dict)


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
        gpu.stop(result)
        result.peak_allocated_mib = torch.cuda.max_memory_allocated(device) / 2**20
        result.peak_reserved_mib = torch.cuda.max_memory_reserved(device) / 2**20
    else:
        result.absent = dict.fromkeys(OF_GPU, "the device is the CPU: there is no GPU to measure")


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


def best_seconds(work: Callable[[], Any], device: torch.device) -> float:
    """The fastest of at least three runs of `work`: what the device can do, not what else went on meanwhile."""
    work()
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < 3 or time.perf_counter() - begin < RATE_SECONDS:
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def matrix_rate(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """FLOP/s of a product of large square matrices, 2 size^3 each."""
    size, count = MATRIX_SIZE[device.type], PRODUCTS_IN_A_ROW[device.type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.zeros_like(left)

    def work() -> None:
        for _ in range(count):
            torch.mm(left, right, out=product)

    return count * 2 * size**3 / best_seconds(work, device)


def memory_rate(device: torch.device) -> float:
    """Bytes/s that a large copy within the device's memory reads and writes."""
    num_bytes = COPIED_BYTES[device.type]
    block = torch.ones(num_bytes, dtype=torch.uint8, device=device)  # zeros would not be backed by memory of their own
    target = torch.zeros_like(block)
    return 2 * num_bytes / best_seconds(lambda: target.copy_(block), device)


def host_to_device_rate(device: torch.device, pinned: bool) -> float:
    """Bytes/s of a large copy from the host's memory to the device's."""
    host = torch.ones(SENT_BYTES, dtype=torch.uint8, pin_memory=pinned)
    target = torch.zeros(SENT_BYTES, dtype=torch.uint8, device=device)
    return SENT_BYTES / best_seconds(lambda: target.copy_(host, non_blocking=True), device)


class Gpu:
    """One GPU as NVML sees it. `start` and `stop` enclose a region; in between a thread reads it every SAMPLE_SECONDS."""

    known: dict[int, "Gpu"] = {}

    @classmethod
    def of(cls, device: torch.device) -> "Gpu":
        """Opened once per process: NVML's start costs milliseconds."""
        index = device.index or 0
        if index not in cls.known:
            cls.known[index] = cls(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return cls.known[index]

    def __init__(self, uuid: str) -> None:
        self.handle: Any = None
        self.unavailable = ""
        self.reasons: dict[str, str] = {}
        try:
            import pynvml

            pynvml.nvmlInit()
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # NVML's errors have no common public base on a machine without the library
            self.unavailable = f"NVML: {error}"

    def process_mib(self) -> tuple[float | None, str]:
        """What the driver counts for this process right now, or why it cannot be had."""
        self.reasons.clear()
        found = self.read("process_mib", self.process)
        return found, self.reasons.get("process_mib", "")

    def start(self) -> None:
        self.samples: dict[str, list[float]] = {}
        self.reasons = {}
        self.done = threading.Event()
        self.energy_before = self.read("energy_joules", self.energy)
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def stop(self, result: Measurement) -> None:
        self.done.set()
        self.thread.join()
        self.sample()  # at least one, however short the region
        for name, reduce in (
            ("process_mib", max),
            ("device_mib", max),
            ("gpu_busy_share", mean),
            ("power_watts", mean),
        ):
            if found := self.samples.get(name):
                setattr(result, name, reduce(found))
        energy_after = self.read("energy_joules", self.energy)
        if self.energy_before is not None and energy_after is not None:
            result.energy_joules = energy_after - self.energy_before
        if result.seconds < DRIVER_SECONDS:
            for name in ("gpu_busy_share", "power_watts", "energy_joules"):
                setattr(result, name, None)
                self.reasons[name] = f"the region took {result.seconds:.2f} s, less than what the driver averages over"
        result.absent = {name: reason for name, reason in self.reasons.items() if getattr(result, name) is None}

    def watch(self) -> None:
        while not self.done.wait(SAMPLE_SECONDS):
            self.sample()

    def sample(self) -> None:
        for name, reader in (
            ("process_mib", self.process),
            ("device_mib", self.device),
            ("gpu_busy_share", self.busy),
            ("power_watts", self.power),
        ):
            if name not in self.reasons and (value := self.read(name, reader)) is not None:
                self.samples.setdefault(name, []).append(value)

    def read(self, name: str, reader: Callable[[Any], float]) -> float | None:
        if self.unavailable:
            self.reasons[name] = self.unavailable
            return None
        import pynvml

        try:
            return reader(pynvml)
        except (pynvml.NVMLError, LookupError) as error:  # under MIG, on WSL and in some containers
            self.reasons[name] = f"NVML: {error}" if isinstance(error, pynvml.NVMLError) else str(error.args[0])
            return None

    def process(self, nvml: Any) -> float:
        own = [p for p in nvml.nvmlDeviceGetComputeRunningProcesses(self.handle) if p.pid == os.getpid()]
        if not own:
            raise LookupError("NVML does not list this process (a container with its own process numbers)")
        if own[0].usedGpuMemory is None:
            raise LookupError("the driver does not tell memory per process here (WSL and some containers)")
        return float(own[0].usedGpuMemory) / 2**20

    def device(self, nvml: Any) -> float:
        return float(nvml.nvmlDeviceGetMemoryInfo(self.handle).used) / 2**20

    def busy(self, nvml: Any) -> float:
        return float(nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu) / 100

    def power(self, nvml: Any) -> float:
        return float(nvml.nvmlDeviceGetPowerUsage(self.handle)) / 1000

    def energy(self, nvml: Any) -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)) / 1000


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
