"""One epoch of training and one pass of validation. Nothing here prints, opens a file, tracks, or reads a number from the device."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from stages.runtime.batches import Batch

Loss = Callable[[torch.Tensor, Batch], torch.Tensor]  # (outputs, the batch they are of) -> mean over its sequences


def precision_of(name: str, device: torch.device) -> AbstractContextManager[object]:
    """What the forward pass runs in: bf16 as autocast (weights and sums stay fp32); tf32 is a switch of the device, not of the pass."""
    return torch.autocast(device.type, torch.bfloat16) if name == "bf16" else nullcontext()


def train_epoch(
    model: nn.Module,
    batches: Iterator[Batch],
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    clip_norm: float,
    accumulation: int,
    precision: str,
) -> torch.Tensor:
    """Take one step per batch; return the mean loss over the sequences, as a scalar on the device.

    The loss is summed where it is computed and read once an epoch: `.item()` in the step would be a synchronization in every step.
    `clip_norm` 0 leaves gradients as they are. `accumulation`: a batch goes through in so many parts, whose
    gradients add up to the batch's.
    """
    model.train()
    total, count = None, 0
    parameters = list(model.parameters())
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        for part in batch.parts(accumulation):
            with precision_of(precision, part.values.device):
                outputs = model(*part.inputs())
            part_loss = loss(outputs.float(), part)
            (part_loss * (len(part) / len(batch)) if accumulation > 1 else part_loss).backward()
            summed = part_loss.detach() * len(part)
            total = summed if total is None else total + summed
        if clip_norm:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        schedule.step()
        count += len(batch)
    assert total is not None, "an epoch without a batch"
    return total / count


@torch.no_grad()
def validate(
    model: nn.Module,
    batches: Iterator[Batch],
    loss: Loss,
    predict: Callable[[torch.Tensor], torch.Tensor],
    precision: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss over the sequences, as a scalar on the device, and what is predicted for them (N, ...), in the batches' order."""
    model.eval()
    total, count, predictions = None, 0, []
    for batch in batches:
        with precision_of(precision, batch.values.device):
            outputs = model(*batch.inputs())
        outputs = outputs.float()
        summed = loss(outputs, batch) * len(batch)
        total, count = summed if total is None else total + summed, count + len(batch)
        predictions.append(predict(outputs))
    assert total is not None, "a validation without a batch"
    return total / count, torch.cat(predictions)


@torch.no_grad()
def outputs_of(model: nn.Module, batches: Iterator[Batch]) -> torch.Tensor:
    """The model's outputs for every sequence, in the batches' order, on the device: (N, ...)."""
    model.eval()
    return torch.cat([model(*batch.inputs()).float() for batch in batches])
