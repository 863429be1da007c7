"""Detect this machine's devices, processor, memory and torch, in milliseconds because it does not import torch.

The result contains only values that do not change between runs: no free memory, clocks or UUIDs.
"""

import importlib.util
import math
import os
import re
from pathlib import Path
from typing import Any

from tandem.devices.names import KINDS, kind_of, split_device

# Environment variables that select the instructions of torch's libraries, and so change results and times. DVC's key
# has no environment variables, so one that is set belongs to the hardware.
VARIABLES = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY", "CUBLASLT_WORKSPACE_SIZE", "TORCH_BLAS_PREFER_CUBLASLT", "DISABLE_ADDMM_CUDA_LT",
    "TORCH_CUDNN_USE_HEURISTIC_MODE_B", "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def detect_hardware(requested: str) -> dict[str, Any]:
    """The hardware that `requested` selects on this machine, as results/hardware/devices/<device>.json has it.

    Raises ValueError if `requested` is a kind that is not available here. `auto` may fall back to the CPU and then
    records the reason. Several workers (`2xcuda`) have the hardware of one, the key `workers`, and a name with their
    number.
    """
    num_workers, kind = split_device(requested)
    if num_workers > 1:
        one = detect_hardware(kind)
        kind_of(kind).require_several(requested, num_workers, one)
        name = f"{num_workers} workers on {one['name']}"
        return {**one, "requested": requested, "workers": num_workers, "name": name}
    cpu = {"name": cpu_name(), "cores": usable_cores(), "memory_mib": memory_limit_bytes() // 2**20}
    hardware: dict[str, Any] = {"requested": requested, "torch": torch_build()[0], "cpu": cpu}
    if variables := {name: os.environ[name] for name in VARIABLES if name in os.environ}:
        hardware["variables"] = variables
    accelerators = [name for name in KINDS if kind_of(name).is_accelerator]
    for name in [*accelerators, "cpu"] if kind == "auto" else [kind]:
        hardware_of_kind, obstacle = kind_of(name).detect()
        if hardware_of_kind:
            return {**hardware, **hardware_of_kind, "kind": name}
        if kind != "auto":
            raise ValueError(
                f"device {name!r} is not available: {obstacle}; fix this, or use auto or cpu in params.yaml's devices"
            )
        hardware[f"why_not_{name}"] = obstacle
    raise AssertionError("a CPU is always available")


def hardware_identity(requested: str) -> dict[str, Any]:
    """What results depend on: `detect_hardware` without the number of visible GPUs, since a training on one has the
    same bits and times beside others.
    """
    return {name: value for name, value in detect_hardware(requested).items() if name != "count"}


def driver_text(hardware: dict[str, Any]) -> str:
    """`driver 570.1`, for messages; NVML may not say which."""
    return f"driver {hardware['driver'] or '(unknown)'}"


def num_nodes() -> int:
    """The number of machines that train together, from torchrun's environment variable, e.g. `PET_NNODES=2`."""
    words = os.environ.get("PET_NNODES", "1").split(":")
    return max(int(words[-1]), 1) if words[-1].isdigit() else 1


def torch_build() -> tuple[str, str | None]:
    """torch's version and its CUDA version (None: a CPU-only build), without importing torch or its metadata."""
    spec = importlib.util.find_spec("torch")
    source = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if source is None or not source.exists():
        raise ValueError("torch is not installed in this environment; run `make setup`")
    values = dict(re.findall(r"^(\w+)[^=\n]*= *'([^']+)'", source.read_text(encoding="utf-8"), re.MULTILINE))
    return values["__version__"].partition("+")[0], values.get("cuda")


def cpu_name() -> str:
    lines = read_text("/proc/cpuinfo").splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    # A virtual machine may hide the full name ("AMD EPYC"); family and model still distinguish two generations.
    return f"{fields['model name']} (family {fields['cpu family']} model {fields['model']})"


def usable_cores() -> float:
    """The cores by affinity, or the quota of a control group if that is less."""
    return min(float(len(os.sched_getaffinity(0))), cpu_quota()[0])


def cpu_quota() -> tuple[float, Path | None]:
    """The fewest cores that a control group of this process allows, and its folder; infinity and None without quota."""
    quotas: list[tuple[float, Path | None]] = [(math.inf, None)]
    for folder in control_groups("cpu"):
        quota = read_text(folder / "cpu.max").split()
        quota = quota or [read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        if quota[0] not in ("", "max", "-1"):
            quotas.append((int(quota[0]) / int(quota[1]), folder))
    return min(quotas, key=lambda quota: quota[0])


def memory_limit_bytes() -> int:
    """The machine's memory, or the limit of a control group if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(limit for limit, _ in memory_limits())])


def free_memory_bytes() -> int:
    """The memory that this process can still use: the machine's, or that of a control group if that is less."""
    import psutil  # here, because the stage `hardware` runs on every `dvc repro`

    free = [int(psutil.virtual_memory().available)]
    for limit, folder in memory_limits():
        used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")
        # The kernel drops files that it only keeps in case they are read again.
        cached = re.search(r"^(?:total_)?inactive_file (\d+)$", read_text(folder / "memory.stat"), re.MULTILINE)
        free.append(limit - int(used) + int(cached[1] if cached else 0))
    return max(min(free), 0)


def memory_limits() -> list[tuple[int, Path]]:
    limits = []
    for folder in control_groups("memory"):
        limit = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")
        if limit.isdecimal():
            limits.append((int(limit), folder))
    return limits


def control_groups(controller: str) -> list[Path]:
    """The folders of this process's control group for `controller` (cpu, memory) and of all groups above it: a limit
    of each one applies (systemd, SLURM, containers). Version 2 has one tree, version 1 a tree for each controller.
    """
    folders = []
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root, group = CONTROL_GROUPS / (controller if controllers else ""), Path(name.lstrip("/"))
        folders += [root / folder for folder in (group, *group.parents)]
    return folders


def read_text(path: str | Path) -> str:
    """The text of a file of the kernel; empty if there is none."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
