"""Handle the signals that stop a training: Ctrl+C (SIGINT) and SIGTERM."""

import signal
from abc import ABC, abstractmethod
from types import FrameType
from typing import Self


class StopSignals(ABC):
    """A context in which `handle` gets these signals. Subclasses set `stop_requested` when one has come."""

    def __init__(self) -> None:
        self.stop_requested = False

    def __enter__(self) -> Self:
        self.before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    @abstractmethod
    def handle(self, number: int, frame: FrameType | None) -> None: ...
