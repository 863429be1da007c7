"""torch's number of threads, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads_kept(number: int | None = None) -> Iterator[None]:
    """The number of threads may change inside, and is as before after it. `number`: the one to begin with."""
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)
