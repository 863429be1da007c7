"""torch's number of threads, for a while; and how long this process's threads waited for a core."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


def waited_seconds() -> float:
    """Seconds that the threads of this process could have run, so far, and had no core; 0.0 where no kernel says it.

    The second number of /proc/<pid>/task/<tid>/schedstat (Linux, Documentation/scheduler/sched-stats). It holds in a
    container too, whose /proc/stat is that of the whole machine.
    """
    nanoseconds = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):  # a thread that has ended, or a kernel that keeps none
            nanoseconds += int(path.read_text().split()[1])
    return nanoseconds / 1e9
