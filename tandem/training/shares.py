"""Which sequences of a batch each of several workers takes."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Share:
    """One worker's contiguous share of a micro-batch of all workers.

    A batch goes through the model in `grad_accum_steps` micro-batches, and each worker takes a share of every one. If a
    micro-batch has fewer sequences than there are workers (in the smaller last batch), a worker without a sequence
    processes another worker's sequence with weight 0: every worker must take part in the sum of gradients.
    """

    first: int  # index of the share's first sequence in the micro-batch of all workers
    num_processed: int  # number of sequences that this worker processes
    num_counted: int  # number of those whose loss counts: 0 if the sequence is another worker's
    global_size: int  # number of sequences in the micro-batch of all workers


def shares_of(num_sequences: int, num_parts: int, rank: int, num_workers: int) -> tuple[Share, ...]:
    """The shares of worker `rank` in a batch of `num_sequences`, one per part.

    If a part does not divide evenly, the first workers take one more sequence.
    """
    size = -(-num_sequences // num_parts)  # as in Batch.micro_batches
    shares = []
    for start in range(0, num_sequences, size):
        whole = min(size, num_sequences - start)
        equal_size, rest = divmod(whole, num_workers)
        num_own = equal_size + (rank < rest)
        first = rank * equal_size + min(rank, rest)
        shares.append(Share(min(first, whole - 1), max(num_own, 1), num_own, whole))
    return tuple(shares)


def places_of(shares: tuple[Share, ...]) -> torch.Tensor:
    """Indices of the shares' sequences in the batch of all workers: (n,) int64."""
    places, start = [], 0
    for share in shares:
        places.append(torch.arange(share.num_processed) + start + share.first)
        start += share.global_size
    return torch.cat(places)


def own_rows(order: torch.Tensor, batch_size: int, shares: tuple[Share, ...]) -> torch.Tensor:
    """The elements of `order` that belong to a worker with these `shares` of each batch, batch by batch.

    order: (N,) int64, consecutive full batches of all workers.
    """
    return order.view(-1, batch_size)[:, places_of(shares)].flatten()
