"""Which sequences of a batch a worker takes, where several train one model: sizes in, places out.

A batch goes through the model in `accumulation` parts, and each worker takes a stretch of every part: all of them
together pass the sequences that one worker passes, in the same parts. A worker for which a part has no sequence (of the
ragged last batch) passes one of the others' with weight 0, because it still has to take part in the sum of gradients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """A worker's stretch of a part that all workers pass through the model at once."""

    first: int  # place of its first sequence in the part
    num_passed: int  # sequences
    num_counted: int  # of them those that are its own: 0 for a stand-in
    num_whole: int  # sequences of the part


def shares_of(num_sequences: int, num_parts: int, rank: int, num_workers: int) -> tuple[Share, ...]:
    """Those of worker `rank` in a batch of `num_sequences`, part by part. The first workers take one more where it does
    not come out even.
    """
    size = -(-num_sequences // num_parts)  # as Batch.parts has it
    found = []
    for start in range(0, num_sequences, size):
        whole = min(size, num_sequences - start)
        each, rest = divmod(whole, num_workers)
        num_own = each + (rank < rest)
        first = rank * each + min(rank, rest)
        found.append(Share(min(first, whole - 1), max(num_own, 1), num_own, whole))
    return tuple(found)


def places_of(shares: tuple[Share, ...]) -> Tensor:
    """Where the sequences lie in the batch of all workers: (n,) int64."""
    places, start = [], 0
    for share in shares:
        places.append(torch.arange(share.num_passed) + start + share.first)
        start += share.num_whole
    return torch.cat(places)


def own_rows(order: Tensor, batch_size: int, shares: tuple[Share, ...]) -> Tensor:
    """What of `order` ((N,) int64, whole batches of all workers one after the other) a worker with these `shares` of
    each batch takes, batch by batch.
    """
    return order.view(-1, batch_size)[:, places_of(shares)].flatten()
