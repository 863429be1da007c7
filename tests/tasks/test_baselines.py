"""The scores that need no training, and from when on a network counts as better than they are."""

import numpy as np

from tandem.tasks.baselines import (
    Baseline,
    compare_with_baselines,
    interval_of_gain,
    nearest_neighbours,
    ratio,
    summaries,
    with_ones,
)


def test_a_baseline_is_beaten_where_the_test_split_can_tell():
    most, nearest = Baseline("the most frequent class", 0.12, (0.4, 0.7)), Baseline("1-NN", 0.64, (-0.05, 0.09))
    assert compare_with_baselines(0.66, [most], 45).endswith(": the network beats it")
    assert "beats the most frequent class, is not clearly better than 1-NN" in compare_with_baselines(
        0.66, [most, nearest], 45
    )
    worse = nearest._replace(gain=(-0.2, -0.1))
    assert "does not beat 1-NN (it is worse: " in compare_with_baselines(0.5, [worse], 45)
    unknown = nearest._replace(gain=None)
    assert "2 test sequences are too few" in compare_with_baselines(0.66, [unknown], 2)


def test_a_gain_of_accuracy_is_from_minus_1_to_1():
    """Four sequences, of which the network classifies three correctly, and the baseline none."""
    right, wrong = (with_ones(np.array(scores)) for scores in ([1.0, 1, 1, 0], [0.0, 0, 0, 0]))
    low, high = interval_of_gain(ratio, right, wrong) or (0, 0)
    assert -1 < low < 0 and high == 1
    assert interval_of_gain(ratio, wrong, right) == (-1, -low)
    assert (interval_of_gain(ratio, right, wrong, largest=np.inf) or (0, 0))[1] > 1  # R2 has no such limit


def test_baselines_of_literal_sequences():
    known = np.array([[[0.0], [1.0]], [[5.0], [5.0]]], dtype=np.float32)
    assert nearest_neighbours(known, known[[1, 1, 0]] + 0.4).tolist() == [1, 1, 0]
    values = np.array([[[1.0], [2.0], [6.0], [0.0]]], dtype=np.float32)
    np.testing.assert_allclose(
        summaries(values, np.array([3])), [[3.0, np.sqrt(14 / 3), 1.0, 6.0, 1.0, 6.0, 2.5]], rtol=1e-6
    )
