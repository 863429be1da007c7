"""The score per stretch of windows that were cut from recordings (tandem/data/windows.py).

Neighbouring windows share rows and look alike, so an interval over windows would be too narrow. What is resampled is
what the split keeps together: a person or a recording, or else a stretch. N windows, C classes, S stretches, G groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.tasks import Read

LEVEL = 0.95
NUM_RESAMPLES = 2000
MIN_GROUPS = 3
# For simulated people with 12 stretches each, the interval covers the true score in 76% to 89% of the cases with three
# or four people, and in 91% to 93% with 5 to 12.
MIN_PEOPLE = 5


@dataclass(frozen=True)
class Stretches:
    """The stretch of each window of the test split, and its group, which is resampled."""

    names: np.ndarray  # (N,) text
    groups: np.ndarray  # (N,) int64
    resampled: str  # what is resampled, in words

    @classmethod
    def of(cls, summary: Mapping[str, Any], read: Read) -> "Stretches | None":
        """Return the stretches of the test split; None if its sequences are no windows. With fewer than MIN_PEOPLE
        people or recordings, their stretches are resampled.
        """
        if not (unit := summary.get("window_groups")):
            return None
        names, groups = read("test", "stretches"), read("test", "groups")
        num = len(np.unique(groups))
        if unit == "stretch":
            return cls(names, groups, "the stretches")
        if num >= MIN_PEOPLE:
            return cls(names, groups, f"the {num:,} {unit}s")
        only = f"the stretches of only {num} {unit}{'s' * (num > 1)}, so it does not cover other {unit}s"
        return cls(names, np.unique(names, return_inverse=True)[1], only)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """values (N, ...) -> (G, ...): their sums over each group."""
        return sums_by(self.groups, values)

    def is_right(self, shares: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return (S,): whether a stretch is classified correctly, by the mean of `shares` (N, C) over its windows."""
        _, first, stretch = np.unique(self.names, return_index=True, return_inverse=True)
        return np.asarray(sums_by(stretch, shares).argmax(axis=1) == targets[first])

    def score(self, shares: np.ndarray, targets: np.ndarray) -> tuple[dict[str, float], str]:
        """Return the metrics and a sentence about them."""
        is_right = self.is_right(shares, targets)
        _, first = np.unique(self.names, return_index=True)
        metrics = {"stretch_accuracy": float(is_right.mean())}
        words = f"no 95% interval, because a bootstrap needs at least {MIN_GROUPS} groups"
        if ends := interval(is_right, self.groups[first]):
            metrics |= {"stretch_accuracy_low": ends[0], "stretch_accuracy_high": ends[1]}
            words = f"95% interval {ends[0]:.4g} to {ends[1]:.4g}, bootstrap over {self.resampled}"
        right = f"{is_right.sum():,} of {len(is_right):,} test stretches are right by their windows' mean probability"
        return metrics, f"{right}: accuracy {metrics['stretch_accuracy']:.4g} ({words})"


def sums_by(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    _, group = np.unique(groups, return_inverse=True)
    sums = np.zeros((group.max() + 1, *values.shape[1:]))
    np.add.at(sums, group, values)
    return sums


def interval(is_right: np.ndarray, groups: np.ndarray) -> tuple[float, float] | None:
    """Return the 95% interval of the share of `is_right` (S,) by a seeded bootstrap over `groups` (S,).

    With few groups, the percentiles are widened as Student's interval is (Hesterberg 2015, The American Statistician
    69, 371-386, section 3.5). If all stretches are right, or all are wrong, the resamples do not differ, and the
    interval is that of Clopper and Pearson (1934, Biometrika 26, 404-413), with a group as a case. None for fewer than
    MIN_GROUPS groups.
    """
    from scipy.stats import binomtest, bootstrap, norm, t

    right, total = sums_by(groups, np.stack([is_right, np.ones(len(is_right))], axis=1)).T
    num = len(total)
    if num < MIN_GROUPS:
        return None
    if is_right.all() or not is_right.any():
        exact = binomtest(num if is_right.all() else 0, num).proportion_ci(LEVEL)
        return float(exact.low), float(exact.high)
    tail = float(norm.cdf((num / (num - 1)) ** 0.5 * t.ppf((1 - LEVEL) / 2, num - 1)))
    found = bootstrap(
        (right, total),
        lambda right, total, axis: right.sum(axis=axis) / total.sum(axis=axis),
        paired=True,
        n_resamples=NUM_RESAMPLES,
        confidence_level=1 - 2 * tail,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)
