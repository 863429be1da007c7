"""Copies from pinned host memory to a GPU while it computes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all copies of streamed data. One stream saves memory: the allocator caches memory per stream.

    torch has 32 streams and returns them in turn: a new stream per epoch would sometimes be the stream of a capture.
    """
    return torch.cuda.Stream(device)


def copied_ahead(
    device: torch.device, pieces: Sequence[Tensor], gather: Callable[[Tensor, int], Iterable[Tensor]]
) -> Iterator[list[Tensor]]:
    """Yield for each piece the tensors of `gather(piece, number)` on the device, always one piece ahead: at most three
    are there, however far the host is ahead of the device.

    `gather` writes to the pinned buffers `number`, 0 or 1 in turn: only copies from pinned memory overlap with
    computation. It runs in a thread, so the main thread can continue to launch kernels.
    """
    side, current = copy_stream(device), torch.cuda.current_stream(device)
    copied, used = ([torch.cuda.Event(blocking=True) for _ in range(2)] for _ in range(2))  # a wait uses no core

    def send(index: int) -> list[Tensor]:
        number = index % 2
        with torch.cuda.device(device):  # a new thread uses GPU 0 and would create a context there
            copied[number].synchronize()  # the buffers are free
            hosts = gather(pieces[index], number)
            used[number].synchronize()  # the work with the piece before the last one has ended
            with torch.cuda.stream(side):
                sent = [host.to(device, non_blocking=True) for host in hosts]
                copied[number].record(side)
        return sent

    with ThreadPoolExecutor(1) as thread:
        ahead = thread.submit(send, 0)
        for index in range(len(pieces)):
            sent = ahead.result()
            if index + 1 < len(pieces):
                ahead = thread.submit(send, index + 1)
            current.wait_event(copied[index % 2])  # later work waits for the copy
            for tensor in sent:
                tensor.record_stream(current)  # the allocator must not give its memory to the side stream meanwhile
            yield sent
            used[index % 2].record(current)  # whoever asks for the next piece has launched its work with this one
