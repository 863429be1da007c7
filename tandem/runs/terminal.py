"""Terminal output of a training."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

from tandem.terminal.messages import seconds
from tandem.terminal.progress import ProgressLine

if TYPE_CHECKING:
    from tandem.machine.measure import Measurement
    from tandem.training.trainer import Epoch

# How the lines begin that flows/ looks for: `show`'s, and `show_fit`'s.
EPOCH_LINE = re.compile(r"(?:seed \d+, )?epoch \d+/\d+: ")
FIT_LINE = re.compile(r"[\d,]+ of [\d,]+ ")
SECONDS_BETWEEN_LINES = 10.0  # within an epoch, if stderr is not a terminal


class Progress(ProgressLine):
    """A progress line with memory and device utilization. Without a terminal: a line for the first epoch, each
    tenth of the epochs, and when ten seconds have passed.

    `prefix`: of each line, where several trainings print at the same time.
    """

    def __init__(self, title: str, num_epochs: int, num_done: int, prefix: str = ""):
        is_shown = sys.stderr.isatty()
        super().__init__(title, num_epochs, "epoch", initial=num_done, delay=0, leave=True, disable=not is_shown)
        self.start, self.num_before, self.prefix = time.monotonic(), num_done, prefix
        self.printed_at = self.first_at = self.start
        self.part, self.num_in_part, self.num_at_first = "", 0, 0  # of show_fit

    def show_fit(self, num_done: int, num_all: int, unit: str) -> None:
        """Show progress within the epoch of a closed-form fit: of a part of it, which counts `unit`, e.g. trees."""
        now = time.monotonic()
        if unit != self.part or num_done <= self.num_in_part:  # the first report of a part
            self.part, self.num_at_first, self.first_at = unit, num_done, now
        self.num_in_part = num_done
        line = f"{num_done:,} of {num_all:,} {unit}"
        if num_done > self.num_at_first:
            rate = (num_done - self.num_at_first) / max(now - self.first_at, 1e-9)
            line += f", {rate:,.1f}/s, {(num_all - num_done) / rate:.0f} s left"
        if not self.disable:
            self.set_postfix_str(line, refresh=False)
        elif now - self.printed_at > SECONDS_BETWEEN_LINES:
            self.printed_at = now
            print(line, flush=True)

    def show(self, epoch: Epoch, score: str, num_sequences: int) -> None:
        rate = f"{num_sequences / epoch.training.seconds:,.0f} samples/s"
        is_fitted = epoch.learning_rate is None
        if not self.disable:
            quality = f"{'' if is_fitted else f'loss {epoch.train_loss:.3f}, '}val {score} {epoch.val_score:.3f}"
            self.set_postfix_str(", ".join([quality, rate, *load(epoch.training)]), refresh=False)
            self.update()
            return
        if is_fitted:
            fitted = f"fitted in {seconds(epoch.training.seconds)} s, {rate}"
            print(f"{self.prefix}{fitted}; val {score} {epoch.val_score:.3f}", flush=True)
            return
        tenth = self.total / 10
        is_due = epoch.number // tenth > (epoch.number - 1) // tenth or epoch.number == self.num_before + 1
        if not is_due and time.monotonic() - self.printed_at < SECONDS_BETWEEN_LINES:
            return
        self.printed_at = time.monotonic()
        line = f"train loss {epoch.train_loss:.4f}, val loss {epoch.val_loss:.4f}, val {score} {epoch.val_score:.3f}"
        seconds_left = (time.monotonic() - self.start) / (epoch.number - self.num_before) * (self.total - epoch.number)
        speed = f"{seconds(epoch.training.seconds)} s, {rate}, {seconds_left:.0f} s left"
        print(f"{self.prefix}epoch {epoch.number}/{self.total}: {line}, {speed}", flush=True)


def load(measured: Measurement) -> list[str]:
    """Return memory and device utilization as texts. Values that were not measured are left out."""
    on_gpu = measured.process_mib or measured.peak_allocated_mib
    values = {
        "VRAM {:,.0f} MiB": on_gpu,
        "GPU {:.0%} busy": measured.gpu_busy_share,
        "RAM {:,.0f} MiB": None if on_gpu else measured.peak_rss_mib,
        "{:.1f} cores busy": None if on_gpu else measured.cpu_share,
    }
    return [text.format(value) for text, value in values.items() if value is not None]
