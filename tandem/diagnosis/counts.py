"""Counts the needs of a training step: arithmetic, and memory by purpose. Nothing here is timed."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from tandem.machine.threads import using_threads
from tandem.training.batches import Batch
from tandem.training.execution import autocast
from tandem.training.step import Step
from tandem.training.trainer import Trainer


def count_flop(trainer: Trainer, batch: Batch) -> float:
    """Return the FLOP of forward and backward for `batch`, counted on two of its sequences on the CPU, or on the
    training's device if the network itself names it.

    In float32, like the training: a network may create a state or a table in it.
    """
    try:
        return count_on(torch.device("cpu"), trainer, batch)
    except RuntimeError:
        return count_on(trainer.device.torch_device, trainer, batch)


def count_on(device: torch.device, trainer: Trainer, batch: Batch) -> float:
    model, part = copy_of(trainer.model).to(device), batch.first(2)
    inputs = [tensor.to(device) for tensor in part.inputs()]
    targets, mask = part.targets.to(device), part.mask.to(device)
    # Each has a single operator for a recurrent layer, which the counter cannot see into.
    libraries: list[Any] = [torch.backends.mkldnn, torch.backends.cudnn]
    were_enabled = [library.enabled for library in libraries]
    with using_threads(1), Arithmetic() as counter:  # more threads try products (tandem/models/kernels/ordered.py)
        try:
            for library in libraries:
                library.enabled = False
            trainer.task.loss(model(*inputs).float(), targets, mask, 0.0).backward()
        finally:
            for library, was_enabled in zip(libraries, were_enabled, strict=True):
                library.enabled = was_enabled
    return counter.num_flop * len(batch) / len(part)


def main_precision(step: Step) -> str:
    """Return the precision in which most of the arithmetic of the steps so far ran: with bf16, recurrent layers may
    compute in another one, which they note (tandem/models/layers.py).
    """
    noted = {note.rpartition(" in ")[2] for note in step.kernels_used if " in " in note}
    recurrent = [
        weight for layer in step.model.modules() if isinstance(layer, nn.RNNBase) for weight in layer.parameters()
    ]
    return max(noted) if noted and 2 * num_bytes(recurrent) > num_bytes(step.weights) else step.execution.precision


def copy_of(model: nn.Module) -> nn.Module:
    """A deep copy, also of a network that keeps results of its last forward pass, which torch refuses to copy."""
    leaves = [leaf for module in model.modules() for leaf in tree_leaves(vars(module))]
    results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not leaf.is_leaf]
    return copy.deepcopy(model, {id(tensor): tensor.detach() for tensor in results})


class Arithmetic(TorchDispatchMode):
    """Sums the FLOP of operators with torch's own formulas, like FlopCounterMode but without module names.

    Skips torch's decoration for torch.compile, which imports torch._dynamo and takes seconds.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self.num_flop = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, formula = kwargs or {}, flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:  # an operator composed of others
                result = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result
        result = func(*args, **kwargs)
        self.num_flop += formula(*args, **kwargs, out_val=result)
        return result


def memory_needs(trainer: Trainer, batch: Batch) -> dict[str, float]:
    """Return the MiB that training needs, by purpose, counted from the tensors, on any device."""
    weights, batch = list(trainer.model.parameters()), batch.micro_batches(trainer.execution.grad_accum_steps)[0]
    with saved_for_backward([*weights, *batch.inputs(), batch.targets]) as saved:
        with autocast(trainer.execution.precision, trainer.device.torch_device):
            outputs = trainer.model(*batch.inputs())
            trainer.task.loss(outputs.float(), batch.targets, batch.mask, 0.0)
    states = [value for state in trainer.optimizer.state.values() for value in state.values()]
    # By id, because a trial may use one split for both.
    splits = {id(split): split for split in (trainer.train_split, trainer.val_split)}.values()
    on_device = [split.tensors for split in splits if split.tensors["values"].device == trainer.device.torch_device]
    in_bytes = {
        "weights": num_bytes(weights),
        "gradients": num_bytes(weights),
        "optimizer": num_bytes(states),
        "activations": sum(saved.values()),
        "data": sum(num_bytes(tensors.values()) for tensors in on_device),
    }
    return {name: count / 2**20 for name, count in in_bytes.items()}


@contextmanager
def saved_for_backward(excluded: Iterable[torch.Tensor]) -> Iterator[dict[int, int]]:
    """Yield address -> bytes of every storage that the body saves for the backward pass: the activations."""
    saved: dict[int, int] = {}
    counted_apart = {tensor.untyped_storage().data_ptr() for tensor in excluded}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in counted_apart:
            saved[storage.data_ptr()] = storage.nbytes()  # it lives until the backward pass, so no address is reused
        # If an operator saved its own output here, it would keep itself alive: a cycle that Python cannot free.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


def num_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of the tensors among `values`."""
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
