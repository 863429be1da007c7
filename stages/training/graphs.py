"""Work captured as CUDA graphs: one launch instead of the hundreds of a training step.

https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

import gc
from collections import Counter
from collections.abc import Callable, Hashable
from functools import cache

import torch

from stages.training.memory import is_out_of_memory, shorten

NUM_WARMUPS = 3  # eager runs before a capture: libraries choose their kernels and allocate in them


class CaptureFailed(RuntimeError):
    """A capture failed, and nothing was computed. The message is the first error's, in short."""

    def __init__(self, message: str, is_out_of_memory: bool) -> None:
        super().__init__(message)
        self.is_out_of_memory = is_out_of_memory


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all warm-ups and captures of this process.

    Each stream has memory of its own in torch's allocator, and a workspace of cuBLAS (32 MiB) until the process ends.
    """
    return torch.cuda.Stream(device)


class Graphs:
    """Pieces of work, each captured once and replayed, in one memory pool and on one stream.

    All tensors that a piece reads or writes must stay where they are. Its random numbers go on from replay to replay as
    they would eagerly.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = side_stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.captured: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.num_warmups: Counter[Hashable] = Counter()

    def run(
        self,
        key: Hashable,
        warm_up: Callable[[], object],
        work: Callable[[], object],
        num_warmups: int = NUM_WARMUPS,
    ) -> None:
        """Does the work `key` once: the first times by `warm_up`, then by replaying `work`. Raises CaptureFailed."""
        if key not in self.captured:
            if self.num_warmups[key] < num_warmups:
                self.on_stream(warm_up)
                self.num_warmups[key] += 1
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
        """`work` as a graph; nothing is computed yet."""
        graph, failed = torch.cuda.CUDAGraph(), ""
        try:
            # A capture that fails leaves its stream the current one; the outer context sets the former one again.
            with torch.cuda.stream(torch.cuda.current_stream(self.device)):
                # Other threads may go on meanwhile: one of them sends the next chunk of streamed data.
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                    work()
        except RuntimeError as error:
            # Ending the capture raises an error of its own, after the one that made it fail.
            cause = error.__context__ if isinstance(error.__context__, Exception) else error
            failed, is_memory = shorten(cause), is_out_of_memory(cause) or is_out_of_memory(error)
            del cause  # with its traceback, which holds the tensors of the failed capture
        if not failed:
            return graph
        del graph
        gc.collect()
        torch.cuda.synchronize(self.device)
        # torch up to 2.11 leaves the generator as if it were captured: the next dropout would raise.
        generator = torch.cuda.default_generators[self.device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())
        raise CaptureFailed(failed, is_memory)  # in no variable: this frame and the error would keep each other
