"""Data augmentation: random changes of training sequences that preserve their class.

`draw` draws all random numbers of an epoch from a seeded CPU generator, so CPU and GPU runs train on the same
sequences. `apply` is a pure function of one batch and its random numbers and runs on the batch's device. This module
assumes only that features come in groups of `coupled_features`: the first group contains coordinates, the following
groups their differences per step (with `velocity: true` in preprocess, x, y, dx, dy is `coupled_features: 2`).

Time warping and random linear maps as data augmentation for time series: Um et al. 2017, arXiv:1706.00527.
"""

import math

import torch
from torch import Generator, Tensor

from stages.params.schema import Augment

NUM_WARPS = 2  # sine waves in a warp, with one and two half periods over the sequence


def draw(generator: Generator, num_sequences: int, config: Augment) -> Tensor:
    """Return standard normal numbers (N, k) on the CPU for the N sequences of one epoch, in the split's order."""
    size = config.coupled_features
    return torch.randn(num_sequences, size * size + size + NUM_WARPS, generator=generator)


def apply(values: Tensor, mask: Tensor, random_draws: Tensor, config: Augment) -> Tensor:
    """values (B, T, F), mask (B, T), random_draws (B, k) -> (B, T, F); padding stays zero.

    Raises ValueError if `coupled_features` does not divide F.
    """
    num_sequences, num_steps, num_features = values.shape
    group = config.coupled_features
    if num_features % group:
        raise ValueError(f"augment.coupled_features must divide the number of features, got {group} and {num_features}")
    matrix, offset, speed = random_draws.split([group**2, group, NUM_WARPS], dim=1)
    if config.warp:
        values = warp_time(values, mask, config.warp * speed, group)
    if config.mix:
        maps = torch.eye(group, device=values.device) + config.mix * matrix.view(-1, group, group)
        grouped = values.reshape(num_sequences, -1, group)  # (B, T * F / group, group)
        values = (grouped @ maps).view(num_sequences, num_steps, num_features)
    if config.shift:
        offsets = values.new_zeros(num_sequences, 1, num_features)
        offsets[:, 0, :group] = config.shift * offset
        values = values + offsets
    return values.masked_fill(~mask.unsqueeze(-1), 0.0)


def warp_time(values: Tensor, mask: Tensor, speed: Tensor, group: int) -> Tensor:
    """Resample each sequence at a speed that varies around 1, with fixed ends, and scale differences by the speed."""
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
    return torch.cat([warped[..., :group], warped[..., group:] * rate], dim=-1)


def at(values: Tensor, steps: Tensor) -> Tensor:
    """values (B, T, F), steps (B, T) -> (B, T, F): the values at those steps."""
    return values.gather(1, steps.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
