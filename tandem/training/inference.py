"""Passes without gradients. They read no numbers from the device."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from tandem.training.batches import Batch, Split, sequential_indices
from tandem.training.execution import autocast
from tandem.training.executor import Executor, Result
from tandem.training.saved_network import PREDICTION_BATCH


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
    """Return the result of `compute` for the batch, or for each of its parts if memory has run out, also before."""
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
