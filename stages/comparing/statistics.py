"""Statistics of measured times: lists of numbers in, estimates with their intervals out."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
# Of two pairs the interval would be more than nine times as wide as of five that scatter as much.
MIN_PAIRS = 3
MORE_PAIRS = "dvc exp run -S 'seeds=[0,1,2,3,4]'"


@dataclass(frozen=True)
class SpeedUp:
    """How many times as fast one side is as another, and the interval, where there are pairs enough for one."""

    ratio: float
    low: float | None
    high: float | None
    num_pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 1: one side is faster, beyond what the pairs scatter."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def missing_reason(self) -> str:
        """Why there is no interval, and how to get one; empty where there is one."""
        if self.low is not None:
            return ""
        count = "1 pair was" if self.num_pairs == 1 else f"{self.num_pairs} pairs were"
        return f"no interval: {count} measured and it takes {MIN_PAIRS}; `{MORE_PAIRS}` measures 5"

    def reversed(self) -> SpeedUp:
        """How many times as fast the other side is."""
        low, high = (None if bound is None else 1 / bound for bound in (self.high, self.low))
        return SpeedUp(1 / self.ratio, low, high, self.num_pairs)


def paired_speed_up(base_seconds: Sequence[float], other_seconds: Sequence[float]) -> SpeedUp:
    """How many times as fast `other` is as `base`: the geometric mean over the pairs, and its 95% interval.

    Each number is what one process took; numbers at the same place are of two processes that took turns. What slows
    both is gone from the logarithm of their ratio, and what differs from process to process is what these logarithms
    scatter by: the interval is Student's t on them (Student 1908, Biometrika 6), as wide as pairs of the same two sides
    would differ. Raises ValueError where there is no pair, or a number has no partner.
    """
    if not base_seconds or len(base_seconds) != len(other_seconds):
        raise ValueError(
            f"{len(base_seconds)} and {len(other_seconds)} processes were measured; a speed-up is of pairs, "
            "at least one, with a process of each side"
        )
    logs = [math.log(base / other) for base, other in zip(base_seconds, other_seconds, strict=True)]
    count, middle = len(logs), statistics.fmean(logs)
    if count < MIN_PAIRS:
        return SpeedUp(math.exp(middle), None, None, count)
    from scipy.special import stdtrit  # a third of a second, which nobody needs who has nothing to pair

    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(logs) / math.sqrt(count)
    return SpeedUp(math.exp(middle), math.exp(middle - half), math.exp(middle + half), count)


def speed_up(slower: list[float], faster: list[float]) -> tuple[float, float, float]:
    """(low, ratio, high): the ratio of the median epoch times, and its 95% interval.

    Percentile bootstrap (Efron and Tibshirani 1993, chapter 13), seeded. It takes the epochs of a process for
    independent, which they are not, and sees nothing of what differs between processes: `paired_speed_up` does.
    """
    draw = random.Random(0)
    ratios = sorted(
        statistics.median(draw.choices(slower, k=len(slower))) / statistics.median(draw.choices(faster, k=len(faster)))
        for _ in range(NUM_RESAMPLES)
    )
    ratio = statistics.median(slower) / statistics.median(faster)
    return ratios[int(0.025 * NUM_RESAMPLES)], ratio, ratios[int(0.975 * NUM_RESAMPLES)]
