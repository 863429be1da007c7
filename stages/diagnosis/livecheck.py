"""`python -m stages.diagnosis.livecheck gpu|live`: what the GPU's driver and torch really do on this machine, for `make
doctor`.

In: nothing but the machine. Out on stdout: one JSON object a line as soon as it is known, so that a crash leaves what
came before it: `{"doing": ...}` names the check under way, every other line is a Finding. It runs as a process of its
own, because a driver may crash or hang it. `gpu` needs the standard library alone; `live` imports torch and takes a few
seconds.

Every expectation is generous: where one is missed, something is wrong, not merely slow.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.urls import without_password

if TYPE_CHECKING:
    from torch import device as Device

NO_GPU_IS_FINE = "trainings run on the CPU, which is healthy; only `devices: [cuda]` in params.yaml would be refused"
INSTALL = (
    "sudo ubuntu-drivers install && sudo reboot (other systems: nvidia.com/drivers);"
    " in a container: docker run --gpus all"
)
RESTART = "nvidia-smi; sudo reboot"
REINSTALL = "make -B setup"  # without -B, make takes an altered environment for finished


@dataclass(frozen=True)
class Finding:
    check: str
    status: str  # ok | warning | problem | absent
    what: str
    why: str = ""
    fix: str = ""


def main(arguments: list[str]) -> int:
    if arguments not in (["gpu"], ["live"]):
        print("usage: python -m stages.diagnosis.livecheck gpu|live", file=sys.stderr)
        return 2
    for finding in driver_findings(driver_facts(), os.environ) if arguments == ["gpu"] else torch_findings():
        print(json.dumps(asdict(finding)), flush=True)
    return 0


def doing(what: str) -> None:
    print(json.dumps({"doing": what}), flush=True)


def driver_facts() -> dict[str, Any]:
    """The answers of libcuda, NVML and the PCI bus. `cards` is None where NVML does not answer."""
    from stages.machine import identity

    doing("asking the NVIDIA driver")
    facts: dict[str, Any] = dict(torch=None, torch_cuda=None, cards=None, no_nvml="", on_bus=0)
    with suppress(ValueError):  # torch is not installed
        facts["torch"], facts["torch_cuda"] = identity.torch_build()
    facts["gpu"], facts["obstacle"] = identity.cuda_identity(facts["torch_cuda"])
    for slot in Path("/sys/bus/pci/devices").glob("*"):
        vendor, kind = identity.read_words(f"{slot}/vendor"), identity.read_words(f"{slot}/class")
        facts["on_bus"] += vendor == ["0x10de"] and kind[:1] >= ["0x03"] and kind[:1] < ["0x04"]  # display controllers
    try:
        facts["cards"] = nvml_cards()
    except Exception as error:  # NVML's errors have no common public base on a machine without the library
        facts["no_nvml"] = f"{type(error).__name__}: {error}"
    return facts


def nvml_cards() -> list[dict[str, Any]]:
    """Every GPU of the machine in NVML's order, which CUDA_VISIBLE_DEVICES does not change. Memory in MiB."""
    import pynvml

    def ask(function: Callable[..., Any], handle: Any) -> Any:
        try:
            return function(handle)
        except pynvml.NVMLError:
            return None  # not supported by this card, or not in this container

    pynvml.nvmlInit()
    cards = []
    for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())):
        memory, mig = ask(pynvml.nvmlDeviceGetMemoryInfo, handle), ask(pynvml.nvmlDeviceGetMigMode, handle)
        pids = [user.pid for user in ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []]
        cards.append({
            "name": pynvml.nvmlDeviceGetName(handle),
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "total_mib": memory and memory.total // 2**20,
            "free_mib": memory and memory.free // 2**20,
            "mig": bool(mig and mig[0]),
            "holders": [f"process {pid} ({process_name(pid)})" for pid in pids],
        })  # fmt: skip
    pynvml.nvmlShutdown()
    return cards


def process_name(pid: int) -> str:
    """The first words of its command line: the rest may hold secrets."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return "which /proc does not show"
    return without_password(" ".join([os.path.basename(words[0]), *words[1:3]]).strip())


def driver_findings(facts: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Finding]:
    gpu, obstacle, cards, torch = facts["gpu"], facts["obstacle"], facts["cards"] or [], facts["torch"]
    setting, container = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("NVIDIA_VISIBLE_DEVICES")
    chosen, unknown = visible(setting, cards)
    no_driver = "no NVIDIA driver" in obstacle
    if torch is None:
        yield Finding("torch", "problem", "torch is not installed", "no training runs without it", REINSTALL)
    if gpu:
        what = f"{gpu['count']} usable, the first is {gpu['name']}; driver {gpu['driver'] or 'unknown'}"
        yield Finding("gpu", "ok", f"{what}, CUDA {facts['torch_cuda']}, torch {torch}")
    elif no_driver and facts["on_bus"]:
        what = f"{obstacle}, but {facts['on_bus']} NVIDIA GPU on the PCI bus"
        yield Finding("gpu", "warning", what, "the GPU is not used: trainings run on the CPU", INSTALL)
    elif no_driver:
        kept_out = "" if container is None else f"; NVIDIA_VISIBLE_DEVICES={container!r}"
        fix = "docker run --gpus all, where the machine has one" if kept_out else "none needed"
        yield Finding("gpu", "absent", obstacle + kept_out, NO_GPU_IS_FINE, fix)
    elif torch and facts["torch_cuda"] is None:
        what = f"torch {torch} is built for the CPU only, but an NVIDIA driver is here"
        yield Finding("gpu", "problem", what, "the GPU cannot be used", REINSTALL)
    elif setting is not None and not chosen:
        what, why = f"CUDA_VISIBLE_DEVICES={setting!r} hides every GPU", "`auto` trains on the CPU, `cuda` is refused"
        yield Finding("gpu", "warning", what, why, "unset CUDA_VISIBLE_DEVICES")
    elif torch and "update the driver" in obstacle:
        yield Finding("gpu", "problem", obstacle.rpartition(";")[0], "torch cannot start CUDA", INSTALL)
    elif torch and (cards or facts["on_bus"]):
        why = "CUDA does not start, as after a driver update without a reboot, or with libraries of another driver"
        yield Finding("gpu", "problem", f"there is a GPU, but {obstacle}", why, RESTART)
    elif torch:
        yield Finding("gpu", "absent", obstacle, NO_GPU_IS_FINE, "none needed")
    if facts["cards"] is None and not no_driver:
        why = "VRAM per process, MIG and other users of the GPU cannot be seen; trainings run"
        yield Finding("gpu", "warning", f"NVML cannot be asked ({facts['no_nvml']})", why, "nvidia-smi")
    if unknown:
        listed = ", ".join(f"{number} is {card['uuid']}" for number, card in enumerate(cards))
        what = f"CUDA_VISIBLE_DEVICES={setting!r}: {unknown!r} names no GPU of this machine ({listed})"
        yield Finding("gpu", "warning", what, "CUDA ignores it and all that follows", "unset CUDA_VISIBLE_DEVICES")
    if len({card["name"] for card in cards}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        why = "CUDA numbers GPUs by speed, nvidia-smi by their place on the bus: one number can mean two cards"
        what, fix = "unlike GPUs, and CUDA_DEVICE_ORDER is not PCI_BUS_ID", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
        yield Finding("gpu", "warning", what, why, fix)
    for number, card in enumerate(cards):
        shown = card["uuid"] in chosen or any(uuid.startswith("MIG-") for uuid in chosen)
        yield card_finding(number, card, shown)


def visible(setting: str | None, cards: list[dict[str, Any]]) -> tuple[list[str], str]:
    """UUIDs that CUDA_VISIBLE_DEVICES leaves, and the first entry that names nothing.

    Source: NVIDIA, CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    if setting is None:
        return [card["uuid"] for card in cards], ""
    chosen: list[str] = []
    for entry in map(str.strip, setting.split(",")):
        named = [entry] if entry.startswith("MIG-") else []
        for number, card in enumerate(cards):
            if entry == str(number) or (entry.startswith("GPU-") and card["uuid"].startswith(entry)):
                named.append(card["uuid"])
        if not named:
            return chosen, entry if cards and entry != "-1" else ""
        chosen += named
    return chosen, ""


def card_finding(number: int, card: Mapping[str, Any], shown: bool) -> Finding:
    memory = "" if card["total_mib"] is None else f", {card['free_mib']} of {card['total_mib']} MiB free"
    what = f"{number}: {card['name']} {card['uuid']}{memory}{'' if shown else ', hidden by CUDA_VISIBLE_DEVICES'}"
    if card["mig"]:
        why = "a process sees one MIG slice, and utilization is not measured"
        fix = f"export CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L lists them), or: sudo nvidia-smi -i {number} -mig 0"
        return Finding("gpu", "warning", f"{what}; MIG mode is on", why, fix)
    if shown and (card["holders"] or (card["total_mib"] and card["free_mib"] < 0.9 * card["total_mib"])):
        who = ", ".join(card["holders"]) or "processes outside this container"
        why = "times measured now are not comparable, and the memory may not suffice"
        return Finding("gpu", "warning", f"{what}; in use by {who}", why, "wait for them, or end them: nvidia-smi")
    return Finding("gpu", "ok", what)


def torch_findings() -> Iterator[Finding]:
    doing("importing torch")
    start = time.perf_counter()
    import torch

    seconds = time.perf_counter() - start
    status, what = "ok" if seconds < 20 else "warning", f"torch {torch.__version__} imported in {seconds:.1f} s"
    why, fix = "every stage pays it; a network drive or a virus scanner may be in the way", "put .venv on a local disk"
    yield Finding("live", status, what, why, fix)

    doing("computing on the CPU")
    from stages.machine import identity

    threads = max(1, int(identity.usable_cores()))
    yield from judge(f"cpu, {identity.cpu_name()}", {"threads": threads, **measure_cpu(threads)})
    gpu, _ = identity.cuda_identity(torch.version.cuda)
    for index in range(gpu["count"] if gpu else 0):
        doing(f"computing on cuda:{index}")
        try:
            facts = measure_gpu(index)
            yield from judge(f"cuda:{index}, {facts['name']}", facts)
        except (RuntimeError, AssertionError) as error:  # torch's CUDA errors; those of a GPU-less build are assertions
            what = f"cuda:{index}: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
            fix = "nvidia-smi; devices: [cpu] in params.yaml goes on without"
            yield Finding("live", "problem", what, "trainings on it fail", fix)


def measure_cpu(threads: int) -> dict[str, Any]:
    import torch

    from stages.machine.rates import matrix_rate
    from stages.training.device import open_device

    device = open_device({"kind": "cpu"}, 1, deterministic=True)
    facts = {"matmul_error": matmul_error(device), "gru_repeats": gru_repeats(device)}
    facts["one_thread"] = matrix_rate(device) / 1e9
    torch.set_num_threads(threads)
    facts["all_threads"] = matrix_rate(device) / 1e9
    return facts


def measure_gpu(index: int) -> dict[str, Any]:
    """The numerics are those that open_device has set for the CPU: deterministic, fp32 without TF32."""
    import torch

    from stages.machine.rates import host_to_device_rate, matrix_rate

    torch.cuda.init()  # says why where CUDA does not start
    device = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(device)
    facts = {
        "name": f"{properties.name} GPU-{properties.uuid}",
        "capability": (properties.major, properties.minor),
        "arch_list": torch.cuda.get_arch_list(),
        "cudnn": torch.backends.cudnn.version(),
    }
    if not runs_on(facts["capability"], facts["arch_list"]):
        return facts
    facts |= {
        "matmul_error": matmul_error(device),
        "gru_repeats": gru_repeats(device),
        "pinned": host_to_device_rate(device, pinned=True) / 1e9,
        "pageable": host_to_device_rate(device, pinned=False) / 1e9,
        "launch_us": launch_us(device),
        "fp32": matrix_rate(device) / 1e12,
        "bf16": matrix_rate(device, torch.bfloat16) / 1e12,
    }
    torch.set_float32_matmul_precision("high")
    facts["tf32"] = matrix_rate(device) / 1e12
    torch.set_float32_matmul_precision("highest")
    return facts


def judge(name: str, facts: Mapping[str, Any]) -> Iterator[Finding]:
    if "matmul_error" not in facts:
        built = ", ".join(facts["arch_list"])
        what = f"{name} has compute capability {facts['capability']}; this torch is built for {built}"
        fix = "install a torch built for this card (pytorch.org/get-started), or devices: [cpu] in params.yaml"
        yield Finding("live", "problem", what, "no kernel of torch runs on it", fix)
        return
    repair = f"test the memory and the cooling, then: {REINSTALL}"
    if facts["matmul_error"] > 1e-5:
        what = f"{name}: a product of matrices is off by {facts['matmul_error']:.1e} (1e-5 is allowed)"
        yield Finding("live", "problem", what, "results from this device cannot be trusted", repair)
    elif not facts["gru_repeats"]:
        yield Finding("live", "problem", f"{name}: a GRU run twice differs", "no result can be reproduced", repair)
    else:
        cudnn = f" (cuDNN {facts['cudnn']})" if "cudnn" in facts else ""
        yield Finding("live", "ok", f"{name}: right numbers; a GRU run twice gives the same bits{cudnn}")
    if "capability" in facts:
        rates, fix = gpu_rates(facts), "nvidia-smi -q -d PERFORMANCE,POWER,PIDS"
    else:
        rates, fix = cpu_rates(facts), "unset OMP_NUM_THREADS MKL_NUM_THREADS; top"
    low = [expected for _, expected, is_low in rates if is_low]
    what = f"{name}: {', '.join(rate for rate, _, _ in rates)}{'; too low: ' if low else ''}{', '.join(low)}"
    why = "something is in the way: another process, a power or thread limit, a narrow slot, a virtual machine"
    yield Finding("live", "warning" if low else "ok", what, why, fix)


def cpu_rates(facts: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """(the rate, what is expected, whether it is too low) of each."""
    one, gain = facts["one_thread"], facts["all_threads"] / facts["one_thread"]
    rates = [(f"{one:.0f} GFLOP/s on one thread", "one thread (2 expected)", one < 2)]
    if facts["threads"] > 1:
        rates.append((f"{gain:.1f} times that on {facts['threads']}", "threads (1.1 times expected)", gain < 1.1))
    return rates


def gpu_rates(facts: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    fp32 = facts["fp32"] if facts["capability"] >= (8, 0) else 0.0  # older cards only emulate TF32 and bf16
    expected = {"pinned": 3.0, "pageable": 1.0, "fp32": 0.5, "tf32": 0.8 * fp32, "bf16": fp32}
    rates = []
    for key, least in expected.items():
        unit = "GB/s" if key in ("pinned", "pageable") else "TFLOP/s"
        rates.append((f"{key} {facts[key]:.1f} {unit}", f"{key} ({least:.1f} expected)", facts[key] < least))
    us = facts["launch_us"]
    return [*rates, (f"launch {us:.1f} us", "launch (at most 20 us expected)", us > 20)]


def runs_on(capability: tuple[int, int], arch_list: list[str]) -> bool:
    """Whether code built for `arch_list` runs: binaries of one major and no newer minor version, PTX of no newer one.

    Source: NVIDIA, CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility". `sm_90a` runs on 9.0 alone.
    """
    for match in filter(None, (re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch) for arch in arch_list)):
        built = int(match[2]), int(match[3])
        related = not match[4] and (match[1] == "compute" or built[0] == capability[0])
        if built == capability or (related and built <= capability):
            return True
    return False


def matmul_error(device: Device) -> float:
    """Largest difference of a float32 product on `device` from float64 on the CPU, relative to the largest entry."""
    import torch

    left, right = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
    exact = left.double() @ right.double()
    product = (left.to(device) @ right.to(device)).cpu().double()
    error = float((product - exact).abs().max() / exact.abs().max())
    return error if error == error else float("inf")  # NaN is wrong too


def gru_repeats(device: Device) -> bool:
    """Whether a bidirectional GRU, forward and backward, gives the same bits twice (on a GPU this is cuDNN's)."""
    import torch

    torch.manual_seed(0)
    gru = torch.nn.GRU(8, 64, num_layers=2, bidirectional=True, batch_first=True).to(device)
    batch = torch.randn(32, 45, 8).to(device)  # (B, T, F)
    runs = []
    for _ in range(2):
        output, _ = gru(batch)
        runs.append([output, *torch.autograd.grad(output.square().sum(), list(gru.parameters()))])
    return all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def launch_us(device: Device, launches: int = 2000) -> float:
    """Microseconds for one kernel that does next to nothing, torch's own overhead included."""
    import torch

    from stages.machine.rates import best_seconds

    number = torch.zeros(1, device=device)

    def work() -> None:
        for _ in range(launches):
            number.add_(1)

    return best_seconds(work, device) / launches * 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
