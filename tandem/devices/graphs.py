"""Capture work as CUDA graphs: one launch instead of the hundreds of a training step.

https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

import gc
import pickle
import random
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache

import numpy as np
import torch

from tandem.devices.memory import is_out_of_memory, shorten
from tandem.files import ROOT, own_line

# The first calls of a piece of work run eagerly, and their results count. In them, libraries choose kernels and
# allocate memory.
NUM_WARMUPS = 3


class CaptureFailed(RuntimeError):
    """A capture failed and computed nothing. The message begins with the network's line that raised the error."""


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The single stream of all warm-ups and captures of this process.

    Each stream has separate memory in torch's allocator, and a cuBLAS workspace (32 MiB) until the process ends.
    """
    return torch.cuda.Stream(device)


class Graphs:
    """Captures pieces of work once and replays them, in one memory pool and on one stream.

    All tensors that a piece reads or writes must be static (same memory). Replays draw the same random numbers as eager
    execution, from torch's generator of the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = side_stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.captured: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.warmups_done: Counter[Hashable] = Counter()

    def run(
        self,
        key: Hashable,
        warm_up: Callable[[], object],
        work: Callable[[], object],
        num_warmups: int = NUM_WARMUPS,
    ) -> None:
        """Do the work `key` once: the first `num_warmups` calls do it eagerly (`warm_up`), later calls replay `work`.

        Raises CaptureFailed, or torch.OutOfMemoryError if the capture lacks memory.
        """
        if key not in self.captured:
            if self.warmups_done[key] < num_warmups:
                self.on_stream(warm_up)
                self.warmups_done[key] += 1
                return
            self.captured[key] = self.capture(work)
        self.captured[key].replay()

    def on_stream(self, work: Callable[[], object]) -> None:
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                work()
        finally:
            current.wait_stream(self.stream)

    def capture(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Capture `work` as a graph, without computing anything."""
        graph, failed, drawn, generator = torch.cuda.CUDAGraph(), "", host_random_state(), torch.get_rng_state()
        try:
            # torch does not restore the current stream after a failed capture. This context does.
            with torch.cuda.stream(torch.cuda.current_stream(self.device)):
                # "thread_local" lets other threads use CUDA meanwhile.
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                    work()
                    if host_random_state() != drawn:
                        raise RuntimeError("it draws random numbers on the CPU, and every replay would use the same")
        except RuntimeError as error:
            # Ending a failed capture raises a second error; the first one is its context.
            cause = error.__context__ if isinstance(error.__context__, Exception) else error
            failed, is_memory = with_line(cause, shorten(cause)), is_out_of_memory(cause) or is_out_of_memory(error)
            del cause  # its traceback references the tensors of the failed capture
        if not failed:
            return graph
        del graph
        torch.set_rng_state(generator)
        self.captured.clear()  # their memory is in the same pool, which torch up to 2.11 cannot use again
        end_failed_capture(self.device, self.pool)
        self.pool = torch.cuda.graph_pool_handle()
        # Not in a variable: that would create a reference cycle with this frame.
        raise (torch.OutOfMemoryError if is_memory else CaptureFailed)(failed)


def host_random_state() -> bytes:
    """The state of the generators that draw on the CPU: of torch, Python and numpy."""
    return pickle.dumps((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()))


def end_failed_capture(device: torch.device, pool: tuple[int, int]) -> None:
    """Undo what torch leaves behind after a failed capture, so that the next steps are as if it had not been tried."""
    index = device.index or 0
    gc.collect()
    torch.cuda.synchronize(device)
    # torch up to 2.11 leaves the generator in capture mode, so the next dropout would raise.
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state())
    # Its allocator goes on capturing too, and then frees no cached memory (pytorch#180395).
    with suppress(RuntimeError):  # a later torch has ended it
        torch._C._cuda_endAllocateToPool(index, pool)
    torch.cuda.empty_cache()
    # Up to 2.13 it keeps the memory of the capture until the process ends (pytorch#190348). A pool must not be released
    # twice, and one that still has tensors may be released already: torch then refuses to count another user of it.
    with suppress(RuntimeError):  # the allocator cudaMallocAsync has no snapshot
        if any(segment["segment_pool_id"] == pool for segment in torch.cuda.memory_snapshot()):
            torch._C._cuda_beginAllocateCurrentThreadToPool(index, pool)
            torch._C._cuda_endAllocateToPool(index, pool)
            for _ in range(2):
                torch._C._cuda_releasePool(index, pool)
    torch.cuda.empty_cache()


def with_line(error: Exception, message: str) -> str:
    """The message after the network's line that raised the error: `workloads/pen/net.py, line 31: ...`."""
    line = own_line(error, ROOT / "workloads") or own_line(error, ROOT / "tandem/models")
    return f"{line}: {message}" if line else message
