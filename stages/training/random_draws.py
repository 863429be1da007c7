"""All random numbers of an epoch: the batch order, the augmentation, and the decoder's teacher forcing mask.

They come from a seeded generator on the CPU, so every device, data location and execution mode uses the same batches.
`RandomDraws.apply_to` applies them to a batch, on the batch's device.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from stages.params.schema import Seq2Seq, Train
from stages.training import augment
from stages.training.batches import Batch, Split, shuffled
from stages.training.schedule import teacher_share


@dataclass(frozen=True)
class RandomDraws:
    """The random numbers of one epoch of N sequences. All except `order` follow the split's order."""

    order: Tensor  # (N,) int64
    augment: Tensor | None  # (N, k) input of augment.apply
    teacher_forcing_mask: Tensor | None  # (N, H) bool; True: the decoder's input is the true value

    def digests(self) -> dict[str, str]:
        """sha256 of the order and of the other random numbers. They must be on the CPU."""
        rest = [tensor for tensor in (self.augment, self.teacher_forcing_mask) if tensor is not None]
        return {"order_sha256": sha256_of([self.order]), "draws_sha256": sha256_of(rest)}

    def to(self, device: torch.device) -> "RandomDraws":
        """Copy to `device`, except the order: the CPU splits it into batches."""
        moved = (None if each is None else each.to(device) for each in (self.augment, self.teacher_forcing_mask))
        return RandomDraws(self.order, *moved)

    def apply_to(self, batch: Batch, params: Train) -> Batch:
        """Return the batch with augmentation and, for a Seq2Seq model, the decoder's inputs."""
        if self.augment is not None:
            rows = self.augment.index_select(0, batch.rows)
            batch = replace(batch, values=augment.apply(batch.values, batch.mask, rows, params.augment))
        if self.teacher_forcing_mask is not None:
            teacher_forcing_mask = self.teacher_forcing_mask.index_select(0, batch.rows)
            batch = replace(batch, teacher_targets=torch.where(teacher_forcing_mask, batch.targets, torch.nan))
        return batch


def sha256_of(tensors: Iterable[Tensor]) -> str:
    """sha256 of the concatenated bytes of tensors on the CPU."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def draw_epoch(generator: Generator, split: Split, params: Train, epoch: int) -> RandomDraws:
    """Draw the random numbers of `epoch` (from 0), on the CPU."""
    order, config = shuffled(split, generator), params.augment
    for_augment, teacher_forcing_mask = None, None
    if config.mix or config.shift or config.warp:
        for_augment = augment.draw(generator, len(split), config)
    if isinstance(params.model, Seq2Seq):
        share = teacher_share(params.model.teacher_forcing, epoch, params.epochs)
        teacher_forcing_mask = torch.rand(len(split), split.tensors["targets"].shape[1], generator=generator) < share
    return RandomDraws(order, for_augment, teacher_forcing_mask)
