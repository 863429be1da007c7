"""Dropout in a third of the time: draws sixteen random bits for each value instead of a number.

In: values and a probability. Out: what `torch.nn.functional.dropout` gives, from other draws of the same generator, and
in fp32 also where the values are bf16. A value is dropped with the probability p rounded to a multiple of 2 ** -16, and
the rest is scaled by that, so that the mean is exact.

Where several workers train one model, each draws for the sequences of all (`sharing`) and takes its own: what is
dropped of a sequence follows from its place in the batch, not from the worker that has it.

Srivastava et al. 2014, JMLR 15.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 2**16
LOWEST = -(2**63)  # from here on, without an end, `random_` fills all 64 bits
# Of the sequences that are passed through the model now: the place of the first in the batch of all workers, and that
# batch's size. None: they are all. One variable for all threads: autograd computes activations again in its own.
_place: tuple[int, int] | None = None


@contextmanager
def sharing(first: int, num_whole: int) -> Iterator[None]:
    """The body passes the sequences from place `first` on, of `num_whole` that all workers pass together."""
    global _place
    _place = first, num_whole
    try:
        yield
    finally:
        _place = None


def is_shared() -> bool:
    return _place is not None


def dropout(x: Tensor, p: float) -> Tensor:
    if x.device.type != "cpu":
        return drop_as_torch(x, p)
    return x * factor(x.shape, p)


def factor(shape: tuple[int, ...], p: float, dim: int = 0) -> Tensor:
    """What dropout multiplies values of that shape by: 0 or 1 / (1 - p). Dimension `dim` is that of the sequences."""
    num_dropped, found = round(p * LEVELS), torch.empty(whole(shape, dim))
    count = found.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(LOWEST, None).view(torch.int16)
    torch.ge(bits[:count].view(found.shape), num_dropped - LEVELS // 2, out=found)
    return own(found.mul_(LEVELS / (LEVELS - num_dropped)), shape, dim)


def drop_as_torch(x: Tensor, p: float, training: bool = True, dim: int = 0) -> Tensor:
    """`torch.nn.functional.dropout`, from its draws."""
    if _place is None or not training or p == 0:
        return F.dropout(x, p, training)
    return x * own(F.dropout(x.new_ones(whole(x.shape, dim)), p), x.shape, dim)


def whole(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """That of all workers' sequences."""
    return tuple(shape) if _place is None else (*shape[:dim], _place[1], *shape[dim + 1 :])


def own(found: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
    return found if _place is None else found.narrow(dim, _place[0], shape[dim])
