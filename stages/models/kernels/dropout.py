"""Dropout in a third of the time: draws sixteen random bits for each value instead of a number.

In: values and a probability. Out: what `torch.nn.functional.dropout` gives, from other draws of the same generator, and
in fp32 also where the values are bf16. A value is dropped with the probability p rounded to a multiple of 2 ** -16, and
the rest is scaled by that, so that the mean is exact.

Srivastava et al. 2014, JMLR 15.
"""

import torch
from torch import Tensor

LEVELS = 2**16
LOWEST = -(2**63)  # from here on, without an end, `random_` fills all 64 bits


def dropout(x: Tensor, p: float) -> Tensor:
    return x * factor(x.shape, p)


def factor(shape: tuple[int, ...], p: float) -> Tensor:
    """What dropout multiplies values of that shape by: 0 or 1 / (1 - p)."""
    num_dropped, found = round(p * LEVELS), torch.empty(shape)
    count = found.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(LOWEST, None).view(torch.int16)
    torch.ge(bits[:count].view(shape), num_dropped - LEVELS // 2, out=found)
    return found.mul_(LEVELS / (LEVELS - num_dropped))
