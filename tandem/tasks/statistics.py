"""95% intervals of scores, gains and differences, by Student's t, the jackknife and the bootstrap.

The random numbers are drawn with a fixed seed. Another order of drawing gives other intervals, so it changes results.
N sequences, G groups, R resamples.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tandem.tasks.groups import MIN_CASES, Groups

LEVEL = 0.95
NUM_RESAMPLES = 2000
MIN_CALLS, MAX_CALLS = 100, 1000  # of a workload's metric, one for each resample
MAX_CELLS = 1e8  # of all resamples for these calls together: large splits get fewer
MAX_FAILED = 0.05  # share of the resamples; an interval without them would be too narrow


def student_interval(center: float, error: float, freedom: float, level: float = LEVEL) -> tuple[float, float]:
    """Return the interval of a mean. `error`: its standard error. scipy's t tests warn where all values are equal,
    so this uses only the distribution.
    """
    from scipy.special import stdtrit  # takes a third of a second; training does not need it

    half = float(stdtrit(freedom, (1 + level) / 2)) * error
    return center - half, center + half


def percentiles(resampled: Any, freedom: float) -> tuple[float, float]:
    """resampled (R,) -> the interval, as wide as Student's with few cases (Hesterberg 2015, The American Statistician
    69, 371-386, section 3.5). `freedom`: as for the mean of the cases.
    """
    from scipy.special import ndtr, stdtrit

    tail = float(ndtr((1 + 1 / freedom) ** 0.5 * stdtrit(freedom, (1 - LEVEL) / 2)))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)


def jackknife_error(without: np.ndarray) -> float:
    """Return a score's standard error. without (G,): the score without each group, or without each sequence.

    Efron and Stein 1981, The Annals of Statistics 9, 586-596; for groups, MacKinnon, Nielsen and Webb 2023, Journal of
    Econometrics 232, 272-299 (CV3), who use Student's t with it. That test makes at most 5% false claims even if the
    groups scatter unequally (Ibragimov and Mueller 2010, Journal of Business and Economic Statistics 28, 453-468).
    """
    return float(np.sqrt((len(without) - 1) * without.var()))


def terms(scores: np.ndarray) -> np.ndarray:
    """Return what is summed over sequences: (N, 2) for scores (N,), the terms of `ratio`; else the scores (N, ...)."""
    return np.stack([scores, np.ones(len(scores))], axis=1) if scores.ndim == 1 else scores


def ratio(sums: np.ndarray) -> np.ndarray:
    """A score that is a mean: sums (..., 2) of the sequences' scores and of ones -> (...,)."""
    return sums[..., 0] / sums[..., 1]


def jackknife(
    own: np.ndarray, other: np.ndarray, cases: Groups, score: Callable[[np.ndarray], np.ndarray] = ratio
) -> tuple[float, np.ndarray]:
    """Return the gain of one prediction over another on the same test sequences, and (G,) the gain without each case.

    own, other: each sequence's score (N,), or its contribution (N, ...) to the sums from which `score` is computed;
    `score` accepts any number of sums (..., ).
    """
    own, other = (cases.sums(terms(scores)) for scores in (own, other))
    gain = float(score(own.sum(axis=0)) - score(other.sum(axis=0)))
    return gain, score(own.sum(axis=0) - own) - score(other.sum(axis=0) - other)


def interval_of_gain(
    own: np.ndarray,
    other: np.ndarray,
    groups: Groups | None = None,
    score: Callable[[np.ndarray], np.ndarray] = ratio,
    largest: float = 1.0,
) -> tuple[float, float] | None:
    """Return the jackknife interval of the gain of one prediction over another (`jackknife`).

    The difference is recomputed without each sequence, or without each of `groups`, so sequences that are hard for both
    change it little (`jackknife_error`; Student's t of `Groups.freedom`). `largest`: the largest possible gain, 1 for
    scores from 0 to 1; the interval ends there. None for fewer than MIN_CASES sequences or groups.
    """
    cases = groups or Groups.of_each(len(own))
    if cases.shortage:
        return None
    gain, without = jackknife(own, other, cases, score)
    low, high = student_interval(gain, jackknife_error(without), cases.freedom)
    return max(-largest, low), min(largest, high)


def interval_of_skill(levels: np.ndarray, persistence: np.ndarray, actual: np.ndarray) -> tuple[float, float] | str:
    """Return the jackknife interval of the skill of forecasts (N, H) over blocks of time (`Groups.of_neighbours`).

    Return the reason if there is no interval: too few blocks, or too few in which persistence makes an error.
    """
    own, base = (np.abs(part - actual).mean(axis=1) for part in (levels, persistence))
    blocks = Groups.of_neighbours(*actual.shape)
    if blocks.shortage:
        return blocks.shortage
    num_wrong = int((blocks.sums(base) > 0).sum())
    if num_wrong < MIN_CASES:
        return f"the simple forecast makes an error in {num_wrong} of {blocks.count}; an interval needs {MIN_CASES}"
    own, base = (np.stack([errors, base], axis=1) for errors in (own, base))
    interval = interval_of_gain(own, base, blocks, lambda sums: 1 - ratio(sums), largest=math.inf)
    assert interval
    return interval[0], min(1.0, interval[1])


def interval_of_share(is_right: np.ndarray, groups: Groups) -> tuple[float, float] | None:
    """Return the interval of the share of `is_right` (N,) by a bootstrap over `groups` (Efron 1979, The Annals of
    Statistics 7, 1-26).

    If all are right, or all are wrong, the resamples do not differ, and the interval is that of Clopper and Pearson
    (1934, Biometrika 26, 404-413), with a group as a case. None for too few groups.
    """
    from scipy.stats import binomtest

    if groups.shortage:
        return None
    sums = groups.sums(terms(is_right))
    if is_right.all() or not is_right.any():
        exact = binomtest(len(sums) if is_right.all() else 0, len(sums)).proportion_ci(LEVEL)
        return float(exact.low), float(exact.high)
    drawn = np.random.default_rng(0).integers(len(sums), size=(NUM_RESAMPLES, len(sums)))
    return percentiles(ratio(sums[drawn].sum(axis=1)), groups.freedom)


def interval_of_difference(gained: int, lost: int, num: int) -> tuple[float, float]:
    """Return the score interval of the difference of two paired proportions (Tango 1998, Statistics in Medicine 17,
    891-908).

    It is also valid for few discordant pairs: with none of N it is +-z^2 / (N + z^2), not a point.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    z = float(norm.ppf((1 + LEVEL) / 2))

    def distance(delta: float) -> float:
        """Return Tango's statistic at `delta`, using the restricted maximum-likelihood estimate of the lost share."""
        b = -gained - lost + (2 * num - gained + lost) * delta
        c = -lost * delta * (1 - delta)
        share = ((b * b - 8 * num * c) ** 0.5 - b) / (4 * num)
        variance = num * (2 * share + delta * (1 - delta))
        gap = gained - lost - num * delta
        return gap / max(variance, 1e-300) ** 0.5

    center = (gained - lost) / num
    edge = 1 - 1e-12
    low = -1.0 if distance(-edge) < z else brentq(lambda delta: distance(delta) - z, -edge, center)
    high = 1.0 if distance(edge) > -z else brentq(lambda delta: distance(delta) + z, center, edge)
    return low, high


def agreeing_with(p: float, interval: tuple[float, float]) -> tuple[float, float]:
    """Widen the interval of a difference to 0 if an exact test, which is stricter, finds no difference (`p`)."""
    low, high = interval
    return (min(low, 0.0), max(high, 0.0)) if p >= 1 - LEVEL else interval


def mcnemar(gained: int, lost: int) -> float:
    """Return p of the exact test that cases change from wrong to right as often as back (McNemar 1947)."""
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5))) if gained + lost else 1.0


def num_resamples(predictions: np.ndarray, mask: np.ndarray) -> int:
    return int(np.clip(MAX_CELLS // max(1, predictions.size + mask.size), MIN_CALLS, MAX_CALLS))


def interval_of_metric(
    function: Callable[..., Any], predictions: np.ndarray, targets: np.ndarray, mask: np.ndarray, cases: Groups
) -> tuple[float, float] | str:
    """Return the percentile interval of any metric by a bootstrap over the cases.

    Return the reason if there is no interval: too few cases; the metric fails, or is not finite, in more than
    MAX_FAILED of the resamples, because some lack a class; or all resamples are equal, which does not prove that there
    is no spread.
    """
    if cases.shortage:
        return cases.shortage
    generator, values = np.random.default_rng(0), list[float]()
    num_drawn = num_resamples(predictions, mask)
    members = np.split(np.argsort(cases.index, kind="stable"), np.cumsum(cases.sizes)[:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of resamples that lack a class
        for _ in range(num_drawn):
            drawn = generator.integers(len(members), size=len(members))
            rows = np.concatenate([members[number] for number in drawn])
            try:
                value = float(function(predictions[rows], targets[rows], mask[rows]))
            except Exception:
                continue
            if math.isfinite(value):
                values.append(value)
    if len(values) < (1 - MAX_FAILED) * num_drawn:
        return f"the metric fails in {num_drawn - len(values):,} of {num_drawn:,} resamples"
    low, high = percentiles(values, cases.freedom)
    return (low, high) if low < high else "it is the same in nearly all resamples"
