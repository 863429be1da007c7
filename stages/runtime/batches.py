"""A split's tensors and the batches cut from them: the whole data path, in one place.

Shapes: values (N, T, F) float32, mask (N, T) bool (True: a real step), targets (N, ...). Data that fits lies on the device and a batch is
one `index_select` per tensor, with no copy from the host and no loader process; data that does not stays in a memory-mapped file and is
copied batch by batch, the next one while the device works on this one. Both give the same batches in the same order, because the order is
drawn on the CPU and handed in.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

TENSORS = ("values", "mask", "targets")


@dataclass(frozen=True)
class Batch:
    values: torch.Tensor  # (B, T, F)
    mask: torch.Tensor  # (B, T)
    targets: torch.Tensor  # (B, ...)
    rows: torch.Tensor  # (B,) which sequences of the split these are
    teacher: torch.Tensor | None = None  # (B, H) what a decoder is fed with while training (stages/models/seq2seq.py)

    def __len__(self) -> int:
        return len(self.rows)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """What a model takes."""
        return (self.values, self.mask) if self.teacher is None else (self.values, self.mask, self.teacher)

    def parts(self, num_parts: int) -> Iterator["Batch"]:
        """The batch in `num_parts` (at most) of nearly the same size."""
        if num_parts == 1:
            yield self
            return
        size = -(-len(self) // num_parts)
        columns = [tensor.split(size) for tensor in (self.values, self.mask, self.targets, self.rows)]
        teachers = [None] * len(columns[0]) if self.teacher is None else self.teacher.split(size)
        for *tensors, teacher in zip(*columns, teachers, strict=True):
            values, mask, targets, rows = tensors
            yield Batch(values, mask, targets, rows, teacher)


@dataclass(frozen=True)
class Split:
    """One split: where its tensors lie and where its batches are wanted."""

    tensors: dict[str, torch.Tensor]
    device: torch.device

    def __len__(self) -> int:
        return len(self.tensors["targets"])

    def batches(self, order: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        """Batches of `order` ((N,) int64 on the CPU); the last one may be smaller."""
        where = self.tensors["values"].device
        if where != self.device:
            yield from self.streamed(order, batch_size)
            return
        for rows in order.to(where).split(batch_size):
            values, mask, targets = (self.tensors[name].index_select(0, rows) for name in TENSORS)
            yield Batch(values, mask, targets, rows)

    def streamed(self, order: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        """Batches copied from the host on a stream of their own, always one ahead of the one in use.

        Pinned memory is what a copy can run from beside the computation; there are two buffers of it, filled in turn.
        """
        side, current = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        buffers = [self.pinned(batch_size) for _ in range(2)]
        copied = [torch.cuda.Event() for _ in range(2)]

        def fetch(number: int, rows: torch.Tensor) -> Batch:
            copied[number % 2].synchronize()  # the copy from this buffer two batches ago; long done
            hosts = [*self.tensors_at(rows, buffers[number % 2]), rows.pin_memory()]
            with torch.cuda.stream(side):
                values, mask, targets, places = (host.to(self.device, non_blocking=True) for host in hosts)
                copied[number % 2].record(side)
            return Batch(values, mask, targets, places)

        ahead: Batch | None = None
        for number, rows in enumerate(order.split(batch_size)):
            fetched = fetch(number, rows)
            if ahead is not None:
                yield ahead
            # From here on the current stream uses it: the allocator must not hand its memory to the side stream meanwhile.
            current.wait_event(copied[number % 2])
            for tensor in (fetched.values, fetched.mask, fetched.targets, fetched.rows):
                tensor.record_stream(current)
            ahead = fetched
        if ahead is not None:
            yield ahead

    def pinned(self, batch_size: int) -> dict[str, torch.Tensor]:
        return {
            name: torch.empty((batch_size, *self.tensors[name].shape[1:]), dtype=self.tensors[name].dtype).pin_memory()
            for name in TENSORS
        }

    def tensors_at(self, rows: torch.Tensor, buffers: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """The rows of every tensor, gathered into `buffers`."""
        return [torch.index_select(self.tensors[name], 0, rows, out=buffers[name][: len(rows)]) for name in TENSORS]


def load_split(path: Path, device: torch.device, residency: str) -> Split:
    """The packed split at `path`; `residency` is `device` (copied there once) or `host` (left in the memory-mapped file)."""
    tensors = load_file(path)  # memory-mapped: pages are read when touched
    if residency == "device":
        # A clone also for the CPU: a training never waits for the disk, and the file may be replaced under it.
        tensors = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
    return Split(tensors, device)


def in_order(split: Split) -> torch.Tensor:
    return torch.arange(len(split))


def shuffled(split: Split, generator: torch.Generator) -> torch.Tensor:
    """The next epoch's order. Drawn on the CPU, so that every device and residency sees identical batches."""
    return torch.randperm(len(split), generator=generator)
