"""A progress line on stderr with rate and remaining time, for operations that may take longer than a second."""

import sys
from threading import Event, Thread
from typing import Any

from tqdm import tqdm

DELAY = 1.0  # seconds


class ProgressLine(tqdm):
    """The line appears after a second, and is redrawn every second even if nothing reports progress, for example while
    one call reads a table.
    """

    def __init__(self, title: str, total: int, unit: str, **options: Any) -> None:
        keywords = {"unit": unit, "unit_scale": True, "unit_divisor": 1024} if unit == "B" else {"unit": f" {unit}"}
        keywords |= {"delay": DELAY, "mininterval": 0.5, "miniters": 0, "leave": False, "file": sys.stderr, **options}
        self.ended = Event()
        super().__init__(total=total, desc=title, **keywords)
        if not self.disable:
            Thread(target=self.keep_showing, name="progress", daemon=True).start()

    def keep_showing(self) -> None:
        while not self.ended.wait(DELAY):
            with self.get_lock():  # tqdm's `close` waits for it, and then `update` does nothing
                self.update(0)
            self.mininterval = 0.5 if sys.stderr.isatty() else 5.0

    def at(self, place: int) -> None:
        """Report that `place` of the total is done."""
        self.update(max(0, place - self.n))

    def close(self) -> None:
        self.ended.set()
        super().close()
