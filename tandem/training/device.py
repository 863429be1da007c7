"""Opens the device of a run with its numerical settings, and lists what MLflow shows of it."""

import ctypes
import os
import platform
import resource
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tandem.machine.hardware import host_name
from tandem.params.schema import NumThreads
from tandem.training.execution import Execution, realized_precision

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 32 * 2**20  # the largest value that glibc accepts
KEPT_BYTES_UNDER_A_LIMIT = 2**16
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def open_device(
    hardware: dict[str, Any],
    threads: NumThreads,
    deterministic: bool,
    precision: str = "fp32",
    index: int = 0,
    kernels: str = "auto",
) -> torch.device:
    """The torch device of `hardware` (tandem/machine/hardware.py). Sets threads and switches of this process.

    `index` selects one of several GPUs. With `precision` fp32, TF32 is off for matrix products and for cuDNN (whose
    RNNs use it by default), so that CPU and GPU compute the same. `precision` tf32 turns it on if the device has it.
    A training's own `Execution` is in force while it trains; these switches hold outside. `threads` auto is one thread
    until auto.py chooses. Raises ValueError if torch cannot use the driver's GPU.
    """
    if deterministic:  # cuBLAS reads this variable when CUDA starts; without it, cuDNN's RNNs are not deterministic
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1 if threads == "auto" else threads)
    # torch would fill every new tensor with NaN to expose reads of uninitialized memory: 3 to 9% of a step here.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    keep_freed_memory()
    if hardware["kind"] == "cpu" and precision == "fp16":
        raise ValueError(
            "train.precision is 'fp16', which needs a GPU; on the CPU accepted: fp32, bf16, tf32 (computed as fp32)"
        )
    if hardware["kind"] == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"the driver shows {hardware['name']} but torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use "
            f"it with driver {hardware['driver']}; update the driver, or use cpu in params.yaml's devices"
        )
    device = torch.device("cpu") if hardware["kind"] == "cpu" else torch.device("cuda", index)
    Execution(device, precision, deterministic=deterministic, kernels=kernels).switches.set()
    return device


def keep_freed_memory() -> None:
    """Let glibc reuse the memory of a step's tensors in the next step, up to KEPT_BYTES per tensor.

    By default glibc returns memory to the system after each step, and the next step waits while the kernel clears the
    same pages again: 6,000 page faults and a quarter of the time of a step of a small GRU. If the memory of this
    process is limited (ulimit -d, -v), glibc keeps almost nothing, because memory freed in one size may be missing in
    another. mallopt(3) documents the two values.
    """
    mallopt = ctypes.CDLL(None).mallopt
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    is_limited = any(limit != resource.RLIM_INFINITY for limit in limits)
    mallopt(M_MMAP_THRESHOLD, KEPT_BYTES_UNDER_A_LIMIT if is_limited else KEPT_BYTES)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_UNDER_A_LIMIT if is_limited else 2**31 - 1)


def emulates_bf16(device: torch.device) -> bool:
    """Whether a GPU has no bf16 (before Ampere), which torch then computes through fp32: correct, and slow."""
    return device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)


def is_native(precision: str, device: torch.device) -> bool:
    """Whether a device computes in a precision itself, so that it may be faster than fp32."""
    is_emulated = precision == "bf16" and emulates_bf16(device)
    return realized_precision(precision, device) == precision and not is_emulated


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass. Weights and sums stay fp32. tf32 needs none: it is a switch (execution.py)."""
    return torch.autocast(device.type, AUTOCAST[precision]) if precision in AUTOCAST else nullcontext()


def device_tags(device: torch.device, hardware: dict[str, Any]) -> dict[str, str]:
    """The device, machine and software of a run, as flat text (MLflow tags)."""
    about = {
        "device": hardware["requested"] if "workers" in hardware else device.type,
        "device.name": hardware["name"],
        "cpu.name": hardware["cpu"]["name"],
        "cpu.cores": f"{hardware['cpu']['cores']:g}",
        "cpu.memory_mib": str(hardware["cpu"]["memory_mib"]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "os": platform.platform(),
        "host": host_name(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "gpu.name": properties.name,
            "gpu.uuid": f"GPU-{properties.uuid}",
            "gpu.capability": f"{properties.major}.{properties.minor}",
            "gpu.memory_mib": str(properties.total_memory // 2**20),
            "gpu.count": str(torch.cuda.device_count()),
            "gpu.driver": str(hardware["driver"]),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES", "(not set)"),
        }
    elif "why_not_cuda" in hardware:
        about["why_not_cuda"] = hardware["why_not_cuda"]
    if "workers" in hardware:
        about["workers"] = str(hardware["workers"])
    return about
