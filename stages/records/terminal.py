"""What the terminal shows while a training runs, and how Ctrl+C stops it."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stages.training.trainer import Epoch


class Interruption:
    """Ctrl+C (or SIGTERM) once sets `asked`, and the training finishes its epoch; twice raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self.first = 0

    def __enter__(self) -> Interruption:
        self.before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            if number == self.first == signal.SIGTERM:
                return  # a group's kill and the death of the parent bring it twice
            raise KeyboardInterrupt
        self.first = number
        self.asked = True
        print("\nstopping after this epoch, saving a checkpoint; once more stops at once", file=sys.stderr, flush=True)


class Progress:
    """A bar with rate and time left on a terminal, a line per epoch where there is none."""

    def __init__(self, title: str, num_epochs: int, num_done: int):
        from tqdm import tqdm

        self.bar = tqdm(total=num_epochs, initial=num_done, desc=title, unit="epoch", disable=not sys.stderr.isatty())
        self.title, self.num_epochs, self.start, self.num_before = title, num_epochs, time.monotonic(), num_done

    def show(self, epoch: Epoch, score: str, num_samples: int) -> None:
        line = f"train loss {epoch.train_loss:.4f}, val loss {epoch.val_loss:.4f}, val {score} {epoch.val_score:.3f}"
        if not self.bar.disable:
            self.bar.set_postfix_str(line, refresh=False)
            self.bar.update()
            return
        left = (time.monotonic() - self.start) / (epoch.number - self.num_before) * (self.num_epochs - epoch.number)
        rate = num_samples / epoch.training.seconds
        speed = f"{epoch.training.seconds:.3f} s, {rate:,.0f} samples/s, {left:.0f} s left"
        print(f"epoch {epoch.number}/{self.num_epochs}: {line}, {speed}", flush=True)

    def close(self) -> None:
        self.bar.close()
