"""All random numbers of an epoch: the batch order, the augmentation, and the decoder's teacher forcing mask.

They come from a seeded generator on the CPU, so every device, data location and step execution uses the same batches.
`RandomDraws.apply_to` applies them to a batch, on the batch's device.

The augmentation is a random change of a training sequence that preserves its class. It assumes only that features come
in groups of `coupled_features`: the first group contains coordinates, the following groups their differences per step
(with `velocity: true` in preprocess, x, y, dx, dy is `coupled_features: 2`). Time warping and random linear maps: Um et
al. 2017, arXiv:1706.00527.
"""

import hashlib
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Generator, Tensor

from tandem.params.schema import Augment, Train
from tandem.parts import Part, TeacherForcing
from tandem.training.batches import Batch, Split

NUM_WARPS = 2  # sine waves in a warp, with one and two half periods over the sequence
EXPONENTIAL_FLOOR = 0.01  # value of an exponential change at an end that is 0, which it never reaches


@dataclass(frozen=True)
class RandomDraws:
    """The random numbers of one epoch of N sequences. Row i of `augment` and of the mask belongs to sequence i of the
    split.
    """

    order: Tensor  # (N,) int64, the sequences in the order of the batches
    augment: Tensor | None  # (N, k) input of `augmented`
    teacher_forcing_mask: Tensor | None  # (N, H) bool; True: the decoder's input is the true value
    config: Augment
    num_velocities: int = 0  # the last features of the split that are differences of the others

    def digests(self) -> dict[str, str]:
        """sha256 of the order and of the other random numbers. They must be on the CPU."""
        rest = [tensor for tensor in (self.augment, self.teacher_forcing_mask) if tensor is not None]
        return {"order_sha256": sha256_of([self.order]), "draws_sha256": sha256_of(rest)}

    def to(self, device: torch.device) -> "RandomDraws":
        """Copy to `device`, except the order, which `Split.batches` copies."""
        augment, teacher_forcing_mask = (
            None if each is None else each.to(device) for each in (self.augment, self.teacher_forcing_mask)
        )
        return replace(self, augment=augment, teacher_forcing_mask=teacher_forcing_mask)

    def apply_to(self, batch: Batch) -> Batch:
        """Return the batch with augmentation and, for a network with teacher forcing, the decoder's inputs."""
        if self.augment is not None:
            rows = self.augment.index_select(0, batch.rows)
            values = augmented(batch.values, batch.mask, rows, self.config, self.num_velocities)
            batch = replace(batch, values=values)
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


def seed_python_and_numpy(seed: str) -> None:
    """Seed the generators of `random` and NumPy. Their states are not saved, because every epoch seeds them."""
    random.seed(seed)
    np.random.seed(random.getrandbits(32))


def draw_epoch(generator: Generator, split: Split, settings: Train, epoch: int) -> RandomDraws:
    """Draw the random numbers of `epoch`, from 0."""
    order, config = torch.randperm(len(split), generator=generator), settings.augment
    for_augment, teacher_forcing_mask = None, None
    if config.mix or config.shift or config.warp:
        for_augment = draw_augmentation(generator, len(split), config)
    if uses_teacher_forcing(settings.model):
        share = teacher_share(settings.model.teacher_forcing, epoch, settings.epochs)
        teacher_forcing_mask = torch.rand(len(split), split.tensors["targets"].shape[1], generator=generator) < share
    return RandomDraws(order, for_augment, teacher_forcing_mask, config, split.num_velocities)


def uses_teacher_forcing(model: Part) -> bool:
    """Whether the network's forward pass takes `teacher_targets`: it then has the parameter `teacher_forcing`."""
    return hasattr(model, "teacher_forcing")


def teacher_share(config: TeacherForcing, epoch: int, epochs: int) -> float:
    """The share of true inputs in `epoch` (from 0) of `epochs`: Bengio et al. 2015, arXiv:1506.03099."""
    done = epoch / max(epochs - 1, 1)
    if config.decay == "linear":
        return config.start + (config.end - config.start) * done
    first, last = (max(share, EXPONENTIAL_FLOOR) for share in (config.start, config.end))
    return float(first * (last / first) ** done) if config.start or config.end else 0.0


def draw_augmentation(generator: Generator, num_sequences: int, config: Augment) -> Tensor:
    """Return standard normal numbers (N, k) on the CPU for the N sequences of one epoch, in the split's order."""
    size = config.coupled_features
    return torch.randn(num_sequences, size * size + size + NUM_WARPS, generator=generator)


def augmented(values: Tensor, mask: Tensor, numbers: Tensor, config: Augment, num_velocities: int = 0) -> Tensor:
    """values (B, T, F), mask (B, T), numbers (B, k) -> (B, T, F); padding stays zero.

    All groups of coupled features are changed alike. The last `num_velocities` features are differences: a shift does
    not change them, and a warp scales them by the speed. Raises ValueError if `coupled_features` does not divide the
    number of the other features.
    """
    num_sequences, num_steps, num_features = values.shape
    group = config.coupled_features
    config.check_features(num_features - num_velocities)
    matrix, offset, speed = numbers.split([group**2, group, NUM_WARPS], dim=1)
    if config.warp:
        values = warp_time(values, mask, config.warp * speed, num_velocities)
    if config.mix:
        maps = torch.eye(group, device=values.device) + config.mix * matrix.view(-1, group, group)
        grouped = values.reshape(num_sequences, -1, group)  # (B, T * F / group, group)
        values = (grouped @ maps).view(num_sequences, num_steps, num_features)
    if config.shift:
        offsets = (config.shift * offset).repeat(1, (num_features - num_velocities) // group)
        values = values + torch.nn.functional.pad(offsets, (0, num_velocities)).unsqueeze(1)
    return values.masked_fill(~mask.unsqueeze(-1), 0.0)


def warp_time(values: Tensor, mask: Tensor, speed: Tensor, num_velocities: int) -> Tensor:
    """Resample each sequence at a speed that varies around 1, with fixed ends, and scale velocities by the speed."""
    num_steps = values.shape[1]
    last = (mask.sum(dim=1, keepdim=True) - 1).clamp(min=1)  # (B, 1): index of the last real step
    phase = math.pi * torch.arange(num_steps, device=values.device) / last  # (B, T): 0 to pi
    waves = torch.arange(1, NUM_WARPS + 1, device=values.device)
    angles = phase.unsqueeze(-1) * waves  # (B, T, NUM_WARPS)
    amplitudes = (speed / waves).unsqueeze(1)
    time = phase + (amplitudes * angles.sin()).sum(dim=-1)
    position = (time * last / math.pi).clamp(min=0.0).minimum(last)  # (B, T), in steps
    before = position.long().clamp(max=num_steps - 1)
    after = (before + 1).minimum(last)
    weight = (position - before).unsqueeze(-1)
    warped = torch.lerp(at(values, before), at(values, after), weight)
    rate = (1.0 + (speed.unsqueeze(1) * angles.cos()).sum(dim=-1)).clamp(min=0.0).unsqueeze(-1)
    first = values.shape[-1] - num_velocities
    return torch.cat([warped[..., :first], warped[..., first:] * rate], dim=-1)


def at(values: Tensor, steps: Tensor) -> Tensor:
    """values (B, T, F), steps (B, T) -> (B, T, F): the values at those steps."""
    return values.gather(1, steps.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
