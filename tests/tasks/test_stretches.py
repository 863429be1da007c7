"""The score per stretch of windows, and its interval."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.data import write_prepared
from tandem.tasks import open_task
from tandem.tasks.groups import Groups, name_groups
from tandem.tasks.statistics import interval_of_share
from tandem.tasks.stretches import Stretches
from tests.data.test_windows import DAY, OF_PEOPLE, prepared
from tests.own_tables import people


def test_a_stretch_has_the_mean_probability_of_its_windows():
    shares = np.array([[0.9, 0.1], [0.4, 0.6], [0.4, 0.6], [0.45, 0.55], [0.1, 0.9]])
    stretches = Stretches(np.array(["a", "a", "a", "b", "b"]), Groups(np.array([4, 4, 4, 7, 7])), "stretch")
    assert stretches.is_right(shares, np.array([0, 0, 0, 1, 1])).tolist() == [True, True]  # a: a vote says 1
    assert stretches.is_right(shares, np.array([1, 1, 1, 1, 1])).tolist() == [False, True]
    assert stretches.groups.sums(np.ones((5, 2))).tolist() == [[3, 3], [2, 2]]


def test_the_interval_covers_the_truth_and_is_never_a_point():
    draw, num_held, widths = np.random.default_rng(0), 0, []
    groups = Groups(np.repeat(np.arange(10), 8))
    for _ in range(100):
        share = np.repeat(draw.beta(6, 2, size=10), 8)  # of each person, 0.75 on average
        low, high = interval_of_share(draw.random(80) < share, groups) or (1.0, 0.0)
        num_held += low <= 0.75 <= high
        widths.append(high - low)
    assert num_held >= 88 and min(widths) > 0.05
    for is_right in (np.ones(30, dtype=bool), np.zeros(30, dtype=bool)):
        low, high = interval_of_share(is_right, Groups(np.repeat(np.arange(6), 5))) or (0, 0)
        assert high - low == pytest.approx(1 - 0.025 ** (1 / 6))
    assert interval_of_share(np.arange(30) % 2 == 0, Groups(np.repeat(np.arange(5), 6))) is None


@pytest.mark.parametrize(
    ("groups", "num", "words"),
    [
        ("none", 3, "over 6 test groups (stretch))"),
        ("subject", 12, "(no 95% interval: 3 test groups are too few for an interval, which needs 6)"),
        ("subject", 30, "over 6 test groups (recording))"),
    ],
)
def test_evaluate_scores_windows_and_stretches(tmp_path: Path, groups: str, num: int, words: str):
    data = prepared(tmp_path, people(num, DAY), replace(OF_PEOPLE, groups=groups))
    summary = write_prepared(tmp_path / "out", data)
    task = open_task("classify", summary)
    targets = torch.from_numpy(data.arrays("test")["targets"])
    outputs = torch.nn.functional.one_hot(targets, task.num_outputs).float()
    outputs += torch.from_numpy(np.random.default_rng(0).normal(size=outputs.shape)).float()
    result = task.evaluate(outputs, lambda split, name: data.arrays(split)[name])
    metrics, rows = result.metrics, result.predictions
    names = {
        row["group"] for row in name_groups(result, summary, lambda split, name: data.arrays(split)[name]).predictions
    }
    if groups != "none":  # as the table has them, not their numbers
        assert names < set(people(num, DAY)["subject"].astype(str)) and len(names) == summary["num_groups"]["test"]
    assert metrics["accuracy"] < metrics["stretch_accuracy"] <= 1  # noise averages out
    if "no 95% interval" in words:
        assert "stretch_accuracy_low" not in metrics
    else:
        assert metrics["stretch_accuracy_low"] < metrics["stretch_accuracy"] <= metrics["stretch_accuracy_high"]
    assert metrics["most_frequent_stretch_accuracy"] < 0.5 and words in result.sentence
    for stretch in {row["stretch"] for row in rows}:
        assert len({row["actual"] for row in rows if row["stretch"] == stretch}) == 1
