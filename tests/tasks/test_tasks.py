"""Tasks in a workload's directory, and that no other module compares a task's name."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch

from tandem import tasks
from tandem.files import ROOT
from tandem.params import schema
from tandem.parts import find
from tandem.runs.run import open_folder
from tests.projects import (
    RUN,
    TINY,
    commit,
    copy_of,
    make_project,
    make_table,
    python,
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

    @staticmethod
    def draw(axes, rows):
        """The scores of the test sequences, sorted."""
        axes.plot(sorted(float(row["score"]) for row in rows))
'''
OWN = TINY.replace("task: classify", "task: task.py:Task")
UNSMOOTHED = OWN.replace("label_smoothing: 0.1", "label_smoothing: 0.0")


def with_task(project: Path, code: str = CLOSENESS) -> Path:
    (project / "workloads/tiny/task.py").write_text(code)
    commit(project)
    return project


def test_a_task_from_scratch_is_trained_compared_drawn_and_applied_to_a_new_table(tmp_path: Path):
    project = with_task(make_project(tmp_path / "project", UNSMOOTHED.replace("seeds: [0]", "seeds: [0, 1]")))
    reproduce(project, publishes=False)
    score = read_record(project, "score.json")
    assert score["score_name"] == "closeness" and score["task"]["paired"] == "scores"
    with (project / run_path("predictions.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["sequence", "actual", "predicted", "score"]
    mean = sum(float(row["score"]) for row in rows) / len(rows)
    assert score["metrics"]["closeness"] == pytest.approx(mean)
    assert "closeness" in (project / "results/compare/compare.md").read_text()
    assert "The scores of the test sequences, sorted." in (project / "results/report.html").read_text()
    predicted = tandem(project, "predict", "tiny", "workloads/tiny/data/table.csv")
    assert predicted.stdout.startswith("sequence,predicted\n0,class ")

    task = project / "workloads/tiny/task.py"
    task.write_text(CLOSENESS + "\n# A comment.\n")
    assert tandem(project, "status").stdout == "up to date\n"
    task.write_text(CLOSENESS.replace(".square()", ".abs()"))
    outdated = tandem(project, "status", check=False).stdout
    assert "train@tiny-cpu" in outdated and "evaluate@tiny-cpu" in outdated and "preprocess@tiny" not in outdated
    task.write_text(CLOSENESS.replace('"closeness"', '"closeness"\n    target = "number"'))
    assert "preprocess@tiny" in tandem(project, "status", check=False).stdout

    # Where the task is missing, its runs can be compared.
    task.unlink()
    (project / "params.yaml").write_text(TINY)
    compared = tandem(project, "compare", RUN, "results/runs/tiny/cpu/replicate/result/1")
    assert "closeness" in compared.stdout and "paired bootstrap over 12 sequences" in compared.stdout


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


HUBER = """\
from torch.nn import functional as F

from tandem.tasks import regress


class Task(regress.Task):
    def loss(self, outputs, targets, mask, label_smoothing):
        return F.huber_loss(outputs[:, 0], targets)
"""


def test_a_task_for_numbers_is_checked_before_its_data_is_prepared(tmp_path: Path):
    table = make_table()
    table["label"] = table.sequence % 7 + 0.5
    project = with_task(make_project(tmp_path / "project", UNSMOOTHED, table), HUBER)
    code = "from tandem.checking.subject import open_subject; from tandem.machine.hardware import detect_hardware; "
    code += (
        "found = open_subject('tiny', detect_hardware('cpu')); print(found.task.target, found.tensors['targets'].dtype)"
    )
    assert python(project, code).stdout == "number torch.float32\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("tasks") / "project", UNSMOOTHED)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".square().mean()", ".square()", "Task.loss returns a tensor of shape (2,); it must return a scalar tensor"),
        (".square().mean()", ".square().mean().item()", "Task.loss returns float; it must return a scalar tensor"),
        ("outputs.softmax", "outputs.detach().softmax", "Task.loss returns a number without a gradient"),
        (
            "    def score",
            "    def __init__(self, summary):\n        self.classes = []\n\n    def score",
            "Task has None as num_outputs; set it to a whole number",
        ),
        (
            "    def score",
            "    def predict(self, outputs, mask):\n        return outputs.argmax()[None]\n\n    def score",
            "Task.predict returns 1 predictions for 2 sequences; return one for each",
        ),
        ("return 1 - (pred", "1 - (pred", "Task.score returns NoneType; it must return one number"),
    ],
)
def test_a_loss_that_cannot_be_trained_with_gets_one_sentence_at_the_start(
    prepared: Path, tmp_path: Path, old: str, new: str, words: str
):
    project = with_task(copy_of(prepared, tmp_path / "project", UNSMOOTHED), CLOSENESS.replace(old, new))
    done = stages_at_once(project, "hardware", "train tiny cpu 0", check=False, publishes=False)
    assert done.returncode != 0 and f"workloads/tiny/task.py: {words}" in done.stdout, done.stdout
    assert "Traceback" not in done.stdout


def test_facts_are_inherited_from_files_beside_a_task_and_from_built_in_tasks(project: Path, monkeypatch):
    monkeypatch.setattr("tandem.parts.ROOT", project)
    monkeypatch.setattr("tandem.parts.workload_dir", lambda name: project / "workloads" / name)
    folder = project / "workloads/tiny"
    (folder / "base.py").write_text(
        'import tandem.tasks.detect as events\n\nclass Base(events.Task):\n    zero = "no better than chance"\n'
    )
    (folder / "derived.py").write_text(
        "from .base import Base as Task\n\n\nclass Task(Task):\n    usual_weights: str = 'best'\n    zero = Task.zero\n"
    )
    found = find("task", "derived.py:Task", "tiny")
    assert found.constants["score_name"] == "event_f1" and found.constants["usual_weights"] == "best"
    assert "zero" not in found.constants  # its value is not in the source
    assert found.methods["loss"] == "tandem.tasks.detect" and "tandem.tasks.Task" in found.bases


class Distance(tasks.Task):
    """A number for each sequence, or a class for each step."""

    score_name = "distance"

    def loss(self, outputs, targets, mask, label_smoothing):
        return outputs.square().mean()

    def score(self, predictions, targets, mask):
        return -(predictions - targets).abs().double().mean().item()


class Numbers(Distance):
    target = "number"


class Steps(Distance):
    target = "class per step"


def test_the_defaults_serve_numbers_and_classes_of_steps():
    arrays = {"lengths": torch.tensor([2, 3]).numpy(), "ids": torch.tensor([7, 8]).numpy()}
    numbers = Numbers({"target": {"name": "x", "mean": 10.0, "std": 2.0}})
    targets = torch.tensor([0.0, 1.0]).numpy()
    found = numbers.evaluate(torch.tensor([[1.0], [1.0]]), lambda _, name: {**arrays, "targets": targets}[name])
    assert found.predictions == [
        {"sequence": "7", "actual": 10.0, "predicted": 12.0, "score": -1.0},
        {"sequence": "8", "actual": 12.0, "predicted": 12.0, "score": 0.0},
    ]
    assert found.metrics["distance"] == -0.5 and not found.confusion

    steps, targets = Steps({"classes": ["no", "yes"]}), torch.tensor([[0, 1, 0], [1, 1, 1]])
    outputs = torch.nn.functional.one_hot(targets, 2).float()
    found = steps.evaluate(outputs, lambda _, name: {**arrays, "targets": targets.numpy()}[name])
    assert steps.per_step and found.predictions == [{"sequence": name, "score": 0.0} for name in "78"]
    mask = torch.tensor([[True, True, False], [True, True, True]])
    numbered = [torch.arange(4, 4 + num).numpy() for num in (2, 3)]
    table = steps.tabulate(outputs, tasks.NewInputs(mask, arrays["ids"], numbered))
    assert table["sequence"].tolist() == [7, 7, 8, 8, 8] and table["step"].tolist() == [4, 5, 4, 5, 6]
    assert table["predicted"] == ["no", "yes", "yes", "yes", "yes"]


def test_runs_that_do_not_record_the_facts_have_those_of_their_built_in_task(trained: Path):
    found = open_folder(trained / RUN)
    recorded = found.task_facts
    assert found.score
    del found.score["task"], found.__dict__["task_facts"]
    assert found.task_facts == recorded == schema.built_in_facts("classify").recorded
