"""The cases of an interval: groups of test sequences (of one person, one device or one recording), else the sequences,
or blocks of a forecast's neighbouring windows.

Sequences of one group are alike, so an interval over sequences is too narrow, and claims differences even if the labels
of the groups are random. Every interval of a score counts or resamples whole groups if the data has them
(`preprocess.groups`, `Arrays.groups`, windows of recordings). N sequences, G groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np

from tandem.tasks import Evaluation, ReadArray

# Cases of every interval. With five, a gain in all of them has a probability of 2/32 by chance, more than 5%.
MIN_CASES = 6
COLUMN = "group"  # of predictions.csv


@dataclass(frozen=True, eq=False)
class Groups:
    names: np.ndarray  # (N,) equal for sequences of one group
    num_seen: int = 0  # of the groups, which train or val has too, because the data's own split says so
    noun: str = "test group{}"  # {}: the plural's s

    @classmethod
    def of_each(cls, num_sequences: int) -> "Groups":
        """Each sequence is a case."""
        return cls(np.arange(num_sequences), noun="test sequence{}")

    @classmethod
    def of_neighbours(cls, num_windows: int, horizon: int) -> "Groups":
        """Blocks of sqrt(N) or more neighbouring windows, because these share most of their steps (Carlstein 1986, The
        Annals of Statistics 14, 1171-1179). A block is at least as long as a forecast.
        """
        num_blocks = max(1, num_windows // max(1, isqrt(num_windows), horizon))
        numbers = np.arange(num_windows) * num_blocks // max(1, num_windows)
        return cls(numbers, noun=f"block{{}} of {num_windows // num_blocks:,} test windows")

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
        return f"{len(self.sizes):,} {self.noun.format('s' * (len(self.sizes) != 1))}"

    def __str__(self) -> str:
        how_many = "all" if self.num_seen == len(self.sizes) else f"{self.num_seen:,}"
        return self.count + (f", {how_many} of them in train or val too" if self.num_seen else "")

    @property
    def shortage(self) -> str:
        """Why there is no interval; empty if there are enough groups."""
        if len(self.sizes) >= MIN_CASES:
            return ""
        are = "are" if len(self.sizes) != 1 else "is"
        return f"{self.count} {are} too few for an interval, which needs {MIN_CASES}"

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
