"""Change torch's number of threads temporarily, and measure how long this process's threads wait for a core."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


def waited_seconds() -> float:
    """Seconds in which threads of this process were runnable but had no core; 0.0 if the kernel does not report it.

    This is the second number of /proc/<pid>/task/<tid>/schedstat (Linux, Documentation/scheduler/sched-stats). It is
    also correct in a container, whose /proc/stat covers the whole machine.
    """
    nanoseconds = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):  # the thread has ended, or the kernel has no schedstat
            nanoseconds += int(path.read_text().split()[1])
    return nanoseconds / 1e9
