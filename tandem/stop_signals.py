"""Handle the signals that stop a training: Ctrl+C (SIGINT) and SIGTERM.

`train` gets SIGTERM when dvc ends (tandem/stage.py). With several workers, the launcher forwards both signals to all of
them, and each gets SIGTERM when the launcher ends.
"""

import signal
from types import FrameType
from typing import Self


class StopSignals:
    """A context in which these signals set `stop_requested`. The training reads it after each epoch."""

    stop_requested = False

    def __enter__(self) -> Self:
        self.before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True
