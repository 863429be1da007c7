"""Intervals of a score whose test sequences come in groups: of one person, one device or one recording.

Sequences of one group are alike, so an interval over sequences is too narrow, and claims differences even if the labels
of the groups are random. Every interval of a score counts or resamples whole groups if the data has them
(`preprocess.groups`, `Arrays.groups`, windows of recordings). N sequences, G groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tandem.tasks import Evaluation, ReadArray

# For every interval. With five groups, a gain in all of them has a probability of 2/32 by chance, more than 5%.
MIN_GROUPS = 6
COLUMN = "group"  # of predictions.csv


@dataclass(frozen=True, eq=False)
class Groups:
    names: np.ndarray  # (N,) equal for sequences of one group
    num_seen: int = 0  # of the groups, which train or val has too, because the data's own split says so

    @classmethod
    def of_test_split(cls, summary: Mapping[str, Any], read: ReadArray) -> "Groups | None":
        """Return None if the data has no groups. `summary`: preprocess's."""
        if "num_groups" not in summary:
            return None
        names, seen_names = read("test", "groups"), [read(split, "groups") for split in ("train", "val")]
        return cls(names, len(np.intersect1d(names, np.concatenate(seen_names))))

    @cached_property
    def index(self) -> np.ndarray:
        """(N,) the number of each sequence's group, from 0."""
        return np.asarray(np.unique(self.names, return_inverse=True)[1])

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.bincount(self.index)

    @property
    def count(self) -> str:
        return f"{len(self.sizes):,} test group{'s' * (len(self.sizes) != 1)}"

    def __str__(self) -> str:
        how_many = "all" if self.num_seen == len(self.sizes) else f"{self.num_seen:,}"
        return self.count + (f", {how_many} of them in train or val too" if self.num_seen else "")

    @property
    def shortage(self) -> str:
        """Why there is no interval; empty if there are enough groups."""
        if len(self.sizes) >= MIN_GROUPS:
            return ""
        are = "are" if len(self.sizes) != 1 else "is"
        return f"{self.count} {are} too few for an interval, which needs {MIN_GROUPS}"

    @property
    def freedom(self) -> float:
        """The degrees of freedom of Student's t: one less than the number of groups, or less if their sizes differ.

        The effective number of groups is (sum of sizes)^2 / (sum of their squares), which Carter, Schnepel and
        Steigerwald 2017, The Review of Economics and Statistics 99, 698-709, derive for a mean. In simulations of
        random labels with 6 to 30 groups, the intervals with it make at most 6% false claims; without it 9%.
        """
        return max(float(self.sizes.sum() ** 2 / np.square(self.sizes).sum()) - 1, 1.0)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """values (N, ...) -> (G, ...): their sums over each group."""
        sums = np.zeros((len(self.sizes), *values.shape[1:]))
        np.add.at(sums, self.index, values)
        return sums


def name_groups(evaluation: Evaluation, summary: Mapping[str, Any], read: ReadArray) -> Evaluation:
    """Add the group of each sequence to the predictions, as the data names it. Trainings are compared by it later."""
    if "num_groups" in summary:
        names = dict(zip(map(str, read("test", "ids").tolist()), read("test", "group_names").tolist(), strict=True))
        for row in evaluation.predictions:
            if (sequence := str(row.get("sequence"))) in names:
                row[COLUMN] = names[sequence]
    return evaluation
