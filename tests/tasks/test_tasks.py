"""Tasks in a workload's directory: trained, compared, drawn, applied, and what a mistake says; the score by which
classify, and a task derived from it, is compared with the baselines.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from tandem import tasks
from tandem.files import ROOT
from tandem.tasks import classify, forecast, regress
from tests.projects import (
    RUN,
    TINY,
    commit,
    copy_of,
    make_project,
    read_record,
    reproduce,
    run_path,
    stages_at_once,
    tandem,
)

CLOSENESS = '''\
"""Classes in an order: a prediction beside the right class is better than one far from it."""

import torch
from torch import Tensor

from tandem import tasks


class Task(tasks.Task):
    score_name = "closeness"

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor, label_smoothing: float) -> Tensor:
        numbers = torch.arange(outputs.shape[1], device=outputs.device, dtype=outputs.dtype)
        return ((outputs.softmax(dim=1) * numbers).sum(dim=1) - targets).square().mean()

    def score(self, predictions: Tensor, targets: Tensor, mask: Tensor) -> float:
        return 1 - (predictions - targets).abs().float().mean().item()
'''
OWN = TINY.replace("task: classify", "task: task.py:Task")
UNSMOOTHED = OWN.replace("label_smoothing: 0.1", "label_smoothing: 0.0")


def with_task(project: Path, code: str = CLOSENESS) -> Path:
    (project / "workloads/tiny/task.py").write_text(code)
    commit(project)
    return project


def test_a_task_from_scratch_is_trained_compared_and_applied_to_a_new_table(tmp_path: Path):
    project = with_task(make_project(tmp_path / "project", UNSMOOTHED.replace("seeds: [0]", "seeds: [0, 1]")))
    reproduce(project)
    score = read_record(project, "score.json")
    assert score["score_name"] == "closeness" and score["task"]["paired"] == "scores"
    rows = pd.read_csv(project / run_path("predictions.csv"))
    assert list(rows.columns) == ["sequence", "actual", "predicted", "score"]
    assert score["metrics"]["closeness"] == pytest.approx(rows["score"].mean())
    assert "closeness" in (project / "results/compare/compare.md").read_text()
    predicted = tandem(project, "predict", "tiny", "workloads/tiny/data/table.csv")
    assert predicted.stdout.startswith("sequence,predicted\n0,class ")

    task = project / "workloads/tiny/task.py"
    task.write_text(CLOSENESS.replace('"closeness"', '"closeness"\n    target = "number"'))
    outdated = tandem(project, "status", check=False).stdout
    assert all(f"{stage}@tiny" in outdated for stage in ("preprocess", "train", "evaluate"))

    task.unlink()
    (project / "params.yaml").write_text(TINY)
    compared = tandem(project, "compare", RUN, "results/runs/tiny/cpu/replicate/result/1")
    assert "closeness" in compared.stdout and "jackknife over 12 test sequences" in compared.stdout
    assert "trained together with other seeds and was not timed" in compared.stdout


def test_the_example_of_the_documentation_keeps_what_it_does_not_change(prepared: Path, tmp_path: Path):
    text = (ROOT / "docs/components.md").read_text(encoding="utf-8").partition("## Your own task")[2]
    code, line = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "yaml"))
    project = copy_of(prepared, tmp_path / "project", TINY.replace("task: classify", line.strip()))
    with_task(project, code)
    stages_at_once(project, "hardware", "train tiny cpu 0", "evaluate tiny cpu", publishes=False)
    score = read_record(project, "score.json")
    assert score["score_name"] == "accuracy" and score["task"]["paired"] == "correct"
    assert (project / run_path("result.png")).exists()
    code = json.loads((project / "results/hardware/code/tiny/train.json").read_text())
    assert {"workloads/tiny/task.py", "tandem/tasks/classify.py", "tandem/tasks/__init__.py"} <= set(code)
    assert "tandem/tasks/detect.py" not in code


class MacroF1(classify.Task):
    score_name = "macro_f1"


class Misnamed(classify.Task):
    score_name = "recall"


class Own(classify.Task):
    score_name = "recall"

    def score(self, predictions, targets, mask):
        return 0.5


@pytest.mark.parametrize(
    ("kind", "score", "starts", "verdict"),
    [
        (classify.Task, 0.7, "the most frequent class reaches 0.9, 1-NN 0.96: ", "does not beat"),
        (
            MacroF1,
            (0.8 + 2 / 7 + 1) / 3,
            "the most frequent class reaches 0.3158, 1-NN 0.6594: ",
            "is not clearly better than",
        ),
        (Own, 0.5, "by accuracy, the most frequent class reaches 0.9, 1-NN 0.96: ", "does not beat"),
    ],
)
def test_classify_compares_the_score_that_a_task_names(
    kind: type[classify.Task], score: float, starts: str, verdict: str
):
    """1-NN takes the rarest class for the most frequent one; the network takes a third of the most frequent for b."""
    labels = np.repeat([0, 1, 2], [90, 6, 4])
    values = np.where(labels == 2, 0, labels)[:, None, None] + np.zeros((100, 2, 1), dtype=np.float32)
    arrays = {"targets": labels, "values": values, "ids": np.arange(100), "lengths": np.full(100, 2)}
    predicted, targets = torch.tensor(np.where(np.arange(100) < 30, 1, labels)), torch.tensor(labels)
    task = kind({"classes": ["a", "b", "c"], "features": ["x"], "max_steps": 2})
    result = task.evaluate(F.one_hot(predicted).float(), lambda split, name: arrays[name])
    assert task.score(predicted, targets, torch.empty(0)) == pytest.approx(score)
    assert result.metrics.get(task.score_name, score) == pytest.approx(score)
    assert result.sentence.startswith(starts) and f"{verdict} 1-NN (" in result.sentence


@pytest.mark.parametrize("kind", [classify.Task, regress.Task])
def test_the_loss_of_a_derived_task_gets_the_mask_of_the_test_split(kind: Any):
    """An empty one made such a loss 0, or its training end without a score."""

    class MeanLength(kind):
        def loss(self, outputs, targets, mask, label_smoothing):
            return mask.sum(dim=1, dtype=torch.float32).mean()

    targets = np.arange(4) % 2 if kind is classify.Task else np.arange(4.0)
    arrays = {"targets": targets, "values": np.zeros((4, 3, 1), dtype=np.float32), "ids": np.arange(4)}
    arrays["lengths"] = np.array([3, 2, 2, 1])
    target = {"name": "x", "mean": 0.0, "std": 1.0}
    task = MeanLength({"classes": ["a", "b"], "features": ["x"], "target": target, "max_steps": 3})
    assert task.evaluate(torch.zeros(4, 2), lambda split, name: arrays[name]).metrics["loss"] == 2.0


@pytest.mark.parametrize(("num_lost", "verdict"), [(4, "the difference is not clear with 96"), (6, "it is worse")])
def test_a_verdict_on_a_baseline_agrees_with_mcnemar(num_lost: int, verdict: str):
    """Of 96 sequences, one network loses 4 and the other 6 that the baseline has: p is 0.125 and 0.031."""
    labels = np.repeat([0, 1], [64, 32])
    arrays = {"targets": labels, "values": np.zeros((96, 2, 1), dtype=np.float32), "ids": np.arange(96)}
    arrays["lengths"] = np.full(96, 2)
    outputs = F.one_hot(torch.tensor(np.where(np.arange(96) < num_lost, 1, 0)), 2).float()
    task = classify.Task({"classes": ["a", "b"], "features": ["x"], "max_steps": 2})
    result = task.evaluate(outputs, lambda split, name: arrays[name])
    assert f"does not beat the most frequent class ({verdict}" in result.sentence


def test_classify_refuses_a_score_that_it_does_not_compute():
    task, labels = Misnamed({"classes": ["a", "b"]}), torch.tensor([0, 1])
    with pytest.raises(
        ValueError, match="test_tasks.py: Misnamed has the score_name 'recall'; .* accuracy and macro_f1"
    ):
        task.score(labels, labels, torch.empty(0))


PREDICTS_ONE = "    def predict(self, outputs, mask):\n        return outputs.argmax()[None]\n\n    def score"
WITHOUT_OUTPUTS = "    def __init__(self, summary):\n        self.classes = []\n\n    def score"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".square().mean()", ".square()", "Task.loss returns a tensor of shape (2,); it must return a scalar tensor"),
        ("outputs.softmax", "outputs.detach().softmax", "Task.loss returns a number without a gradient"),
        ("    def score", WITHOUT_OUTPUTS, "Task has None as num_outputs; set it to a whole number"),
        ("    def score", PREDICTS_ONE, "Task.predict returns 1 predictions for 2 sequences; return one for each"),
        ("return 1 - (pred", "1 - (pred", "Task.score returns NoneType; it must return one number"),
    ],
)
def test_a_mistake_in_a_task_gets_one_sentence_before_the_training(
    prepared: Path, tmp_path: Path, old: str, new: str, words: str
):
    project = with_task(copy_of(prepared, tmp_path / "project", UNSMOOTHED), CLOSENESS.replace(old, new))
    result = stages_at_once(project, "hardware", "train tiny cpu 0", check=False, publishes=False)
    assert result.returncode != 0 and f"workloads/tiny/task.py: {words}" in result.stdout, result.stdout
    assert "Traceback" not in result.stdout


class Distance(tasks.Task):
    score_name = "distance"

    def loss(self, outputs, targets, mask, label_smoothing):
        return outputs.square().mean()

    def score(self, predictions, targets, mask):
        return -(predictions - targets).abs().double().mean().item()


class Numbers(Distance):
    target = "number"


class Steps(Distance):
    target = "class per step"


def evaluate(task: tasks.Task, outputs: torch.Tensor, targets: torch.Tensor) -> tasks.Evaluation:
    arrays = {"lengths": np.array([2, 3]), "ids": np.array([7, 8]), "targets": targets.numpy()}
    return task.evaluate(outputs, lambda split, name: arrays[name])


def test_the_defaults_serve_numbers_and_classes_of_steps():
    numbers = Numbers({"target": {"name": "x", "mean": 10.0, "std": 2.0}, "max_steps": 3})
    result = evaluate(numbers, torch.tensor([[1.0], [1.0]]), torch.tensor([0.0, 1.0]))
    assert result.predictions == [
        {"sequence": "7", "actual": 10.0, "predicted": 12.0, "score": -1.0},
        {"sequence": "8", "actual": 12.0, "predicted": 12.0, "score": 0.0},
    ]
    assert result.metrics["distance"] == -0.5 and not result.confusion

    steps, targets = Steps({"classes": ["no", "yes"], "max_steps": 3}), torch.tensor([[0, 1, 0], [1, 1, 1]])
    outputs = torch.nn.functional.one_hot(targets, 2).float()
    assert evaluate(steps, outputs, targets).predictions == [{"sequence": name, "score": 0.0} for name in "78"]
    mask = torch.tensor([[True, True, False], [True, True, True]])
    table = steps.tabulate(outputs, tasks.NewInputs(mask, np.array([7, 8]), [np.arange(4, 6), np.arange(4, 7)]))
    assert table["sequence"].tolist() == [7, 7, 8, 8, 8] and table["step"].tolist() == [4, 5, 4, 5, 6]
    assert table["predicted"] == ["no", "yes", "yes", "yes", "yes"]


@pytest.mark.parametrize("places", [0, 1, 3])
def test_targets_in_units_are_the_numbers_of_the_table(places: int):
    """As metrics of one's own get them: not 5.000000027. A number that 32 bits do not hold is as near as before."""
    numbers = (np.random.default_rng(0).normal(size=200) * 30).round(places)
    mean, std = numbers.mean(), numbers.std()
    targets = ((numbers - mean) / std).astype(np.float32)
    task = regress.Task({"target": {"name": "age", "mean": mean, "std": std}})
    np.testing.assert_array_equal(task.targets_in_units(targets), numbers)
    odd = numbers + np.pi / 1e4
    rounding = np.abs(targets) * std * tasks.FLOAT32_ROUNDING
    assert (np.abs(tasks.as_in_table(odd, rounding) - odd) <= 10 * rounding).all()


@pytest.mark.parametrize("transform", ["difference", "log-return"])
def test_target_levels_of_a_forecast_are_those_of_the_table(transform: str):
    levels = 100 + np.random.default_rng(0).normal(size=(1, 61)).cumsum().round(1)
    anchors, ahead = levels[:-6], np.lib.stride_tricks.sliding_window_view(levels[1:], 6)
    before = np.lib.stride_tricks.sliding_window_view(levels[:-1], 6)
    steps = ahead - before if transform == "difference" else np.log(ahead / before)
    mean, std = steps.mean(), steps.std()
    summary = {"mean": [mean], "std": [std], "horizon": 6, "season": None, "naive_error": 1.0, "num_outputs": 6}
    task = forecast.Task({**summary, "target": {"name": "load", "transform": transform}})
    found = task.targets_in_units(((steps - mean) / std).astype(np.float32), anchors)
    np.testing.assert_array_equal(found, ahead.round(1))
