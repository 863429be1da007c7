"""Schedules: the learning rate of each step and the share of teacher forcing in each epoch."""

import math

import torch
from torch import Tensor

from stages.params.schema import TeacherForcing, Train

WARMUP_SHARE = 0.3  # share of the steps of a one-cycle in which the rate rises
FIRST_SHARE, LAST_SHARE = 1 / 25, 1 / 250_000  # first and last rate of a one-cycle, relative to the largest
EXPONENTIAL_FLOOR = 0.01  # last value of an exponential decay towards 0, which never reaches 0


def learning_rates(params: Train, num_steps: int) -> Tensor:
    """The learning rate of every step: (num_steps,) float32, computed in float64.

    Eager and captured steps both use this table, so their rates are identical.

    cosine: Loshchilov and Hutter 2017, arXiv:1608.03983; one-cycle: Smith and Topin 2019, arXiv:1708.07120. Both equal
    torch's CosineAnnealingLR and OneCycleLR.
    """
    steps = torch.arange(num_steps, dtype=torch.float64)
    largest = params.learning_rate
    if params.schedule == "cosine":
        rates = between(largest, 0.0, steps / num_steps)
    else:
        top = WARMUP_SHARE * (num_steps + 1) - 1  # may lie between two steps
        rising = between(FIRST_SHARE * largest, largest, steps / top) if top > 0 else steps
        falling = between(largest, LAST_SHARE * largest, (steps - top) / (num_steps - top))
        rates = torch.where(steps <= top, rising, falling)
    return rates.to(torch.float32)


def between(first: float, last: float, done: Tensor) -> Tensor:
    """Interpolate from `first` to `last` on half a cosine; `done` runs from 0 to 1."""
    return last + (first - last) / 2 * (1 + torch.cos(math.pi * done))


def teacher_share(config: TeacherForcing, epoch: int, epochs: int) -> float:
    """The share of true inputs in `epoch` (from 0) of `epochs`: Bengio et al. 2015, arXiv:1506.03099."""
    done = epoch / max(epochs - 1, 1)
    if config.decay == "linear":
        return config.start + (config.end - config.start) * done
    first, last = (max(share, EXPONENTIAL_FLOOR) for share in (config.start, config.end))
    return float(first * (last / first) ** done) if config.start else 0.0
