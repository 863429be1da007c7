"""Speed-ups: functions from measured times to estimates with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tandem.terminal.messages import MORE_SEEDS, NUM_MORE_SEEDS

# With two pairs, the interval would be more than nine times as wide as with five pairs of the same spread.
MIN_PAIRS = 3
MORE_PAIRS = f"{MORE_SEEDS} runs {1 + NUM_MORE_SEEDS}"


@dataclass(frozen=True)
class SpeedUp:
    """How many times as fast the second side is as the first. An interval needs three processes of each side."""

    ratio: float
    low: float | None
    high: float | None
    num_pairs: int  # of alternating processes; otherwise the smaller of `num_unpaired`
    num_unpaired: tuple[int, int] | None = None  # the processes of each side, if they did not alternate

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 1, so that one side is faster beyond the spread of the processes."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def interval(self) -> str:
        """The interval as text; empty if there is none."""
        return "" if self.low is None else f"95% interval {self.low:.2f} to {self.high:.2f}"

    @property
    def processes(self) -> str:
        """The number of processes as text, and how to get an interval if there is none."""
        text = f"{self.num_pairs} pair{'' if self.num_pairs == 1 else 's'} of alternating processes"
        if self.num_unpaired:
            first, second = self.num_unpaired
            counts = "1 process each" if first == second == 1 else f"{first} and {second} processes"
            text = f"{counts}, not alternating, so drift of the machines is included"
        return text if self.interval else f"{text}; an interval needs at least {MIN_PAIRS}, {MORE_PAIRS}"

    def reversed(self) -> SpeedUp:
        """Return how many times as fast the first side is as the second."""
        low, high = (None if bound is None else 1 / bound for bound in (self.high, self.low))
        return replace(self, ratio=1 / self.ratio, low=low, high=high)

    def sentence(self, first: str, second: str) -> str:
        """Return the summary and how it was measured. `first` and `second` are the names of the sides."""
        return f"{self.summary(first, second)}; {self.processes}"

    def summary(self, first: str, second: str) -> str:
        """Return the result in a few words."""
        speed_up, fast, slow = (self, second, first) if self.ratio >= 1 else (self.reversed(), first, second)
        if speed_up.interval and not speed_up.is_clear:
            return f"No difference in speed detected: {speed_up.ratio:.2f} ({speed_up.interval})"
        interval = f" ({speed_up.interval})" if speed_up.interval else "; no interval"
        return f"{fast} {speed_up.ratio:.2f} times as fast as {slow}{interval}"


def ratio_of_turns(base_seconds: Sequence[float], other_seconds: Sequence[float]) -> float:
    """Return how many times as fast `other` is as `base`: the ratio of one pair of alternating processes.

    Numbers at the same index belong to the same turn. The result is the median of the turns' ratios. A disturbance
    longer than a turn slows both processes and cancels in the ratio; a disturbance of single turns does not move the
    median. On a busy machine (benchmarks/aa.py) the ratios of medians and of means scattered 1.3 times as much, the
    ratios of minima 3.6 times.
    """
    pairs = zip(base_seconds, other_seconds, strict=True)
    return math.exp(statistics.median(math.log(base / other) for base, other in pairs))


def paired_speed_up(pair_ratios: Sequence[float]) -> SpeedUp:
    """Return the geometric mean of the pairs' ratios and its 95% interval.

    Each number comes from one pair of processes (`ratio_of_turns`). The logarithms scatter by the differences between
    processes, such as memory placement and disturbances; the interval is Student's t on these logarithms (Student 1908,
    Biometrika 6). Turns do not count as samples, because the turns of one process resemble each other. Raises
    ValueError without a pair.
    """
    if not pair_ratios:
        raise ValueError(f"no pair of processes was measured; a speed-up needs 1, its interval {MIN_PAIRS}")
    logs = [math.log(ratio) for ratio in pair_ratios]
    count, middle = len(logs), statistics.fmean(logs)
    if count < MIN_PAIRS:
        return SpeedUp(math.exp(middle), None, None, count)
    from tandem.tasks.statistics import student_interval  # imports numpy, which a speed without pairs does not need

    low, high = student_interval(middle, statistics.stdev(logs) / math.sqrt(count), count - 1)
    return SpeedUp(math.exp(middle), math.exp(low), math.exp(high), count)


def unpaired_speed_up(first_seconds: Sequence[float], second_seconds: Sequence[float]) -> SpeedUp:
    """Return the ratio of the geometric means of processes that did not alternate and Welch's interval of its log."""
    logs = [[math.log(seconds) for seconds in side] for side in (first_seconds, second_seconds)]
    middle, counts = statistics.fmean(logs[0]) - statistics.fmean(logs[1]), (len(logs[0]), len(logs[1]))
    if min(counts) < MIN_PAIRS:
        return SpeedUp(math.exp(middle), None, None, min(counts), counts)
    from scipy.stats import ttest_ind

    from tandem.tasks.statistics import LEVEL

    low, high = ttest_ind(*logs, equal_var=False).confidence_interval(LEVEL)
    return SpeedUp(math.exp(middle), math.exp(low), math.exp(high), min(counts), counts)
