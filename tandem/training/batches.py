"""A split's tensors and the batches taken from them.

Shapes: values (N, T, F) float32, mask (N, T) bool (True: a real time step), targets (N, ...).

A split has a `data_location`. `load_split` opens it as `host`: its tensors stay in the memory-mapped file, in the
format safetensors (data/packed.py). For a GPU, a thread copies the next batch while the GPU works on the current one
(devices/copies.py). `open_trainer` makes it `device` if the memory suffices: its tensors are copied to the GPU, or on a
CPU to this process's memory, and a batch is one `index_select` per tensor. Both give the same batches in the same
order, because the caller draws the order on the CPU. A training takes them through `Executor.batches`, which also
applies the augmentation, and makes the split `host` again if memory runs out.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tandem.data.packed import read_packed
from tandem.devices.device import Device
from tandem.training.shares import Share

TENSORS = ("values", "mask", "targets")


@dataclass(frozen=True)
class Batch:
    values: torch.Tensor  # (B, T, F)
    mask: torch.Tensor  # (B, T)
    targets: torch.Tensor  # (B, ...)
    rows: torch.Tensor  # (B,) indices of the sequences in the split
    # (B, H) the inputs of a decoder while training (tandem/models/seq2seq.py)
    teacher_targets: torch.Tensor | None = None
    shares: tuple[Share, ...] = ()  # if the batch is one worker's share of a larger batch: one per micro-batch

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_counted(self) -> int:
        """Number of this worker's sequences whose loss counts."""
        return sum(share.num_counted for share in self.shares) if self.shares else len(self)

    @property
    def global_size(self) -> int:
        """Number of sequences in the batch of all workers."""
        return sum(share.global_size for share in self.shares) if self.shares else len(self)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """The arguments of the model's forward pass."""
        return (
            (self.values, self.mask) if self.teacher_targets is None else (self.values, self.mask, self.teacher_targets)
        )

    def first(self, count: int) -> "Batch":
        return self.split(count)[0]

    def micro_batches(self, count: int) -> list["Batch"]:
        """Split the batch into at most `count` micro-batches of nearly equal size, or into one per share."""
        if count == 1 or len(self.shares) == 1:
            return [self]
        if not self.shares:
            return self.split(-(-len(self) // count))
        batches = self.split([share.num_processed for share in self.shares])
        return [replace(batch, shares=(share,)) for batch, share in zip(batches, self.shares, strict=True)]

    def split(self, sizes: int | list[int]) -> list["Batch"]:
        tensors = (self.values, self.mask, self.targets, self.rows, self.teacher_targets)
        columns = [tensor.split(sizes) for tensor in tensors if tensor is not None]
        return [Batch(*tensors_of_part) for tensors_of_part in zip(*columns, strict=True)]


@dataclass
class Split:
    """The tensors of one split, and the device that its batches go to."""

    tensors: dict[str, torch.Tensor]
    device: Device
    path: Path | None = None  # the packed file that contains the tensors
    data_location: str = "device"  # of `tensors`: `device`, or `host`: usually the memory-mapped file
    num_velocities: int = 0  # the last features of `values` that preprocess.velocity appended
    groups: torch.Tensor | None = None  # (N,) int64 on the CPU: equal for sequences of one group; None: no groups

    def __len__(self) -> int:
        return len(self.tensors["targets"])

    @property
    def num_bytes_in_file(self) -> int:
        """Bytes of the tensors that can be read from the file instead; 0 without a file."""
        return sum(tensor.nbytes for tensor in self.tensors.values()) if self.path else 0

    def make_resident(self) -> None:
        """Copy the tensors to the device, even to the CPU: the disk can be slow, and the file can be replaced."""
        if self.data_location == "host":
            self.tensors = {
                name: tensor.to(self.device.torch_device, copy=True) for name, tensor in self.tensors.items()
            }
            self.data_location = "device"

    def release_to_host(self) -> None:
        """Drop the copy and read from the file again."""
        if self.path is not None and self.data_location == "device":
            self.tensors, self.data_location = load_split(self.path, self.device).tensors, "host"

    def batches(self, order: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        """Yield the batches of `order` ((N,) int64 on the CPU). The last one may be smaller."""
        if self.data_location == "host" and self.device.is_accelerator:
            yield from self.stream(order, batch_size)
            return
        for rows in order.to(self.device.torch_device).split(batch_size):
            values, mask, targets = (self.tensors[name].index_select(0, rows) for name in TENSORS)
            yield Batch(values, mask, targets, rows)

    def stream(self, order: torch.Tensor, batch_size: int) -> Iterator[Batch]:
        """Yield batches that are copied from the host, always one batch ahead."""
        buffers = [self.buffers(min(batch_size, len(order))) for _ in range(2)]

        def gather(rows: torch.Tensor, number: int) -> list[torch.Tensor]:
            return [*self.tensors_at(rows, buffers[number]), rows.pin_memory()]

        for values, mask, targets, rows in self.device.copied_ahead(order.split(batch_size), gather):
            yield Batch(values, mask, targets, rows)

    def buffers(self, num_rows: int) -> dict[str, torch.Tensor]:
        """Host memory for `num_rows` sequences, pinned if the device is a GPU."""
        return {
            name: torch.empty((num_rows, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=self.device.is_accelerator)
            for name, tensor in self.tensors.items()
        }

    def tensors_at(self, rows: torch.Tensor, buffers: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Gather the rows of every tensor into `buffers`."""
        return [torch.index_select(self.tensors[name], 0, rows, out=buffers[name][: len(rows)]) for name in TENSORS]


def load_split(path: Path, device: Device, num_velocities: int = 0) -> Split:
    """Open the packed split at `path`. Its batches are read from the file until `make_resident` is called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns because it has no read-only tensors
        tensors = {name: torch.from_numpy(array) for name, array in read_packed(path).items()}
    groups = tensors.pop("groups").to(torch.int64, copy=True) if "groups" in tensors else None
    return Split(tensors, device, path, "host", num_velocities, groups)


def sequential_indices(split: Split) -> torch.Tensor:
    return torch.arange(len(split))
