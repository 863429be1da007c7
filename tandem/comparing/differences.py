"""Computes the difference between the scores of two sides from their predictions, and whether chance explains it.

A side is one training, or several with different seeds: {seed: the rows of its predictions.csv}. Both sides are scored
on the same test split, so everything is paired.

The interval is over the cases of the test split: its sequences or windows, or their groups if they have some
(tandem/tasks/groups.py), and with three or more seeds in common over the seeds too. Predictions of one sequence by
several seeds are not independent, so they are never pooled: a sequence counts once, with the mean over its seeds. With
fewer seeds the interval describes these trained models only. With too few cases there is none, and the comparison
decides nothing.

"No difference" is claimed only if the whole 95% interval lies inside a margin (two one-sided tests at 2.5% each:
Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15, 657-680).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem.comparing.paired_tests import (
    MIN_SEEDS,
    Measure,
    TestResult,
    compare_units,
    no_interval,
)
from tandem.comparing.units import (
    Rows,
    groups_of,
    names_in_first,
    read_classes,
    read_classified,
    read_detected,
    read_forecast,
    read_regressed,
    read_scores,
    sorted_names,
)
from tandem.tasks.groups import COLUMN, Groups
from tandem.tasks.scores import macro_f1_of_sums

MIN_SEEDS_OF_MARGIN = 5
MARGIN_DEVIATIONS = 2.0
NO_COLUMN = f"predictions.csv has no column `{COLUMN}`, which names the group of each sequence; evaluate the runs again"


@dataclass(frozen=True)
class Margin:
    """The largest difference that does not matter, in the score's unit, and the origin of that number."""

    value: float
    reason: str


def margin_of_seeds(*sides: Sequence[float]) -> Margin | None:
    """Return twice the standard deviation over seeds; None if no side has five.

    Of pairs of trainings that differ only in the seed, one in six is further apart than this. If several sides have
    five seeds or more, the deviation is the root of their mean variance.
    """
    usable_sides = [scores for scores in sides if len(scores) >= MIN_SEEDS_OF_MARGIN]
    deviation = float(np.sqrt(np.mean([np.var(scores, ddof=1) for scores in usable_sides]))) if usable_sides else 0.0
    if not deviation:
        return None
    counts = " and ".join(str(len(scores)) for scores in usable_sides)
    return Margin(MARGIN_DEVIATIONS * deviation, f"twice the standard deviation over {counts} seeds")


@dataclass(frozen=True)
class Difference(TestResult):
    """The second side's score minus the first's, with its interval and verdict."""

    measure: str  # "accuracy", "event F1", "MAE"
    is_larger_better: bool
    first: dict[int, float]  # seed -> score, for the paired seeds
    second: dict[int, float]
    unit: str  # the cases of the test split: "sequences", "windows"
    num_units: int
    groups: str  # "9 test groups": what the interval is over; empty if the units have no groups
    is_equal: bool  # every unit is scored the same on both sides, with every seed
    difference: float
    margin: Margin | None

    @property
    def verdict(self) -> str:
        """`equal`, `equivalent` (inside the margin), `different` or `inconclusive`."""
        if self.is_equal:
            return "equal"
        if self.low is None or self.high is None:
            return "inconclusive"
        if self.margin and -self.margin.value < self.low and self.high < self.margin.value:
            return "equivalent"
        return "inconclusive" if self.low <= 0 <= self.high else "different"

    @property
    def exceeds_margin(self) -> bool:
        """Whether the whole interval lies outside the margin."""
        if self.margin is None or self.low is None or self.high is None:
            return False
        return self.low > self.margin.value or self.high < -self.margin.value

    @property
    def interval(self) -> str:
        """The interval as text, or why there is none."""
        if self.low is None or self.high is None:
            return f"no 95% interval: {self.method}"
        return f"95% interval {self.signed(self.low)} to {self.signed(self.high)}{self.over_groups}"

    @property
    def over_groups(self) -> str:
        return f" over {self.groups}" if self.groups else ""

    def sentence(self, first: str, second: str) -> str:
        """Return the scores, the result and how it was found. `first` and `second` are the names of the sides."""
        scores = [mean_and_range(list(side.values()), self.number) for side in (self.first, self.second)]
        sides = f"{self.measure} {scores[0]} on {first}, {scores[1]} on {second}"
        return "; ".join([f"{sides}. {self.summary(first, second)}", *self.details])

    def summary(self, first: str, second: str) -> str:
        """Return the result in a few words."""
        if self.is_equal:
            return f"Scores equal in all {self.num_units:,} {self.unit}"
        if self.low is None or self.high is None:
            return f"{self.measure}: {second} {self.signed(self.difference)}, {self.interval}"
        if self.verdict == "different":
            better = second if (self.difference > 0) == self.is_larger_better else first
            gap, low, high = (self.number(abs(value)) for value in (self.difference, self.low, self.high))
            low, high = (low, high) if self.difference > 0 else (high, low)
            return f"{better} better in {self.measure} by {gap} (95% interval {low} to {high}{self.over_groups})"
        message = "No difference that matters" if self.verdict == "equivalent" else "No difference detected"
        return f"{message} in {self.measure}: {second} {self.signed(self.difference)} ({self.interval})"

    @property
    def details(self) -> Iterator[str]:
        """What the summary leaves out: the test, and what it cannot show."""
        if self.low is not None and not self.is_equal:
            yield self.method
            if self.p is not None:
                yield "p < 0.0001" if self.p < 1e-4 else f"p {self.p:.2g}"
            if self.margin:
                yield f"the margin of equality is {self.number(self.margin.value)}, {self.margin.reason}"
            if self.verdict == "inconclusive":
                effect = self.min_detectable_effect
                missed = "any difference" if effect is None else f"a difference smaller than {self.number(effect)}"
                yield f"this comparison would miss {missed} in more than one of five repetitions"
        if len(self.first) < MIN_SEEDS:
            seeds = "two seeds" if len(self.first) == 2 else "one seed"
            yield f"this compares trained models ({seeds} each), without the variation between seeds"

    def number(self, value: float) -> str:
        return f"{value:.4f}" if self.is_larger_better else f"{value:.4g}"

    def signed(self, value: float) -> str:
        return f"{value:+.4f}" if self.is_larger_better else f"{value:+.3g}"


def mean_and_range(scores: Sequence[float], show: Callable[[float], str] = "{:.4f}".format) -> str:
    """Return e.g. `0.9556 (0.9444 to 0.9667 over 5 seeds)`; only the score if there is one."""
    mean = show(float(np.mean(scores)))
    if len(scores) == 1:
        return mean
    return f"{mean} ({show(min(scores))} to {show(max(scores))} over {len(scores)} seeds)"


def difference(
    paired: str,
    first: Mapping[int, Rows],
    second: Mapping[int, Rows],
    margin: Margin | None = None,
    score_name: str = "score",
    has_groups: bool = False,
) -> Difference:
    """Compare two sides. `first` and `second`: {seed: rows of predictions.csv}; `paired`: a key of MEASURES, which the
    task states and score.json records; `score_name`: the name of numbers that a task scores itself; `has_groups`:
    whether the sequences have groups, which are then a column of the predictions.

    Two single trainings are compared whatever their seeds are; otherwise only seeds that both sides have are compared.
    Raises ValueError if the score has no test here, if the sides have no seed in common, or if the test splits differ.
    """
    measure = measure_of(paired, score_name)
    seed_pairs = paired_seeds(list(first), list(second))
    runs = [*first.values(), *second.values()]
    unit_scores = measure.read(runs)
    places = [(list(first).index(seed), len(first) + list(second).index(other_seed)) for seed, other_seed in seed_pairs]
    first_units, second_units = (unit_scores[list(indices)] for indices in zip(*places, strict=True))
    num_units, groups = unit_scores.shape[1], None
    if has_groups:
        cases = groups = groups_of(runs, measure.order(runs))
    elif measure.unit == "windows":
        cases = Groups.of_neighbours(num_units, horizon=len(runs[0]) // num_units)
    else:
        cases = Groups.of_each(num_units)
    result = compare_units(first_units, second_units, measure, cases) if cases else no_interval(NO_COLUMN)
    scores = [[measure.score_of(run_units) for run_units in side] for side in (first_units, second_units)]
    return Difference(
        **vars(result),
        measure=measure.name,
        is_larger_better=measure.is_larger_better,
        first={seed: score for (seed, _), score in zip(seed_pairs, scores[0], strict=True)},
        second={seed: score for (_, seed), score in zip(seed_pairs, scores[1], strict=True)},
        unit=measure.unit,
        num_units=num_units,
        groups=str(groups) if groups else "",
        is_equal=bool((first_units == second_units).all()),
        difference=float(np.subtract(scores[1], scores[0]).mean()),
        margin=margin,
    )


def measured_scores(paired: str, side: Mapping[int, Rows], score_name: str) -> dict[int, float]:
    """Return the scores that `difference` compares, by seed: the task's score, or the MAE for a forecast."""
    measure = measure_of(paired, score_name)
    return {seed: measure.score_of(units) for seed, units in zip(side, measure.read(list(side.values())), strict=True)}


def measure_of(paired: str, score_name: str) -> Measure:
    if paired not in MEASURES:
        raise ValueError(f"there is no test for the scores {paired!r}; accepted: {', '.join(MEASURES)}")
    measure = MACRO_F1 if (paired, score_name) == ("correct", "macro_f1") else MEASURES[paired]
    return measure if measure.name else replace(measure, name=score_name)


def paired_seeds(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    common = [(seed, seed) for seed in first if seed in second]
    if not common:
        seeds = " vs ".join(", ".join(map(str, side)) for side in (first, second))
        raise ValueError(f"the compared runs have no seed in common ({seeds})")
    return common


# Of a task that is derived from classify and scored by it.
MACRO_F1 = Measure("macro F1", "sequences", True, False, read_classes, names_in_first, macro_f1_of_sums)
# By what the task states as `paired`. Numbers are compared by MAE: a forecast's skill is 1 - MAE / persistence's MAE,
# and R2 depends on a few large errors.
MEASURES = {
    "correct": Measure("accuracy", "sequences", True, True, read_classified, names_in_first),
    "events": Measure("event F1", "sequences", True, False, read_detected, sorted_names, macro_f1_of_sums),
    "errors": Measure("MAE", "sequences", False, False, read_regressed, names_in_first),
    "window errors": Measure("MAE", "windows", False, False, read_forecast, names_in_first),
    "scores": Measure("", "sequences", True, False, read_scores, names_in_first),
}
