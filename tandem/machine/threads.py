"""Change torch's number of threads temporarily."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads_kept(number: int | None = None) -> Iterator[None]:
    """Restore torch's number of threads after the body. `number`, if given, is set before the body."""
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)
