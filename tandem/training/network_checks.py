"""What a network must do before it is trained: outputs of the right shape, and batches of each size that will come."""

import copy
from inspect import signature
from typing import Any

import torch
from torch import nn

from tandem.devices.memory import is_out_of_memory, shorten
from tandem.models import Shape
from tandem.params.schema import Train
from tandem.training.batches import Split


def check_outputs(model: Any, train: Split, shape: Shape, name: str) -> None:
    """Raises ValueError if a workload's own network is no module, or returns other outputs than the task needs."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} is {type(model).__name__}, which is not a torch.nn.Module")
    # A copy: a network may change its inputs in place, and the file is mapped read-only.
    values, mask = (train.tensors[key][:2].to(train.device.torch_device, copy=True) for key in ("values", "mask"))
    try:
        signature(model.forward).bind(values, mask)
    except TypeError as error:
        raise ValueError(f"forward of {name} must take (values, mask): {error}") from None
    for num in (2, 1):  # `evaluate` and `tandem predict` may have a single sequence, in which a squeeze goes wrong
        with torch.no_grad():
            outputs = model.eval()(values[:num], mask[:num])
        expected = shape.outputs(*values[:num].shape[:2])
        received = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        if received != expected:
            raise ValueError(
                f"forward of {name} returns {received} for values {tuple(values[:num].shape)}; the task needs "
                f"{expected}; `tandem check` tests a network before it is trained"
            )
    model.train()


def small_batch_refusal(model: nn.Module, split: Split, num: int, settings: Train) -> str:
    """Return why the network cannot train on the smallest batch of an epoch with `num` sequences, and a batch size
    without such a batch; empty if it can. BatchNorm refuses a single sequence. `split`: some of the sequences.
    """
    size, num_parts = settings.batch_size, settings.grad_accum_steps
    if smallest_part(num, size, num_parts) > 1:
        return ""
    values, mask = (split.tensors[key][:1].to(split.device.torch_device, copy=True) for key in ("values", "mask"))
    before = split.device.random_state()
    try:
        with torch.no_grad():
            copy.deepcopy(model).train()(values, mask)  # a copy, because the pass changes BatchNorm's statistics
    except (ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        sizes = (candidate for distance in range(1, num) for candidate in (size + distance, size - distance))
        other = next((candidate for candidate in sizes if smallest_part(num, candidate, num_parts) > 1), None)
        parts = f" in {num_parts} parts (train.grad_accum_steps)" if num_parts > 1 else ""
        next_step = f"use {other} as train.batch_size" if other else "it needs more sequences"
        return (
            f"{settings.model.name} refuses a single sequence in training mode ({shorten(error)}), and "
            f"{num:,} sequences in batches of {size} (train.batch_size){parts} leave one; {next_step}"
        )
    finally:
        split.device.set_random_state(before)
    return ""


def smallest_part(num: int, batch_size: int, num_parts: int) -> int:
    """The size of the smallest micro-batch of an epoch with `num` sequences; 0 for a batch size below 1."""
    if batch_size < 1:
        return 0
    sizes = {min(num, batch_size), num % batch_size or batch_size}
    return min(size % part or part for size in sizes for part in [-(-size // num_parts)])
