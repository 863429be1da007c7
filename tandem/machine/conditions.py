"""The conditions of a measurement: the machine's other load and its limits.

They change from minute to minute, so no dependency contains them. Different conditions alone can explain different
times of two runs. Keys contain their units; unreadable quantities are omitted. This module does not import torch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tandem.devices.device import Device
from tandem.devices.hardware import cpu_quota, read_text

TAKEN_SHARE = 0.10  # of all cores' time during a training: if other processes used more, its times are not reliable
# Threads of a training that wait for a core, in the median epoch: 0.003 on an idle machine, 0.3 and more beside another
# process. Such a process need not use much: OpenMP's threads spin while one of them waits.
MAX_WAITING_THREADS = 0.1
PUBLISHER_SECONDS = 5.0  # processor time of Tandem's publisher, which imports mlflow during the first training


def read(device: Device | None = None) -> dict[str, Any]:
    """The current conditions of the machine and, if there is one, of a device."""
    times = psutil.cpu_times()
    reading: dict[str, Any] = {
        "cpu_seconds": {"all": sum(times[:8]), "idle": times.idle, "steal": times.steal},
        "own_cpu_seconds": time.process_time(),
    }
    # Linux gives the cores of a quota in periods of usually 0.1 s, and stops a group that has used its share of one.
    _, limited = cpu_quota()
    counts = dict(re.findall(r"^(nr_\w+) (\d+)$", read_text(limited / "cpu.stat"), re.MULTILINE)) if limited else {}
    if counts:
        reading["quota_periods"] = {"all": int(counts["nr_periods"]), "throttled": int(counts["nr_throttled"])}
    if governor := read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"):
        reading["cpu_governor"] = governor
    if device and device.driver:
        reading["gpu"] = device.driver.conditions()
    return reading


def waited_seconds() -> float | None:
    """Seconds in which threads of this process were runnable but had no core; None if the kernel does not report it.

    This is the second number of /proc/<pid>/task/<tid>/schedstat (Linux, Documentation/scheduler/sched-stats). It is
    also correct in a container, whose /proc/stat covers the whole machine.
    """
    nanoseconds = []
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):  # the thread has ended, or the kernel has no schedstat
            nanoseconds.append(int(path.read_text().split()[1]))
    return sum(nanoseconds) / 1e9 if nanoseconds else None


def between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """Return the machine's load between two readings of one process, as shares of the time of all cores.

    steal_share: used by the host of a virtual machine; others_share: used by processes other than this one.
    throttled_share: of the periods in which the kernel stopped this process because its quota was used.
    """
    spent = {name: after["cpu_seconds"][name] - before["cpu_seconds"][name] for name in before["cpu_seconds"]}
    if spent["all"] <= 0:
        return {}
    own_seconds = after["own_cpu_seconds"] - before["own_cpu_seconds"]
    busy = spent["all"] - spent["idle"] - spent["steal"]
    shares = {
        "steal_share": round(spent["steal"] / spent["all"], 4),
        "others_share": round(max(0.0, busy - own_seconds) / spent["all"], 4),
    }
    if "quota_periods" in before and "quota_periods" in after:
        periods, stopped = (after["quota_periods"][name] - count for name, count in before["quota_periods"].items())
        shares["throttled_share"] = round(stopped / periods, 4) if periods > 0 else 0.0
    return shares


def taken_by_others(conditions: Mapping[str, Any]) -> list[str]:
    """Return who else used the processors during a training, or what stopped it, as phrases, if it was much: `other
    processes used 30% of the CPU time`, `on average 0.4 of its threads waited for a core`.

    `conditions` come from a manifest. A resumed training has no shares. The publisher does not count as another
    process: in a training of a few seconds it would always take more than TAKEN_SHARE. The waiting threads are those of
    the median epoch, so they show whether others slowed the recorded time.
    """
    shares, phrases = conditions["between"], []
    for name, who in {"others_share": "other processes", "steal_share": "the host of this virtual machine"}.items():
        if (share := shares.get(name, 0.0)) > TAKEN_SHARE:
            before, after = (conditions[when]["cpu_seconds"]["all"] for when in ("before", "after"))
            allowed = PUBLISHER_SECONDS / (after - before) if name == "others_share" else 0.0
            phrases += [f"{who} used {share:.0%} of the CPU time"] if share > TAKEN_SHARE + allowed else []
    if (waiting := shares.get("waiting_threads", 0.0)) > MAX_WAITING_THREADS:
        phrases.append(f"on average {waiting:.2g} of its threads waited for a core")
    if (share := shares.get("throttled_share", 0.0)) > TAKEN_SHARE:
        phrases.append(f"its quota of the cores stopped it in {share:.0%} of the periods")
    return phrases


def busy(conditions: Mapping[str, Any]) -> str:
    """Return in a few words who else used the processors or the GPU during a training, or what stopped it; empty if
    nobody did much.
    """
    on_gpu = ["other processes used its GPU"] if others_on_gpu(conditions) else []
    return ", ".join([*taken_by_others(conditions), *on_gpu])


def others_on_gpu(conditions: Mapping[str, Any]) -> str:
    """A phrase that says how many other processes used a training's GPU; empty if there were none.

    `conditions` come from a manifest. If two trainings share a GPU, both are slower by an unknown amount.
    """
    before, during, after = (conditions.get(when) or {} for when in ("before", "between", "after"))
    gpu_readings = {"before": before.get("gpu"), "during the training": during, "after": after.get("gpu")}
    num_others = {when: (reading or {}).get("other_processes") for when, reading in gpu_readings.items()}
    counts = {when: int(count) for when, count in num_others.items() if count is not None}
    if not any(counts.values()):
        return ""
    text = ", ".join(f"{count or 'none'} {when}" for when, count in counts.items())
    return f"other processes on its GPU ({text})"
