"""One thread reads a source, such as a GPU, while something runs: what it read in all of it, and in parts of it.

A training is sampled from its first epoch to its last, and every epoch is a part of it. A part takes no reading of its
own, so it costs nothing, however short it is.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

SAMPLE_SECONDS = 0.05
# The driver averages utilization and power over up to this long: a reading describes what came before it, too.
DRIVER_SECONDS = 1.0

Readings = dict[str, float | str]  # a quantity's name, which ends in its unit, to its number or why there is none


class Source(Protocol):
    def read(self) -> Readings:
        """The same quantities in each call. Raises nothing: a reading must not end a training."""


class Window:
    """What is read while it is open. It begins with the last reading before it, at most about SAMPLE_SECONDS old."""

    def __init__(self, before: Readings) -> None:
        self.lock = threading.Lock()  # the sampler's thread writes, the training's reads
        self.begin = time.monotonic()
        self.end: float | None = None
        self.first = before
        self.largest: dict[str, float] = {}
        self.sums: dict[str, float] = {}
        self.num_averages = 0  # readings whose averages begin within the window
        self.reasons: dict[str, str] = {}
        self.add(before)

    @property
    def seconds(self) -> float:
        return (self.end or time.monotonic()) - self.begin

    def add(self, readings: Readings) -> None:
        with self.lock:
            is_within = self.seconds >= DRIVER_SECONDS
            self.num_averages += is_within
            for name, value in readings.items():
                if isinstance(value, str):
                    self.reasons[name] = value
                else:
                    self.largest[name] = max(value, self.largest.get(name, value))
                    self.sums[name] = self.sums.get(name, 0.0) + is_within * value

    def close(self) -> None:
        self.end = time.monotonic()

    def found(self) -> Readings:
        """The largest number of MiB and of processes, what joules went up by, the mean of others; or why there is none.

        Where one reading lacks a quantity, there is none: it would not be that of the whole window.
        """
        with self.lock:
            return {name: self.reasons.get(name) or self.reduced(name) for name in self.first}

    def totals(self) -> Readings:
        """What is found, and over how long; empty where there is nothing to read."""
        found = self.found()
        return {"sampled_seconds": self.seconds, **found} if found else {}

    def reduced(self, name: str) -> float | str:
        if name.endswith(("mib", "processes")):
            return self.largest[name]
        if not self.num_averages:
            return f"the driver averages over up to {DRIVER_SECONDS:g} s, and the region took only {self.seconds:.2f} s"
        if name.endswith("joules"):  # a counter: its largest number is its last
            return self.largest[name] - float(self.first[name])
        return self.sums[name] / self.num_averages


class Sampler:
    """The thread, and the windows that are open."""

    def __init__(self, source: Source) -> None:
        self.source, self.latest = source, source.read()
        self.windows: tuple[Window, ...] = ()  # replaced, never changed: the thread goes through it
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run, name="sampler", daemon=True)

    def run(self) -> None:
        while not self.done.wait(SAMPLE_SECONDS):
            self.sample()

    def sample(self) -> None:
        self.latest = self.source.read()
        for window in self.windows:
            window.add(self.latest)

    @contextmanager
    def window(self) -> Iterator[Window]:
        window = Window(self.latest)
        self.windows = (*self.windows, window)
        try:
            yield window
        finally:
            window.close()
            self.windows = tuple(other for other in self.windows if other is not window)

    @contextmanager
    def thread_running(self) -> Iterator[None]:
        try:
            self.thread.start()
            yield
        finally:
            self.done.set()
            self.thread.join()
        self.sample()  # the last reading is that of the end


running: dict[Source, Sampler] = {}


@contextmanager
def sampling(source: Source) -> Iterator[Window]:
    """Samples `source` while the body runs, whose thread ends with it. Inside of another `sampling`, a part of it."""
    if source in running:
        with running[source].window() as window:
            yield window
        return
    sampler = running[source] = Sampler(source)
    try:
        with sampler.window() as window, sampler.thread_running():
            yield window
    finally:
        del running[source]
