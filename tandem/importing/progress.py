"""A progress line on stderr with rate and remaining time, for operations that may take longer than a second."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from tqdm import tqdm

DELAY = 1.0  # seconds


@contextmanager
def progress(title: str, total: int, unit: str) -> Iterator[Callable[[int], Any]]:
    """`at(n)` reports the progress. The line appears after a second and is refreshed even if nothing reports progress,
    for example while one call reads a table.
    """
    kind = {"unit": unit, "unit_scale": True, "unit_divisor": 1024} if unit == "B" else {"unit": f" {unit}"}
    bar = tqdm(total=total, desc=title, delay=DELAY, mininterval=0.5, miniters=0, leave=False, file=sys.stderr, **kind)
    ended = Event()

    def keep_showing() -> None:
        while not ended.wait(DELAY):
            bar.update(0)
            bar.mininterval = 0.5 if sys.stderr.isatty() else 5.0

    clock = Thread(target=keep_showing, daemon=True)
    clock.start()
    try:
        yield lambda place: bar.update(max(0, place - bar.n))
    finally:
        ended.set()
        clock.join()
        bar.close()
