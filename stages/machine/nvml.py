"""NVML's readings of one GPU: memory per process and per device, utilization, power, energy.

The UUID identifies the GPU, because NVML's order differs from CUDA's.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stages.machine.conditions import count_others, handle_of
from stages.machine.sampler import Readings


class Gpu:
    """A source of readings for the sampler."""

    known: dict[int, "Gpu"] = {}
    listed: Sequence[Any] = ()  # the processes on this GPU in NVML's last answer

    @classmethod
    def of(cls, device: torch.device) -> "Gpu":
        """The GPU of `device`, cached per process because starting NVML takes milliseconds."""
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
            self.handle = handle_of(pynvml, uuid)
        except Exception as error:  # NVML's errors have no common public base on a machine without the library
            self.unavailable = f"NVML: {error}"

    def read(self) -> Readings:
        """Read every quantity with one NVML call each."""
        return {name: self.ask(name) for name in QUANTITIES}

    def process_mib(self) -> tuple[float | None, str]:
        """The driver's current memory count for this process, or None and the reason why it is unknown."""
        found = self.ask("process_mib")
        return (None, found) if isinstance(found, str) else (found, "")

    def ask(self, name: str) -> float | str:
        if self.unavailable:
            return self.unavailable
        try:
            return float(QUANTITIES[name](self))
        except LookupError as error:
            return str(error.args[0])
        except Exception as error:  # under MIG, on WSL and in some containers; a reading must not end a training
            return f"NVML: {error}"

    def process_bytes(self) -> int:
        """Memory of this process. Stores all processes that NVML lists, so that counting them needs no second call."""
        self.listed = ()
        self.listed = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        own = [process for process in self.listed if process.pid == os.getpid()]
        if not own:
            raise LookupError("NVML does not list this process (a container with its own process numbers)")
        if own[0].usedGpuMemory is None:
            raise LookupError("the driver does not tell memory per process here (WSL and some containers)")
        return int(own[0].usedGpuMemory)


QUANTITIES: dict[str, Callable[[Gpu], float]] = {
    "process_mib": lambda gpu: gpu.process_bytes() / 2**20,
    "other_processes": lambda gpu: count_others(process.pid for process in gpu.listed),  # from the call for process_mib
    "device_mib": lambda gpu: gpu.nvml.nvmlDeviceGetMemoryInfo(gpu.handle).used / 2**20,
    "gpu_busy_share": lambda gpu: gpu.nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu / 100,
    "power_watts": lambda gpu: gpu.nvml.nvmlDeviceGetPowerUsage(gpu.handle) / 1000,
    "energy_joules": lambda gpu: gpu.nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle) / 1000,
}
