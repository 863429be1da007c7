"""What a network of the workload's own must do: outputs of the right shape, batches of each size that will come, and
no state besides its parameters and buffers.
"""

import copy
from inspect import signature
from typing import Any

import torch
from torch import nn

from tandem import models
from tandem.devices.memory import is_out_of_memory, shorten
from tandem.models import Shape
from tandem.params.schema import Train
from tandem.training.batches import Split
from tandem.training.random_draws import seed_python_and_numpy

NUM_COMPARED = 32  # sequences
SAVED_ROUNDING = 1e-3  # of the largest output: kernels sum in another order


def check_state(model: nn.Module, split: Split, shape: Shape, settings: Train) -> None:
    """Raises ValueError if a network that is built anew and gets the parameters and buffers of `model` has other
    outputs: `evaluate`, `tandem predict` and a resumed training would have that network.
    """
    device = split.device.torch_device
    values, mask = (split.tensors[key][:NUM_COMPARED].to(device, copy=True) for key in ("values", "mask"))
    before, outputs = split.device.random_state(), list[torch.Tensor]()
    try:
        saved = models.build(settings.model, shape).to(device)
        saved.load_state_dict(model.state_dict())
        for network in (model, saved):
            torch.manual_seed(0)  # both draw the same, if they draw
            seed_python_and_numpy("0")
            with torch.no_grad():
                outputs.append(network.eval()(values.clone(), mask.clone()).float())
    finally:
        split.device.set_random_state(before)
    trained, rebuilt = outputs
    largest = max(output.abs().max().item() for output in outputs)
    if not torch.allclose(rebuilt, trained, rtol=0.0, atol=SAVED_ROUNDING * largest, equal_nan=True):
        difference = (rebuilt - trained).abs().max().item() / largest
        raise ValueError(
            f"{settings.model.name} keeps state besides its parameters and buffers: built again with these, an output "
            f"differs by {difference:.0%} of the largest one, and evaluate, predict and a resumed training would have "
            "that network; keep all state in parameters or buffers (persistent ones)"
        )


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
