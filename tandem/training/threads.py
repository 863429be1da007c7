"""The number of threads with which a training on the CPU takes its steps.

With `threads: auto` it changes between steps: a training uses the number with which its steps are the fastest at the
moment. A second thread makes a step up to twice as fast, or several times as slow while another process uses its core,
because torch's threads wait for each other without sleeping. This is possible because the number changes no bit of the
result (tandem/models/kernels/ordered.py). Where it would (`seconds_with_same_bits` in auto.py), the training keeps one
number.
"""

import statistics
import time
from collections.abc import Iterator, Sequence

import torch

TURN_SECONDS = 0.25  # of steps with one number, after which its speed is known
MIN_GAIN = 1.05  # of more threads, which take cores from other processes
CHANGE = 1.25  # of the usual speed, after which other numbers are tried: another process has started or ended
NUM_USUAL = 4  # turns whose median is the usual speed: beside other processes, single turns vary
# Seconds until other numbers are tried again: doubled while none is better, and at least 20 times those of the trial.
FIRST_WAIT, LONGEST_WAIT, MIN_RATIO = 2.0, 30.0, 20.0


class ThreadTuner:
    """Takes steps with the fastest of `numbers`.

    `changes_bits`: whether another number would give another result; then there is only one.
    """

    def __init__(self, numbers: Sequence[int], start: int | None = None, changes_bits: bool = False) -> None:
        self.numbers, self.changes_bits = sorted(numbers), changes_bits
        self.number = self.best = start or self.numbers[0]
        self.used: dict[int, float] = {}  # number -> seconds in this epoch
        self.size, self.seconds = 0, 0.0  # of this turn
        self.speeds: list[float] = []  # sequences/s of the last turns with `best`
        # First all numbers: two threads of one core may gain nothing where four gain much. Later those next to `best`.
        self.to_try = [number for number in self.numbers if number != self.best]
        self.tried: dict[int, float] = {}  # number -> sequences/s
        self.waited, self.wait, self.least_wait = 0.0, 0.0, 0.0

    @property
    def kept_number(self) -> int | None:
        """The number that a resumed training must keep, if the result depends on it."""
        return self.number if self.changes_bits else None

    def mean_of_epoch(self) -> float:
        """The mean number over the time of the steps since the last call."""
        used, self.used = self.used, {}
        total = sum(used.values())
        return sum(number * seconds for number, seconds in used.items()) / total if total else float(self.number)

    def timed(self, steps: Iterator[int]) -> Iterator[int]:
        """Take `steps`, each of which yields its number of sequences, with the best number of threads."""
        while True:
            if torch.get_num_threads() != self.number:
                torch.set_num_threads(self.number)
            start = time.perf_counter()
            size = next(steps, None)
            if size is None:
                return
            self.add(size, time.perf_counter() - start)
            yield size

    def add(self, size: int, seconds: float) -> None:
        """Count a step, and choose the number for the next one."""
        self.used[self.number] = self.used.get(self.number, 0.0) + seconds
        self.size, self.seconds = self.size + size, self.seconds + seconds
        if self.seconds >= TURN_SECONDS and len(self.numbers) > 1:
            size, spent = self.size, self.seconds
            self.size, self.seconds = 0, 0.0
            self.end_turn(size / spent, spent)

    def end_turn(self, speed: float, seconds: float) -> None:
        """Choose the number for the next turn, after one with this speed."""
        if self.number == self.best:
            usual = statistics.median(self.speeds or [speed])
            has_changed = not usual / CHANGE < speed < usual * CHANGE
            self.speeds = [*self.speeds[1 - NUM_USUAL :], speed]
            self.waited += seconds
            if not self.to_try and self.waited >= (self.least_wait if has_changed else self.wait):
                self.to_try, self.waited = self.neighbours(), 0.0
                self.wait = FIRST_WAIT if has_changed else min(max(2 * self.wait, FIRST_WAIT), LONGEST_WAIT)
        else:
            self.tried[self.number] = speed
            if not self.to_try:
                self.choose(seconds)
        self.number = self.to_try.pop(0) if self.to_try else self.best

    def choose(self, seconds: float) -> None:
        """Take the fastest of `best` and the numbers that were tried. `seconds`: of the last turn."""
        speeds, self.tried = self.tried | {self.best: statistics.median(self.speeds)}, {}
        before, self.best = self.best, min(speeds)
        for number in sorted(speeds):
            if speeds[number] >= MIN_GAIN * speeds[self.best]:
                self.best = number
        if self.best != before:
            self.speeds, self.wait = [speeds[self.best]], FIRST_WAIT
            self.to_try = [number for number in self.neighbours() if number not in speeds]
        else:
            self.least_wait = max(FIRST_WAIT, MIN_RATIO * seconds)
            self.wait = max(self.wait, self.least_wait)

    def neighbours(self) -> list[int]:
        """The next smaller and the next larger number."""
        at = self.numbers.index(self.best)
        return self.numbers[max(at - 1, 0) : at] + self.numbers[at + 1 : at + 2]
