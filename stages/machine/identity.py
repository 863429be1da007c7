"""What this machine is: processor, memory, GPU and torch, without importing torch (milliseconds).

Holds only what stays the same from run to run; free memory, clocks and UUIDs do not belong here.
"""

import ctypes
import importlib.util
import os
import platform
import re
from pathlib import Path
from typing import Any

from stages.params.devices import split_device

NO_DEVICE = 100  # CUresult: every other one is the driver's own trouble
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


def identify(requested: str) -> dict[str, Any]:
    """The identity of the device that `requested` means on this machine.

    Raises ValueError where `cuda` is asked for and cannot be had: only `auto` chooses, and what kept it from CUDA is
    recorded. Several workers (`2xcuda`) have that of one, `workers`, and a name that counts them.
    """
    num_workers, kind = split_device(requested)
    if num_workers > 1:
        one = identify(kind)
        if kind == "cuda":
            require_gpus(requested, num_workers, one)
        name = f"{num_workers} workers on {one['name']}"
        return {**one, "requested": requested, "workers": num_workers, "name": name}
    torch_version, torch_cuda = torch_build()
    identity: dict[str, Any] = {"requested": requested, "torch": torch_version, "cpu": cpu_identity()}
    if requested != "cpu":
        gpu, obstacle = cuda_identity(torch_cuda)
        if gpu:
            return {**identity, **gpu, "kind": "cuda"}
        if requested == "cuda":
            raise ValueError(
                f"device 'cuda' was asked for, but {obstacle}; fix that, or use auto or cpu in params.yaml's devices"
            )
        identity["why_not_cuda"] = obstacle
    return {**identity, "kind": "cpu", "name": identity["cpu"]["name"]}


def require_gpus(requested: str, num_workers: int, one: dict[str, Any]) -> None:
    """Raises ValueError where there are fewer GPUs than workers on this machine: two on one GPU only take turns."""
    needed = -(-num_workers // num_nodes())
    if needed <= one["count"]:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "" if visible is None else f", as CUDA_VISIBLE_DEVICES={visible!r} lets it"
    accepted = f"{one['count']}xcuda or fewer" if one["count"] > 1 else "cuda"
    raise ValueError(
        f"device {requested!r} needs {needed} GPUs here, a worker each, and the driver shows {one['count']}{why}; two "
        f"workers on one GPU would only take turns: write {accepted} in params.yaml's devices"
    )


def require_same_gpu(identity: dict[str, Any]) -> None:
    """Raises ValueError where the GPU of `identity` (results/hardware/<device>.json) is not the one here now."""
    found, obstacle = cuda_identity(torch_build()[1])
    if found is None or not identity["name"].endswith(found["name"]):  # "2 workers on NVIDIA ..."
        now = f"now {found['name']} is in its place" if found else obstacle
        raise ValueError(
            f"the stage `hardware` found {identity['name']}, but {now}; make that GPU visible again "
            "(CUDA_VISIBLE_DEVICES), or run `dvc repro`, which looks for the hardware anew"
        )


def num_nodes() -> int:
    """Machines that train together, as torchrun's own environment variable says: 2 in `PET_NNODES=2`."""
    words = os.environ.get("PET_NNODES", "1").split(":")
    return max(int(words[-1]), 1) if words[-1].isdigit() else 1


def torch_build() -> tuple[str, str | None]:
    """torch's version and the CUDA version it was built for (None: a CPU-only build), without importing it or its
    metadata.
    """
    spec = importlib.util.find_spec("torch")
    source = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if source is None or not source.exists():
        raise ValueError("torch is not installed in this environment; run `make setup`")
    values = dict(re.findall(r"^(\w+)[^=\n]*= *'([^']+)'", source.read_text(encoding="utf-8"), re.MULTILINE))
    return values["__version__"].partition("+")[0], values.get("cuda")


def cpu_identity() -> dict[str, Any]:
    """The processor's name, the cores this process may use (affinity and container quota), the memory it may use."""
    return {"name": cpu_name(), "cores": usable_cores(), "memory_mib": memory_limit_bytes() // 2**20}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = fields.get("model name", platform.machine())
    # A virtual machine may hide the name ("AMD EPYC"); family and model still tell two generations apart.
    return f"{name} (family {fields['cpu family']} model {fields['model']})" if "cpu family" in fields else name


def usable_cores() -> float:
    """Cores by affinity, or the container's quota where that is less (cgroup v2, then v1)."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = read_words("/sys/fs/cgroup/cpu.max")
    if not quota:
        quota = read_words("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") + read_words("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if len(quota) == 2 and quota[0] not in ("max", "-1"):
        cores = min(cores, int(quota[0]) / int(quota[1]))
    return cores


def memory_limit_bytes() -> int:
    """The machine's memory, or the container's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        words = read_words(path)
        if words and words[0] != "max":
            return min(total, int(words[0]))
    return total


def read_words(path: str) -> list[str]:
    try:
        return Path(path).read_text().split()
    except OSError:
        return []


def cuda_identity(torch_cuda: str | None) -> tuple[dict[str, Any] | None, str]:
    """The first GPU that torch would call cuda:0, or None and what stands in its way.

    Asks the driver itself (libcuda), which obeys CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER as torch does; NVML does
    neither.
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
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(number.value)
    return {
        "name": name.value.decode(),
        "count": count.value,
        "memory_mib": memory.value // 2**20,
        "capability": f"{capability[0]}.{capability[1]}",
        "driver": driver_version(),
        "torch_cuda": torch_cuda,
    }, ""


def driver_version() -> str | None:
    """NVML's driver version; None where NVML is not to be had (some containers, WSL)."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # NVML's errors have no common public base on a machine without the library
        return None
