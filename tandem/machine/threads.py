"""Change torch's number of threads temporarily."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Use this number of threads in the body, and the former one after it."""
    num_before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(num_before)
