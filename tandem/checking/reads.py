"""Find the lines of a network that read from the device. Each waits for a GPU and prevents a CUDA graph.

The operators that read are the same on the CPU, so the lines are found there too.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.training.graphs import network_line

# Operators whose result, or its size, the host must know.
OPERATORS = {
    "_local_scalar_dense": "a number, as with .item() or `if`",
    "allclose": "allclose",
    "bincount": "bincount",
    "equal": "equal",
    "masked_select": "masked_select",
    "nonzero": "nonzero",
    "repeat_interleave": "repeat_interleave without output_size",
    "unique_consecutive": "unique_consecutive",
    "_unique2": "unique",
    "unique_dim": "unique",
}
INDEXING = ("index", "index_put_")
# Methods of tensors that are no operators on the CPU.
METHODS = {Tensor.tolist: "tolist", Tensor.numpy: "numpy", Tensor.cpu: "cpu"}
KERNELS = "tandem/models/kernels/"  # they run on the CPU only


@contextmanager
def record_reads(device: torch.device) -> Iterator[dict[str, str]]:
    """Yield {line of a network: what it reads from `device`}, which the body fills."""
    reads = Reads(device)
    with Operators(reads), Methods(reads):
        yield reads.found


class Reads:
    def __init__(self, device: torch.device) -> None:
        self.found: dict[str, str] = {}
        self.device, self.is_paused = device, False

    def add(self, tensor: Any, what: str) -> None:
        if self.is_paused or not isinstance(tensor, Tensor) or tensor.device.type != self.device.type:
            return
        line = network_line(traceback.walk_stack(sys._getframe()))
        if line and not line.startswith(KERNELS):
            self.found.setdefault(line, what)


class Operators(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in tandem/diagnosis/counts.py

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name in OPERATORS and kwargs.get("output_size") is None:
            self.reads.add(args[0], OPERATORS[name])
        if name in INDEXING and any(each is not None and each.dtype == torch.bool for each in args[1]):
            self.reads.add(args[0], "a boolean index")
        return func(*args, **kwargs)


class Methods(TorchFunctionMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in METHODS:
            self.reads.add(args[0], METHODS[func])
        if func is not torch._C._nn.one_hot or len(args) + len(kwargs) == 1:
            return func(*args, **kwargs)
        self.reads.is_paused = True  # with a number of classes, one_hot reads on the CPU only
        try:
            return func(*args, **kwargs)
        finally:
            self.reads.is_paused = False
