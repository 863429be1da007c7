"""One GPU as NVML sees it: memory by process and by device, utilization, power, energy.

NVML finds the GPU by UUID, because its order is not CUDA's.
"""

import os
from typing import Any

import torch

from stages.machine.sampler import Readings


class Gpu:
    """One GPU, a source of readings for the sampler."""

    known: dict[int, "Gpu"] = {}

    @classmethod
    def of(cls, device: torch.device) -> "Gpu":
        """Opened once per process, because starting NVML takes milliseconds."""
        index = device.index or 0
        if index not in cls.known:
            cls.known[index] = cls(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return cls.known[index]

    def __init__(self, uuid: str) -> None:
        self.unavailable = ""
        try:
            import pynvml

            self.nvml: Any = pynvml
            pynvml.nvmlInit()
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # NVML's errors have no common public base on a machine without the library
            self.unavailable = f"NVML: {error}"

    def read(self) -> Readings:
        """Every quantity now, by one call of NVML each."""
        return {name: self.ask(name) for name in QUANTITIES}

    def process_mib(self) -> tuple[float | None, str]:
        """The memory that the driver counts for this process right now, or why it is unknown."""
        found = self.ask("process_mib")
        return (None, found) if isinstance(found, str) else (found, "")

    def ask(self, name: str) -> float | str:
        if self.unavailable:
            return self.unavailable
        try:
            return float(QUANTITIES[name](self.nvml, self.handle))
        except LookupError as error:
            return str(error.args[0])
        except Exception as error:  # under MIG, on WSL and in some containers; no reading ends a training
            return f"NVML: {error}"


def process_bytes(nvml: Any, handle: Any) -> int:
    own = [p for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()]
    if not own:
        raise LookupError("NVML does not list this process (a container with its own process numbers)")
    if own[0].usedGpuMemory is None:
        raise LookupError("the driver does not tell memory per process here (WSL and some containers)")
    return int(own[0].usedGpuMemory)


QUANTITIES = {
    "process_mib": lambda nvml, handle: process_bytes(nvml, handle) / 2**20,
    "device_mib": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20,
    "gpu_busy_share": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "power_watts": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "energy_joules": lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
}
