"""NVIDIA's GPUs: identified by their driver, used through torch, measured by NVML."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.devices import nvml
from tandem.devices.device import Device
from tandem.devices.hardware import driver_text, num_nodes, torch_build
from tandem.files import read_json, user_cache_dir, write_json

if TYPE_CHECKING:
    import torch

NO_DRIVER = "no NVIDIA driver is installed here (libcuda.so.1 not found)"
NO_DEVICE = 100  # CUresult; every other value except 0 is an error of the driver
ASK_TORCH = "import torch; print(getattr(torch._C, '_cuda_getArchFlags', str)() or '')"
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


class Kind(Device):
    is_accelerator = True
    collectives, backend = "nccl", "cpu:gloo,cuda:nccl"
    why_no_graph = ""

    def __init__(self, index: int = 0) -> None:
        import torch

        from tandem.devices.copies import copied_ahead
        from tandem.devices.graphs import Graphs

        self.torch_device, self.cuda = torch.device("cuda", index), torch.cuda
        self.graphs, self.copied_ahead = partial(Graphs, self.torch_device), partial(copied_ahead, self.torch_device)

    @classmethod
    def detect(cls) -> tuple[dict[str, Any] | None, str]:
        return detect_gpu(torch_build()[1])

    @classmethod
    def require_several(cls, requested: str, num_workers: int, one: dict[str, Any]) -> None:
        """Two workers on one GPU would alternate."""
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

    @classmethod
    def require_same(cls, hardware: dict[str, Any]) -> None:
        gpu, obstacle = cls.detect()
        if gpu is None or not hardware["name"].endswith(gpu["name"]):  # "2 workers on NVIDIA ..."
            now = f"the GPU is now {gpu['name']}" if gpu else obstacle
            raise ValueError(
                f"the stage `hardware` found {hardware['name']}, but {now}; make the first one visible again "
                "(CUDA_VISIBLE_DEVICES), or run `dvc repro`, which detects the hardware again"
            )

    @classmethod
    def versions(cls, hardware: Mapping[str, Any]) -> dict[str, str]:
        import torch

        versions = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "driver": hardware["driver"]}
        return {name: str(version) for name, version in versions.items() if version}

    def require_usable(self, hardware: dict[str, Any]) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                f"the driver shows {hardware['name']} but torch {torch.__version__} (CUDA {torch.version.cuda}) cannot "
                f"use it with {driver_text(hardware)}; update the driver, or use cpu in params.yaml's devices"
            )
        if "microsoft" in platform.release().lower():  # WSL's driver takes the machine's memory instead of failing
            free, total = self.memory_bytes()
            usable = free + self.cuda.memory_reserved(self.torch_device)  # by a seed that this process trained before
            self.cuda.set_per_process_memory_fraction(min(1.0, usable / total), self.torch_device)

    def tags(self, hardware: dict[str, Any]) -> dict[str, str]:
        import torch

        properties = torch.cuda.get_device_properties(self.torch_device)
        return super().tags(hardware) | {
            "gpu.name": properties.name,
            "gpu.uuid": f"GPU-{properties.uuid}",
            "gpu.capability": f"{properties.major}.{properties.minor}",
            "gpu.memory_mib": str(properties.total_memory // 2**20),
            "gpu.count": str(torch.cuda.device_count()),
            "gpu.driver": hardware["driver"] or "(unknown)",
            **{name: version for name, version in self.versions(hardware).items() if name != "driver"},
            "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES", "(not set)"),
        }

    @cached_property
    def driver(self) -> nvml.Gpu:  # type: ignore[override]
        self.cuda.init()
        return nvml.cached_gpu(uuid_of(self.torch_device.index))

    def synchronize(self) -> None:
        self.cuda.synchronize(self.torch_device)

    def join_workers(self) -> None:
        self.cuda.set_device(self.torch_device)

    def random_state(self) -> dict[str, torch.Tensor]:
        return super().random_state() | {"cuda": self.cuda.get_rng_state(self.torch_device)}

    def set_random_state(self, state: dict[str, torch.Tensor]) -> None:
        super().set_random_state(state)
        if "cuda" in state:
            self.cuda.set_rng_state(state["cuda"].cpu(), self.torch_device)

    def precisions(self) -> tuple[str, ...]:
        """Without TF32 and bf16 before Ampere. torch then computes bf16 through fp32: correct, and slow."""
        with self.cuda.device(self.torch_device):
            has_tf32, has_bf16 = self.cuda.is_tf32_supported(), self.cuda.is_bf16_supported(including_emulation=False)
        return ("fp32", *["tf32"] * has_tf32, *["bf16"] * has_bf16, "fp16")

    def memory_bytes(self) -> tuple[int, int]:
        return self.cuda.mem_get_info(self.torch_device)

    def free_cache(self) -> None:
        import torch

        self.cuda.empty_cache()  # without CUDA in this process, both do nothing
        torch._C._host_emptyCache()  # type: ignore[attr-defined]  # pinned: WSL gives a process little of it

    def reset_peaks(self) -> None:
        self.cuda.reset_peak_memory_stats(self.torch_device)
        self.cuda.reset_accumulated_memory_stats(self.torch_device)  # failures of trials: devices/memory.py

    def memory_mib(self) -> dict[str, float]:
        bytes_by_name = {
            "reserved": self.cuda.memory_reserved(self.torch_device),
            "peak_allocated_mib": self.cuda.max_memory_allocated(self.torch_device),
            "peak_reserved_mib": self.cuda.max_memory_reserved(self.torch_device),
        }
        return {name: num_bytes / 2**20 for name, num_bytes in bytes_by_name.items()}

    def activities(self, step: Callable[[], Any]) -> list[tuple[str, float, float]]:
        """A profiler that stays attached slows all later launches by 10 to 20% (pytorch/pytorch#146604, #144455). torch
        detaches it if TEARDOWN_CUPTI says so.
        """
        import torch
        from torch.profiler import ProfilerActivity, profile

        os.environ.setdefault("TEARDOWN_CUPTI", "1")
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # suppresses two lines that the profiler prints at its start
        self.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:  # torch 2.11 warns without it
            step()
            self.synchronize()
        return [
            (event.name, event.time_range.start, event.time_range.end)
            for event in seen.events() or []
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
        ]


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
    architectures = re.findall(r"\b(?:sm|compute)_\d+[af]?\b", asked.stdout)  # a site hook may print other words
    with suppress(OSError):
        write_json(path, {"torch": installed, "architectures": architectures}, is_durable=False)
    return architectures


def has_kernels(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Whether one of torch's architectures serves a GPU: kernels serve the same major version and at least their minor
    one, and code to compile every later version. For cards, kernels are torch's own rule
    (torch.cuda._check_capability). It has exceptions for integrated GPUs, which before CUDA 13.2 need kernels of their
    own: a Jetson with a torch that was not built for it is taken for usable here.
    """
    for name in architectures:
        kind, _, digits = name.rstrip("af").partition("_")
        version = divmod(int(digits), 10)
        if version <= capability and (kind == "compute" or version[0] == capability[0]):
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
        return None, NO_DRIVER
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
        return None, f"{obstacle}; update the driver, or install a torch that was built for CUDA {major}"
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
    architectures = torch_architectures()
    if architectures and not has_kernels((capability[0], capability[1]), architectures):
        return None, (
            f"this torch has no kernels for {name.value.decode()} (compute capability {capability[0]}.{capability[1]}; "
            f"it has {', '.join(architectures)}); install a torch that was built for it, usually an older one"
        )
    return {
        "name": name.value.decode(),
        "count": count.value,
        "memory_mib": memory.value // 2**20,
        "capability": f"{capability[0]}.{capability[1]}",
        "driver": driver_version,
        "torch_cuda": torch_cuda,
    }, ""


def uuid_of(index: int) -> str:
    """The UUID of one of the visible GPUs, after CUDA's start; under MIG that of the instance. torch has the whole
    GPU's there, because the CUDA runtime asks the driver with the first version of this call.
    """
    from uuid import UUID

    driver, device, uuid_bytes = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetUuid_v2(ctypes.byref(uuid_bytes), device)
    return f"GPU-{UUID(bytes=bytes(uuid_bytes))}"
