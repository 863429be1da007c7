"""Detect this machine's processor, memory, GPU and torch, in milliseconds because it does not import torch.

The result contains only values that do not change between runs: no free memory, clocks or UUIDs.
"""

import ctypes
import importlib.util
import math
import os
import platform
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tandem.files import read_json, user_cache_dir, write_json
from tandem.machine import nvml
from tandem.params.devices import split_device

NO_DEVICE = 100  # CUresult; every other value except 0 is an error of the driver
# Environment variables that select the instructions of torch's libraries, and so change results and times. DVC's key
# has no environment variables, so one that is set belongs to the hardware.
VARIABLES = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip
CONTROL_GROUPS = Path("/sys/fs/cgroup")
ASK_TORCH = "import torch; print(getattr(torch._C, '_cuda_getArchFlags', str)() or '')"
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


def detect_hardware(requested: str) -> dict[str, Any]:
    """The hardware that `requested` selects on this machine, as results/hardware/devices/<device>.json has it.

    Raises ValueError if `requested` is `cuda` and CUDA is not available. `auto` may fall back to the CPU and then
    records the reason. Several workers (`2xcuda`) have the hardware of one, the key `workers`, and a name with their
    number.
    """
    num_workers, kind = split_device(requested)
    if num_workers > 1:
        one = detect_hardware(kind)
        if kind == "cuda":
            require_gpus(requested, num_workers, one)
        name = f"{num_workers} workers on {one['name']}"
        return {**one, "requested": requested, "workers": num_workers, "name": name}
    torch_version, torch_cuda = torch_build()
    cpu = {"name": cpu_name(), "cores": usable_cores(), "memory_mib": memory_limit_bytes() // 2**20}
    hardware: dict[str, Any] = {"requested": requested, "torch": torch_version, "cpu": cpu}
    if variables := {name: os.environ[name] for name in VARIABLES if name in os.environ}:
        hardware["variables"] = variables
    if requested != "cpu":
        gpu, obstacle = detect_gpu(torch_cuda)
        if gpu:
            return {**hardware, **gpu, "kind": "cuda"}
        if requested == "cuda":
            raise ValueError(
                f"device 'cuda' is not available: {obstacle}; fix this, or use auto or cpu in params.yaml's devices"
            )
        hardware["why_not_cuda"] = obstacle
    return {**hardware, "kind": "cpu", "name": cpu["name"]}


def require_gpus(requested: str, num_workers: int, one: dict[str, Any]) -> None:
    """Raises ValueError if this machine has fewer GPUs than workers: two workers on one GPU would alternate."""
    needed = -(-num_workers // num_nodes())
    if needed <= one["count"]:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    accepted = f"{one['count']}xcuda or fewer" if one["count"] > 1 else "cuda"
    raise ValueError(
        f"device {requested!r} needs {needed} GPUs here, one per worker, but the driver shows {one['count']}{why}; "
        f"several workers on one GPU are not faster: write {accepted} in params.yaml's devices"
    )


def require_same_gpu(hardware: dict[str, Any]) -> None:
    """Raises ValueError if the current GPU is not the one of results/hardware/devices/<device>.json."""
    found, obstacle = detect_gpu(torch_build()[1])
    if found is None or not hardware["name"].endswith(found["name"]):  # "2 workers on NVIDIA ..."
        now = f"the GPU is now {found['name']}" if found else obstacle
        raise ValueError(
            f"the stage `hardware` found {hardware['name']}, but {now}; make the first one visible again "
            "(CUDA_VISIBLE_DEVICES), or run `dvc repro`, which detects the hardware again"
        )


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


def host_name() -> str:
    """This machine's name. Files and MLflow take only UTF-8, so another byte is written as Python writes it: \\xe4."""
    return platform.node().encode(errors="surrogateescape").decode(errors="backslashreplace")


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
    found = []
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root, group = CONTROL_GROUPS / (controller if controllers else ""), Path(name.lstrip("/"))
        found += [root / folder for folder in (group, *group.parents)]
    return found


def read_text(path: str | Path) -> str:
    """The text of a file of the kernel; empty if there is none."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def torch_architectures() -> list[str]:
    """The GPU architectures that the installed torch has kernels for (sm_75) or code to compile (compute_120); empty if
    it does not say. A child process asks torch once per installation, because this module does not import it.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    installed = [spec.origin, os.stat(Path(spec.origin).with_name("version.py")).st_mtime_ns]
    path = user_cache_dir() / "torch_architectures.json"
    with suppress(OSError, ValueError):
        if (cached := read_json(path))["torch"] == installed:
            return list(cached["architectures"])
    import subprocess  # here, because this runs once

    asked = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, check=False)
    if asked.returncode:
        return []
    found = asked.stdout.split()
    with suppress(OSError):
        write_json(path, {"torch": installed, "architectures": found}, is_durable=False)
    return found


def has_kernels(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Whether one of torch's architectures serves a GPU: kernels serve the same major version and at least their minor
    one, and code to compile every later version. This is torch's own rule (torch.cuda._check_capability).
    """
    for name in architectures:
        kind, _, digits = name.rstrip("af").partition("_")
        own = divmod(int(digits), 10)
        if own <= capability and (kind == "compute" or own[0] == capability[0]):
            return True
    return False


def detect_gpu(torch_cuda: str | None) -> tuple[dict[str, Any] | None, str]:
    """The GPU that torch calls cuda:0, or None and the reason why CUDA is not available.

    This asks the driver (libcuda), which respects CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER like torch; NVML ignores
    both.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "no NVIDIA driver is installed here (libcuda.so.1 not found)"
    if torch_cuda is None:
        return None, "this torch is built for the CPU only; install the CUDA build (`make setup` does on Linux)"
    code, count, number = driver.cuInit(0), ctypes.c_int(), ctypes.c_int()
    if code == 0:
        driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and code in (0, NO_DEVICE):
            return None, f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU"
        return None, f"the driver shows no GPU (cuInit {code})"
    driver.cuDriverGetVersion(ctypes.byref(number))
    major, minor = number.value // 1000, number.value % 1000 // 10
    if major < int(torch_cuda.split(".")[0]):
        obstacle = f"the driver supports CUDA {major}.{minor} and torch is built for CUDA {torch_cuda}"
        return None, f"{obstacle}; update the driver"
    driver_version: str | None = None  # unknown without NVML (some containers, WSL)
    with suppress(Exception):
        driver_version = str(nvml.start().nvmlSystemGetDriverVersion())
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(number.value)
    known = torch_architectures()
    if known and not has_kernels((capability[0], capability[1]), known):
        return None, (
            f"this torch has no kernels for {name.value.decode()} (compute capability {capability[0]}.{capability[1]}; "
            f"it has {', '.join(known)}); install a torch that was built for it, usually an older one"
        )
    return {
        "name": name.value.decode(),
        "count": count.value,
        "memory_mib": memory.value // 2**20,
        "capability": f"{capability[0]}.{capability[1]}",
        "driver": driver_version,
        "torch_cuda": torch_cuda,
    }, ""
