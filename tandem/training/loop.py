"""The training loop: an epoch, its steps, and what a step does to the weights.

`train_epoch` takes the optimizer steps of an epoch, then validates. `take_step` is one step: forward, loss, backward,
clip, update. Both use the parts of a `Trainer` (trainer.py): its batches, its `Step` with loss and optimizer, its
workers, and its `Execution`, which says how. Losses stay on the device until the epoch ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tandem.machine.measure import Measurement, measure
from tandem.models import kernels
from tandem.training.batches import Batch
from tandem.training.execution import autocast

if TYPE_CHECKING:
    from tandem.training.random_draws import RandomDraws
    from tandem.training.step import Step
    from tandem.training.trainer import Trainer


@dataclass(frozen=True)
class Epoch:
    """The result of one epoch. Losses and score are deterministic; measurements are not."""

    number: int  # from 1
    learning_rate: float | None  # of the epoch's last step; None for a fitted model, which takes no steps
    train_loss: float
    val_loss: float
    val_score: float
    training: Measurement
    validation: Measurement
    digests: dict[str, str]  # sha256 of the final weights, the batch order and the random draws
    scalars: dict[str, float] = field(default_factory=dict)  # what else it measured; tandem/runs/quantities.py


def train_epoch(trainer: Trainer) -> Epoch:
    """Train and validate for one epoch. Both are measured, and the device is synchronized at both ends of each."""
    with trainer.execution.active():
        trainer.begin_epoch()
        steps, num_sequences = trainer.training_steps(), 0  # draws the epoch's random numbers; takes no step yet
        with measure(trainer.device) as training:
            for num_taken in steps:  # each iteration takes one optimizer step
                num_sequences += num_taken
            train_loss = trainer.workers.sum(trainer.total) / num_sequences
        trainer.add_memory_of_graphs(training)
        with measure(trainer.device) as validation:
            val_loss, predictions = trainer.validate()
        return trainer.end_epoch(training, validation, train_loss, trainer.last_rate, val_loss, predictions)


def take_steps(trainer: Trainer, random_draws: RandomDraws) -> Iterator[int]:
    """Take the steps of an epoch: as CUDA graphs as far as possible, and the others eagerly. Each iteration takes one
    step and yields its number of sequences (of all workers).

    The losses are added to `trainer.total`, a scalar on the device that is read once per epoch: `.item()` in every step
    would synchronize in every step.
    """
    step, rates, num_done = trainer.step, trainer.epoch_rates, 0
    trainer.total.zero_()
    trainer.norms.fill_(math.nan)
    if graph_steps := trainer.open_graph_steps():
        for num_sequences in graph_steps.steps(random_draws, rates):
            num_done += 1
            yield num_sequences
        del graph_steps
        trainer.open_graph_steps()  # frees those that have been given up
    if num_done == trainer.steps_per_epoch:
        return
    for batch, rate in zip(trainer.batches(random_draws, num_done), rates[num_done:].tolist(), strict=True):
        step.set_rate(rate)
        trainer.total.add_(step(batch, trainer.norms[num_done : num_done + 1]))
        num_done += 1
        yield batch.global_size


def take_step(step: Step, batch: Batch, norm: Tensor | None = None) -> Tensor:
    """Compute the gradients of the batch's mean loss, in `grad_accum_steps` parts, and update the weights. Return the
    loss summed over the sequences, a scalar on the device. `norm` (1,), if given, gets the norm of the gradients before
    they are clipped.

    With several workers, the gradients are those of the mean over the sequences of all workers; the returned sum is
    over this worker's. The weights change in the last lines, so the caller may repeat a step that fails before.
    """
    step.optimizer.zero_grad(set_to_none=True)
    total: Any = None
    parts = batch.micro_batches(step.execution.grad_accum_steps)
    for part in parts:
        with step.shared(part, is_last=part is parts[-1]):
            with autocast(step.execution.precision, step.execution.device.torch), kernels.noted_in(step.kernels_used):
                outputs = step.forward(*part.inputs()).float()
            loss = step.loss(outputs, part)
            # DistributedDataParallel averages over the workers; this factor makes it a sum.
            weight = part.num_counted / batch.global_size * step.workers.count
            step.scaler.scale(loss if weight == 1 else loss * weight).backward()
        summed = loss.detach() * part.num_counted
        total = summed if total is None else total + summed
    if step.max_grad_norm:
        step.scaler.unscale_(step.optimizer)
        found = nn.utils.clip_grad_norm_(step.weights, step.max_grad_norm)
        if norm is not None:
            norm.copy_(found)
    step.scaler.step(step.optimizer)
    step.scaler.update()
    return total
