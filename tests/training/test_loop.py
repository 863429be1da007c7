"""A training loop of a workload's own: it takes the steps, and everything around them is as in Tandem's own loop."""

import importlib.util
import io
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tandem.parts import Component, read_component
from tests.projects import (
    ROOT,
    TINY,
    commit,
    copy_of,
    held,
    python,
    read_record,
    reproduce,
    run_path,
    stage,
    start_training,
    tandem,
    without_publisher,
)
from tests.refusals import sentence
from tests.trainers import SETTINGS, Outcome, assert_same_bits, finish, new_trainer

if TYPE_CHECKING:
    from tandem.training.custom_loop import LoopTrainer

EXAMPLES = ROOT / "docs/examples"
LOOP = '    loop: "loop.py:train"\n    epochs: 3\n'
OWN = TINY.replace("    epochs: 3\n", LOOP)


def loop_of(name: str) -> Component:
    """A function of tests/loops.py, or the one of an example."""
    if (EXAMPLES / name).is_dir():
        path = EXAMPLES / name / "loop.py"
        return read_component("loop", "loop.py:train", f"docs.examples.{name}.loop", "train", path)
    return read_component("loop", f"loops.py:{name}", "tests.loops", name, ROOT / "tests/loops.py")


def loop_trainer(name: str, device: str = "cpu", data_location: str = "device", folder: Path = Path()) -> "LoopTrainer":
    """A small training with a loop, from its start, on the data of `new_trainer`."""
    from tandem.training.custom_loop import LoopTrainer

    plain = new_trainer(device, data_location, folder)
    return LoopTrainer(plain.model, plain.train_split, plain.val_split, SETTINGS, plain.task, 0, loop_of(name))


def trained(trainer: "LoopTrainer", num_epochs: int | None = None) -> Outcome:
    losses: list[float] = []
    trainer.train_epochs(lambda epoch: losses.append(epoch.train_loss), num_epochs)
    return {name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()}, losses


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("data_location", ["device", "host"])
def test_a_loop_that_takes_the_built_in_steps_gives_the_same_bits(tmp_path: Path, device: str, data_location: str):
    built_in = finish(new_trainer(device, data_location, tmp_path))
    assert_same_bits(trained(loop_trainer("exact", device, data_location, tmp_path)), built_in)
    _, example = trained(loop_trainer("plain_torch", device, data_location, tmp_path))
    assert example == pytest.approx(built_in[1], rel=1e-5), "torch's scheduler computes the rates in float64"


@pytest.mark.parametrize(
    ("name", "num", "words"),
    [
        ("exact", 50, ""),
        (
            "hasty",
            2 * SETTINGS.batch_size,
            f"have {2 * SETTINGS.batch_size} sequences, and train has 50; samples/s counts these",
        ),
        ("unseen", 50, "have 0 sequences, and train has 50; samples/s counts each training sequence once"),
    ],
)
def test_samples_per_second_counts_the_sequences_of_the_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, num: int, words: str
):
    trainer = loop_trainer(name, folder=tmp_path)
    trained(trainer)
    assert trainer.num_sequences == num and words in trainer.sentences.get("sequences", "")
    assert capsys.readouterr().out.count("the loop's batches") == bool(words)


@pytest.mark.parametrize("name", ["plain_torch", "restless"])
def test_a_resumed_loop_is_an_uninterrupted_one(tmp_path: Path, name: str):
    import torch

    from tandem.training.trials import without_trace

    weights, losses = trained(loop_trainer(name, folder=tmp_path))
    first = loop_trainer(name, folder=tmp_path)
    saved = io.BytesIO()

    def save(epoch: Any) -> None:
        if epoch.number == 2:
            torch.save(first.state(), saved)

    assert trained(first, 3)[1] == losses[:3]
    first = loop_trainer(name, folder=tmp_path)
    first.train_epochs(save)
    second = loop_trainer(name, folder=tmp_path)
    saved.seek(0)
    second.restore(torch.load(saved, weights_only=True))
    with without_trace(second):  # as the number of threads is measured before the first epoch
        pass
    assert_same_bits(trained(second), (weights, losses[2:]))
    assert second.best_loss == first.best_loss


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("returns_early", ["tests/loops.py, returns_early: it returned after 1 of 4 epochs", "run.remaining_epochs()"]),
        ("runs_too_many", ["tests/loops.py, line ", "called for epoch 5, but train.epochs is 4"]),
        ("nests", ["called in epoch 1, which has not ended; do not nest it"]),
        ("goes_on_after_an_error", ["called in epoch 1, which has not ended", "do not catch its errors"]),
        ("logs_nothing", ["epoch 1 ended without its loss; call epoch.log(train_loss=..., learning_rate=...)"]),
        ("reads_batches_outside", ["read outside `with run.epoch():`"]),
        ("registers_late", ["run.state() was called after the first epoch had begun"]),
        ("registers_a_number", ["run.state(step=...) received int; accepted: objects with state_dict"]),
        ("registers_what_cannot_be_saved", ["run.state(foreign=...) has values of float64; a checkpoint accepts"]),
        ("raises", ["tests/loops.py, line ", ": expected 3 and received 4"]),
    ],
)
def test_a_mistake_in_a_loop_gets_one_sentence_with_its_line(tmp_path: Path, name: str, words: list[str]):
    sentence(lambda: trained(loop_trainer(name, folder=tmp_path)), *words)


def test_a_state_that_is_not_registered_again_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    first = loop_trainer("registers_another_name", folder=tmp_path)
    trained(first, 2)
    second = loop_trainer("registers_another_name", folder=tmp_path)
    second.restore(first.state())
    with pytest.raises(ValueError, match=r"the state of first, which was not passed to"):
        trained(second)
    with pytest.raises(ValueError):
        trained(loop_trainer("runs_too_many", folder=tmp_path))
    assert "warning: the loop registers no object with run.state()" in capfd.readouterr().out


def test_memory_that_runs_out_ends_with_advice_and_no_fallback(tmp_path: Path):
    from tandem.training.executor import OutOfMemory, translate_oom

    trainer = loop_trainer("runs_out_of_memory", folder=tmp_path)
    with pytest.raises(OutOfMemory, match="no fallback is possible here; next, .*then lower train.batch_size"):
        with translate_oom(trainer.executor):
            trained(trainer)


def test_a_loop_ends_when_tandem_stops_it_whatever_it_catches(tmp_path: Path):
    trainer = loop_trainer("swallows_everything", folder=tmp_path)

    def stop(epoch: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train_epochs(stop)
    assert trainer.epochs_done == 1


# Stages --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose workload has a loop, trained."""
    project = copy_of(prepared, tmp_path_factory.mktemp("loop") / "project", OWN)
    assert (EXAMPLES / "plain_torch/loop.py").read_text() in (ROOT / "docs/components.md").read_text()
    shutil.copy(EXAMPLES / "plain_torch/loop.py", project / "workloads/tiny/loop.py")
    commit(project)
    reproduce(project)
    commit(project)
    return project


def test_a_workload_with_a_loop_is_recorded_like_any_other(project: Path):
    record, timing = read_record(project, "train.json"), read_record(project, "timing.json")
    assert record["block"]["train"]["loop"] == "loop.py:train"
    assert "workloads/tiny/loop.py" in record["digests"]["code"]
    assert record["realized"]["step"] == "eager" and len(record["epochs"]) == 3
    assert timing["summary_lines"]["loop"].startswith("loop.py:train takes the steps, so there is no probe")
    assert timing["timing"]["num_epochs_measured"] == 2 and timing["timing"]["epoch_seconds"] > 0
    history = pd.read_csv(project / run_path("history.csv"))
    assert list(history["epoch"]) == [1, 2, 3] and history["train_loss"].is_monotonic_decreasing


def test_an_edit_of_the_loop_trains_again_and_a_comment_does_not(project: Path, tmp_path: Path):
    copy = copy_of(project, tmp_path / "copy", OWN)
    path = copy / "workloads/tiny/loop.py"
    text = path.read_text()
    path.write_text(text + "\n# A comment.\n")
    assert tandem(copy, "status").stdout == "up to date\n"
    path.write_text(text.replace("len(train) + 1", "len(train) + 2"))
    outdated = tandem(copy, "status", check=False).stdout
    assert "train@tiny-cpu" in outdated
    assert not any(name in outdated for name in ("preprocess@", "preload@", "speed@")), outdated


def test_tandems_own_steps_are_not_measured_in_the_place_of_the_loops(project: Path):
    code = """
from stages import speed
speed.sides_of = lambda devices: [speed.TimedSide(name, "cpu") for name in ("cpu", "two")]
speed.main("tiny")
"""
    assert "tiny: loop.py:train takes the steps of tiny" in python(project, code).stdout


NO_LIGHTNING = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed: it is not in the lock file"
)


@pytest.mark.parametrize(
    ("example", "number"),
    [
        ("plain_torch", signal.SIGINT),
        # Lightning handles SIGTERM, and turns a KeyboardInterrupt into another exit.
        pytest.param("lightning", signal.SIGINT, marks=NO_LIGHTNING),
        pytest.param("lightning", signal.SIGTERM, marks=NO_LIGHTNING),
    ],
)
def test_a_stopped_training_resumes_with_the_same_bits(
    project: Path, tmp_path: Path, example: str, number: signal.Signals
):
    """A training that is killed: tests/flows/test_pipeline.py, with the same checkpoints."""
    copy = without_publisher(copy_of(project, tmp_path / "copy", OWN.replace("epochs: 3", "epochs: 6")))
    shutil.copy(EXAMPLES / example / "loop.py", copy / "workloads/tiny/loop.py")
    stage(copy, "hardware")
    whole = copy_of(copy, tmp_path / "whole", (copy / "params.yaml").read_text())
    process = start_training(copy, **held(tmp_path / "held", 2))
    assert process.stdout
    while not process.stdout.readline().startswith("epoch 2/6"):
        assert process.poll() is None, "the training ended early"
    process.send_signal(number)
    while "stopping after this epoch" not in process.stdout.readline():
        assert process.poll() is None, "the training ended early"
    (tmp_path / "held/go").touch()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    resumed = stage(copy, "train", "tiny", "cpu", "0", publishes=False).stdout
    assert "epoch 2 of 6" in resumed and "epoch 3/6" in resumed, resumed
    stage(whole, "train", "tiny", "cpu", "0", publishes=False)
    for name in ("train.json", "history.csv", "best.safetensors", "last.safetensors"):
        assert (copy / run_path(name)).read_bytes() == (whole / run_path(name)).read_bytes()


@NO_LIGHTNING
def test_lightnings_trainer_takes_the_same_steps_and_is_verified(project: Path, tmp_path: Path):
    copy = without_publisher(copy_of(project, tmp_path / "copy", OWN))
    expected = pd.read_csv(copy / run_path("history.csv"))
    shutil.copy(EXAMPLES / "lightning/loop.py", copy / "workloads/tiny/loop.py")
    commit(copy)
    done = tandem(copy, "repro")
    assert done.returncode == 0, done.stdout
    losses = pd.read_csv(copy / run_path("history.csv")).drop(columns="learning_rate")  # after the last step, not of it
    pd.testing.assert_frame_equal(losses, expected.drop(columns="learning_rate"), rtol=1e-5)
    done = tandem(copy, "verify", "tiny@cpu-0")
    assert "tiny@cpu-0: bit-equal\n" in done.stdout, done.stdout
