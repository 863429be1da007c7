"""Computes the difference between the scores of two sides from their predictions, and whether chance explains it.

A side is one training, or several with different seeds: {seed: the rows of its predictions.csv}. Both sides are scored
on the same test split, so everything is paired.

With three or more seeds in common, the interval is over the differences per seed: predictions of one sequence by
several seeds are not independent, so they are never pooled. With fewer seeds it is over the sequences or windows of the
test split, and describes these trained models only. With two seeds, a sequence counts once, with the mean over both.

If the sequences have groups (tandem/tasks/groups.py), the interval is over the groups, for any number of seeds, and
with three or more seeds over both. With too few groups there is none, and the comparison decides nothing.

"No difference" is claimed only if the whole 95% interval lies inside a margin (two one-sided tests at 2.5% each:
Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15, 657-680).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any

import numpy as np

from tandem.tasks import statistics
from tandem.tasks.groups import COLUMN, Groups
from tandem.tasks.scores import macro_f1_of_sums

Rows = Sequence[Mapping[str, Any]]  # of predictions.csv: strings as csv gives them, or the values themselves

MIN_SEEDS = 3  # for an interval over seeds; with two it is twelve times as wide as the spread
MIN_SEEDS_OF_MARGIN = 5
MARGIN_DEVIATIONS = 2.0
POWER = 0.80
# Recorded levels come from `exp`, which differs in the last digits between processors.
SAME_LEVEL = 1e-6
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
class TestResult:
    low: float | None  # 95% interval of the difference; None if there is no interval
    high: float | None
    p: float | None
    min_detectable_effect: float | None  # detected in 80% of such comparisons; None: no difference is
    method: str  # why there is no interval, if there is none


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
        """Return the result as a sentence. `first` and `second` are the names of the sides."""
        scores = [mean_and_range(list(side.values()), self.number) for side in (self.first, self.second)]
        sides = f"{self.measure} {scores[0]} on {first}, {scores[1]} on {second}"
        if self.is_equal:
            return f"{sides}: the scores of all {self.num_units:,} test {self.unit} are equal{self.num_seeds_note}"
        p_text = "" if self.p is None else ", p < 0.0001" if self.p < 1e-4 else f", p {self.p:.2g}"
        method = "" if self.low is None else f"{p_text}; {self.method}"
        estimate = f"{self.signed(self.difference)} ({self.interval}{method})"
        return f"{sides}: {estimate}. {self.conclusion(first, second)}{self.num_seeds_note}"

    def summary(self, first: str, second: str) -> str:
        """Return the sentence in a few words."""
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

    def conclusion(self, first: str, second: str) -> str:
        if self.low is None:
            return "Without an interval, neither a difference nor equality is shown"
        margin = f"the margin of {self.number(self.margin.value)} ({self.margin.reason})" if self.margin else ""
        if self.verdict == "equivalent":
            return f"No difference that matters: the whole interval lies within {margin}"
        if self.verdict == "different":
            better = "better" if (self.difference > 0) == self.is_larger_better else "worse"
            if len(self.first) >= MIN_SEEDS:
                return f"They differ: {second} is {better} than {first}"
            return f"The trained models differ: {second} is {better} than {first}"
        note = f"this comparison cannot detect any difference with so few {'groups' if self.groups else self.unit}"
        if self.min_detectable_effect is not None:
            effect = self.number(self.min_detectable_effect)
            note = f"this comparison would miss a difference smaller than {effect} in more than one of five repetitions"
        margin_note = f"; equality is not shown either, because the interval exceeds {margin}" if margin else ""
        return f"No difference detected: {note}{margin_note}"

    @property
    def num_seeds_note(self) -> str:
        if len(self.first) >= MIN_SEEDS:
            return ""
        seeds = "two seeds" if len(self.first) == 2 else "one seed"
        return f". This compares trained models ({seeds} each); it does not include the variation between seeds"

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
    units = measure.read(runs)
    places = [(list(first).index(seed), len(first) + list(second).index(other_seed)) for seed, other_seed in seed_pairs]
    first_units, second_units = (units[list(indices)] for indices in zip(*places, strict=True))
    pairs = Pairs(first_units, second_units, measure)
    groups = groups_of(runs, measure.order(runs)) if has_groups else None
    if has_groups:
        result = by_groups(pairs, groups) if groups else TestResult(None, None, None, None, NO_COLUMN)
    else:
        result = over_seeds(pairs) if len(seed_pairs) >= MIN_SEEDS else measure.test(pairs)
    return Difference(
        **vars(result),
        measure=measure.name,
        is_larger_better=measure.is_larger_better,
        first={seed: measure.score(run_units) for (seed, _), run_units in zip(seed_pairs, first_units, strict=True)},
        second={seed: measure.score(run_units) for (_, seed), run_units in zip(seed_pairs, second_units, strict=True)},
        unit=measure.unit,
        num_units=units.shape[1],
        groups=str(groups) if groups else "",
        is_equal=bool((first_units == second_units).all()),
        difference=float(pairs.by_seed.mean()),
        margin=margin,
    )


def measured_scores(paired: str, side: Mapping[int, Rows], score_name: str) -> dict[int, float]:
    """Return the scores that `difference` compares, by seed: the task's score, or the MAE for a forecast."""
    measure = measure_of(paired, score_name)
    return {seed: measure.score(units) for seed, units in zip(side, measure.read(list(side.values())), strict=True)}


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


# Reading predictions. Both sides have the same test split; the result is one or a few numbers per sequence or window.


def read_classified(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N): 1 if the run classifies the sequence correctly, else 0."""
    actual, predicted = (by_sequence(runs, column, str) for column in ("actual", "predicted"))
    differing = int((actual != actual[0]).any(axis=0).sum())
    if differing:
        raise ValueError(f"the test splits differ in {differing:,} of the labels")
    return (predicted == actual).astype(float)


def read_classes(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N, C, 3): per run, sequence and class whether it is correct, actual and predicted."""
    is_right = read_classified(runs).astype(bool)
    actual, predicted = (by_sequence(runs, column, str) for column in ("actual", "predicted"))
    classes = np.unique([actual, predicted])
    is_true, is_predicted = (labels[..., None] == classes for labels in (actual, predicted))
    return np.stack([is_true & is_right[..., None], is_true, is_predicted], axis=-1).astype(int)


def read_detected(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N, C, 3): per run, sequence and class the numbers of correct, actual and predicted events.

    A row is an actual event with the predicted event that matches it, or one of them alone (`list_events` in
    tandem/tasks/detect.py). A sequence without any event in any run has no row; it does not change the score.
    """
    actual = [
        {(str(row["sequence"]), str(row["event"]), int(row["actual"])) for row in rows if row["actual"] != ""}
        for rows in runs
    ]
    refuse_other_split(actual, "events")
    sequences, events = (
        {name: index for index, name in enumerate(sorted_names(runs, column))} for column in ("sequence", "event")
    )
    counts = np.zeros((len(runs), len(sequences), len(events), 3), dtype=int)
    for run_counts, rows in zip(counts, runs, strict=True):
        for row in rows:
            is_true, is_predicted = row["actual"] != "", row["predicted"] != ""
            cell = run_counts[sequences[str(row["sequence"])], events[str(row["event"])]]
            cell += (is_true and is_predicted, is_true, is_predicted)
    return counts


def read_forecast(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N): a window's mean absolute error over its steps, in the target's own unit, ordered by time."""
    keys = [[(str(row["time"]), int(row["step_ahead"])) for row in rows] for rows in runs]
    refuse_other_split([set(windows) for windows in keys], "windows")
    horizon = max(step for _, step in keys[0])
    actual, predicted = (
        np.array([[float(row[column]) for row in rows] for rows in runs]).reshape(len(runs), -1, horizon)
        for column in ("actual", "predicted")
    )
    if keys != [keys[0]] * len(runs) or not np.allclose(actual, actual[0], rtol=SAME_LEVEL, atol=0):
        raise ValueError("the test splits differ: the windows have other values or another order")
    return np.abs(predicted - actual[0]).mean(axis=2)


def read_regressed(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N): the absolute error of a sequence's prediction, in the target's own unit."""
    actual, predicted = (by_sequence(runs, column, float) for column in ("actual", "predicted"))
    if not np.allclose(actual, actual[0], rtol=SAME_LEVEL, atol=0):
        raise ValueError("the test splits differ: the sequences have other targets")
    return np.abs(predicted - actual[0])


def read_scores(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N): the number that the task gave a sequence, in the column `score`."""
    if not all(row.get("score") for rows in runs for row in rows):
        raise ValueError("predictions.csv needs a column `score` with a number for each sequence")
    return by_sequence(runs, "score", float)


def by_sequence(runs: Sequence[Rows], column: str, kind: type) -> np.ndarray:
    """Return (R, N): the values of a column, with the sequences in the order of the first run."""
    values = [{str(row["sequence"]): kind(row[column]) for row in rows} for rows in runs]
    refuse_other_split([set(run_values) for run_values in values], "sequences")
    return np.array([[run_values[sequence] for sequence in names_in_first(runs)] for run_values in values])


def names_in_first(runs: Sequence[Rows]) -> list[str]:
    """The sequences in the order of the first run."""
    return list(dict.fromkeys(str(row["sequence"]) for row in runs[0]))


def sorted_names(runs: Sequence[Rows], column: str = "sequence") -> list[str]:
    return sorted({str(row[column]) for rows in runs for row in rows})


def groups_of(runs: Sequence[Rows], sequences: Sequence[str]) -> Groups | None:
    """Return the groups of the sequences; None if a run was recorded without them. A run may lack sequences, in which
    no event happens.
    """
    groups: dict[str, str] = {}
    for row in chain.from_iterable(runs):
        if not (group := str(row.get(COLUMN, ""))):
            return None
        if groups.setdefault(str(row["sequence"]), group) != group:
            raise ValueError("the test splits differ in the groups of the sequences")
    return Groups(np.array([groups[sequence] for sequence in sequences]))


def refuse_other_split(truths: Sequence[set[Any]], of_what: str) -> None:
    if num_differing := max(len(truth ^ truths[0]) for truth in truths):
        raise ValueError(f"the test splits differ in {num_differing:,} of the {of_what}")


def macro_f1(counts: np.ndarray) -> float:
    """Return the macro F1 of the counts (N, C, 3) summed over sequences."""
    return float(macro_f1_of_sums(counts.sum(axis=0)))


# The tests: from pairs to an interval.


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


def mean(units: np.ndarray) -> float:
    return float(units.mean())


# Of a task that is derived from classify and scored by it.
MACRO_F1 = Measure("macro F1", "sequences", True, False, read_classes, names_in_first, macro_f1, resample_sequences)
# By what the task states as `paired`. Numbers are compared by MAE: a forecast's skill is 1 - MAE / persistence's MAE,
# and R2 depends on a few large errors.
MEASURES = {
    "correct": Measure("accuracy", "sequences", True, True, read_classified, names_in_first, mean, by_mcnemar),
    "events": Measure("event F1", "sequences", True, False, read_detected, sorted_names, macro_f1, resample_sequences),
    "errors": Measure("MAE", "sequences", False, False, read_regressed, names_in_first, mean, resample_sequences),
    "window errors": Measure("MAE", "windows", False, False, read_forecast, names_in_first, mean, resample_blocks),
    "scores": Measure("", "sequences", True, False, read_scores, names_in_first, mean, resample_sequences),
}
