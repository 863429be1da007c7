"""A progress line on stderr with rate and remaining time, for operations that may take longer than a second."""

import sys
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from tqdm import tqdm

DELAY = 1.0  # seconds


class progress:
    """`at(n)` reports the progress. The line appears after a second and is refreshed even if nothing reports progress,
    for example while one call reads a table.
    """

    def __init__(self, title: str, total: int, unit: str):
        self.often = 0.5 if sys.stderr.isatty() else 5.0
        kind = {"unit": unit, "unit_scale": True, "unit_divisor": 1024} if unit == "B" else {"unit": f" {unit}"}
        self.bar = tqdm(
            total=total, desc=title, delay=DELAY, mininterval=0.5, miniters=0, leave=False, file=sys.stderr, **kind
        )
        self.ended = Event()
        self.clock = Thread(target=self.keep_showing, daemon=True)

    def keep_showing(self) -> None:
        while not self.ended.wait(DELAY):
            self.bar.update(0)
            self.bar.mininterval = self.often

    def __enter__(self) -> Callable[[int], Any]:
        self.clock.start()
        return lambda place: self.bar.update(max(0, place - self.bar.n))

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.clock.join()
        self.bar.close()
