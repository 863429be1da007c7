"""Measure a device's rate of a matrix product, and whether the cores of a CPU are free."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tandem.devices.device import Device
from tandem.machine.interleaving import interleave
from tandem.machine.measure import Clock
from tandem.machine.threads import using_threads

# Large enough to make a GPU's launch times negligible; a CPU would take seconds for this size.
MATRIX_SIZE = 1024, 4096  # on a CPU, on an accelerator
PRODUCTS_IN_A_ROW = 1, 5
SHARE_OF_FREE_MEMORY = 0.5  # for buffers; a GPU with little free memory gets smaller ones
SMALLEST = 256  # smallest size to try: rows of a matrix, or bytes
RATE_SECONDS = 0.05  # minimum time of the runs after a warm-up
THREADS_GAIN = 1.2  # minimum speed-up of a matrix product with more threads; below it, the threads have no cores


def best_seconds(work: Callable[[], Any], device: Device) -> float:
    """The fastest of at least three runs of `work` after a warm-up, which excludes disturbances."""
    work()
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < 3 or time.perf_counter() - begin < RATE_SECONDS:
        with Clock(device) as clock:
            work()
        seconds.append(clock.seconds)
    return min(seconds)


def matrix_rate(device: Device, dtype: torch.dtype = torch.float32) -> float:
    """FLOP/s of a product of large square matrices (2 size^3 FLOP)."""
    count = PRODUCTS_IN_A_ROW[device.is_accelerator]

    def rate(size: int) -> float:
        left, right = (torch.randn(size, size, device=device.torch_device).to(dtype) for _ in range(2))
        product = torch.zeros_like(left)

        def work() -> None:
            for _ in range(count):
                torch.mm(left, right, out=product)

        return count * 2 * size**3 / best_seconds(work, device)

    # Memory of three matrices, plus a random one in fp32 before its conversion to `dtype`.
    return measured_with_room(rate, MATRIX_SIZE[device.is_accelerator], lambda size: 16 * size**2, device)


def measured_with_room(
    rate: Callable[[int], float], size: int, needed_bytes: Callable[[int], int], device: Device
) -> float:
    """Returns `rate` at `size`, halved until its buffers use at most SHARE_OF_FREE_MEMORY of the free memory.

    The measurement may run during a training, and its buffers must not make the training's batch seem too large.
    """
    device.free_cache()  # a driver does not count torch's cache as free
    room = SHARE_OF_FREE_MEMORY * device.memory_bytes()[0]
    while needed_bytes(size) > room and size > SMALLEST:
        size //= 2
    return rate(size)


def has_cores(threads: int) -> bool:
    """Whether `threads` threads currently beat one. If another process uses a core, each part of a step waits."""
    square = torch.ones(512, 512)

    def product(threads: int) -> float:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        square @ square
        return time.perf_counter() - start

    with using_threads(torch.get_num_threads()):
        seconds = interleave({number: partial(product, number) for number in (1, threads)}, rounds=5)
    return statistics.median(seconds[1]) > THREADS_GAIN * statistics.median(seconds[threads])
