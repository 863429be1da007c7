"""A thread that samples a source, such as a GPU, over a whole run and over parts of it (windows).

A training is sampled from its first epoch to its last, and every epoch is one window. A window takes no readings of its
own, so even a short one costs nothing.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.devices.device import Driver, Readings

SAMPLE_SECONDS = 0.05
# The driver averages utilization and power over up to this long, so a reading also covers the time before it.
DRIVER_SECONDS = 1.0


class SampledWindow:
    """Collects the readings while it is open, and the last one before it (at most about SAMPLE_SECONDS old)."""

    def __init__(self, before: Readings) -> None:
        self.lock = threading.Lock()  # the sampler's thread writes, the training's reads
        self.begin = time.monotonic()
        self.end: float | None = None
        self.first_readings = before
        self.largest: dict[str, float] = {}
        self.sums: dict[str, float] = {}
        self.num_averages = 0  # number of readings whose averaging time is inside the window
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

    def summary(self) -> Readings:
        """The maximum of MiB and of processes, the mean of others; or the reason for none.

        If one reading lacks a quantity, the result lacks it too: it would not describe the whole window.
        """
        with self.lock:
            return {name: self.reasons.get(name) or self.reduced(name) for name in self.first_readings}

    def totals(self) -> Readings:
        """`summary()` plus the window's seconds; empty if the source has no quantities."""
        readings = self.summary()
        return {"sampled_seconds": self.seconds, **readings} if readings else {}

    def reduced(self, name: str) -> float | str:
        if name.endswith(("mib", "processes")):
            return self.largest[name]
        if not self.num_averages:
            return f"the driver averages over up to {DRIVER_SECONDS:g} s, but the region took only {self.seconds:.2f} s"
        return self.sums[name] / self.num_averages


class Sampler:
    """The sampling thread and the open windows."""

    def __init__(self, source: Driver) -> None:
        self.source, self.latest = source, source.read()
        self.windows: tuple[SampledWindow, ...] = ()  # immutable, because the thread iterates over it
        self.stop_event = threading.Event()
        self.thread = threading.Thread(target=self.run, name="sampler", daemon=True)

    def run(self) -> None:
        while not self.stop_event.wait(SAMPLE_SECONDS):
            self.sample()

    def sample(self) -> None:
        self.latest = self.source.read()
        for window in self.windows:
            window.add(self.latest)

    @contextmanager
    def window(self) -> Iterator[SampledWindow]:
        window = SampledWindow(self.latest)
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
            self.stop_event.set()
            self.thread.join()
        self.sample()  # take the last reading at the end


running: dict[Driver, Sampler] = {}


@contextmanager
def sampling(source: Driver) -> Iterator[SampledWindow]:
    """Sample `source` in a thread while the body runs. Inside another `sampling`, open a window of that one instead."""
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
