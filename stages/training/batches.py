"""A split's tensors and the batches cut from them: the whole data path, in one place.

Shapes: values (N, T, F) float32, mask (N, T) bool (True: a real step), targets (N, ...). Data that fits lies on the
device, and a batch is one `index_select` per tensor, with no copy from the host and no loader process. Data that does
not fit stays in a memory-mapped file and is copied batch by batch, the next one while the device works on this one.
Both give the same batches in the same order, because the order is drawn on the CPU and passed in. A resident split can
be released to its file between two batches (stages/training/memory.py).
"""

import json
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from stages.training.shares import Share

TENSORS = ("values", "mask", "targets")
# safetensors' names of what preload packs.
DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "I32": torch.int32, "BOOL": torch.bool}


@dataclass(frozen=True)
class Batch:
    values: torch.Tensor  # (B, T, F)
    mask: torch.Tensor  # (B, T)
    targets: torch.Tensor  # (B, ...)
    rows: torch.Tensor  # (B,) which sequences of the split these are
    # (B, H) the inputs of a decoder while training (stages/models/seq2seq.py)
    teacher_targets: torch.Tensor | None = None
    shares: tuple[Share, ...] = ()  # where it is one worker's part of a larger batch; one for each of `parts`

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_counted(self) -> int:
        """Sequences whose loss counts: all, but for a worker's stand-ins."""
        return sum(share.num_counted for share in self.shares) if self.shares else len(self)

    @property
    def num_whole(self) -> int:
        """Sequences of the batch of all workers."""
        return sum(share.num_whole for share in self.shares) if self.shares else len(self)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """What a model takes."""
        return (
            (self.values, self.mask) if self.teacher_targets is None else (self.values, self.mask, self.teacher_targets)
        )

    @property
    def num_bytes(self) -> int:
        """Of what is gathered, or copied, for it."""
        return sum(getattr(self, name).nbytes for name in TENSORS)

    def first(self, count: int) -> "Batch":
        teacher_targets = None if self.teacher_targets is None else self.teacher_targets[:count]
        return Batch(self.values[:count], self.mask[:count], self.targets[:count], self.rows[:count], teacher_targets)

    def parts(self, num_parts: int) -> Iterator["Batch"]:
        """The batch in `num_parts` (at most) of nearly the same size; a worker's part of a batch as its shares say."""
        if num_parts == 1 or len(self.shares) == 1:
            yield self
            return
        size: int | list[int] = -(-len(self) // num_parts)
        if self.shares:
            size = [share.num_passed for share in self.shares]
        columns = [tensor.split(size) for tensor in (self.values, self.mask, self.targets, self.rows)]
        teachers = [None] * len(columns[0]) if self.teacher_targets is None else self.teacher_targets.split(size)
        for number, (*tensors, teacher_targets) in enumerate(zip(*columns, teachers, strict=True)):
            values, mask, targets, rows = tensors
            yield Batch(values, mask, targets, rows, teacher_targets, self.shares[number : number + 1])


@dataclass
class Split:
    """One split: where its tensors lie and where its batches are wanted."""

    tensors: dict[str, torch.Tensor]
    device: torch.device
    path: Path | None = None  # the packed file they can be read from
    is_resident: bool = False  # a copy of the file's was made

    def __len__(self) -> int:
        return len(self.tensors["targets"])

    def make_resident(self) -> None:
        """Copy the tensors to the device. On the CPU too: the disk can be slow, and the file can be replaced."""
        if self.path is not None and not self.is_resident:
            self.tensors = {name: tensor.to(self.device, copy=True) for name, tensor in self.tensors.items()}
            self.is_resident = True

    def release_to_host(self) -> None:
        """Drop the copy and read from the file."""
        if self.path is not None and self.is_resident:
            self.tensors, self.is_resident = mapped(self.path), False

    def batches(self, order: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        """Batches of `order` ((N,) int64 on the CPU); the last one may be smaller."""
        resident = None if self.is_streamed else order.to(self.device)
        for start in range(0, len(order), batch_size):
            if resident is None or self.is_streamed:  # it may be released to its file between two batches
                yield from self.streamed(order[start:], batch_size)
                return
            rows = resident[start : start + batch_size]
            values, mask, targets = (self.tensors[name].index_select(0, rows) for name in TENSORS)
            yield Batch(values, mask, targets, rows)

    @property
    def is_streamed(self) -> bool:
        """Whether the tensors lie elsewhere than their batches are wanted."""
        return self.tensors["values"].device.type != self.device.type

    def streamed(self, order: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        """Batches copied from the host on a stream of their own, always one ahead of the one in use.

        A thread gathers them, so that the one that starts kernels goes on. Pinned memory is what a copy can run from
        beside the computation; there are two buffers of it, filled in turn.
        """
        side, current = copy_stream(self.device), torch.cuda.current_stream(self.device)
        buffers = [self.buffers(batch_size) for _ in range(2)]
        copied = [torch.cuda.Event() for _ in range(2)]

        def fetch(number: int, rows: torch.Tensor) -> Batch:
            with torch.cuda.device(self.device):  # a thread begins on GPU 0, where it would leave a context
                copied[number % 2].synchronize()  # the copy from this buffer two batches ago; long done
                hosts = [*self.tensors_at(rows, buffers[number % 2]), rows.pin_memory()]
                with torch.cuda.stream(side):
                    values, mask, targets, places = (host.to(self.device, non_blocking=True) for host in hosts)
                    copied[number % 2].record(side)
            return Batch(values, mask, targets, places)

        pieces = order.split(batch_size)
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(fetch, 0, pieces[0])
            for number in range(len(pieces)):
                batch = ahead.result()
                if number + 1 < len(pieces):
                    ahead = thread.submit(fetch, number + 1, pieces[number + 1])
                # The current stream uses it from here on: the allocator must not give its memory to the side stream.
                current.wait_event(copied[number % 2])
                for tensor in (batch.values, batch.mask, batch.targets, batch.rows):
                    tensor.record_stream(current)
                yield batch

    def buffers(self, num_rows: int) -> dict[str, torch.Tensor]:
        """Memory on the host for so many sequences, pinned where the device is a GPU."""
        is_pinned = self.device.type == "cuda"
        return {
            name: torch.empty((num_rows, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=is_pinned)
            for name, tensor in self.tensors.items()
        }

    def tensors_at(self, rows: torch.Tensor, buffers: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """The rows of every tensor, gathered into `buffers`."""
        return [torch.index_select(self.tensors[name], 0, rows, out=buffers[name][: len(rows)]) for name in TENSORS]


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all copies of streamed data: each stream has memory of its own in torch's allocator.

    torch has 32 streams and hands them out in turn, so that a new one for each epoch would at times be the stream on
    which a step is captured.
    """
    return torch.cuda.Stream(device)


def load_split(path: Path, device: torch.device, residency: str) -> Split:
    """The packed split at `path`; `residency` is `device` (copied there once) or `host` (left in the mapped file)."""
    split = Split(mapped(path), device, path)
    if residency == "device":
        split.make_resident()
    return split


def mapped(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, memory-mapped: the system reads pages when touched, and can take them back.

    The mapping is read-only. safetensors' own loader makes a writable one, which counts as memory of this process. The
    format: https://github.com/huggingface/safetensors, "Format".
    """
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
    header = json.loads(raw[8:start].tobytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no read-only tensors, and warns
        data = torch.from_numpy(raw[start:])
    tensors = {}
    for name, about in header.items():
        if name != "__metadata__":
            first, last = about["data_offsets"]
            tensors[name] = data[first:last].view(DTYPES[about["dtype"]]).view(about["shape"])
    return tensors


def sequential_indices(split: Split) -> torch.Tensor:
    return torch.arange(len(split))


def shuffled(split: Split, generator: torch.Generator) -> torch.Tensor:
    """The next epoch's order. Drawn on the CPU, so that every device and residency sees identical batches."""
    return torch.randperm(len(split), generator=generator)
