"""Metrics in a workload's directory: their numbers, intervals and requests, and what a mistake says."""

import re
from pathlib import Path

import numpy as np
import pytest

from tandem.files import locked
from tandem.runs.run import open_folder
from tandem.tasks import statistics
from tandem.tasks.groups import Groups
from tests.data.test_sources import PREPROCESS
from tests.projects import (
    EVALUATED,
    MODEL,
    TINY,
    commit,
    copy_of,
    make_project,
    read_record,
    recorded_runs,
    run_path,
    stage,
    stages_at_once,
    tandem,
    wait_for,
    wait_until_published,
)

METRICS = """\
import numpy as np

from .helper import share


def balanced_accuracy(predictions, targets, mask):
    shares = [share(predictions[targets == label] == label) for label in np.unique(targets)]
    predictions[:] = targets[:] = 0  # of no concern to the next metric
    return np.mean(shares)


def error_rate(predictions, targets, mask) -> float:
    assert mask.shape == (len(targets), 12) and mask.all()
    return 1 - share(predictions == targets)


error_rate.higher_is_better = False
"""
HELPER = "def share(values):\n    return values.mean()\n"
WEIGHTS = "evaluate: {weights: last}"


def named(*names: str, params: str = TINY) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return params.replace(WEIGHTS, f"evaluate: {{weights: last, metrics: [{quoted}]}}")


OWN = named("metrics.py:balanced_accuracy", "metrics.py:error_rate")


@pytest.fixture(scope="module")
def template(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained project, to which the files of two metrics were added."""
    project = copy_of(trained, tmp_path_factory.mktemp("metrics") / "project")
    write(project, METRICS)
    return project


def write(project: Path, metrics: str, helper: str = HELPER) -> None:
    (project / "workloads/tiny/metrics.py").write_text(metrics)
    (project / "workloads/tiny/helper.py").write_text(helper)
    commit(project)


def test_metrics_are_added_without_a_training_and_are_shown_everywhere(template: Path, tmp_path: Path):
    project = copy_of(template, tmp_path / "project")
    weights = (project / run_path("last.safetensors")).stat().st_mtime_ns
    before = read_record(project, "score.json")
    (project / "params.yaml").write_text(OWN)
    done = tandem(project, "repro", check=False)
    assert done.returncode == 0, done.stdout
    stages = re.findall(r"^(\S+) +[\d.]+ s  ", done.stdout, re.MULTILINE)
    assert "evaluate@tiny-cpu" in stages and not {"train@tiny-cpu", "preprocess@tiny"} & set(stages)
    assert (project / run_path("last.safetensors")).stat().st_mtime_ns == weights
    score = read_record(project, "score.json")
    metrics = score["metrics"]
    assert before["metrics"].items() <= metrics.items()
    assert "group" not in open_folder(project / "results/runs/tiny/cpu").predictions[0]
    assert metrics["error_rate"] == pytest.approx(1 - metrics["accuracy"])
    for name in ("balanced_accuracy", "error_rate"):
        assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"]
    assert score["own_metrics"] == {"balanced_accuracy": True, "error_rate": False}
    assert f"error_rate {metrics['error_rate']:.4g} (lower is better, 95% interval" in score["sentence"]
    assert "balanced_accuracy" in (project / "results/compare/compare.md").read_text()
    assert "balanced accuracy" in (project / "results/report.html").read_text()
    wait_until_published(project)
    [recorded] = recorded_runs(project, "tiny")
    for end in ("", "_low", "_high"):
        assert recorded["metrics"][f"test/balanced_accuracy{end}"] == metrics[f"balanced_accuracy{end}"]
    for helper, outcome, value in (
        (HELPER.replace("mean()", "mean() / 2"), "accuracy 0.", metrics["balanced_accuracy"] / 2),
        (HELPER, "restored", metrics["balanced_accuracy"]),
    ):
        wait_for(lambda: not has_publisher(project), what="the end of the publisher of the DVC before")
        (project / "workloads/tiny/helper.py").write_text(helper)
        done = tandem(project, "repro", "evaluate@tiny-cpu").stdout
        assert re.search(rf"^evaluate@tiny-cpu +[\d.]+ s  {outcome}", done, re.MULTILINE), done
        assert "train@" not in done and "preprocess@" not in done
        wait_for(
            lambda value=value: recorded_runs(project, "tiny")[0]["metrics"]["test/balanced_accuracy"] == value,
            what="MLflow to have the score of results/",
        )


def has_publisher(project: Path) -> bool:
    with locked(project / ".tandem/runs/publisher.lock", wait=False) as process:
        return process is not None


MISTAKES = {
    "return 1 / 0": "error: workloads/tiny/metrics.py, line 2: ZeroDivisionError: division by zero",
    "return 'good'": "metrics.py:own returns str 'good' for 'own'; accepted: a number",
    "return float('nan')": "metrics.py:own returns nan for 'own'; accepted: a finite number",
    "return {'a': 1, 'b%': 2}": "returns the name 'b%'; use letters",
    "return {'accuracy': 1}": "metrics.py:own returns 'accuracy', which is the name of another metric",
}


def test_a_metric_that_fails_ends_evaluate_with_one_sentence(template: Path, tmp_path: Path):
    project = copy_of(template, tmp_path / "project", named("metrics.py:own"))
    for body, words in MISTAKES.items():
        (project / "workloads/tiny/metrics.py").write_text(f"def own(predictions, targets, mask):\n    {body}\n")
        done = stage(project, "evaluate", "tiny", "cpu", check=False, publishes=False)
        assert done.returncode == 1 and words in done.stdout and "Traceback" not in done.stdout, done.stdout


def test_a_metric_that_draws_gives_the_same_number_again(template: Path, tmp_path: Path):
    project, found = copy_of(template, tmp_path / "project", named("metrics.py:own")), set[float]()
    code = "import random\nimport numpy as np\n\n\ndef own(predictions, targets, mask):\n"
    (project / "workloads/tiny/metrics.py").write_text(f"{code}    return random.random() + np.random.random()\n")
    for _ in range(2):
        stage(project, "evaluate", "tiny", "cpu", publishes=False)
        found.add(read_record(project, "score.json")["metrics"]["own"])
    assert len(found) == 1


SOURCE = """\
import numpy as np

from tandem.data import Arrays


def read(folder, num_sequences: int, shift: float, seed: int) -> Arrays:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(10, 13, num_sequences)
    labels = np.full((num_sequences, 12), "", dtype="U4")
    values = draw.normal(scale=0.1, size=(num_sequences, 12, 1)) + shift
    steps = draw.integers(2, 8, num_sequences)
    rows = np.arange(num_sequences)
    values[rows, steps, 0] += 3.0 * np.where(rows % 2, 1, -1)
    labels[rows, steps] = np.where(rows % 2, "up", "down")
    values[rows, steps - 1, 0] = np.nan
    return Arrays(values, labels, lengths, groups=rows % 30, splits=np.array(["train", "val", "test"])[rows % 3])
"""
SHIFTED = """\
import numpy as np


def shifted(predictions, targets, mask, predict, source):
    assert not predictions[~mask].any() and not targets[~mask].any()
    found = {}
    for shift in (source.parameters["shift"], 50.0):
        again = source(shift=shift)
        is_test = again.splits == "test"
        mask_again = np.arange(12) < again.lengths[is_test][:, None]
        found[f"same_at_shift_{shift:g}"] = (predict(again.values[is_test], mask_again) == predictions).mean()
    return found


def right(predictions, targets, mask):
    return (predictions > 0).sum() / mask.sum()
"""
CONV_GRU = "{name: conv_gru, hidden_size: 8, num_layers: 1, num_convolutions: 1, kernel_size: 3, dropout: 0.0}"


def test_a_metric_scores_new_data_of_the_source_and_intervals_count_its_groups(tmp_path: Path):
    """The same sequences again, raw, give the predictions of the test split, which has ten groups of three sequences;
    shifted ones do not."""
    keys = '  preprocess:\n    source: "source.py:read"\n    num_sequences: 90\n    shift: 5.0\n    velocity: true\n'
    params = named("metrics.py:shifted", "metrics.py:right").replace(PREPROCESS, keys + "    missing: interpolate\n")
    params = params.replace("task: classify", "task: detect").replace(MODEL, CONV_GRU)
    params = params.replace("epochs: 3", "epochs: 30").replace("warp: 0.1", "warp: 0.0").replace("mix: 0.1", "mix: 0.0")
    project = make_project(tmp_path / "project", params)
    (project / "workloads/tiny/source.py").write_text(SOURCE)
    (project / "workloads/tiny/metrics.py").write_text(SHIFTED)
    commit(project)
    stages_at_once(project, *EVALUATED, publishes=False)
    score = read_record(project, "score.json")
    metrics = score["metrics"]
    assert metrics["same_at_shift_5"] == 1.0 and metrics["same_at_shift_50"] < 1.0
    assert metrics["event_f1"] > 0.3 and "same_at_shift_5_low" not in metrics
    groups = {row["group"] for row in open_folder(project / "results/runs/tiny/cpu").predictions}
    assert groups == {str(3 * number + 2) for number in range(10)}
    assert score["sentence"].count("over 10 test groups") == 2, score["sentence"]
    assert metrics["right_low"] <= metrics["right"] <= metrics["right_high"]
    (project / "workloads/tiny/metrics.py").write_text(SHIFTED.replace("shift=shift)", "shfit=shift)"))
    done = stage(project, "evaluate", "tiny", "cpu", check=False, publishes=False)
    assert "workloads/tiny/metrics.py, line 8: source has no parameter 'shfit'; did you mean 'shift'?" in done.stdout


def test_an_interval_is_seeded_covers_the_mean_and_is_bounded():
    draw = np.random.default_rng(0)
    targets, mask = draw.normal(size=400), np.ones((400, 5), dtype=bool)
    calls, each = [], Groups.of_each(400)

    def mean(predictions: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> float:
        calls.append(len(targets))
        return float(targets.mean())

    low, high = statistics.interval_of_metric(mean, targets, targets, mask, each)
    assert (low, high) == statistics.interval_of_metric(mean, targets, targets, mask, each)
    assert high - low == pytest.approx(2 * 1.96 * targets.std() / 20, rel=0.1)  # of a mean of 400 numbers
    assert len(calls) == 2 * statistics.MAX_CALLS and set(calls) == {400}
    walk = np.repeat(draw.normal(size=20), 20)  # neighbours are alike: blocks of them give a wider interval
    of_blocks = Groups.of_neighbours(400, horizon=1)
    single, blocks = (statistics.interval_of_metric(mean, walk, walk, mask, cases) for cases in (each, of_blocks))
    assert blocks[1] - blocks[0] > 2 * (single[1] - single[0])
    assert statistics.num_resamples(np.empty((10**6, 100)), mask) == statistics.MIN_CALLS

    def rare(predictions: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> float:
        return 1.0 / (targets == targets_with_one.max()).sum()

    targets_with_one = np.arange(400)
    assert "fails in 3" in statistics.interval_of_metric(rare, targets_with_one, targets_with_one, mask, each)
    same = np.zeros(400)  # a mean that never changes does not prove that there is no spread
    assert statistics.interval_of_metric(mean, same, same, mask, each) == "it is the same in nearly all resamples"

    def recall(predictions: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> float:
        return float(np.mean(predictions[targets == 1] == 1)) if (targets == 1).any() else 0.0

    few = np.repeat([0, 1], 8)  # all are right, and a resample without the class has a recall of 0
    of_few = statistics.interval_of_metric(recall, few, few, mask[:16], Groups.of_each(16))
    assert of_few == "it is the same in nearly all resamples"


def test_an_interval_counts_each_group_once():
    """Ten equal sequences of a group prove no more than one of them, and five groups prove nothing."""
    draw = np.random.default_rng(0)

    def mean(predictions: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> float:
        assert len(predictions) == len(targets) == len(mask)
        return float(targets.mean())

    def of(levels: np.ndarray, repeats: int) -> tuple[float, float] | str:
        values, names = np.repeat(levels, repeats), np.repeat(np.arange(len(levels)), repeats)
        order = draw.permutation(len(values))  # the sequences of a group need not be neighbours
        return statistics.interval_of_metric(
            mean, values[order], values[order], np.ones((len(values), 2), dtype=bool), Groups(names[order])
        )

    levels = draw.normal(size=8)
    assert of(levels, 10) == pytest.approx(of(levels, 1))
    low, high = of(levels, 10)
    assert isinstance(low, float) and isinstance(high, float)
    half = 2.364624 * levels.std(ddof=1) / 8**0.5  # Student's t with 7 degrees
    assert (high - low) / 2 == pytest.approx(half, rel=0.25)
    single = statistics.interval_of_metric(mean, levels, levels, np.ones((8, 2), dtype=bool), Groups.of_each(8))
    assert single == pytest.approx((low, high), abs=0.2 * half)  # as many sequences without groups are as few cases
    assert of(levels[:5], 10) == "5 test groups are too few for an interval, which needs 6"
