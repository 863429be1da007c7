"""The tests: from the units of two sides, in pairs, to an interval of the difference of their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tandem.comparing.units import Rows
from tandem.tasks import statistics
from tandem.tasks.groups import Groups

MIN_SEEDS = 3  # for the variance over seeds; with two it has one degree of freedom
POWER = 0.80
ROUNDING = 1e-9  # a relative error below this is no spread


@dataclass(frozen=True)
class Measure:
    """The score of a task's predictions, and how they are read."""

    name: str  # empty: the name of the task's score
    unit: str
    is_larger_better: bool
    is_share: bool  # of right units: one pair of trainings gets McNemar's exact test
    read: Callable[[Sequence[Rows]], np.ndarray]  # R runs -> (R, N, ...)
    order: Callable[[Sequence[Rows]], list[str]]  # R runs -> (N,) the sequences
    score: Callable[[np.ndarray], np.ndarray] = statistics.ratio  # of the sums of `statistics.terms`

    def score_of(self, units: np.ndarray) -> float:
        """units (N, ...) -> the score."""
        return float(self.score(statistics.terms(units).sum(axis=0)))


@dataclass(frozen=True)
class TestResult:
    low: float | None  # 95% interval of the difference; None if there is no interval
    high: float | None
    p: float | None
    min_detectable_effect: float | None  # detected in 80% of such comparisons; None: no difference is
    method: str  # why there is no interval, if there is none


def no_interval(reason: str) -> TestResult:
    return TestResult(None, None, None, None, reason)


def compare_units(first: np.ndarray, second: np.ndarray, measure: Measure, cases: Groups) -> TestResult:
    """Compare the units (S, N, ...) of two sides, for each of S pairs of seeds. `cases`: what the interval is over.

    Seeds that change nothing count as one, so that they make the result no surer.
    """
    if cases.shortage:
        return no_interval(cases.shortage)
    if (first == first[0]).all() and (second == second[0]).all():
        first, second = first[:1], second[:1]
    if measure.is_share and len(first) == 1 and len(cases.sizes) == len(cases.names):
        return by_mcnemar(first[0], second[0])
    return by_jackknife(first, second, measure, cases)


def by_jackknife(first: np.ndarray, second: np.ndarray, measure: Measure, cases: Groups) -> TestResult:
    """Return Student's interval of the difference over the cases of the test split (`jackknife_error`): it holds for
    other people, sequences or times, not only for these.

    With three or more seeds it also includes the variance over seeds. Both variances contain that by which single cases
    differ from seed to seed, so it is subtracted once (Cameron, Gelbach and Miller 2011, Journal of Business and
    Economic Statistics 29, 238-249). The sum is never below the variance over cases: seeds that agree do not prove that
    there is no spread. The degrees of freedom are those of Satterthwaite 1946, Biometrics Bulletin 2, 110-114.
    """
    from scipy.special import stdtr

    num_seeds, method = len(first), f"Student's t, jackknife over {cases.count}"
    results = [statistics.jackknife(*sides, cases, measure.score) for sides in zip(second, first, strict=True)]
    by_seed, without = (np.array(values) for values in zip(*results, strict=True))  # (S,), (S, G)
    variances, freedoms = [statistics.jackknife_error(without.mean(axis=0)) ** 2], [cases.freedom]
    if num_seeds >= MIN_SEEDS:
        interaction = sum(statistics.jackknife_error(row) ** 2 for row in without - without.mean(axis=0))
        variances.append(max(0.0, float(by_seed.var(ddof=1) - interaction / (num_seeds - 1)) / num_seeds))
        freedoms.append(num_seeds - 1)
        method += f" and the variance over {num_seeds} seeds"
    center, error = float(by_seed.mean()), sum(variances) ** 0.5
    if error <= ROUNDING * abs(center):
        return no_interval(f"the difference is the same in all {cases.count}, which does not prove that others agree")
    terms = [variance**2 / freedom for variance, freedom in zip(variances, freedoms, strict=True)]
    freedom = sum(variances) ** 2 / sum(terms)
    p_value = float(2 * stdtr(freedom, -abs(center) / error))
    low, high = statistics.student_interval(center, error, freedom)
    return TestResult(low, high, p_value, num_errors_seen(freedom) * error, method)


@cache
def num_errors_seen(freedom: float) -> float:
    """Return the difference, in standard errors, that Student's test detects in 80% of cases.

    It is the shift at which a noncentral t exceeds the critical value that often; the other tail is negligible.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = float(t.ppf((1 + statistics.LEVEL) / 2, freedom))
    return float(brentq(lambda shift: nct.sf(critical, freedom, shift) - POWER, 1.0, 4 * critical))


def by_mcnemar(first: np.ndarray, second: np.ndarray) -> TestResult:
    """Return McNemar's exact test for one pair of trainings, whose units (N,) are 1 if right, else 0."""
    num_units, gained, lost = len(first), int((second > first).sum()), int((second < first).sum())
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
