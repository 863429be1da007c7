"""Handle the signals that stop a training: Ctrl+C (SIGINT) and SIGTERM."""

import signal
from types import FrameType
from typing import Self


class StopSignals:
    """A context in which `handle` gets these signals."""

    stop_requested = False

    def __enter__(self) -> Self:
        self.before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True
