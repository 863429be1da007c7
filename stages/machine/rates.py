"""What a device can do at most, measured: the rates of a large matrix product and of large copies.

And whether the cores of a CPU are free.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from stages.machine.regions import free_bytes, synchronize
from stages.machine.threads import threads_kept
from stages.machine.turns import interleave

# Large enough that a GPU's launch times do not show; a CPU would take seconds for as much.
MATRIX_SIZE = {"cpu": 1024, "cuda": 4096}
PRODUCTS_IN_A_ROW = {"cpu": 1, "cuda": 5}
COPIED_BYTES = {"cpu": 2**26, "cuda": 2**28}  # within a device's memory: more than its caches hold
SENT_BYTES = 2**26  # from the host to the device
SHARE_OF_FREE_MEMORY = 0.5  # for buffers; a card that has little to spare gets smaller ones
SMALLEST = 256  # rows of a matrix, or bytes: less is not tried
RATE_SECONDS = 0.05  # of runs, after a warm-up
THREADS_GAIN = 1.2  # of a matrix product with more threads; with less, the threads have no cores


def best_seconds(work: Callable[[], Any], device: torch.device) -> float:
    """The fastest of at least three runs of `work` after a warm-up: what the device can do, not what disturbed it."""
    work()
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < 3 or time.perf_counter() - begin < RATE_SECONDS:
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def matrix_rate(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """FLOP/s of a product of large square matrices, 2 size^3 each."""
    count = PRODUCTS_IN_A_ROW[device.type]

    def rate(size: int) -> float:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        product = torch.zeros_like(left)

        def work() -> None:
            for _ in range(count):
                torch.mm(left, right, out=product)

        return count * 2 * size**3 / best_seconds(work, device)

    # Three matrices, and a random one in fp32 before it is in `dtype`.
    return measured_with_room(rate, MATRIX_SIZE[device.type], lambda size: 16 * size**2, device)


def memory_rate(device: torch.device) -> float:
    """Bytes/s that a large copy within the device's memory reads and writes."""

    def rate(num_bytes: int) -> float:
        block = torch.ones(num_bytes, dtype=torch.uint8, device=device)  # zeros would not be backed by memory
        target = torch.zeros_like(block)
        return 2 * num_bytes / best_seconds(lambda: target.copy_(block), device)

    return measured_with_room(rate, COPIED_BYTES[device.type], lambda num_bytes: 2 * num_bytes, device)


def host_to_device_rate(device: torch.device, pinned: bool) -> float:
    """Bytes/s of a large copy from the host's memory to the device's."""

    def rate(num_bytes: int) -> float:
        host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        target = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        return num_bytes / best_seconds(lambda: target.copy_(host, non_blocking=True), device)

    return measured_with_room(rate, SENT_BYTES, lambda num_bytes: num_bytes, device)


def measured_with_room(
    rate: Callable[[int], float], size: int, needed_bytes: Callable[[int], int], device: torch.device
) -> float:
    """`rate` at `size`, halved until its buffers take at most SHARE_OF_FREE_MEMORY of what is free.

    A rate is measured beside a training, whose batch must not seem too large because of buffers that only this needs.
    Where the memory is not enough all the same (a limit that the driver does not know), a smaller size is tried.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps for later is not free to the driver
    room = SHARE_OF_FREE_MEMORY * free_bytes(device)
    while needed_bytes(size) > room and size > SMALLEST:
        size //= 2
    while True:
        try:
            return rate(size)
        except torch.OutOfMemoryError:
            if size <= SMALLEST:
                raise
        size //= 2


def has_cores(threads: int) -> bool:
    """Whether so many threads beat one right now. Where another process has the core, each part of a step waits."""
    square = torch.ones(512, 512)

    def product(threads: int) -> float:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        square @ square
        return time.perf_counter() - start

    with threads_kept():
        seconds = interleave({number: partial(product, number) for number in (1, threads)}, rounds=5)
    return statistics.median(seconds[1]) > THREADS_GAIN * statistics.median(seconds[threads])
