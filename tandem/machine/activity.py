"""System metrics of a machine and of another process on it, for MLflow's page "System metrics".

MLflow's quantities keep MLflow's names and units (mlflow/system_metrics): percentages, megabytes of 1e6 bytes, NVML's
GPU numbers. The names of other quantities end in their unit. Unreadable quantities are omitted. This module imports
neither torch nor mlflow.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from tandem.machine.nvml import find_gpu, readable

MEGABYTE = 1e6


class Activity:
    """Reads metrics of the process `pid`, of the machine and, if `gpu_uuid` is given, of that GPU.

    Shares of time refer to the time since the previous reading. Raises psutil.Error if there is no such process.
    """

    def __init__(self, pid: int, gpu_uuid: str = "") -> None:
        self.process = psutil.Process(pid)
        self.gpu: dict[str, Callable[[], float]] = {}
        if gpu_uuid:
            with suppress(Exception):
                self.gpu = gpu_readers(gpu_uuid, pid)
        self.process.cpu_percent()  # psutil counts from the first call
        psutil.cpu_percent()

    def read(self) -> dict[str, float]:
        memory = psutil.virtual_memory()
        return {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system/system_memory_usage_percentage": 100 * memory.used / memory.total,
            "system/process_cpu_cores": self.process.cpu_percent() / 100,
            "system/process_memory_mib": self.process.memory_info().rss / 2**20,
            **readable(self.gpu),
        }


def gpu_readers(uuid: str, pid: int) -> dict[str, Callable[[], float]]:
    nvml, handle = find_gpu(uuid)
    gpu = f"system/gpu_{nvml.nvmlDeviceGetIndex(handle)}"

    def memory() -> Any:
        return nvml.nvmlDeviceGetMemoryInfo(handle)

    def power() -> float:
        return float(nvml.nvmlDeviceGetPowerUsage(handle))

    def process_mib() -> float:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return next(process.usedGpuMemory for process in processes if process.pid == pid) / 2**20

    return {
        f"{gpu}_utilization_percentage": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        f"{gpu}_memory_usage_megabytes": lambda: memory().used / MEGABYTE,
        f"{gpu}_memory_usage_percentage": lambda: 100 * memory().used / memory().total,
        f"{gpu}_power_usage_watts": lambda: power() / 1000,
        f"{gpu}_power_usage_percentage": lambda: 100 * power() / nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        f"{gpu}_process_memory_mib": process_mib,
    }
