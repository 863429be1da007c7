"""The stage `baseline`: a fitted model that every network is compared with."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.devices.names import kind_of
from tandem.fitted import baseline
from tandem.models import Shape
from tandem.tasks import Task, open_task
from tandem.training.batches import Split
from tests.projects import copy_of, read_record, run, run_path, stage

RESULT = "results/baseline/tiny"


def test_the_network_is_compared_with_what_the_fitted_model_predicts(trained: Path):
    outputs, targets = (
        np.load(trained / RESULT / "outputs.npy"),
        np.load(trained / "data/prepared/tiny/test/targets.npy"),
    )
    score = read_record(trained, "score.json")
    assert score["metrics"]["fitted_accuracy"] == pytest.approx((outputs.argmax(axis=1) == targets).mean())
    record = json.loads((trained / RESULT / "baseline.json").read_text())
    assert record["about"] in score["sentence"] and "the fitted model" in score["sentence"]
    assert max(record["held_out"], key=record["held_out"].get) in ("rocket", "raw", "forest")


def test_an_evaluation_needs_the_file_that_the_stage_wrote(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    outputs = project / RESULT / "outputs.npy"
    outputs.write_bytes(outputs.read_bytes()[:-4] + bytes(4))
    command = "dvc repro --force baseline@tiny"
    assert command in stage(project, "evaluate", "tiny", "cpu", check=False, publishes=False).stdout
    (project / RESULT / "baseline.json").unlink()
    output = stage(project, "evaluate", "tiny", "cpu", check=False, publishes=False).stdout
    assert f"{RESULT}/baseline.json is missing" in output and command in output


def test_a_workload_without_a_fitted_model_gets_the_reason_without_torch(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    code = (
        "import sys; from tandem.params.loading import load_workload; from tandem.params import schema;"
        "from dataclasses import replace; import stages.baseline as own; block = load_workload('tiny');"
        "rocket = schema.BUILT_IN['rocket'].schema(name='rocket');"
        "fitted = replace(block.train, model=rocket, epochs=1, warmup_epochs=0, label_smoothing=0.0);"
        "own.load_workload = lambda name: replace(block, train=fitted);"
        "own.main('tiny'); print('torch' in sys.modules)"
    )
    output = run(project, sys.executable, "-c", code).stdout
    assert "no fitted model to compare with: the workload's own model, rocket, is fitted" in output
    assert output.splitlines()[-1] == "False"
    stage(project, "evaluate", "tiny", "cpu", publishes=False)
    assert "fitted_accuracy" not in (project / run_path("score.json")).read_text()


def splits_of(num: int, num_test: int, num_steps: int = 8) -> tuple[Split, Split, Split, Shape, Task]:
    """Two classes that differ in the mean."""
    draw = np.random.default_rng(0)
    splits = []
    for count in (num, max(2, num // 8), num_test):
        targets = torch.arange(count) % 2
        values = torch.from_numpy(draw.standard_normal((count, num_steps, 1), dtype=np.float32))
        tensors = {"values": values + targets[:, None, None], "mask": torch.ones(count, num_steps, dtype=torch.bool)}
        splits.append(Split({**tensors, "targets": targets}, kind_of("cpu")()))
    summary = {"features": ["x"], "max_steps": num_steps, "classes": ["a", "b"]}
    task = open_task("classify", summary)
    return (*splits, Shape.of(summary, task), task)  # type: ignore[return-value]


def test_many_sequences_are_sampled_and_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(baseline, "MAX_SEQUENCES", 360)
    train, val, test, shape, task = splits_of(800, 50)
    model = baseline.fit(train, val, test, shape, task, lambda *_: None)
    assert model.description.endswith("fitted to 320 of 800 training sequences")
    assert (model.outputs.argmax(dim=1) == test.tensors["targets"]).double().mean() > 0.8
    small_model = baseline.fit(*splits_of(60, 50), lambda *_: None)
    assert small_model.description.endswith("fitted to 60 training sequences")


def test_what_would_take_longer_than_a_minute_is_not_fitted():
    shape = Shape(num_features=10, num_outputs=2, max_steps=500, per_step=False)
    assert not baseline.refusal(shape, 1500)
    assert "the test split has 10,000,000 values, too many" in baseline.refusal(shape, 2000)
    long = Shape(num_features=100, num_outputs=2, max_steps=500, per_step=False)
    assert "sequences of 50,000 values are too long" in baseline.refusal(long, 10)
