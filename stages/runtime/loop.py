"""One epoch of training and one pass of validation. Nothing here prints, opens a file, tracks, or reads a number from the device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from stages.runtime.batches import Batch

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Augment = Callable[[Batch], Batch]


@dataclass(frozen=True)
class Validation:
    """Means over a split, as scalars on the device."""

    loss: torch.Tensor
    share_correct: torch.Tensor


def train_epoch(
    model: nn.Module,
    batches: Iterator[Batch],
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    clip_norm: float,
) -> torch.Tensor:
    """Take one step per batch; return the mean loss over the sequences, as a scalar on the device.

    The loss is summed where it is computed and read once an epoch: `.item()` in the step would be a synchronization in every step.
    `clip_norm` 0 leaves gradients as they are.
    """
    model.train()
    total, count = None, 0
    parameters = list(model.parameters())
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        batch_loss = loss(model(batch.values, batch.mask), batch.targets)
        batch_loss.backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        schedule.step()
        summed = batch_loss.detach() * len(batch.targets)
        total, count = summed if total is None else total + summed, count + len(batch.targets)
    assert total is not None, "an epoch without a batch"
    return total / count


@torch.no_grad()
def validate(
    model: nn.Module,
    batches: Iterator[Batch],
    loss: Loss,
    num_correct: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Validation:
    model.eval()
    total, correct, count = torch.zeros(()), torch.zeros(()), 0
    for batch in batches:
        outputs = model(batch.values, batch.mask)
        total = total.to(outputs.device) + loss(outputs, batch.targets) * len(batch.targets)
        correct = correct.to(outputs.device) + num_correct(outputs, batch.targets)
        count += len(batch.targets)
    return Validation(total / count, correct / count)


@torch.no_grad()
def outputs_of(model: nn.Module, batches: Iterator[Batch]) -> torch.Tensor:
    """The model's outputs for every sequence, in the batches' order, on the device: (N, ...)."""
    model.eval()
    return torch.cat([model(batch.values, batch.mask) for batch in batches])
