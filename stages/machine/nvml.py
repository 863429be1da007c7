"""One GPU as NVML sees it, read by a thread beside the work.

NVML is asked for the GPU by UUID, because its order is not CUDA's.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

SAMPLE_SECONDS = 0.05
DRIVER_SECONDS = (
    1.0  # NVML's busy share and power are means over up to so long: of a shorter region they tell what came before it
)


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

    def stop(self, seconds: float) -> tuple[dict[str, float], dict[str, str]]:
        """What was found in a region of so many seconds, and the reasons for what was not."""
        self.done.set()
        self.thread.join()
        self.sample()  # at least one, however short the region
        found: dict[str, float] = {}
        for name, reduce in (
            ("process_mib", max),
            ("device_mib", max),
            ("gpu_busy_share", mean),
            ("power_watts", mean),
        ):
            if samples := self.samples.get(name):
                found[name] = reduce(samples)
        energy_after = self.read("energy_joules", self.energy)
        if self.energy_before is not None and energy_after is not None:
            found["energy_joules"] = energy_after - self.energy_before
        if seconds < DRIVER_SECONDS:
            for name in ("gpu_busy_share", "power_watts", "energy_joules"):
                found.pop(name, None)
                self.reasons[name] = f"the region took {seconds:.2f} s, less than what the driver averages over"
        return found, {name: reason for name, reason in self.reasons.items() if name not in found}

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
