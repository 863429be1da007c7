"""Access to NVML, and its readings of one GPU: memory per process and per device, utilization, power, energy.

Only this module imports pynvml, and only when NVML is needed. It does not import torch. The UUID identifies a GPU,
because NVML's order differs from CUDA's. Callers catch Exception: NVML's errors have no common public base on a machine
without its library.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from tandem.devices.device import Readings

# NVML's names and bits of the reasons for lower clocks that are heat or power. The others are idleness, settings, and
# limits that a cool card reaches at its highest clock, such as the voltage (BoardLimit, Reliability).
THROTTLES = {
    "HwPowerBrakeSlowdown": 0x80, "HwSlowdown": 0x8, "HwThermalSlowdown": 0x40,
    "SwPowerCap": 0x4, "SwThermalSlowdown": 0x20,
}  # fmt: skip


def start() -> Any:
    """Initialize NVML. Returns the module pynvml."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def throttle_reasons(nvml: Any, handle: Any) -> list[str]:
    """NVML's names of the reasons why heat or the power limit lowers the GPU's clocks."""
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return [name for name, bit in THROTTLES.items() if bits & bit]


def count_others(pids: Iterable[int]) -> int:
    """The number of other processes among the `pids` that NVML lists for this process's GPU.

    Raises LookupError if `pids` is empty. In a container with its own process numbers, NVML lists this process under
    another number.
    """
    listed = set(pids)
    if not listed:
        raise LookupError("NVML lists no processes, not even this one (some containers, and clusters that forbid it)")
    return len(listed - {os.getpid()}) if os.getpid() in listed else len(listed) - 1


class Gpu:
    """The GPU or MIG instance with the driver's `uuid`. NVML has another prefix for MIG."""

    listed: Sequence[Any] = ()  # the processes on this GPU in NVML's last answer

    def __init__(self, uuid: str) -> None:
        self.unavailable = ""
        try:
            self.nvml = start()
            try:
                self.handle = self.nvml.nvmlDeviceGetHandleByUUID(uuid)
            except Exception:
                self.handle = self.nvml.nvmlDeviceGetHandleByUUID(uuid.replace("GPU-", "MIG-"))
        except Exception as error:
            self.unavailable = f"NVML: {error}"

    def read(self) -> Readings:
        """Read the sampled quantities with one NVML call each."""
        return {name: self.ask(name) for name in ASKED if name not in NOT_SAMPLED}

    def ask(self, name: str) -> float | str:
        """The current value of one of ASKED, or the reason why it is unknown."""
        if self.unavailable:
            return self.unavailable
        try:
            return float(ASKED[name](self))
        except LookupError as error:
            return str(error.args[0])
        except Exception as error:  # under MIG, on WSL and in some containers; a reading must not end a training
            return f"NVML: {error}"

    def conditions(self) -> dict[str, Any]:
        """The power limit, throttle reasons and other processes; failed readings are omitted."""
        if self.unavailable:
            return {"unavailable": self.unavailable}
        readings = {}
        for name, ask in CONDITIONS.items():
            with suppress(Exception):  # some fail under MIG, on WSL and in some containers
                readings[name] = ask(self)
        return readings

    def process_bytes(self) -> int:
        """Memory of this process. Stores all processes that NVML lists, so that counting them needs no second call."""
        self.listed = ()
        self.listed = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        entries = [process for process in self.listed if process.pid == os.getpid()]
        if not entries:
            raise LookupError("NVML does not list this process (a container with its own process numbers)")
        if entries[0].usedGpuMemory is None:
            raise LookupError("the driver does not report memory per process (WSL and some containers)")
        return int(entries[0].usedGpuMemory)

    def used_bytes(self) -> int:
        """Memory of all processes. The first version of NVML's call counts the driver's reserve as used."""
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle, self.nvml.nvmlMemory_v2).used)


ASKED: dict[str, Callable[[Gpu], float]] = {
    "process_mib": lambda gpu: gpu.process_bytes() / 2**20,
    "other_processes": lambda gpu: count_others(process.pid for process in gpu.listed),  # from the call for process_mib
    "device_mib": lambda gpu: gpu.used_bytes() / 2**20,
    "gpu_busy_share": lambda gpu: gpu.nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu / 100,
    "power_watts": lambda gpu: gpu.nvml.nvmlDeviceGetPowerUsage(gpu.handle) / 1000,
    "sm_mhz": lambda gpu: gpu.nvml.nvmlDeviceGetClockInfo(gpu.handle, gpu.nvml.NVML_CLOCK_SM),
    "throttled_share": lambda gpu: bool(throttle_reasons(gpu.nvml, gpu.handle)),
    "energy_joules": lambda gpu: gpu.nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle) / 1000,
}
NOT_SAMPLED = ("energy_joules",)  # a counter, which is read at the ends of a region
# Read before and after a training, not sampled: the power limit is a setting that people change, and each sample of it
# would be another call. A lower one in between shows in `throttled_share`.
CONDITIONS: dict[str, Callable[[Gpu], Any]] = {
    "power_limit_watts": lambda gpu: gpu.nvml.nvmlDeviceGetEnforcedPowerLimit(gpu.handle) / 1000,
    "throttled_by": lambda gpu: throttle_reasons(gpu.nvml, gpu.handle),
    "other_processes": lambda gpu: count_others(
        process.pid for process in gpu.nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
    ),
}


@cache
def cached_gpu(uuid: str) -> Gpu:
    """Return the GPU with that UUID, cached because starting NVML takes milliseconds."""
    return Gpu(uuid)
