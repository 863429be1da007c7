"""Divide the sequences of a batch among several workers that train one model.

A batch goes through the model in `accumulation` parts, and each worker takes a contiguous share of every part. Together
the workers process the same sequences in the same parts as a single worker. If a part of the smaller last batch has too
few sequences, a worker without one processes another worker's sequence with weight 0 (a stand-in): every worker must
take part in the sum of gradients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """A worker's contiguous share of one part of a batch."""

    first: int  # index of the share's first sequence in the part
    num_passed: int  # number of sequences that the worker processes
    num_counted: int  # number of those whose loss counts: 0 for a stand-in
    num_whole: int  # number of sequences in the part


def shares_of(num_sequences: int, num_parts: int, rank: int, num_workers: int) -> tuple[Share, ...]:
    """The shares of worker `rank` in a batch of `num_sequences`, one per part.

    If a part does not divide evenly, the first workers take one more sequence.
    """
    size = -(-num_sequences // num_parts)  # as in Batch.parts
    found = []
    for start in range(0, num_sequences, size):
        whole = min(size, num_sequences - start)
        each, rest = divmod(whole, num_workers)
        num_own = each + (rank < rest)
        first = rank * each + min(rank, rest)
        found.append(Share(min(first, whole - 1), max(num_own, 1), num_own, whole))
    return tuple(found)


def places_of(shares: tuple[Share, ...]) -> Tensor:
    """Indices of the shares' sequences in the batch of all workers: (n,) int64."""
    places, start = [], 0
    for share in shares:
        places.append(torch.arange(share.num_passed) + start + share.first)
        start += share.num_whole
    return torch.cat(places)


def own_rows(order: Tensor, batch_size: int, shares: tuple[Share, ...]) -> Tensor:
    """The elements of `order` that belong to a worker with these `shares` of each batch, batch by batch.

    order: (N,) int64, consecutive full batches of all workers.
    """
    return order.view(-1, batch_size)[:, places_of(shares)].flatten()
