"""Statistics of measured times: lists of numbers in, estimates with their intervals out."""

import random
import statistics

NUM_RESAMPLES = 2000


def speed_up(slower: list[float], faster: list[float]) -> tuple[float, float, float]:
    """(low, ratio, high): the ratio of the median epoch times, and its 95% interval.

    Percentile bootstrap (Efron and Tibshirani 1993, chapter 13), seeded.
    """
    draw = random.Random(0)
    ratios = sorted(
        statistics.median(draw.choices(slower, k=len(slower))) / statistics.median(draw.choices(faster, k=len(faster)))
        for _ in range(NUM_RESAMPLES)
    )
    ratio = statistics.median(slower) / statistics.median(faster)
    return ratios[int(0.025 * NUM_RESAMPLES)], ratio, ratios[int(0.975 * NUM_RESAMPLES)]
