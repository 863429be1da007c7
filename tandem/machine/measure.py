"""The clock of all measurements (`Clock`), and what a region of code uses: seconds, memory, utilization and energy.

A value that cannot be measured is None, and `missing_reasons` says why. torch's own peaks exclude the CUDA context and
other processes; NVML includes them, per process and for the device (a thread reads it, see sampler.py).
"""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from tandem.devices.device import Device
from tandem.machine.conditions import waited_seconds
from tandem.machine.sampler import SampledWindow, sampling

ENERGY_METHOD = "NVML's energy counter of the GPU"
# The shortest region: the driver samples power in steps of up to 0.1 s (Yang et al. 2023, arXiv:2312.02741).
MIN_ENERGY_SECONDS = 1.0
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
    energy_joules: float | None = None  # of the whole device, including that of other processes (Meter)
    peak_rss_mib: float | None = None  # of this process since it started
    cpu_share: float | None = None  # CPU seconds of this process per second: 1.0 means one busy core
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


class Clock:
    """`with Clock(device) as clock:` adds the time of its body to `clock.seconds`. The device is synchronized before
    each reading, so that its work belongs to the region in which it was begun.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.seconds = device, 0.0

    def __enter__(self) -> Self:
        self.device.synchronize()
        self.start = time.perf_counter()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.device.synchronize()
            self.seconds += self.running()

    def running(self) -> float:
        """Seconds since the body began."""
        return time.perf_counter() - self.start


ONE_GPU = "only the first worker's GPU is measured"


class Meter:
    """Measures the energy of a region, which begins when the meter is created. The driver's counter covers the whole
    GPU, so other processes are included.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.begin, self.first_reading = device, time.monotonic(), self.read(device)

    @staticmethod
    def read(device: Device) -> float | str:
        return device.driver.ask("energy_joules") if device.driver else device.no_energy

    def joules(self) -> float | str:
        """The energy since the meter was created, or the reason why it is unknown."""
        last, seconds = self.read(self.device), time.monotonic() - self.begin
        if isinstance(self.first_reading, str) or isinstance(last, str):
            return self.first_reading if isinstance(self.first_reading, str) else last
        if seconds < MIN_ENERGY_SECONDS:
            least = f"regions of {MIN_ENERGY_SECONDS:g} s or more"
            return f"the energy counter needs {least}, but this one took {seconds:.2g} s"
        return last - self.first_reading


@contextmanager
def measure(device: Device) -> Iterator[Measurement]:
    """Measure the time and resources of the body."""
    result, clock = Measurement(), Clock(device)
    device.reset_peaks()
    with sampled(device) as readings:
        meter, waited_before, cpu_before = Meter(device), waited_seconds(), time.process_time()
        with clock:
            yield result
        result.seconds = clock.seconds
        result.cpu_share = (time.process_time() - cpu_before) / result.seconds
        joules, waited = meter.joules(), waited_seconds()
    if waited is None or waited_before is None:
        result.missing_reasons["waiting_threads"] = "the kernel does not report how long threads wait (schedstat)"
    else:  # a thread that ended took its seconds with it
        result.waiting_threads = max(0.0, waited - waited_before) / result.seconds
    result.peak_rss_mib = peak_rss_mib()
    for name, value in {**readings.summary(), **device.memory_mib(), "energy_joules": joules}.items():
        if isinstance(value, str):
            result.missing_reasons[name] = value
        elif name in vars(result):
            setattr(result, name, value)
    if not device.is_accelerator:
        unknown = [name for name, value in vars(result).items() if value is None and name not in result.missing_reasons]
        result.missing_reasons |= dict.fromkeys(unknown, device.unmeasured)


def sampled(device: Device) -> AbstractContextManager[SampledWindow]:
    """Sample the device while the body runs. A CPU has no readings and no thread."""
    return sampling(device.driver) if device.driver else nullcontext(SampledWindow({}))


def peak_rss_mib() -> float:
    """The largest resident memory of this process since it started (the kernel has no peak per region)."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as lines:  # ru_maxrss begins with the parent's
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def seconds_of(work: Callable[[], Any], device: Device, budget: float) -> float:
    """Mean seconds per call of `work`, which is repeated until `budget` seconds have passed."""
    return seconds_per_item(lambda: len([work()]), device, budget)


def seconds_per_item(work: Callable[[], int], device: Device, budget: float) -> float:
    """Mean seconds per item; `work` returns its number of items.

    The first call does not count: it may still choose kernels, and the caches contain data of earlier work. On a GPU
    the second call tells how many calls fit into the budget: calls return before the GPU has done their work, so the
    host's clock alone would queue hundreds of them, and the last synchronization would wait for all.
    """
    work()
    num_calls = 1
    if device.is_accelerator:
        with Clock(device) as second_call:
            work()
        num_calls = max(MIN_CALLS, int(budget / second_call.seconds))
    count = num_done = 0
    with Clock(device) as clock:
        while num_done < num_calls or (not device.is_accelerator and clock.running() <= budget):
            count, num_done = count + work(), num_done + 1
    return clock.seconds / count
