"""The smallest latencies and the largest rates of a device: lower bounds for the time of a training step.

    python -m benchmarks.latencies [--device auto|cpu|cuda]

Prints the GPU with its driver and libraries, and a table: launching an empty kernel (the host's time, with a busy
device), waiting for it, reading a number from the device, replaying a CUDA graph of 1 and of 100 such kernels, a GRU's
time per step of its sequence, and the rates of large copies and matrix products. Each number is the fastest of several
runs, because a disturbance only makes a measurement longer.
"""

import argparse
import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.folklore import device_of
from benchmarks.markdown import header, row
from tandem.devices.device import Device
from tandem.devices.names import SINGLE
from tandem.machine.rates import best_seconds, matrix_rate, measured_with_room
from tandem.training.execution import Execution

SENT_BYTES = 2**26  # copy from the host to the device
COPIES_IN_A_ROW = 1, 10  # on a CPU, on an accelerator: one copy of a fast GPU is shorter than a synchronization
COPIED_BYTES = 2**26, 2**28  # copy within a device's memory: larger than its caches
NUM_LAUNCHES = 200  # in a row, to exceed the clock's resolution
SEQUENCES, STEPS, FEATURES, HIDDEN = 32, 20, 64, 128  # of the GRU, as in a guide


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SINGLE, default="auto")
    options = parser.parse_args()
    device, identity = device_of(parser, options.device)
    for name, value in device.tags(identity).items():
        if name != "host":
            print(f"- {name}: {value}", flush=True)
    print(f"- platform: {platform.machine()}\n\n{header('what', 'takes or reaches')}", flush=True)
    for name, value in {**latencies(device), **rates(device)}.items():
        print(row(name, value), flush=True)


def latencies(device: Device) -> dict[str, str]:
    number = torch.zeros(1, device=device.torch_device)

    def launches(count: int) -> None:
        for _ in range(count):
            number.add_(1.0)

    launch = best_seconds(partial(launches, NUM_LAUNCHES), device) / NUM_LAUNCHES
    results = {
        "one operation among many": microseconds(launch),
        "one operation, and waiting for it": microseconds(best_seconds(partial(launches, 1), device)),
        "reading a number from the device (.item())": microseconds(best_seconds(number.item, device)),
    }
    gru = nn.GRU(FEATURES, HIDDEN, batch_first=True).to(device.torch_device)
    values = torch.randn(SEQUENCES, STEPS, FEATURES, device=device.torch_device)

    def forward_and_backward() -> None:
        gru(values)[0].sum().backward()

    seconds = best_seconds(forward_and_backward, device)
    name = f"nn.GRU, {SEQUENCES} sequences x {STEPS} steps x {FEATURES}, hidden {HIDDEN}: forward and backward, a step"
    results[name] = microseconds(seconds / STEPS)
    if device.is_accelerator:
        for count in (1, 100):
            replay = captured(partial(launches, count))
            results[f"replay of a CUDA graph of {count}"] = microseconds(best_seconds(replay, device))
    return results


def captured(work: Callable[[], Any]) -> Callable[[], None]:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


def rates(device: Device) -> dict[str, str]:
    results = {"product of matrices, fp32": flops(matrix_rate(device))}
    if "tf32" in device.precisions():
        with Execution(device, "tf32").active():
            results["product of matrices, tf32"] = flops(matrix_rate(device))
    results["product of matrices, bf16"] = flops(matrix_rate(device, torch.bfloat16))
    results["copy within the device, read and written"] = f"{memory_rate(device) / 1e9:,.1f} GB/s"
    if device.is_accelerator:
        for name, pinned in (("pinned", True), ("pageable", False)):
            results[f"copy from the host, {name}"] = f"{host_to_device_rate(device, pinned) / 1e9:,.1f} GB/s"
    return results


def host_to_device_rate(device: Device, pinned: bool) -> float:
    """Bytes/s of a large copy from host memory to device memory."""

    def rate(num_bytes: int) -> float:
        host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        target = torch.zeros(num_bytes, dtype=torch.uint8, device=device.torch_device)
        return num_bytes / best_seconds(lambda: target.copy_(host, non_blocking=True), device)

    return measured_with_room(rate, SENT_BYTES, lambda num_bytes: num_bytes, device)


def memory_rate(device: Device) -> float:
    """Bytes/s (reads plus writes) of a large copy within the device's memory."""
    count = COPIES_IN_A_ROW[device.is_accelerator]

    def rate(num_bytes: int) -> float:
        # Ones, because the system would not back zeros with memory.
        block = torch.ones(num_bytes, dtype=torch.uint8, device=device.torch_device)
        target = torch.zeros_like(block)

        def work() -> None:
            for _ in range(count):
                target.copy_(block)

        return count * 2 * num_bytes / best_seconds(work, device)

    return measured_with_room(rate, COPIED_BYTES[device.is_accelerator], lambda num_bytes: 2 * num_bytes, device)


def microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.2f} us"


def flops(rate: float) -> str:
    return f"{rate / 1e12:,.2f} TFLOP/s"


if __name__ == "__main__":
    main()
