"""Dropout in a third of torch's time: it draws sixteen random bits per value instead of a number.

The result is that of `torch.nn.functional.dropout` with other draws of the same generator, and in fp32 even for bf16
values. The dropout probability is p rounded to a multiple of 2 ** -16; the scale of the remaining values uses the
rounded probability, so the mean is exact.

If several workers train one model, each draws for the sequences of all workers (`sharing`) and takes its own part. The
mask of a sequence therefore depends on its place in the batch, not on its worker.

Srivastava et al. 2014, JMLR 15.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from tandem.models.kernels import TORCH, choose, note

LEVELS = 2**16
LOWEST = -(2**63)  # with this lower limit and no upper limit, `random_` fills all 64 bits
# (index of this pass's first sequence in the batch of all workers, size of that batch), or None if the pass covers the
# whole batch. It is not thread-local, because autograd recomputes activations in its own thread.
_place: tuple[int, int] | None = None


@contextmanager
def sharing(first: int, global_size: int) -> Iterator[None]:
    """In the body, this worker processes the sequences from index `first` of the `global_size` of all workers."""
    global _place
    _place = first, global_size
    try:
        yield
    finally:
        _place = None


def dropout(x: Tensor, p: float) -> Tensor:
    if choose("dropout", x.device.type == "cpu"):
        return x * factor(x.shape, p)
    note(TORCH, "dropout")
    return drop_as_torch(x, p)


def factor(shape: tuple[int, ...], p: float, dim: int = 0) -> Tensor:
    """Dropout factors of that shape: 0 or 1 / (1 - p). `dim` is the dimension of the sequences."""
    num_dropped, factors = round(p * LEVELS), torch.empty(whole_shape(shape, dim))
    count = factors.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(LOWEST, None).view(torch.int16)
    torch.ge(bits[:count].view(factors.shape), num_dropped - LEVELS // 2, out=factors)
    return own_part(factors.mul_(LEVELS / (LEVELS - num_dropped)), shape, dim)


def drop_as_torch(x: Tensor, p: float, training: bool = True, dim: int = 0) -> Tensor:
    """`torch.nn.functional.dropout` with torch's own random draws."""
    if _place is None or not training or p == 0:
        return F.dropout(x, p, training)
    return x * own_part(F.dropout(x.new_ones(whole_shape(x.shape, dim)), p), x.shape, dim)


def whole_shape(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """`shape` for the sequences of all workers."""
    return tuple(shape) if _place is None else (*shape[:dim], _place[1], *shape[dim + 1 :])


def own_part(factors: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
    return factors if _place is None else factors.narrow(dim, _place[0], shape[dim])
