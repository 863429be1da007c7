"""Differences of scores with their intervals: planted differences in literal predictions."""

from typing import Any

import numpy as np
import pytest

from tandem.comparing import paired_tests
from tandem.comparing.differences import MEASURES, Margin, difference, margin_of_seeds
from tandem.comparing.paired_tests import compare_units
from tandem.tasks import detect, statistics
from tandem.tasks.groups import Groups
from tandem.tasks.scores import macro_mean
from tandem.tasks.statistics import interval_of_difference
from tests.manifests import CPU, GPU, changed, classified, judge, run_of


def test_mcnemar_is_the_exact_one():
    """By hand: of 12 discordant pairs 2 or fewer on one side, 2 (1 + 12 + 66) / 2^12."""
    first, second = "1" * 2 + "0" * 10 + "1" * 88, "0" * 2 + "1" * 10 + "1" * 88
    result = difference("correct", {0: classified(first)}, {0: classified(second, as_csv=True)})
    assert result.p == pytest.approx(158 / 4096) and result.verdict == "different"
    assert result.difference == pytest.approx(0.08) and result.low < 0.08 < result.high
    assert "cuda better in accuracy by 0.0800" in result.sentence("cpu", "cuda")
    assert statistics.mcnemar(0, 5) == 2 / 2**5 and statistics.mcnemar(0, 0) == statistics.mcnemar(3, 3) == 1


def test_a_task_scored_by_macro_f1_is_compared_by_it():
    """The first side always says the most frequent class: it has the better accuracy."""
    from sklearn.metrics import f1_score  # here: its import takes longer than most files of tests

    draw = np.random.default_rng(0)
    truth = np.where(draw.random(300) < 0.85, "a", "b")
    predictions = {"always": np.full(300, "a"), "often": np.where(draw.random(300) < 0.7, truth, "b")}
    sides = [
        [{"sequence": n, "actual": one, "predicted": two} for n, (one, two) in enumerate(zip(truth, side, strict=True))]
        for side in predictions.values()
    ]
    compared = difference("correct", {0: sides[0]}, {0: sides[1]}, score_name="macro_f1")
    for side, predicted in ((compared.first, predictions["always"]), (compared.second, predictions["often"])):
        assert side[0] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert compared.difference > 0 and "second better in macro F1 by" in compared.sentence("first", "second")
    assert compared.sentence("first", "second").startswith("macro F1 ")
    assert difference("correct", {0: sides[0]}, {0: sides[1]}, score_name="accuracy").difference < 0


def test_interval_and_exact_test_never_contradict_each_other():
    for gained, lost in [(0, 5), (0, 6), (1, 8), (2, 10), (3, 9), (12, 27), (20, 35)]:
        first, second = "0" * gained + "1" * (180 - gained), "1" * gained + "0" * lost + "1" * (180 - gained - lost)
        result = difference("correct", {0: classified(first)}, {0: classified(second)})
        assert result.p is not None and (result.p < 0.05) == (not result.low <= 0 <= result.high), (gained, lost)


def test_mcnemar_interval_holds_the_true_difference_and_its_power_is_as_said():
    draw, num, discordant = np.random.default_rng(0), 180, 0.08
    effect = paired_tests.min_detectable_effect_by_mcnemar(discordant, num)
    assert effect is not None
    tables = draw.multinomial(num, [(discordant + effect) / 2, (discordant - effect) / 2, 1 - discordant], size=400)
    intervals = {pair: interval_of_difference(*pair, num) for pair in {(won, lost) for won, lost, _ in tables.tolist()}}
    share = np.mean([intervals[won, lost][0] <= effect <= intervals[won, lost][1] for won, lost, _ in tables.tolist()])
    power = np.mean([statistics.mcnemar(won, lost) < 0.05 for won, lost, _ in tables.tolist()])
    assert 0.92 <= share <= 0.98 and 0.70 <= power <= 0.88
    assert paired_tests.min_detectable_effect_by_mcnemar(0.0, 3) is None  # of three sequences no number is enough


def test_no_difference_takes_a_margin():
    sides = {0: classified("1" * 990 + "0" * 10)}, {0: classified("0" + "1" * 990 + "0" * 9)}
    equal = difference("correct", sides[0], sides[0])
    assert equal.verdict == "equal" and equal.low < 0 < equal.high
    assert difference("correct", *sides).verdict == "inconclusive"
    message = difference("correct", *sides).sentence("cpu", "cuda")
    assert "; this comparison would miss a difference smaller than 0.0078 in more than one of five" in message
    wide, narrow = (difference("correct", *sides, Margin(value, "as agreed")) for value in (0.02, 0.004))
    assert wide.verdict == "equivalent" and narrow.verdict == "inconclusive"


def test_the_margin_is_twice_the_spread_over_five_seeds_or_none():
    scores = [0.90, 0.92, 0.94, 0.96, 0.98]  # standard deviation sqrt(0.001)
    margin = margin_of_seeds(scores)
    assert margin and margin.value == pytest.approx(2 * 0.001**0.5)
    pooled = margin_of_seeds(scores, [0.9] * 6)
    assert pooled and pooled.value == pytest.approx(2 * 0.0005**0.5)
    assert margin_of_seeds(scores[:4]) is margin_of_seeds() is margin_of_seeds([0.9] * 5) is None


def forecasts(errors: Any) -> list[dict[str, Any]]:
    """`errors`: one per window, the same at each of its steps."""
    return [
        {"time": f"t{window:05}", "step_ahead": step + 1, "last": 1.0, "actual": 100.0, "predicted": 100.0 + error}
        for window, error in enumerate(errors)
        for step in range(2)
    ]


def test_three_seeds_give_students_interval_paired_by_seed():
    from scipy.stats import ttest_rel

    scores = [[3.0, 1.0, 2.0, 5.0], [3.5, 1.25, 3.0, 5.125]]
    first, other = ({seed: forecasts([mae] * 36) for seed, mae in enumerate(errors)} for errors in scores)
    result = difference("window errors", first, dict(reversed(other.items())))  # the order of the seeds decides nothing
    expected = ttest_rel(scores[1], scores[0])
    assert result.p == pytest.approx(expected.pvalue)
    assert (result.low, result.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert "jackknife over 6 blocks of 6 test windows and the variance over 4 seeds" in result.sentence("cpu", "cuda")
    worse = {seed: forecasts([mae + 3 + seed / 10] * 36) for seed, mae in enumerate(scores[0])}
    assert "cpu better in MAE by " in difference("window errors", first, worse).sentence("cpu", "cuda")


def test_seeds_that_one_side_lacks_are_left_out():
    side = {seed: forecasts([float(seed)] * 9) for seed in range(3)}
    result = difference("window errors", side, {2: forecasts([7.0] * 9), 8: forecasts([9.0] * 9)})
    assert result.first == {2: 2.0} and result.second == {2: 7.0}
    with pytest.raises(ValueError, match=r"the compared runs have no seed in common \(0, 1, 2 vs 3, 4\)"):
        difference("window errors", side, {3: side[0], 4: side[1]})
    single = difference("window errors", {0: side[0]}, {1: side[1]})
    assert single.difference == 1.0  # one training a side is what it is


def test_a_seed_twice_is_no_more_evidence():
    """Predictions of one sequence by two seeds are not two cases: the interval stays as wide."""
    draw = np.random.default_rng(0)
    first, second = ("".join(draw.choice(["0", "1"], 200, p=[0.2, 0.8])) for _ in range(2))
    single, double, triple = (
        difference("correct", *(dict.fromkeys(range(num_seeds), classified(side)) for side in (first, second)))
        for num_seeds in (1, 2, 3)
    )
    assert (single.low, single.high) == (double.low, double.high) == (triple.low, triple.high)
    assert "(two seeds each)" in double.sentence("cpu", "cuda")


def grouped(right: str, size: int = 10) -> list[dict[str, Any]]:
    """Groups of `size` sequences; `right`: a letter per group, `1` where all its sequences are."""
    rows = classified("".join(letter * size for letter in right))
    return [{**row, "group": number // size} for number, row in enumerate(rows)]


def test_sequences_of_one_group_are_one_case():
    """Ten equal sequences of a person prove no more than one of them, and McNemar's test would take them for ten."""
    first, second = "1" * 18 + "00", "0" * 5 + "1" * 15
    result = difference("correct", {0: grouped(first)}, {0: grouped(second)}, has_groups=True)
    assert result.difference == pytest.approx(-0.15) and result.low < 0 < result.high
    gains = np.array([int(right) - int(left) for left, right in zip(first, second, strict=True)])
    half = 2.093024 * gains.std(ddof=1) / 20**0.5  # Student's t with 19 degrees over the people
    assert (result.low, result.high) == pytest.approx((-0.15 - half, -0.15 + half))
    pairs = difference("correct", {0: grouped(first, 2)}, {0: grouped(second, 2)}, has_groups=True)
    assert (result.low, result.high) == pytest.approx((pairs.low, pairs.high))
    assert "over 20 test groups); " in result.sentence("cpu", "cuda")
    assert difference("correct", {0: grouped(first)}, {0: grouped(second)}).verdict == "different"  # as it was


def test_other_groups_of_the_same_sequences_are_another_test_split():
    first, second = grouped("1" * 18 + "00", 3), grouped("0" * 5 + "1" * 15, 3)
    other = [{**row, "group": row["group"] // 2} for row in second]
    with pytest.raises(ValueError, match="differ in the groups"):
        difference("correct", {0: first}, {0: other}, has_groups=True)


def test_people_of_another_test_split_scatter_also_with_many_seeds():
    """Five seeds that agree tell nothing of other people."""
    runs = [{seed: grouped(right) for seed in range(5)} for right in ("11111100", "00111111")]
    assert difference("correct", *runs, has_groups=True).verdict == "inconclusive"
    # People who agree tell nothing of other seeds either.
    first = {seed: grouped(letter * 8) for seed, letter in enumerate("010")}
    second = dict.fromkeys(first, grouped("1" * 8))
    result = difference("correct", first, second, has_groups=True)
    assert result.verdict == "inconclusive" and "variance over 3 seeds" in result.method


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (grouped("11110"), "no 95% interval: 5 test groups are too few for an interval, which needs 6"),
        (classified("1" * 40 + "0" * 10), "no 95% interval: predictions.csv has no column `group`"),
    ],
)
def test_without_enough_groups_nothing_is_claimed(first: list[dict[str, Any]], reason: str):
    """Also of a run that was recorded before predictions had groups, and of a source of one's own."""
    second = [{**row, "predicted": "b"} for row in first]
    prepared = {"digests.data.prepared": {"test/groups.npy": "9" * 64}}
    runs = {"cpu": [run_of(changed(CPU, **prepared), first)], "cuda": [run_of(changed(GPU, **prepared), second)]}
    judgement = judge(runs)
    assert reason in judgement.scores and judgement.difference.verdict == "inconclusive"
    assert reason in judgement.difference.summary("cpu", "cuda")
    equal = judge({"cpu": runs["cpu"], "cuda": [run_of(changed(GPU, **prepared), first)]})
    assert equal.difference.verdict == "equal"
    without = {name: [run_of(changed(side[0].manifest, **{"digests.data.prepared": {}}), side[0].predictions)]
               for name, side in runs.items()}  # fmt: skip
    assert judge(without).difference.verdict == "different"


def test_groups_of_different_size_count_for_less():
    """One person with most of the sequences is nearly one case."""
    even, uneven = Groups(np.repeat(np.arange(8), 10)), Groups(np.repeat(np.arange(8), [73, 1, 1, 1, 1, 1, 1, 1]))
    assert even.freedom == pytest.approx(7) and uneven.freedom == 1
    assert Groups(np.array(["b", "a", "b"])).sums(np.array([1.0, 5.0, 2.0])).tolist() == [5, 3]


def test_seeds_that_agree_by_chance_do_not_make_an_interval_without_width():
    """Each seed has one error, at another sequence."""
    first = {seed: classified("1" * (99 - seed) + "0" + "1" * seed) for seed in range(3)}
    second = {seed: classified("1" * seed + "0" + "1" * (99 - seed)) for seed in range(3)}
    result = difference("correct", first, second)
    assert result.difference == 0 and result.low < -0.004 and result.high > 0.004 and result.verdict == "inconclusive"


@pytest.mark.parametrize("paired", ["window errors", "events", "errors"])
def test_seeds_that_change_little_are_no_surer_than_one(paired: str):
    draw = np.random.default_rng(3)

    def side(noise: float) -> dict[int, Any]:
        numbers, seeds = draw.normal(size=400), range(3)
        return {seed: rows_of(numbers + noise * draw.normal(size=400)) for seed in seeds}

    def rows_of(errors: np.ndarray) -> list[dict[str, Any]]:
        if paired == "events":
            return events(set(np.flatnonzero(errors > 1.5) % 200))
        if paired == "window errors":
            return forecasts(errors)
        return [{"sequence": number, "actual": 0.0, "predicted": error} for number, error in enumerate(errors)]

    for noise in (0.0, 0.01):
        first, second = side(noise), side(noise)
        single, triple = difference(paired, {0: first[0]}, {0: second[0]}), difference(paired, first, second)
        assert triple.high - triple.low >= 0.9 * (single.high - single.low) > 0, noise
        assert noise or (triple.low, triple.high) == (single.low, single.high)


def test_a_difference_that_is_the_same_everywhere_has_no_interval():
    """Six equal differences do not prove that a seventh is equal."""
    result = difference("window errors", {0: forecasts([1.0] * 60)}, {0: forecasts([3.0] * 60)})
    assert result.verdict == "inconclusive"
    reason = "no 95% interval: the difference is the same in all 8 blocks of 7 test windows"
    assert f"MAE: cuda +2, {reason}" in result.summary("cpu", "cuda")


@pytest.mark.parametrize(
    ("paired", "rows", "shortage"),
    [
        ("correct", classified, "5 test sequences are"),
        ("errors", lambda right: [{"sequence": n, "actual": 1, "predicted": 2} for n in range(5)], "5 test sequences"),
        ("window errors", lambda right: forecasts([1.0] * 29), "5 blocks of 5 test windows are"),
        ("window errors", lambda right: forecasts([1.0] * 2), "1 block of 2 test windows is"),
    ],
)
def test_few_cases_prove_nothing(paired: str, rows: Any, shortage: str):
    """With any number of seeds."""
    for num_seeds in (1, 3):
        first = {seed: rows("00000") for seed in range(num_seeds)}
        second = {seed: [{**row, "predicted": row["actual"]} for row in side] for seed, side in first.items()}
        result = difference(paired, first, second)
        assert result.verdict == "inconclusive" and result.low is result.high is None
        summary = result.summary("cpu", "cuda")
        assert f"no 95% interval: {shortage}" in summary and summary.endswith("too few for an interval, which needs 6")


def claims(paired: str, draw_errors: Any, cases: Groups, trials: int) -> float:
    """The share of comparisons that claim a difference between two sides with errors (N,) or (S, N) of one kind."""
    num_claims = 0
    for _ in range(trials):
        first, second = (np.atleast_2d(draw_errors()) for _ in range(2))
        result = compare_units(first, second, MEASURES[paired], cases)
        num_claims += not result.low <= 0 <= result.high
    return num_claims / trials


@pytest.mark.parametrize("num", [6, 8, 20])
def test_few_sequences_make_few_false_claims(num: int):
    """With 5% of false claims, 500 comparisons have 40 or more with a probability of 0.2%."""
    draw = np.random.default_rng(0)
    assert claims("errors", lambda: abs(draw.normal(size=num)), Groups.of_each(num), 500) < 0.08


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_seeds_make_few_false_claims(noise: float):
    """`noise`: between seeds, relative to that between sequences. Student's t over the three differences alone claims
    something in 85% of cases with the smaller one.
    """
    draw = np.random.default_rng(0)
    cases = Groups.of_each(40)
    share = claims("errors", lambda: abs(draw.normal(size=40)) + noise * draw.normal(size=(3, 40)), cases, 300)
    assert share < 0.08


@pytest.mark.parametrize(("horizon", "num"), [(1, 30), (4, 30), (4, 400), (12, 72), (12, 400)])
def test_few_windows_make_few_false_claims(horizon: int, num: int):
    """Persistence on random walks: neighbouring windows share their steps. Blocks as long as a forecast are a little
    too short for 5%; a bootstrap over blocks of sqrt(N) makes 11% to 22% here (horizon 12, 20 to 100 windows).
    """
    draw = np.random.default_rng(0)

    def errors() -> np.ndarray:
        levels = draw.normal(size=num + horizon).cumsum()
        windows = np.lib.stride_tricks.sliding_window_view(levels[1:], horizon)[:num]
        return abs(windows - levels[:num, None]).mean(axis=1)

    blocks = Groups.of_neighbours(num, horizon)
    assert blocks.sizes.min() >= max(horizon, int(num**0.5)) and not blocks.shortage
    assert claims("window errors", errors, blocks, 400) < 0.12


def test_blocks_hold_where_windows_move_together():
    draw, measure, num_held, trials, num_windows = np.random.default_rng(0), MEASURES["window errors"], 0, 150, 1600
    for _ in range(trials):
        shocks = draw.normal(size=num_windows + 7)
        errors = np.convolve(shocks, np.ones(8), "valid")[None]  # neighbours share seven of eight
        result = compare_units(np.zeros_like(errors), errors, measure, Groups.of_neighbours(num_windows, horizon=8))
        num_held += result.low <= 0 <= result.high
    assert 0.87 <= num_held / trials <= 1


def test_numbers_are_compared_by_their_absolute_error_sequence_by_sequence():
    def rows(error: float) -> list[dict[str, str]]:
        """Every second error has twice the size."""
        errors = [error * (1 + n % 2) / 1.5 for n in range(80)]
        return [
            {"sequence": str(n), "actual": repr(1e6 + n), "predicted": repr(1e6 + n + errors[n])} for n in range(80)
        ]

    result = difference("errors", {0: rows(0.1875)}, {0: rows(-3.0)})
    assert result.second == {0: 3.0} and result.verdict == "different" and result.low > 0
    assert difference("errors", {0: rows(2.0)}, {0: rows(2.0)[::-1]}).verdict == "equal"


def test_event_f1_from_the_rows_is_the_tasks_own():
    classes, draw = ["none", "hit", "bounce", "net"], np.random.default_rng(0)
    task = detect.Task({"classes": classes, "features": [], "num_per_class": {"train": dict.fromkeys(classes, 1)}})
    actual = draw.choice(4, size=(40, 30), p=[0.9, 0.05, 0.03, 0.02])
    predicted = np.where(draw.random(actual.shape) < 0.2, 0, actual)
    predicted[draw.random(actual.shape) < 0.01] = 1
    rows = task.list_events(predicted, actual, draw.random((40, 30, 4)), np.arange(40))
    rows = [{name: str(value) for name, value in row.items()} for row in rows]
    counts = MEASURES["events"].read([rows])[0]
    f1 = macro_mean(task.per_class(task.counts(predicted, actual)), "f1")
    assert MEASURES["events"].score_of(counts) == pytest.approx(f1)


def events(missed: Any) -> list[dict[str, Any]]:
    return [
        {"sequence": f"{number}", "event": "hit", "actual": "5", "predicted": "" if number in missed else "6"}
        for number in range(200)
    ]


def test_events_are_compared_sequence_by_sequence():
    result = difference("events", {0: events([])}, {0: events(range(40))})
    assert result.verdict == "different" and result.p < 1e-4 and result.difference == pytest.approx(320 / 360 - 1)
    # The delta method: F1 = 2h / (1 + h) with h = 0.8 of 200, of which the deviation is 2 / 1.8^2 sqrt(0.16 / 200).
    assert (result.high - result.low) / 2 == pytest.approx(1.96 * 2 / 1.8**2 * (0.16 / 200) ** 0.5, rel=0.1)


WINDOWS = forecasts([1.0] * 4)
OTHER_WINDOWS = [{**row, "actual": 101.0} for row in WINDOWS]


@pytest.mark.parametrize(
    ("score", "first", "second", "message"),
    [
        ("correct", classified("11"), classified("111"), "the test splits differ in 1 of the sequences"),
        ("window errors", WINDOWS, OTHER_WINDOWS, "the windows have other values"),
        ("window errors", WINDOWS, WINDOWS[::-1], "the windows have another order or horizon"),
        ("window errors", WINDOWS, WINDOWS[: len(WINDOWS) // 2], "the test splits differ in 2 of the windows"),
        ("scores", classified("11"), classified("11"), "predictions.csv needs a column `score` with a number for each"),
    ],
)
def test_other_test_splits_are_refused(score: str, first: Any, second: Any, message: str):
    with pytest.raises(ValueError, match=message):
        difference(score, {0: first}, {0: second})
