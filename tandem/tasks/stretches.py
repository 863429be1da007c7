"""The score per stretch of windows that were cut from recordings (tandem/data/windows.py).

Neighbouring windows share rows and look alike, so an interval over windows would be too narrow. What is resampled is
what the split keeps together: a person or a recording, or else a stretch. N windows, C classes, S stretches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.tasks import ReadArray
from tandem.tasks.groups import Groups
from tandem.tasks.statistics import interval_of_share


@dataclass(frozen=True)
class Stretches:
    """The stretch of each window of the test split, and its group, which is resampled."""

    names: np.ndarray  # (N,) text
    groups: Groups  # of the windows
    unit: str  # what a group is: the column of people or recordings, or `stretch`

    @classmethod
    def of(cls, summary: Mapping[str, Any], read: ReadArray) -> "Stretches | None":
        """Return the stretches of the test split; None if its sequences are no windows."""
        groups, unit = Groups.of_test_split(summary, read), summary.get("window_groups")
        return cls(read("test", "stretches"), groups, unit) if groups and unit else None

    def is_right(self, shares: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return (S,): whether a stretch is classified correctly, by the mean of `shares` (N, C) over its windows."""
        _, first_windows = np.unique(self.names, return_index=True)
        return np.asarray(Groups(self.names).sums(shares).argmax(axis=1) == targets[first_windows])

    def score(self, shares: np.ndarray, targets: np.ndarray) -> tuple[dict[str, float], str]:
        """Return the metrics and a sentence about them."""
        is_right = self.is_right(shares, targets)
        _, first_windows = np.unique(self.names, return_index=True)
        metrics = {"stretch_accuracy": float(is_right.mean())}
        interval = f"no 95% interval: {self.groups.shortage}"
        if ends := interval_of_share(is_right, Groups(self.groups.names[first_windows])):
            metrics |= {"stretch_accuracy_low": ends[0], "stretch_accuracy_high": ends[1]}
            interval = f"95% interval {ends[0]:.4g} to {ends[1]:.4g} over {self.groups} ({self.unit})"
        result = f"{is_right.sum():,} of {len(is_right):,} test stretches are right by their windows' mean probability"
        return metrics, f"{result}: accuracy {metrics['stretch_accuracy']:.4g} ({interval})"
