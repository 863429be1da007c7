"""The scores that need no training, and from when on a network counts as better than they are."""

import numpy as np
import pytest
import torch

from stages.tasks import classify, detect, regress
from stages.tasks.scores import macro_f1_of_sums
from stages.tasks.yardsticks import (
    Yardstick,
    against,
    interval_of_gain,
    nearest_neighbours,
    students_quantile,
    summaries,
)


def test_a_yardstick_is_beaten_where_the_test_split_can_tell():
    most, nearest = Yardstick("the most frequent class", 0.12, (0.4, 0.7)), Yardstick("1-NN", 0.64, (-0.05, 0.09))
    assert against(0.66, [most, nearest], 45) == (
        "the most frequent class reaches 0.12, 1-NN 0.64: the network beats the most frequent class, does not beat "
        "1-NN (the two cannot be told apart by 45 test sequences: 95% interval of the gain -0.05 to +0.09)"
    )
    assert against(0.66, [most, nearest._replace(gain=(0.01, 0.03))], 45).endswith(": the network beats both")
    assert against(0.66, [most], 45).endswith(": the network beats it")
    for gain, why in (
        ((-0.2, -0.1), "it is worse: 95% interval of the gain -0.2 to -0.1"),
        (None, "2 test sequences are too few to tell the two apart"),
        ((0.0, 0.0), "the two are right and wrong in the same sequences"),
    ):
        assert against(0.66, [Yardstick("1-NN", 0.66, gain)], 2).endswith(f": the network does not beat 1-NN ({why})")


def test_the_interval_of_the_gain_is_students_for_a_mean_and_covers_the_truth_for_r2_and_event_f1():
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(0)
    own, other = (torch.from_numpy(draw.integers(0, 2, 30)) for _ in range(2))
    targets = torch.ones(30, dtype=torch.int64)
    found = interval_of_gain(classify.share_right, *(classify.counted(each, targets) for each in (own, other)))
    students = stats.ttest_rel(own.numpy(), other.numpy()).confidence_interval()
    assert found == pytest.approx((students.low, students.high), rel=1e-4)
    for freedom in range(2, 200):
        assert students_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.01)
    assert interval_of_gain(classify.share_right, np.ones((2, 2)), np.ones((2, 2))) is None

    covered = 0
    for _ in range(400):  # noise of deviation 1 and 1.2
        actual, first, second = draw.normal(size=(3, 40)) * [[2.0], [1.0], [1.2]]
        low, high = regress.gain_over(actual + second, actual + first, actual) or (0.0, 0.0)
        covered += low <= (1.2**2 - 1) / actual.var() <= high
        assert low < regress.explained(actual + first, actual) - regress.explained(actual + second, actual) < high
    assert 0.91 < covered / 400 <= 0.99

    counts = {"none": 9, "hit": 1}
    task = detect.Task({"classes": list(counts), "features": ["x"], "num_per_class": {"train": counts}})
    actual = (draw.random((5000, 40)) < 0.05).astype(np.int64)
    detectors = [np.where(draw.random(actual.shape) < share, actual, 0) for share in (0.8, 0.7)]
    found = [task.counts(each, actual) for each in detectors]
    truth = 2 * 0.8 / 1.8 - 2 * 0.7 / 1.7  # F1 of a detector that finds so many and invents none
    covered = 0
    for start in range(0, 5000, 25):
        low, high = interval_of_gain(macro_f1_of_sums, *(each[start : start + 25] for each in found)) or (0.0, 0.0)
        covered += low <= truth <= high
    assert 0.89 < covered / 200 <= 1.0


def test_yardsticks_of_literal_sequences():
    known = np.array([[[0.0], [1.0]], [[5.0], [5.0]]], dtype=np.float32)
    assert nearest_neighbours(known, known[[1, 1, 0]] + 0.4).tolist() == [1, 1, 0]
    values = np.array([[[1.0], [2.0], [6.0], [0.0]]], dtype=np.float32)
    np.testing.assert_allclose(
        summaries(values, np.array([3])), [[3.0, np.sqrt(14 / 3), 1.0, 6.0, 1.0, 6.0, 2.5]], rtol=1e-6
    )
