"""The probe names what bounds a step where that was planted, tries its advice, and leaves the training as it found it.

No test reads the wall clock, on which a busy neighbour counts: time is this thread's CPU time and what was planted
(`delay`), or planted alone (`virtual`), which makes every number exact. Tests on a GPU read the real clock.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tandem.devices.graphs import NUM_WARMUPS
from tandem.devices.names import kind_of
from tandem.diagnosis import probe as probing
from tandem.diagnosis.counts import count_flop, main_precision, memory_needs
from tandem.diagnosis.probe import probe
from tandem.diagnosis.probe_result import GPU_FIELDS, NO_GPU, ProbeResult
from tandem.files import ROOT
from tandem.machine import rates
from tandem.machine.measure import seconds_of
from tandem.models import kernels
from tandem.params.schema import Augment, Train
from tandem.training.batches import Split
from tandem.training.step import Step
from tandem.training.trainer import Trainer
from tandem.training.trials import alternative, one_batch, repeated_step
from tests.limits import allocated_in_gpu
from tests.networks import GRU
from tests.trainers import SETTINGS, TRANSFORMER, full_tensors, trainer_on

NONE = Augment(coupled_features=1, mix=0.0, shift=0.0, warp=0.0)
SMALL = GRU(name="gru", hidden_size=4, num_layers=1, bidirectional=False, dropout=0.0)


@pytest.fixture(autouse=True)
def delay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Planted seconds, added to the CPU time of this thread."""
    planted = SimpleNamespace(seconds=0.0)
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(time, "perf_counter", lambda: time.thread_time() + planted.seconds)
        monkeypatch.setattr(probing, "BUDGET_SECONDS", 0.3)
        monkeypatch.setattr(rates, "MATRIX_SIZE", (256, 256))
    return planted


def planted(
    settings: Train, num_steps: int, split_type: type[Split] = Split, model: nn.Module | None = None, features: int = 4
) -> Trainer:
    split = split_type(full_tensors(num_steps, features), kind_of("cpu")())
    return trainer_on(split, settings, model=model)


class Reduce(nn.Module):
    """A model that looks at little of what it is given."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, 3)

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.head(values[:, ::16].mean(1))


def found(trainer: Trainer) -> ProbeResult:
    result = probe(trainer)
    assert isinstance(result, ProbeResult)
    assert sum(result.shares().values()) == pytest.approx(1.0)
    assert result.sentence().startswith(f"{result.bottleneck}-bound: ")
    numbers = result.numbers()
    assert all(isinstance(value, int | float) for value in numbers.values())
    assert all(name not in numbers and reason for name, reason in result.missing_reasons.items())
    return result


@pytest.fixture
def virtual(delay: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that only planted seconds move. What a machine's rates are does not matter then."""
    monkeypatch.setattr(time, "perf_counter", lambda: delay.seconds)
    monkeypatch.setattr(probing, "matrix_rate", lambda device, dtype: 1e9)
    return delay


def costly(
    settings: Train, delay: SimpleNamespace, batch: float, step: float, sequence: float, model: nn.Module | None = None
) -> Trainer:
    """A training in which a batch, a step, and a sequence of a step take so many seconds (the batch more than 0)."""

    class Slow(Split):
        def batches(self, order, batch_size):
            for tensors in super().batches(order, batch_size):
                delay.seconds += batch
                yield tensors

    class Costly(Reduce):
        def forward(self, values, mask):
            delay.seconds += step + sequence * len(values)
            return super().forward(values, mask)

    return planted(settings, 5, Slow, model or Costly(4))


def test_the_parts_of_a_step_and_the_gains_come_from_the_clock_alone(virtual: SimpleNamespace):
    result = found(costly(replace(SETTINGS, augment=NONE, batch_size=8), virtual, 0.004, 0.001, 0.0005))
    assert result.data_seconds == pytest.approx(0.004) == result.wait_seconds
    assert result.step_seconds == pytest.approx(0.005) and result.overhead_seconds == pytest.approx(0.002)
    assert result.shares() == pytest.approx({"data": 4 / 9, "copy": 0.0, "launch": 2 / 9, "compute": 3 / 9})
    assert result.bottleneck == "compute"
    # Seconds per sequence, 9 / 8 ms as things are.
    gains = {"batch 16": 9 / 8 / (13 / 16), "batch 64": 9 / 8 / (37 / 64), "precision bf16": 1.0}
    assert result.gains == pytest.approx(gains)
    trainer = planted(replace(SETTINGS, augment=NONE, batch_size=8), 5, Split, Reduce(4))
    assert result.flop_per_second == pytest.approx(count_flop(trainer, one_batch(trainer, 8)) / 0.005)
    assert result.numbers()["flop_of_peak"] == result.flop_per_second / 1e9


@pytest.mark.parametrize(("width", "dtype"), [(8, torch.float32), (1, torch.bfloat16)])
def test_a_step_is_compared_with_the_precision_of_most_of_its_arithmetic(
    width: int, dtype: torch.dtype, virtual: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    """With bf16, a recurrent layer may compute in TF32, and notes it; a small one changes nothing."""

    class Recurrent(Reduce):
        def __init__(self) -> None:
            super().__init__(4)
            self.layer, self.wide = nn.GRU(4, width, batch_first=True), nn.Linear(4, 16)

        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            virtual.seconds += 0.01
            if torch.is_autocast_enabled("cpu"):
                kernels.note(kernels.CUDNN, "GRU in tf32")
            return super().forward(values, mask)

    asked: list[torch.dtype] = []
    monkeypatch.setattr(probing, "matrix_rate", lambda device, dtype: asked.append(dtype) or 1e9)
    settings = replace(SETTINGS, augment=NONE, batch_size=8, precision="bf16")
    found(costly(settings, virtual, 0.01, 0.01, 0.0, Recurrent()))
    assert asked == [dtype]


@pytest.mark.parametrize(("undisturbed", "gain"), [(0.35, 9 / 8 / (13 / 16)), (0.0, 2 / (1 + 23 / 29))])
def test_a_machine_that_disturbs_most_turns_of_a_batch_makes_no_other_batch_fast(
    undisturbed: float, gain: float, virtual: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    """Other processes take time in bursts; or from every turn: 23 of 29 ms then grow with the batch, so that twice
    the batch cannot save more than half of the others.
    """
    trainer = costly(replace(SETTINGS, augment=NONE, batch_size=8), virtual, 0.004, 0.001, 0.0005)
    monkeypatch.setattr(probing, "BUDGET_SECONDS", 3.0)  # of planted seconds
    kind = type(trainer.model)  # this training's alone
    forward = kind.forward

    def disturbed(self: nn.Module, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        virtual.seconds += 0.02 * (len(values) == 8 and virtual.seconds % 1.0 >= undisturbed)
        return forward(self, values, mask)

    kind.forward = disturbed
    assert found(trainer).gains["batch 16"] == pytest.approx(gain)


@pytest.mark.parametrize(("costs", "bottleneck"), [((0.05, 0.001, 0.0), "data"), ((1e-4, 0.01, 1e-4), "launch")])
def test_the_largest_part_is_the_bottleneck(costs: tuple[float, ...], bottleneck: str, virtual: SimpleNamespace):
    """And arithmetic: the test above."""
    assert found(costly(replace(SETTINGS, augment=NONE), virtual, *costs)).bottleneck == bottleneck


def test_what_only_a_gpu_has_is_absent_with_a_reason():
    result = found(planted(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=2), 40))
    assert result.copy_seconds == 0.0 and result.gather_seconds is None and result.device_seconds is None
    assert result.missing_sentence() == ""
    for name in ("gather_seconds", "device_seconds", "num_kernels", "memory_context_mib"):
        assert "the device is the CPU" in result.missing_reasons[name]


def test_every_setting_that_could_help_is_tried_as_it_would_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probing, "HOPELESS", float("inf"))
    monkeypatch.setattr(probing, "LONGEST_SECONDS", float("inf"))
    settings = replace(SETTINGS, model=SMALL, batch_size=8, grad_accum_steps=4)
    tried, step = [], Step.__call__

    def watch(self: Step, batch, *arguments):
        if len(batch) > 2:  # else the two sequences whose step shows what a step costs whatever is in it
            tried.append((len(batch), self.execution.grad_accum_steps, self.execution.precision))
        return step(self, batch, *arguments)

    monkeypatch.setattr(Step, "__call__", watch)
    result = found(planted(settings, 5))
    assert result.gains.keys() == {"batch 16", "batch 64", "precision bf16", "grad_accum_steps 1"}
    assert set(tried) == {(8, 4, "fp32"), (16, 4, "fp32"), (64, 4, "fp32"), (8, 1, "fp32"), (8, 4, "bf16")}


def test_an_alternative_that_fails_is_no_gain_and_no_end(monkeypatch: pytest.MonkeyPatch):
    class Single(Reduce):
        largest = 8

        def forward(self, values, mask):
            if torch.is_autocast_enabled("cpu"):
                raise NotImplementedError("no such kernel for BFloat16")
            if len(values) > self.largest:
                raise torch.OutOfMemoryError("too large")
            return super().forward(values, mask)

    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    trainer = planted(replace(SETTINGS, augment=NONE, batch_size=8), 5, Split, Single(4))
    result = found(trainer)
    assert not result.gains and result.sentence().endswith("no setting that was tried is 1.1 times as fast")
    assert result.missing_reasons["precision bf16"] == "failed: no such kernel for BFloat16"
    assert result.missing_reasons["batch 16"] == "failed: too large"
    trainer.model.largest = 0
    assert "memory ran out during the probe (too large)" in probe(trainer)


def test_what_is_said_of_a_gpu_follows_from_its_parts():
    gpu = ProbeResult(
        batch_size=16, data_seconds=1e-5, copy_seconds=0.0, wait_seconds=0.0, step_seconds=0.002,
        overhead_seconds=0.0019, gather_seconds=None, host_seconds=0.0019, device_seconds=0.00028, num_kernels=312,
        flop_per_second=1e12, peak_flop_per_second=5e13, memory_mib={"weights": 1.0}, device_mib=6144.0,
        gains={"step graph": 4.0}, missing_reasons=dict.fromkeys(GPU_FIELDS, NO_GPU),
    )  # fmt: skip
    assert gpu.sentence().startswith("launch-bound: the GPU computes during 14% of the step time, and the host")
    busy = replace(gpu, host_seconds=1e-4, device_seconds=0.0019)
    assert busy.bottleneck == "compute"
    # A recurrent network on an H200: a kernel all the time, at 1% of its rate, and eight times the batch is faster.
    small = replace(busy, flop_per_second=6e11, gains={"batch 128": 3.0})
    assert small.sentence().startswith("latency-bound: a kernel runs during 95% of the step time, but they reach 1% of")
    assert small.sentence().endswith("batch 128 would be about 3.0 times as fast")
    assert replace(small, gains={}).bottleneck == replace(small, flop_per_second=2e13).bottleneck == "compute"
    # The wait belongs to the slower of gathering and copying, which overlap.
    streamed = replace(gpu, data_seconds=0.01, wait_seconds=0.006, copy_seconds=0.009, gather_seconds=0.004)
    assert streamed.sentence().startswith("copy-bound: 75% of the step time is spent waiting for the copy to the GPU")
    assert replace(streamed, gather_seconds=0.01).bottleneck == "data"
    untold = replace(gpu, device_seconds=None, num_kernels=None, missing_reasons={"num_kernels": "no profiler"})
    assert untold.missing_sentence() == "not measured: num_kernels (no profiler)"
    assert untold.bottleneck == "launch" and replace(untold, host_seconds=1e-4).bottleneck == "compute"


def on_gpu(settings: Train, num_steps: int, features: int = 4, resident: bool = True) -> Trainer:
    device = kind_of("cuda")()
    tensors = {
        name: tensor.repeat(8, *[1] * (tensor.ndim - 1)) for name, tensor in full_tensors(num_steps, features).items()
    }
    if resident:
        tensors = {name: tensor.to(device.torch_device) for name, tensor in tensors.items()}
    split = Split(tensors, device, data_location="device" if resident else "host")
    return trainer_on(split, settings)


@pytest.mark.gpu
@pytest.mark.gpu_time
def test_a_large_set_streamed_to_a_small_model_waits_for_it():
    config = replace(TRANSFORMER, hidden_size=8, num_layers=1, num_heads=1, feedforward_size=8)
    result = found(on_gpu(replace(SETTINGS, model=config, augment=NONE, batch_size=128), 32, 4096, resident=False))
    assert result.bottleneck in ("data", "copy")
    assert result.copy_seconds > 0 and result.gather_seconds > 0


@pytest.mark.gpu
def test_a_loop_that_waits_for_streamed_data_is_bound_by_it(monkeypatch: pytest.MonkeyPatch):
    """A batch is copied during other parts' turns; the step that takes it does not count."""
    gather = Split.tensors_at

    def slow(split: Split, rows: torch.Tensor, buffers: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        time.sleep(0.04 * len(rows) / 8)
        return gather(split, rows, buffers)

    monkeypatch.setattr(Split, "tensors_at", slow)
    monkeypatch.setattr(probing, "LONGEST_SECONDS", 0.0)  # nothing else is tried
    monkeypatch.setattr(probing, "BUDGET_SECONDS", 0.3)
    trainer = on_gpu(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=8, step="eager"), 10, resident=False)
    result = found(trainer)
    assert result.bottleneck == "data"
    assert result.total_seconds == pytest.approx(0.04, rel=0.2)


@pytest.mark.gpu
@pytest.mark.gpu_time
def test_a_small_model_on_a_gpu_is_bound_by_launching():
    result = found(on_gpu(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=16, step="eager"), 40))
    assert result.bottleneck == "launch" and "the GPU computes" in result.sentence()
    assert result.num_kernels > 10 and 0 < result.device_seconds < result.host_seconds
    assert result.copy_seconds == 0.0
    assert "memory_context_mib" in result.numbers() or result.missing_reasons["memory_context_mib"]


def test_the_time_of_the_host_is_of_replays_without_the_warm_ups_and_the_capture(virtual: SimpleNamespace):
    device = SimpleNamespace(
        is_accelerator=True, driver=None, unmeasured="planted", synchronize=lambda: None, activities=lambda step: []
    )
    seconds = iter([0.3, 0.2, 0.2, 0.5, 0.001, 0.002, *[0.001] * 7])

    def step() -> None:
        virtual.seconds += next(seconds)

    assert probing.measure_on_gpu(step, device)["host_seconds"] == pytest.approx(0.001)


@pytest.mark.gpu
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
def test_a_probe_of_a_gpu_has_every_number_or_its_reason_and_leaves_nothing_behind(resident: bool):
    """What is left of its steps in memory keeps the training from capturing its own."""
    step = "graph" if resident else "eager"
    trainer = on_gpu(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=16, step=step), 40, resident=resident)
    next(iter(trainer.training_steps()))  # the optimizer's states stay
    before = allocated_in_gpu()
    result = found(trainer)
    reported = result.numbers().keys() | result.missing_reasons.keys()
    names = ("num_kernels", "host_seconds", "device_seconds", "memory_context_mib", "gather_seconds")
    assert set(names) <= reported | {name for name in names if getattr(result, name, None) is not None}
    assert allocated_in_gpu() <= before + 2**20
    epochs = [trainer.train_epoch() for _ in range(2)]
    assert trainer.execution.step == step and trainer.executor.has_graph == resident
    assert not trainer.execution.why_no_graph and len({epoch.train_loss for epoch in epochs}) == 2


def test_a_probe_without_memory_for_other_settings_measures_the_step(monkeypatch: pytest.MonkeyPatch):
    def run_out(part: probing.ProbePart, seconds: float) -> float:
        if part.trainer.settings.batch_size > 8:
            raise torch.OutOfMemoryError("too large")
        return turn(part, seconds)

    turn = probing.ProbePart.turn
    monkeypatch.setattr(probing.ProbePart, "warm_up", lambda part: 1e-9)
    monkeypatch.setattr(probing.ProbePart, "turn", run_out)
    result = found(planted(replace(SETTINGS, augment=NONE, batch_size=8), 5, Split, Reduce(4)))
    assert result.step_seconds > 0 and not result.gains
    assert result.missing_reasons["batch 16"] == "not tried: memory ran out"


@pytest.mark.gpu
def test_a_probe_that_runs_out_of_memory_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    """The error's traceback holds the graphs of the trial, and the training needs their memory for its own."""

    def run_out(trainer: Trainer, seconds: float, why_not_others: str) -> None:
        other = alternative(trainer)
        step = repeated_step(other.step, one_batch(other, 16))
        for _ in range(NUM_WARMUPS + 1):
            step()
        assert other.executor.has_graph
        error = torch.OutOfMemoryError("too large")
        raise error  # the error references its traceback, which references this frame, which references the error

    monkeypatch.setattr(probing, "measure_parts", run_out)
    trainer = on_gpu(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=16, step="graph"), 40)
    next(iter(trainer.training_steps()))
    before = allocated_in_gpu()
    assert probe(trainer) == "memory ran out during the probe (too large)"
    assert allocated_in_gpu() <= before
    assert trainer.train_epoch() and trainer.executor.has_graph and not trainer.executor.fallbacks


@pytest.mark.gpu
def test_a_training_with_a_graph_is_probed_with_one_and_captures_its_own():
    settings = replace(SETTINGS, model=SMALL, augment=NONE, batch_size=16)
    trainer = on_gpu(replace(settings, step="graph"), 40)
    found(trainer)
    assert not trainer.step.graphs.captured and not trainer.step.graphs.warmups_done
    untouched = on_gpu(replace(settings, step="graph"), 40)
    assert trainer.train_epoch().train_loss == untouched.train_epoch().train_loss


@pytest.mark.gpu
def test_with_bf16_most_of_a_recurrent_network_runs_in_what_cudnn_computes_in():
    trainer = on_gpu(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=16, precision="bf16"), 40)
    assert main_precision(trainer.step) == "bf16"
    with trainer.execution.active():
        trainer.step(one_batch(trainer, 16))
    assert main_precision(trainer.step) == ("tf32" if "tf32" in trainer.device.precisions() else "fp32")


@pytest.mark.gpu
def test_a_profile_of_a_replay_changes_no_bit_of_later_replays_and_captures():
    """As in `measure_on_gpu`, torch's profiler is attached and detached while a graph exists."""

    def trained(*, profiled: bool) -> list[torch.Tensor]:
        trainer = on_gpu(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=16, step="graph"), 40)
        step, smaller = (repeated_step(trainer.step, one_batch(trainer, size)) for size in (16, 8))
        with trainer.execution.active():
            for _ in range(NUM_WARMUPS + 2):
                step()
            captured = dict(trainer.step.graphs.captured)
            trainer.device.activities(step) if profiled else step()
            for _ in range(3):
                step()
            assert len(captured) == 1 and trainer.step.graphs.captured == captured
            for _ in range(NUM_WARMUPS + 2):
                smaller()
            assert len(trainer.step.graphs.captured) == 2
        return [weight.detach().cpu() for weight in trainer.step.weights]

    pairs = zip(trained(profiled=True), trained(profiled=False), strict=True)
    assert all(torch.equal(weight, expected) for weight, expected in pairs)


def times_after_a_probe() -> dict[str, float]:
    """Step execution -> the time of a step after the first probe of this process, as a multiple of that before it."""
    settings = replace(SETTINGS, model=SMALL, augment=NONE, batch_size=16)
    trainers = {step: on_gpu(replace(settings, step=step), 40) for step in ("graph", "eager")}

    def seconds(trainer: Trainer) -> float:
        step = repeated_step(trainer.step, one_batch(trainer, 16))
        with trainer.execution.active():
            for _ in range(NUM_WARMUPS + 1):
                step()
            seconds_of(step, trainer.device, 0.5)  # the clocks rise
            return statistics.median(seconds_of(step, trainer.device, 0.02) for _ in range(25))

    before = {name: seconds(trainer) for name, trainer in trainers.items()}
    assert isinstance(probe(trainers["graph"]), ProbeResult)
    return {name: seconds(trainer) / before[name] for name, trainer in trainers.items()}


@pytest.mark.gpu
@pytest.mark.gpu_time
def test_steps_after_a_probe_take_as_long_as_before_it():
    """A profiler that stays attached costs 10 to 20%, until its process ends: so this is a process without another."""
    script = "import json; from tests.diagnosis import test_probe; print(json.dumps(test_probe.times_after_a_probe()))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    for name, ratio in times.items():
        print(f"\n- {name}: a step after a probe takes {ratio:.3f} times as long as before")  # for `make gpu`
    assert times["graph"] < 1.08 and times["eager"] < 1.08


@pytest.mark.gpu
@pytest.mark.gpu_time
def test_a_large_model_on_a_gpu_is_bound_by_arithmetic():
    model = replace(TRANSFORMER, hidden_size=1024, num_heads=8, feedforward_size=4096)
    result = found(on_gpu(replace(SETTINGS, model=model, augment=NONE, batch_size=64), 256))
    assert result.bottleneck == "compute"
    assert 0.1 < result.numbers()["flop_of_peak"] < 1.2


def test_arithmetic_is_counted_not_guessed():
    """A GRU step: three gates, from input and state. The backward pass costs twice the forward one, less what nobody
    asks for."""
    trainer = planted(replace(SETTINGS, model=SMALL, augment=NONE), 10)
    batch = one_batch(trainer, 16)
    forward = 16 * 10 * 2 * (3 * 4 * 4 + 3 * 4 * 4) + 16 * 2 * 8 * 3
    assert 2.0 * forward < count_flop(trainer, batch) <= 3 * forward


class Own(nn.Module):
    """Begins with a state in float32, and keeps a result of its last forward pass, as networks of users do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 8), nn.Linear(8, 3)

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        state, self.states = torch.zeros(len(values), 8), []
        for step in values.unbind(1):
            self.states.append(state := self.cell(step, state))
        return self.head(state)


def test_a_network_that_creates_float32_and_keeps_results_is_counted():
    trainer = planted(replace(SETTINGS, augment=NONE), 10, model=Own())
    batch = one_batch(trainer, 16)
    trainer.step(batch)
    forward = 16 * 10 * 2 * (3 * 8 * 4 + 3 * 8 * 8) + 16 * 2 * 8 * 3
    assert 2.0 * forward < count_flop(trainer, batch) <= 3 * forward


@pytest.mark.gpu
def test_a_network_that_names_its_device_is_counted_there():
    class Named(Reduce):
        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return super().forward(values, mask) + torch.zeros(3, device="cuda")

    of_both = []
    for model in (Reduce(4), Named(4)):
        trainer = on_gpu(replace(SETTINGS, augment=NONE), 10)
        trainer.model = model.to(trainer.device.torch_device)
        of_both.append(count_flop(trainer, one_batch(trainer, 16)))
    assert of_both[0] == of_both[1] > 0


def test_memory_is_accounted_for_by_purpose():
    trainer = planted(replace(SETTINGS, model=TRANSFORMER, augment=NONE, batch_size=16), 64)
    next(iter(trainer.training_steps()))  # makes the optimizer's states
    needs = memory_needs(trainer, one_batch(trainer, 16))
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters()) / 2**20
    assert needs["weights"] == needs["gradients"] == pytest.approx(weights)
    assert needs["optimizer"] == pytest.approx(2 * weights, rel=0.01)
    # At least the inputs of both halves of both blocks' feedforward layers: B x T x (D + 4 D) floats each.
    assert needs["activations"] > 2 * 16 * 64 * 5 * 64 * 4 / 2**20
    assert needs["data"] == pytest.approx((64 * 64 * 4 * 4 + 64 * 64 + 64 * 8) / 2**20)


def test_activations_are_counted_of_the_part_of_a_batch_that_is_in_memory_at_once():
    """A whole batch may not fit: that is what train.grad_accum_steps is for."""
    trainer = planted(replace(SETTINGS, model=TRANSFORMER, batch_size=16, grad_accum_steps=3), 9)
    sizes: list[int] = []
    trainer.model.register_forward_hook(lambda module, inputs, outputs: sizes.append(len(outputs)))
    batch = one_batch(trainer, 16)
    needs = memory_needs(trainer, batch)
    assert sizes == [6]
    whole = memory_needs(alternative(trainer, grad_accum_steps=1), batch)
    assert needs["activations"] == pytest.approx(whole["activations"] * 6 / 16, rel=0.05)


def test_the_training_is_left_as_it_was():
    def trained(trainer: Trainer) -> tuple[list[float], list[torch.Tensor]]:
        losses = [trainer.train_epoch().train_loss for _ in range(SETTINGS.epochs)]
        return losses, [*trainer.model.state_dict().values(), torch.get_rng_state()]

    expected_losses, expected = trained(planted(SETTINGS, 9))
    probed = planted(SETTINGS, 9)
    drawn, step, precision = torch.get_rng_state(), vars(probed.step).copy(), torch.get_float32_matmul_precision()
    probe(probed)
    assert torch.equal(torch.get_rng_state(), drawn) and torch.get_num_threads() == 1
    assert vars(probed.step) == step and torch.get_float32_matmul_precision() == precision
    losses, tensors = trained(probed)
    assert losses == expected_losses
    assert all(torch.equal(tensor, original) for tensor, original in zip(tensors, expected, strict=True))
