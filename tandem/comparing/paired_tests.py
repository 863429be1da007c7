"""The tests: from the units of two sides, in pairs, to an interval of the difference of their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from tandem.comparing.units import Rows
from tandem.tasks import statistics
from tandem.tasks.groups import Groups

MIN_SEEDS = 3  # for an interval over seeds; with two it is twelve times as wide as the spread
POWER = 0.80


@dataclass(frozen=True)
class Measure:
    """The score of a task's predictions, and the test that compares two sides."""

    name: str  # empty: the name of the task's score
    unit: str
    is_larger_better: bool
    moves_in_steps: bool  # the score is a count of units divided by their number
    read: Callable[[Sequence[Rows]], np.ndarray]  # R runs -> (R, N, ...)
    order: Callable[[Sequence[Rows]], list[str]]  # R runs -> (N,) the sequences
    score: Callable[[np.ndarray], float]  # of units (N, ...)
    test: Callable[[Pairs], TestResult]


@dataclass(frozen=True)
class TestResult:
    low: float | None  # 95% interval of the difference; None if there is no interval
    high: float | None
    p: float | None
    min_detectable_effect: float | None  # detected in 80% of such comparisons; None: no difference is
    method: str  # why there is no interval, if there is none


@dataclass(frozen=True)
class Pairs:
    """The same units (N, ...) scored on both sides, once for each of S pairs of seeds."""

    first: np.ndarray  # (S, N, ...)
    second: np.ndarray
    measure: Measure

    @cached_property
    def by_seed(self) -> np.ndarray:
        return self.difference_of(slice(None))

    def difference_of(self, index: Any) -> np.ndarray:
        """Return (S,) second - first, over the units that `index` selects."""
        score = self.measure.score
        return np.array(
            [score(second[index]) - score(first[index]) for first, second in zip(self.first, self.second, strict=True)]
        )


def over_seeds(pairs: Pairs) -> TestResult:
    """Return Student's interval over the differences of S pairs of seeds."""
    num_pairs = len(pairs.by_seed)
    method = f"Student's t over {num_pairs} differences, paired by seed, on this test split"
    return by_student(pairs, error_over_seeds(pairs), num_pairs - 1, method)


def error_over_seeds(pairs: Pairs) -> float:
    """Return the standard error of the mean difference over seeds.

    If the score moves in steps of one sequence, the deviation is at least that of rounding to a step (Sheppard 1898):
    three differences that are equal by chance do not prove that there is no spread.
    """
    differences = pairs.by_seed
    step = 1 / pairs.first.shape[1] if pairs.measure.moves_in_steps else 0.0
    return max(float(differences.std(ddof=1)), step / 12**0.5) / len(differences) ** 0.5


def by_groups(pairs: Pairs, groups: Groups) -> TestResult:
    """Return Student's interval over the groups of the sequences (`jackknife_error`): other people, not only other
    sequences of these people. With three or more seeds, it also includes the variance over seeds; its degrees of
    freedom are those of Satterthwaite 1946, Biometrics Bulletin 2, 110-114.

    As over seeds, groups that agree by chance do not prove that there is no spread: if the score moves in steps of one
    sequence, a group's mean moves in steps of one of its sequences.
    """
    if groups.shortage:
        return TestResult(None, None, None, None, groups.shortage)
    num_groups, num_seeds = len(groups.sizes), len(pairs.by_seed)
    without = np.array([pairs.difference_of(groups.index != number).mean() for number in range(num_groups)])
    step = num_groups / len(groups.names) if pairs.measure.moves_in_steps else 0.0
    error, freedom = max(statistics.jackknife_error(without), step / (12 * num_groups) ** 0.5), groups.freedom
    method = "jackknife over groups"
    if num_seeds >= MIN_SEEDS:
        variances = np.array([error, error_over_seeds(pairs)]) ** 2
        error, method = float(variances.sum() ** 0.5), f"{method} and the variance over {num_seeds} seeds"
        if error:
            freedom = float(variances.sum() ** 2 / (variances**2 / [freedom, num_seeds - 1]).sum())
    return by_student(pairs, error, freedom, f"Student's t, {method}")


def by_student(pairs: Pairs, error: float, freedom: float, method: str) -> TestResult:
    """Return Student's interval of the mean difference. `error`: its standard error."""
    from scipy.special import stdtr

    center = float(pairs.by_seed.mean())
    p_value = float(2 * stdtr(freedom, -abs(center) / error)) if error else None
    low, high = statistics.student_interval(center, error, freedom)
    return TestResult(low, high, p_value, num_errors_seen(freedom) * error or None, method)


@cache
def num_errors_seen(freedom: float) -> float:
    """Return the difference, in standard errors, that Student's test detects in 80% of cases.

    It is the shift at which a noncentral t exceeds the critical value that often; the other tail is negligible.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = float(t.ppf((1 + statistics.LEVEL) / 2, freedom))
    return float(brentq(lambda shift: nct.sf(critical, freedom, shift) - POWER, 1.0, 4 * critical))


def by_mcnemar(pairs: Pairs) -> TestResult:
    """Return McNemar's exact test for one pair of trainings; with two pairs, resample the sequences."""
    if len(pairs.first) > 1:
        return resample_sequences(pairs)
    num_units = pairs.first.shape[1]
    gained, lost = int((pairs.second > pairs.first).sum()), int((pairs.second < pairs.first).sum())
    p_value = statistics.mcnemar(gained, lost)
    low, high = statistics.agreeing_with(p_value, statistics.interval_of_difference(gained, lost, num_units))
    method = f"exact McNemar test, {gained + lost:,} of {num_units:,} sequences differ"
    return TestResult(
        low, high, p_value, min_detectable_effect_by_mcnemar((gained + lost) / num_units, num_units), method
    )


def min_detectable_effect_by_mcnemar(discordant: float, num: int) -> float | None:
    """Return the difference of two accuracies that McNemar's test detects in 80% of cases (Connor 1987, Biometrics 43,
    207-211).

    `discordant`: the share of the `num` pairs that differ. None if no difference is detected so often.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    z_level, z_power = float(norm.ppf((1 + statistics.LEVEL) / 2)), float(norm.ppf(POWER))

    def excess(delta: float) -> float:
        share = max(discordant, delta)  # at least this share of the pairs differs
        return num * delta**2 - (z_level * share**0.5 + z_power * max(share - delta**2, 0.0) ** 0.5) ** 2

    return float(brentq(excess, 1e-9, 1.0)) if excess(1.0) > 0 else None


def resample_sequences(pairs: Pairs) -> TestResult:
    """Percentile bootstrap over the sequences, each with the outputs of both sides (Efron and Tibshirani 1993)."""
    num_units = pairs.first.shape[1]
    bootstrap = statistics.bootstrap(lambda index: float(pairs.difference_of(index).mean()), np.arange(num_units))
    low, high = map(float, bootstrap.confidence_interval)
    method = f"paired bootstrap over {num_units:,} {pairs.measure.unit}"
    return TestResult(low, high, None, min_detectable_effect(float(bootstrap.standard_error)), method)


def resample_blocks(pairs: Pairs) -> TestResult:
    """Percentile bootstrap over blocks of sqrt(N) neighbouring windows, because these share most of their steps.
    With few blocks the interval is widened (`student_tail`).
    """
    differences = (pairs.second - pairs.first).mean(axis=0)
    num_windows = len(differences)
    size = max(1, round(num_windows**0.5))
    num_blocks = -(-num_windows // size)
    (sums,) = statistics.block_sums(differences, size=size, wraps=True)
    means = sums / (num_blocks * size)
    low, high = statistics.percentiles(means, statistics.student_tail(max(num_blocks - 1, 1)))
    method = f"paired bootstrap over blocks of {size} of the {num_windows:,} windows"
    return TestResult(low, high, None, min_detectable_effect(float(means.std(ddof=1))), method)


def min_detectable_effect(standard_error: float) -> float | None:
    """Return the difference for which an interval with this standard error excludes 0 in 80% of cases."""
    from scipy.stats import norm

    return float((norm.ppf((1 + statistics.LEVEL) / 2) + norm.ppf(POWER)) * standard_error) or None
