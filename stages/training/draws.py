"""All randomness of an epoch: the order of the sequences, the draws of their augmentation, the decoder's coins.

Drawn from a seeded generator on the CPU, so that every device, residency and way of stepping sees the same batches.
`Draws.changed` applies them to a batch, on the batch's device.
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
class Draws:
    """Of one epoch of N sequences. All but the order are in the order of the split."""

    order: Tensor  # (N,) int64
    augment: Tensor | None  # (N, k) what augment.apply takes
    teacher_forcing_mask: Tensor | None  # (N, H) bool: where the decoder is given the true value

    def digests(self) -> dict[str, str]:
        """sha256 of the order, and of the rest. Of draws on the CPU."""
        rest = [tensor for tensor in (self.augment, self.teacher_forcing_mask) if tensor is not None]
        return {"order_sha256": sha256_of([self.order]), "draws_sha256": sha256_of(rest)}

    def to(self, device: torch.device) -> "Draws":
        """With the order left on the CPU, where batches are cut from it."""
        moved = (None if each is None else each.to(device) for each in (self.augment, self.teacher_forcing_mask))
        return Draws(self.order, *moved)

    def changed(self, batch: Batch, params: Train) -> Batch:
        """The batch that the model is trained on: augmented, and with the decoder's inputs where it has one."""
        if self.augment is not None:
            draws = self.augment.index_select(0, batch.rows)
            batch = replace(batch, values=augment.apply(batch.values, batch.mask, draws, params.augment))
        if self.teacher_forcing_mask is not None:
            teacher_forcing_mask = self.teacher_forcing_mask.index_select(0, batch.rows)
            batch = replace(batch, teacher_targets=torch.where(teacher_forcing_mask, batch.targets, torch.nan))
        return batch


def sha256_of(tensors: Iterable[Tensor]) -> str:
    """Of the bytes of tensors on the CPU, one after the other."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def draw(generator: Generator, split: Split, params: Train, epoch: int) -> Draws:
    """For `epoch` (from 0), on the CPU."""
    order, config = shuffled(split, generator), params.augment
    draws, teacher_forcing_mask = None, None
    if config.mix or config.shift or config.warp:
        draws = augment.draw(generator, len(split), config)
    if isinstance(params.model, Seq2Seq):
        share = teacher_share(params.model.teacher_forcing, epoch, params.epochs)
        teacher_forcing_mask = torch.rand(len(split), split.tensors["targets"].shape[1], generator=generator) < share
    return Draws(order, draws, teacher_forcing_mask)
