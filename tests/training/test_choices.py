"""`auto` takes what is fastest, leaves the training as it was, and is kept by machine and shape.

Here, the number of threads changes the bits of a training; test_threads.py has those in which it does not.

No test reads the wall clock: time is what was planted, as a cost of a step by threads and precision.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tandem.devices.hardware import detect_hardware
from tandem.devices.names import kind_of
from tandem.params.schema import Augment, Train
from tandem.training import auto
from tandem.training.auto import Choice
from tandem.training.batches import Split
from tandem.training.step import take_step
from tandem.training.trainer import Trainer
from tests.projects import TINY, copy_of, dvc, git, read_record, run, run_path
from tests.trainers import SETTINGS, assert_same_bits, finish, full_tensors, new_trainer, trainer_on

AUTO = replace(SETTINGS, threads="auto", augment=Augment(coupled_features=1, mix=0.0, shift=0.0, warp=0.0))
REAL_GET, REAL_SET = torch.get_num_threads, torch.set_num_threads
Speed = Callable[[int, bool], float]  # (threads, whether in bf16) -> steps per second


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Four cores, of which `num_free` are free, a clock that only planted costs move, and a cache of its own.

    The next `num_disturbed` steps wait for a core half of their time.
    """
    planted = SimpleNamespace(seconds=0.0, num_free=4, num_disturbed=0.0, waited=0.0, num_steps=0, threads=1)
    # More threads than the machine has free cores wait for one another, for minutes.
    monkeypatch.setattr(torch, "get_num_threads", lambda: planted.threads)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: setattr(planted, "threads", threads))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(auto, "usable_cores", lambda: 4.0)

    def has_cores(threads: int) -> bool:
        planted.seconds += 0.4
        return threads <= planted.num_free

    monkeypatch.setattr(auto, "has_cores", has_cores)
    monkeypatch.setattr(auto, "waited_seconds", lambda: planted.waited)

    def clock() -> float:
        planted.seconds += 1e-6  # an epoch that takes no time has no rate
        return planted.seconds

    monkeypatch.setattr(time, "perf_counter", clock)
    return planted


def planted(machine: SimpleNamespace, speed: Speed, settings: Train = AUTO, num_steps: int = 5) -> Trainer:
    """A training whose step takes as long as `speed` says, and whose bits depend on the number of threads."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            seconds = 1 / speed(torch.get_num_threads(), torch.is_autocast_enabled("cpu"))
            machine.seconds += seconds
            machine.num_steps += 1
            if machine.num_disturbed > 0:
                machine.waited += seconds / 2
                machine.num_disturbed -= 1
            return self.head(values.mean(1)) + torch.get_num_threads() / 1000

    return trainer_on(Split(full_tensors(num_steps), kind_of("cpu")()), settings, model=Network())


def speeds(*by_threads: float, in_bf16: float = 1.0) -> Speed:
    """Steps per second with 1, 2 and 4 threads, and how many times as many in bf16."""
    table = dict(zip((1, 2, 4), by_threads, strict=True))
    return lambda threads, is_bf16: 10 * table[threads] * (in_bf16 if is_bf16 else 1.0)


@pytest.mark.parametrize(
    ("by_threads", "expected"),
    [
        ((1.0, 1.9, 2.0), 2),  # the last two gain too little for what they take
        ((1.0, 0.7, 0.5), 1),
        ((1.0, 1.1, 1.6), 4),
    ],
)
def test_more_threads_are_taken_where_they_gain(by_threads: tuple[float, ...], expected: int, machine: SimpleNamespace):
    trainer = planted(machine, speeds(*by_threads))
    sentences = auto.resolve(trainer, detect_hardware("cpu"))
    assert (
        trainer.thread_tuner.kept_number == (expected if expected > 1 else None) and torch.get_num_threads() == expected
    )
    assert sentences["threads"].startswith(f"threads {expected}, chosen by measuring (2: {by_threads[1]:.2f} times")


def test_precision_is_chosen_on_all_cores_and_threads_in_this_precision(machine: SimpleNamespace):
    def speed(threads: int, is_bf16: bool) -> float:
        return {(1, False): 10.0, (1, True): 5.0, (4, False): 15.0, (4, True): 30.0}.get((threads, is_bf16), 40.0)

    trainer = planted(machine, speed, replace(AUTO, precision="auto"))
    sentences = auto.resolve(trainer, detect_hardware("cpu"))
    assert (trainer.thread_tuner.number, trainer.execution.precision) == (2, "bf16")
    assert "bf16: 2.00 times as fast as fp32" in sentences["precision"]
    slow = planted(machine, speed, replace(AUTO, threads=1, precision="auto"))
    auto.resolve(slow, detect_hardware("cpu"))
    assert slow.execution.precision == "fp32" and len(auto.cached_choices()) == 3


def test_the_training_goes_on_as_if_nothing_had_been_measured(
    machine: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(auto, "usable_cores", lambda: 2.0)
    monkeypatch.setattr(torch, "get_num_threads", REAL_GET)
    monkeypatch.setattr(torch, "set_num_threads", REAL_SET)
    settings, threads = replace(SETTINGS, epochs=2), torch.get_num_threads()
    measured = new_trainer("cpu", "device", tmp_path, replace(settings, threads="auto", precision="auto"))

    def take_step_slowly(*arguments: Any) -> torch.Tensor:  # the real step; planted is only how long it takes
        machine.seconds += 0.1 / torch.get_num_threads()
        return take_step(*arguments)

    monkeypatch.setattr("tandem.training.step.take_step", take_step_slowly)
    before = measured.state()
    drawn, weights = torch.get_rng_state(), {name: tensor.clone() for name, tensor in before["model"].items()}
    auto.resolve(measured, detect_hardware("cpu"))
    assert (measured.thread_tuner.number, measured.execution.precision) == (2, "fp32")
    after = measured.state()
    assert torch.equal(torch.get_rng_state(), drawn) and torch.equal(after["generator"], before["generator"])
    assert_same_bits((after["model"], []), (weights, []))
    assert not after["optimizer"]["state"]
    assert all(parameter.grad is None for parameter in measured.model.parameters())
    result = finish(measured)

    pinned = new_trainer("cpu", "device", tmp_path, replace(settings, threads=2))
    torch.set_num_threads(2)
    assert_same_bits(result, finish(pinned))
    torch.set_num_threads(threads)


def test_a_choice_holds_for_the_machine_and_the_shape(machine: SimpleNamespace):
    here = detect_hardware("cpu")
    auto.resolve(planted(machine, speeds(1.0, 1.9, 2.0)), here)
    other_run = replace(AUTO, epochs=9, learning_rate=0.5, probe=True)
    for identity in (here, {**here, "requested": "auto", "why_not_cuda": "no driver"}):
        repeated, machine.num_steps = planted(machine, speeds(1.0, 1.0, 1.0), other_run), 0
        assert "threads 2, as chosen before" in auto.resolve(repeated, identity)["threads"]
        assert repeated.thread_tuner.number == 2 and machine.num_steps == 3 * 3  # which show that the bits depend on it
    for settings, identity, num_steps in (
        (replace(AUTO, batch_size=8), here, 5),
        (replace(AUTO, model=replace(AUTO.model, hidden_size=16)), here, 5),
        (AUTO, {**here, "cpu": {**here["cpu"], "cores": 64.0}}, 5),
        (AUTO, {**here, "torch": "9.9"}, 5),
        (AUTO, here, 6),
    ):
        trainer = planted(machine, speeds(1.0, 1.0, 3.0), settings, num_steps)
        auto.resolve(trainer, identity)
        assert trainer.thread_tuner.number == 4
    assert len(auto.cached_choices()) == 6


def test_a_busy_machine_takes_one_thread_and_keeps_nothing(machine: SimpleNamespace):
    machine.num_free, machine.num_disturbed = 1, math.inf
    trainer = planted(machine, speeds(1.0, 1.9, 3.5, in_bf16=2.0), replace(AUTO, precision="auto"))
    sentences = auto.resolve(trainer, detect_hardware("cpu"))
    assert (trainer.thread_tuner.number, trainer.execution.precision) == (1, "bf16")
    assert "other processes use the cores" in sentences["threads"] and "not cached" in sentences["precision"]
    assert auto.cached_choices() == {}


def test_a_fit_takes_all_cores_beside_a_gpu_too(machine: SimpleNamespace):
    """Nearly all its work is on the CPU. No GPU is needed: nothing is measured."""
    trainer = planted(machine, speeds(1.0, 1.9, 3.5))
    trainer.device, trainer.is_fitted = SimpleNamespace(is_accelerator=True), True
    assert auto.choose_threads(trainer, {})[0].number == 4
    trainer.is_fitted = False
    assert auto.choose_threads(trainer, {})[0].number == 1


def test_what_was_measured_beside_other_work_is_measured_again(machine: SimpleNamespace):
    machine.num_disturbed = 60  # an import, which ends: until then, threads wait for the core that it has

    def speed(threads: int, is_bf16: bool) -> float:
        return 100.0 / threads if machine.num_disturbed else 100.0 * threads

    trainer = planted(machine, speed)
    assert "threads 4, chosen by measuring (2: 2.00 times" in auto.resolve(trainer, detect_hardware("cpu"))["threads"]
    assert len(auto.cached_choices()) == 1


def test_what_needs_no_measuring_is_not_measured(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    trainer = planted(machine, speeds(1.0, 1.9, 3.5))
    monkeypatch.setattr(auto, "usable_cores", lambda: 1.5)  # a container's quota
    assert auto.resolve(trainer, detect_hardware("cpu")) == {"threads": "threads 1: only one core is usable"}
    pinned = planted(machine, speeds(1.0, 1.9, 3.5), replace(AUTO, threads=4))
    assert auto.resolve(pinned, detect_hardware("cpu")) == {} and pinned.thread_tuner.kept_number == 4
    assert machine.num_steps == 2 * 3 and auto.cached_choices() == {}  # which show whether the result depends on it


def test_a_gpu_with_one_precision_to_try_chooses_nothing_and_keeps_the_choices_of_others(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    """Turing and older GPUs have neither TF32 nor bf16."""
    auto.resolve(planted(machine, speeds(1.0, 1.9, 2.0)), detect_hardware("cpu"))
    before, trainer = auto.cached_choices(), planted(machine, speeds(1.0, 1.0, 1.0), replace(AUTO, precision="auto"))
    monkeypatch.setattr(trainer.device, "precisions", lambda: ("fp32", "fp16"))
    precision, sentence = auto.choose_precision(trainer, detect_hardware("cpu"))
    assert precision == "fp32" and sentence == "precision fp32: this device has no other one that `auto` tries"
    assert auto.cached_choices() == before and len(before) == 1


def test_the_first_of_two_choices_made_at_once_holds_for_both():
    first, second = (Choice("threads", value, [[1, 1.0], [2, 1.5]], "gru", "2026-01-01T10:00:00") for value in (1, 2))
    assert auto.store_choice("shape", first) == auto.store_choice("shape", second) == first
    assert auto.store_choice("other", second) == second


def test_a_folder_that_cannot_be_written_costs_only_the_measuring(machine: SimpleNamespace):
    """A damaged file: tests/faults/test_damaged_files.py."""
    auto.choices_file().with_suffix(".lock").mkdir(parents=True)
    trainer = planted(machine, speeds(1.0, 1.9, 2.0))
    assert "chosen by measuring; not cached: " in auto.resolve(trainer, detect_hardware("cpu"))["threads"]
    assert trainer.thread_tuner.number == 2


# A stage in a process of its own, in which as many threads as {fastest} take the least time, and which is interrupted
# after {epochs} epochs.
PLANTED = """
import sys
from tandem.stage import main
from tandem.training import auto
from tandem.training.trainer import Trainer
auto.usable_cores, auto.has_cores, auto.waited_seconds = lambda: 2.0, lambda threads: True, lambda: 0.0
auto.seconds_with_same_bits = lambda trainer, numbers: {{1: 1.0}}
auto.seconds_with = lambda _, trainer, values: {{value: 1.0 if value == {fastest} else 2.0 for value in values}}
train_epoch = Trainer.train_epoch
def interrupted(training):
    if training.epochs_done == {epochs}:
        raise KeyboardInterrupt
    return train_epoch(training)
Trainer.train_epoch = interrupted
sys.exit(main(["train", "tiny", "cpu", "0"]))
"""
ASKED = TINY.replace("threads: 1", "threads: auto")


def train(project: Path, cache: Path, fastest: int, epochs: int = -1) -> str:
    code = PLANTED.format(fastest=fastest, epochs=epochs)
    return run(project, sys.executable, "-c", code, check=epochs < 0, XDG_CACHE_HOME=str(cache)).stdout


def of(project: Path, name: str) -> bytes:
    return (project / run_path(name)).read_bytes()


@pytest.mark.long
def test_a_training_goes_on_with_the_threads_it_began_with_and_records_them(prepared: Path, tmp_path: Path):
    whole, stopped, pinned = (
        copy_of(prepared, tmp_path / name, TINY.replace("threads: 1", "threads: 2") if name == "pinned" else ASKED)
        for name in ("whole", "stopped", "pinned")
    )
    train(whole, tmp_path / "user", fastest=2)
    record, lines = read_record(whole, "train.json"), read_record(whole, "timing.json")["summary_lines"]
    assert (record["block"]["train"]["threads"], record["realized"]["threads"]) == ("auto", 2)
    assert lines["threads"].startswith("threads 2, chosen by measuring (2: 2.00 times")

    assert "threads 2, as chosen before" in train(stopped, tmp_path / "user", fastest=1, epochs=1)
    resumed = train(stopped, tmp_path / "somebody else", fastest=1)
    assert "resuming from" in resumed and read_record(stopped, "train.json")["realized"]["threads"] == 2
    assert not (tmp_path / "somebody else").exists()

    train(pinned, tmp_path / "user", fastest=1)
    for name in ("last.safetensors", "history.csv"):
        assert of(whole, name) == of(stopped, name) == of(pinned, name)
    code = "import torch; from tandem.stage import main; main(['evaluate', 'tiny', 'cpu']); "
    code += "print(torch.get_num_threads())"
    assert run(whole, sys.executable, "-c", code).stdout.splitlines()[-1] == "1"  # so scores have the same bits


@pytest.mark.long
def test_a_choice_is_no_dependency(prepared: Path, tmp_path: Path):
    project, user = copy_of(prepared, tmp_path / "project", ASKED), str(tmp_path / "user")
    assert "Running stage 'train@tiny-cpu'" in dvc(project, "repro", "train@tiny-cpu", XDG_CACHE_HOME=user).stdout
    assert "Running stage 'train" not in dvc(project, "repro", "train@tiny-cpu", XDG_CACHE_HOME=f"{user} 2").stdout
    git(tmp_path, "clone", "-q", "project", "second")
    dvc(tmp_path / "second", "cache", "dir", "--local", str(project / ".dvc/cache"))
    output = dvc(tmp_path / "second", "repro", "train@tiny-cpu", XDG_CACHE_HOME=f"{user} 2").stdout
    assert "Stage 'train@tiny-cpu' is cached - skipping run" in output
    assert not Path(f"{user} 2/tandem").exists()
