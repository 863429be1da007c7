"""Passes without gradients: validation and predictions. They read no numbers from the device."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from tandem.training.batches import Batch, Split, sequential_indices
from tandem.training.execution import autocast
from tandem.training.executor import Executor, Result
from tandem.training.saved_network import PREDICTION_BATCH
from tandem.training.step import Loss


@torch.no_grad()
def validate(
    model: nn.Module,
    batches: Iterator[Batch],
    loss: Loss,
    predict: Callable[[Tensor, Tensor], Tensor],
    executor: Executor,
) -> tuple[Tensor, Tensor]:
    """Returns the mean loss over the sequences, as a scalar on the device, and their predictions (N, ...) in order.

    If memory runs out, this and all later batches are evaluated in smaller parts.
    """
    model.eval()
    total, count, predictions = None, 0, []

    def evaluate(part: Batch) -> tuple[Tensor, Tensor]:
        outputs = forward(model, part, executor.execution.precision)
        return loss(outputs, part) * len(part), predict(outputs, part.mask)

    for batch in batches:
        for summed, predicted in for_each_part(batch, evaluate, executor):
            total = summed if total is None else total + summed
            predictions.append(predicted)
        count += len(batch)
    assert total is not None, "a validation without a batch"
    return total / count, executor.concatenate(predictions)


@torch.no_grad()
def predict(
    model: nn.Module, split: Split, executor: Executor | None = None, batch_size: int = PREDICTION_BATCH
) -> Tensor:
    """Returns the model's outputs (N, ...) for the sequences of a split, in order, on its device."""
    model.eval()
    executor = executor or Executor()
    batches = executor.batches(split, sequential_indices(split), batch_size)
    outputs = [for_each_part(batch, partial(forward, model), executor) for batch in batches]
    return executor.concatenate([part for parts in outputs for part in parts])


def for_each_part(batch: Batch, compute: Callable[[Batch], Result], executor: Executor) -> list[Result]:
    """Return the result of `compute` for the batch, or for each of its parts if memory has run out."""
    return executor.run_with_fallbacks(
        lambda: [compute(part) for part in batch.micro_batches(executor.execution.num_eval_parts)],
        "evaluation",
        len(batch),
    )


def forward(model: nn.Module, batch: Batch, precision: str = "fp32") -> Tensor:
    """Returns the model's outputs for a batch, converted to fp32 from any precision."""
    with autocast(precision, batch.values.device):
        outputs: Tensor = model(*batch.inputs()).float()
    return outputs
