"""One GPU as NVML sees it: memory by process and by device, utilization, power, energy. A thread samples it.

NVML finds the GPU by UUID, because its order is not CUDA's.
"""

import os
import threading
from typing import Any

import torch

SAMPLE_SECONDS = 0.05
# The driver averages utilization and power over up to this long: in a shorter region they describe what came before it.
DRIVER_SECONDS = 1.0


class Gpu:
    """One GPU. `start` and `stop` enclose a region, in which a thread reads it every SAMPLE_SECONDS."""

    known: dict[int, "Gpu"] = {}

    @classmethod
    def of(cls, device: torch.device) -> "Gpu":
        """Opened once per process, because starting NVML takes milliseconds."""
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
        """The memory that the driver counts for this process right now, or why it is unknown."""
        self.reasons = {}
        return self.read("process_mib"), self.reasons.get("process_mib", "")

    def start(self) -> None:
        self.samples: dict[str, list[float]] = {
            "process_mib": [],
            "device_mib": [],
            "gpu_busy_share": [],
            "power_watts": [],
        }
        self.reasons = {}
        self.done = threading.Event()
        self.energy_before = self.read("energy_joules")
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def stop(self, seconds: float) -> tuple[dict[str, float], dict[str, str]]:
        """What was measured in a region of `seconds` (memory: largest sample, others: mean); why the rest was not."""
        self.done.set()
        self.thread.join()
        self.sample()  # at least one, however short the region
        found = {
            name: max(values) if name.endswith("mib") else sum(values) / len(values)
            for name, values in self.samples.items()
            if values
        }
        energy_after = self.read("energy_joules")
        if self.energy_before is not None and energy_after is not None:
            found["energy_joules"] = energy_after - self.energy_before
        if seconds < DRIVER_SECONDS:
            for name in ("gpu_busy_share", "power_watts", "energy_joules"):
                found.pop(name, None)
                self.reasons[name] = f"the region took {seconds:.2f} s, less than the driver averages over"
        return found, {name: reason for name, reason in self.reasons.items() if name not in found}

    def watch(self) -> None:
        while not self.done.wait(SAMPLE_SECONDS):
            self.sample()

    def sample(self) -> None:
        for name, values in self.samples.items():
            if name not in self.reasons and (value := self.read(name)) is not None:
                values.append(value)

    def read(self, name: str) -> float | None:
        """One quantity now; None with its reason in `reasons` where it is not available."""
        if self.unavailable:
            self.reasons[name] = self.unavailable
            return None
        import pynvml

        try:
            match name:
                case "process_mib":
                    return self.memory_of_process(pynvml) / 2**20
                case "device_mib":
                    return float(pynvml.nvmlDeviceGetMemoryInfo(self.handle).used) / 2**20
                case "gpu_busy_share":
                    return float(pynvml.nvmlDeviceGetUtilizationRates(self.handle).gpu) / 100
                case "power_watts":
                    return float(pynvml.nvmlDeviceGetPowerUsage(self.handle)) / 1000
                case _:
                    return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)) / 1000
        except (pynvml.NVMLError, LookupError) as error:  # under MIG, on WSL and in some containers
            self.reasons[name] = f"NVML: {error}" if isinstance(error, pynvml.NVMLError) else str(error.args[0])
            return None

    def memory_of_process(self, nvml: Any) -> float:
        own = [p for p in nvml.nvmlDeviceGetComputeRunningProcesses(self.handle) if p.pid == os.getpid()]
        if not own:
            raise LookupError("NVML does not list this process (a container with its own process numbers)")
        if own[0].usedGpuMemory is None:
            raise LookupError("the driver does not tell memory per process here (WSL and some containers)")
        return float(own[0].usedGpuMemory)
