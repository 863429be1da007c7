"""The scores that need no training, and from when on a network counts as better than they are."""

import numpy as np

from tandem.tasks import open_task
from tandem.tasks.baselines import (
    Baseline,
    compare_with_baselines,
    compare_with_fitted,
    nearest_neighbours,
    num_useful_features,
)
from tandem.tasks.groups import Groups
from tandem.tasks.statistics import interval_of_gain


def test_a_baseline_is_beaten_where_the_test_split_can_tell():
    common, nearest = Baseline("the most frequent class", 0.12, (0.4, 0.7)), Baseline("1-NN", 0.64, (-0.05, 0.09))
    assert compare_with_baselines(0.66, [common], 45).endswith(": the network beats it")
    assert "beats the most frequent class, is not clearly better than 1-NN" in compare_with_baselines(
        0.66, [common, nearest], 45
    )
    worse = nearest._replace(gain=(-0.2, -0.1))
    assert "does not beat 1-NN (it is worse: " in compare_with_baselines(0.5, [worse], 45)
    unknown = nearest._replace(gain=None)
    assert "2 test sequences are too few" in compare_with_baselines(0.66, [unknown], 2)


def test_the_fitted_model_is_better_worse_or_not_told_apart():
    fitted, description = Baseline("the fitted model", 0.8, (0.02, 0.1)), "trees, fitted to 60 training sequences"

    def found(score: float, gain: tuple[float, float] | None, groups: Groups | None = None) -> str:
        return compare_with_fitted(score, fitted._replace(gain=gain), description, 45, groups)

    assert found(0.9, (0.02, 0.1)).startswith(f"the network beats the fitted model (0.8; {description}; 95% interval")
    worse = found(0.7, (-0.2, -0.02))
    assert worse.startswith("the fitted model (0.8") and worse.endswith(
        "as it was trained (95% interval of the gain -0.2 to -0.02); it needs no GPU"
    )
    for gain in ((-0.02, 0.1), (-0.1, 0.02), None):
        assert found(0.82, gain).startswith("no difference") and "beat" not in found(0.82, gain)
    assert found(0.8, (0, 0)).startswith("the network is exactly as good as the fitted model")
    few_groups = Groups(np.repeat(np.arange(5), 4))
    assert "cannot tell" in found(0.9, None, few_groups) and "beats" not in found(0.9, None, few_groups)


def test_an_equal_score_is_called_equal():
    equal = Baseline("1-NN", 1.0, (0, 0))
    assert "is exactly as good as 1-NN (both are right for the same sequences)" in compare_with_baselines(
        1.0, [equal], 14
    )


def test_a_gain_of_accuracy_is_from_minus_1_to_1():
    """Six sequences, of which the network classifies five correctly, and the baseline none. With five there is none."""
    right, wrong = (np.array(scores) for scores in ([1.0, 1, 1, 1, 1, 0], [0.0, 0, 0, 0, 0, 0]))
    low, high = interval_of_gain(right, wrong) or (0, 0)
    assert 0 < low < high == 1 and interval_of_gain(right[1:], wrong[1:]) is None
    assert interval_of_gain(wrong, right) == (-1, -low)
    assert (interval_of_gain(right, wrong, largest=np.inf) or (0, 0))[1] > 1  # R2 has no such limit


def test_labels_of_groups_at_random_are_not_learned():
    """Each person is right or wrong as a whole, at random: at most about 5% of the comparisons may claim something."""
    draw = np.random.default_rng(0)
    for num_groups, sizes in ((6, 8), (12, 8), (12, draw.integers(2, 20, size=12))):
        groups, num_claims, num_over_sequences = Groups(np.repeat(np.arange(num_groups), sizes)), 0, 0
        for _ in range(400):
            first, second = (np.repeat(draw.integers(0, 2, size=num_groups), sizes).astype(float) for _ in range(2))
            for of_groups in (groups, None):
                low, high = interval_of_gain(first, second, groups=of_groups) or (0, 0)
                num_claims += (low > 0 or high < 0) and of_groups is not None
                num_over_sequences += (low > 0 or high < 0) and of_groups is None
        assert num_claims <= 0.07 * 400 < 0.3 * 400 < num_over_sequences, (num_groups, sizes)


def test_a_comparison_says_how_many_groups_it_rests_on():
    common, nearest = Baseline("the most frequent class", 0.12, (0.4, 0.7)), Baseline("1-NN", 0.7, (-0.2, -0.1))
    six, five = (Groups(np.repeat(np.arange(num_groups), 4)) for num_groups in (6, 5))
    assert "beats it (by a 95% interval over 6 test groups)" in compare_with_baselines(0.6, [common], 24, six)
    sentence = compare_with_baselines(0.6, [common, nearest], 24, six)
    assert "(it is worse: 95% interval of the gain -0.2 to -0.1 over 6 test groups)" in sentence
    right, wrong = np.ones(20), np.zeros(20)
    assert interval_of_gain(right, wrong, groups=five) is None
    none = compare_with_baselines(0.6, [common._replace(gain=None), nearest._replace(gain=None)], 20, five, "the model")
    assert none.endswith("(5 test groups are too few for an interval, which needs 6)") and "beat" not in none
    assert "the model 0.6: " in none and "the network" not in none


def test_a_comparison_says_how_many_of_its_groups_are_not_new():
    common, names = Baseline("the most frequent class", 0.12, (0.4, 0.7)), {"test": np.repeat(np.arange(8), 3)}
    for train, val, words in (
        (range(9), [0], "over 8 test groups, all of them in train or val too)"),
        ([1, 9], [1, 2], "over 8 test groups, 2 of them in train or val too)"),
        ([8, 9], [10], "over 8 test groups)"),
    ):
        splits = names | {"train": np.array(train), "val": np.array(val)}
        groups = Groups.of_test_split({"num_groups": {}}, lambda split, name, splits=splits: splits[split])  # type: ignore[misc]
        assert f"beats it (by a 95% interval {words}" in compare_with_baselines(0.6, [common], 24, groups)


def test_the_nearest_neighbours_of_literal_sequences():
    sequences = np.array([[[0.0], [1.0]], [[5.0], [5.0]]], dtype=np.float32)
    assert nearest_neighbours(sequences, sequences[[1, 1, 0]] + 0.4).tolist() == [1, 1, 0]


def test_the_threshold_of_a_rare_event_is_found():
    """One step in 200 is far above the others, so no quantile up to 0.98 separates it. The threshold lies between both,
    above noise that train does not have.
    """
    draw = np.random.default_rng(5)
    values = draw.normal(0, 0.3, (100, 200, 1)).astype(np.float32)
    targets = np.zeros((100, 200), np.int64)
    for row, step in enumerate(draw.integers(5, 195, 100)):
        values[row, step] += 4
        targets[row, step] = 1
    values[75, 0] = 1.8
    parts = {"train": slice(0, 70), "test": slice(70, 100)}
    arrays = {"values": values, "targets": targets, "lengths": np.full(100, 200)}
    num_steps = {"none": 13_930, "spike": 70}
    task = open_task("detect", {"classes": [*num_steps], "features": ["x"], "num_per_class": {"train": num_steps}})
    mask = np.ones((30, 200), bool)
    results = task.count_baselines(targets[70:], mask, lambda split, name: arrays[name][parts[split]])
    counts = results["the best threshold on one feature"]
    assert np.array_equal(counts, task.counts(targets[70:], targets[70:]))


def test_neighbours_are_found_with_velocities_only_if_these_help():
    """In white noise on smooth prototypes, velocities are mostly noise; without noise on random levels, they tell."""
    draw, time = np.random.default_rng(0), np.linspace(0, 3, 40)
    labels = np.arange(120) % 6
    waves = np.sin(time * (1 + labels[:, None] / 3))
    for noise, level, expected in ((1.0, 0.0, 1), (0.0, 5.0, 2)):
        series = waves + noise * draw.normal(size=waves.shape) + level * draw.normal(size=(120, 1))
        values = np.stack([series, np.diff(series, axis=1, prepend=series[:, :1])], axis=2)
        values = ((values - values.mean(axis=(0, 1))) / values.std(axis=(0, 1))).astype(np.float32)
        assert num_useful_features(values, labels, ["x", "dx"]) == expected
        assert num_useful_features(values, labels, ["x", "y"]) == 2  # no velocities
