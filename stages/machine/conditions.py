"""The conditions under which something was measured: what else the machine did, and how fast it was allowed to run.

Readings that change from minute to minute, so no dependency holds them. Two runs whose conditions differ may differ in
time for no other reason. Keys carry their units; what cannot be read is left out. Imports neither torch nor pynvml
where there is no GPU.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

# What lowers the clocks of a GPU by somebody's setting or by none is no throttling.
IDLE_REASONS = ("GpuIdle", "ApplicationsClocksSetting", "UserDefinedClocks", "None", "DisplayClockSetting", "SyncBoost")


def read(gpu_uuid: str | None = None) -> dict[str, Any]:
    """The conditions now, of the machine and, where its UUID is given, of one GPU."""
    times = psutil.cpu_times()
    found: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load_1min": round(os.getloadavg()[0], 2),
        "cpu_seconds": {"all": sum(times[:8]), "idle": times.idle, "steal": getattr(times, "steal", 0.0)},
        "own_cpu_seconds": time.process_time(),
    }
    if governor := text_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"):
        found["cpu_governor"] = governor
    if clocks := re.findall(r"^cpu MHz\s*: ([\d.]+)", text_of("/proc/cpuinfo"), re.MULTILINE):
        found["cpu_mhz"] = round(sum(map(float, clocks)) / len(clocks))
    if gpu_uuid:
        found["gpu"] = read_gpu(gpu_uuid)
    return found


def between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """What the machine did between two readings of one process, as shares of all its cores' time.

    steal_share: taken by the host of a virtual machine; others_share: by other processes than this one.
    """
    spent = {name: after["cpu_seconds"][name] - before["cpu_seconds"][name] for name in before["cpu_seconds"]}
    if spent["all"] <= 0:
        return {}
    own = after["own_cpu_seconds"] - before["own_cpu_seconds"]
    busy = spent["all"] - spent["idle"] - spent["steal"]
    return {
        "steal_share": round(spent["steal"] / spent["all"], 4),
        "others_share": round(max(0.0, busy - own) / spent["all"], 4),
    }


def read_gpu(uuid: str) -> dict[str, Any]:
    """Clocks, power limit, temperature, throttle reasons and other processes, by NVML; what it refuses is left out."""
    found: dict[str, Any] = {}
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = handle_of(nvml, uuid)
    except Exception as error:  # NVML's errors have no common public base on a machine without the library
        return {"unavailable": str(error)}
    readings = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "power_limit_watts": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttled_by": lambda: throttle_reasons(nvml, handle),
        "other_processes": lambda: count_others(
            process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ),
    }
    for name, ask in readings.items():
        try:
            found[name] = ask()
        except Exception:  # under MIG, on WSL and in some containers
            continue
    return found


def handle_of(nvml: Any, uuid: str) -> Any:
    """NVML's handle of a GPU by torch's UUID, or of a part of one (MIG), which NVML names otherwise."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # NVML's errors have no common public base on a machine without the library
        return nvml.nvmlDeviceGetHandleByUUID(uuid.replace("GPU-", "MIG-"))


def throttle_reasons(nvml: Any, handle: Any) -> list[str]:
    """Why the GPU runs below the clocks it could have, in NVML's words."""
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    prefix = "nvmlClocksThrottleReason"
    names = {name.removeprefix(prefix): getattr(nvml, name) for name in dir(nvml) if name.startswith(prefix)}
    return sorted(
        name
        for name, bit in names.items()
        if isinstance(bit, int) and bits & bit and name not in (*IDLE_REASONS, "All")
    )


def text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def other_gpu_processes(gpu_uuid: str | None) -> int:
    """The other processes on a GPU on which this one computes; 0 without a GPU, or where the driver does not say."""
    return int(read_gpu(gpu_uuid).get("other_processes", 0)) if gpu_uuid else 0


def count_others(pids: Iterable[int]) -> int:
    """The processes other than this one, among those that NVML lists for a GPU on which this one computes.

    Raises LookupError where it lists none. In a container with process numbers of its own, this process is listed by
    another number.
    """
    listed = set(pids)
    if not listed:
        raise LookupError("NVML lists no process here, not even this one (some containers)")
    return len(listed - {os.getpid()}) if os.getpid() in listed else len(listed) - 1


def others_on_gpu(conditions: Mapping[str, Any]) -> str:
    """That other processes computed on a training's GPU, in words; empty where none was seen.

    `conditions`: a manifest's. Two trainings that share a GPU both lose time, and neither can tell how much.
    """
    seen = {
        "before": inside(conditions, "before", "gpu", "other_processes"),
        "while it trained": inside(conditions, "between", "other_processes"),
        "after": inside(conditions, "after", "gpu", "other_processes"),
    }
    counts = {when: int(count) for when, count in seen.items() if isinstance(count, int | float)}
    if not any(counts.values()):
        return ""
    said = ", ".join(f"{count or 'none'} {when}" for when, count in counts.items())
    return f"other processes on its GPU ({said})"


def inside(value: Any, *names: str) -> Any:
    """value["before"]["gpu"] where all of it is there, else None: a manifest may be of an older version."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
