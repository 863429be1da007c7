"""What a training step asks for, counted rather than timed: arithmetic, bytes moved, memory by what it is for."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from stages.training.batches import Batch, Split
from stages.training.step import Step, autocast
from stages.training.trainer import Trainer


def count_flop(trainer: Trainer, batch: Batch) -> float:
    """FLOP of forward and backward for `batch`, from two sequences of it."""
    model = copy.deepcopy(trainer.model).cpu()
    part = batch.first(2)
    inputs = [tensor.cpu() for tensor in part.inputs()]
    # oneDNN's LSTM is one operator, which the counter does not see into.
    with without_onednn(), FlopCounterMode(display=False) as counter:
        outputs = model(*inputs)
        trainer.task.loss(outputs.float(), part.targets.cpu(), part.mask.cpu(), 0.0).backward()
    return counter.get_total_flops() * len(batch) / len(part)


@contextmanager
def without_onednn() -> Iterator[None]:
    """`torch.backends.mkldnn.flags` would also set its TF32 switch, which warns where there is no Intel GPU."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


ONLY_WRITE = ("copy_", "fill_", "zero_", "random_", "bernoulli_")
OUTPUTS = ("out", "grad_input")


class Traffic(TorchDispatchMode):
    """Adds up the bytes that operators read and write. Views move nothing, and new memory is not touched before it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in func.__name__:
            # What is only written, in place or as `out`, is the result, and counts as that alone.
            read = args[1:] if func.__name__.split(".")[0] in ONLY_WRITE else args
            tensors = tree_leaves(
                (read, {name: value for name, value in (kwargs or {}).items() if name not in OUTPUTS}, result)
            )
            self.num_bytes += sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
        return result


def count_bytes(trainer: Trainer, batch: Batch) -> int:
    """Bytes that the operators of one eager step read and write."""
    step: Step = copy.copy(trainer.step)
    step.forward = trainer.model
    with Traffic() as traffic:
        step.eager(batch)
    return traffic.num_bytes


def memory_needs(trainer: Trainer, batch: Batch) -> dict[str, float]:
    """MiB that training takes for itself, by what for: counted from the tensors, on any device.

    Activations are what autograd keeps of one forward pass for the backward one, every storage once, weights and inputs left out.
    """
    kept: dict[int, int] = {}
    own = {
        tensor.untyped_storage().data_ptr() for tensor in (*trainer.model.parameters(), *batch.inputs(), batch.targets)
    }

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(trainer.step.precision, trainer.device),
    ):
        outputs = trainer.model(*batch.inputs())
        trainer.task.loss(outputs.float(), batch.targets, batch.mask, 0.0)
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters())
    states = [value for state in trainer.optimizer.state.values() for value in state.values()]
    splits = {
        id(split): split for split in (trainer.train_split, trainer.val_split)
    }.values()  # the sweep has one for both
    resident = [split for split in splits if split.tensors["values"].device == trainer.device]
    in_bytes = {
        "weights": weights,
        "gradients": weights,
        "optimizer": sum(value.nbytes for value in states if isinstance(value, torch.Tensor)),
        "activations": sum(kept.values()) / trainer.step.accumulation,
        "data": sum(bytes_of(split) for split in resident),
    }
    return {name: count / 2**20 for name, count in in_bytes.items()}


def bytes_of(split: Split) -> int:
    return sum(tensor.nbytes for tensor in split.tensors.values())


def device_memory_mib(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 2**20
    return psutil.virtual_memory().total / 2**20
