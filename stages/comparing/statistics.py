"""Statistics of measured times: functions from lists of numbers to estimates with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
# With two pairs, the interval would be more than nine times as wide as with five pairs of the same spread.
MIN_PAIRS = 3
MORE_PAIRS = "dvc exp run -S 'seeds=[0,1,2,3,4]'"


@dataclass(frozen=True)
class SpeedUp:
    """How many times as fast one side is as another. The interval exists only if there are enough pairs."""

    ratio: float
    low: float | None
    high: float | None
    num_pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 1, so that one side is faster beyond the spread of the pairs."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def missing_reason(self) -> str:
        """Why there is no interval and how to get one; empty if there is one."""
        if self.low is not None:
            return ""
        count = "1 pair was" if self.num_pairs == 1 else f"{self.num_pairs} pairs were"
        return f"no interval: {count} measured and it takes {MIN_PAIRS}; `{MORE_PAIRS}` measures 5"

    def reversed(self) -> SpeedUp:
        """Return how many times as fast the other side is."""
        low, high = (None if bound is None else 1 / bound for bound in (self.high, self.low))
        return SpeedUp(1 / self.ratio, low, high, self.num_pairs)


def ratio_of_turns(base_seconds: Sequence[float], other_seconds: Sequence[float]) -> float:
    """Return how many times as fast `other` is as `base`: the ratio of one pair of processes that took turns.

    Numbers at the same index belong to the same turn. The result is the median of the turns' ratios. A disturbance
    longer than a turn slows both processes and cancels in the ratio; a disturbance of single turns does not move the
    median. On a busy machine (benchmarks/aa.py) the ratios of medians and of means scattered 1.3 times as much, that of
    minima 3.6 times.
    """
    return math.exp(statistics.median(map(math.log, ratios(base_seconds, other_seconds))))


def paired_speed_up(pair_ratios: Sequence[float]) -> SpeedUp:
    """Return the geometric mean of the pairs' ratios and its 95% interval.

    Each number comes from one pair of processes (`ratio_of_turns`). The logarithms scatter by the differences between
    processes, such as memory placement and disturbances; the interval is Student's t on these logarithms (Student 1908,
    Biometrika 6). Turns do not count as samples, because the turns of one process resemble each other. Raises
    ValueError without a pair.
    """
    if not pair_ratios:
        raise ValueError("no pair of processes was measured; a speed-up takes one, and its interval three")
    logs = [math.log(ratio) for ratio in pair_ratios]
    count, middle = len(logs), statistics.fmean(logs)
    if count < MIN_PAIRS:
        return SpeedUp(math.exp(middle), None, None, count)
    from scipy.special import stdtrit  # takes a third of a second; not needed without pairs

    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(logs) / math.sqrt(count)
    return SpeedUp(math.exp(middle), math.exp(middle - half), math.exp(middle + half), count)


def ratios(base: Sequence[float], other: Sequence[float]) -> list[float]:
    return [one / two for one, two in zip(base, other, strict=True)]
