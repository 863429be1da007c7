"""Copies from pinned host memory to a GPU while it computes."""

from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all copies of streamed data. One stream saves memory: the allocator caches memory per stream.

    torch has 32 streams and returns them in turn: a new stream per epoch would sometimes be the stream of a capture.
    """
    return torch.cuda.Stream(device)


class Copies:
    """A thread sends and the main thread receives. Copy `index` is from the first or second of two pinned buffers."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.side, self.current = device, copy_stream(device), torch.cuda.current_stream(device)
        self.copied = [torch.cuda.Event() for _ in range(2)]

    def send(self, index: int, gather: Callable[[], Iterable[Tensor]]) -> list[Tensor]:
        """Begin to copy what `gather` writes to the buffer. Only copies from pinned memory overlap with computation."""
        with torch.cuda.device(self.device):  # a new thread uses GPU 0 and would create a context there
            self.copied[index % 2].synchronize()  # wait for the copy from this buffer two batches ago
            hosts = gather()
            with torch.cuda.stream(self.side):
                sent = [host.to(self.device, non_blocking=True) for host in hosts]
                self.copied[index % 2].record(self.side)
        return sent

    def receive(self, index: int, sent: Iterable[Tensor]) -> None:
        """Later work waits for the copy. The allocator must not give its memory to the side stream meanwhile."""
        self.current.wait_event(self.copied[index % 2])
        for tensor in sent:
            tensor.record_stream(self.current)
