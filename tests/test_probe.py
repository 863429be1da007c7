"""The probe names what bounds a step where that was planted, tries what it advises, and leaves the training as it found it."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from stages import models
from stages.diagnosis import probe as probing
from stages.diagnosis.counts import Traffic, count_bytes, count_flop
from stages.diagnosis.probe import Probe, covered, probe
from stages.params.schema import GRU, Augment, Train, Transformer
from stages.tasks import classify
from stages.training.batches import Split
from stages.training.step import Step
from stages.training.trainer import Trainer
from tests.test_training import SETTINGS, assert_identical, finish, fit_on

NONE = Augment(group=1, mix=0.0, shift=0.0, warp=0.0)
SMALL = GRU("gru", hidden_size=4, num_layers=1, bidirectional=False, dropout=0.0)
LARGE = Transformer("transformer", hidden_size=256, num_layers=2, num_heads=4, feedforward_size=1024, dropout=0.0)


def planted(
    settings: Train, num_steps: int, split_type: type[Split] = Split, model: nn.Module | None = None, features: int = 4
) -> Trainer:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tensors = {
        "values": torch.randn(64, num_steps, features),
        "mask": torch.ones(64, num_steps, dtype=torch.bool),
        "targets": torch.arange(64) % 3,
    }
    split = split_type(tensors, torch.device("cpu"))
    model = model or models.build(settings.model, models.Shape(features, 3, num_steps, per_step=False))
    return Trainer(model, split, split, settings, classify.Task({"classes": ["a", "b", "c"]}))


class Slow(Split):
    """A dataset that takes its time."""

    def batches(self, order, batch_size):
        for batch in super().batches(order, batch_size):
            time.sleep(0.05)
            yield batch


class Reduce(nn.Module):
    """A model that looks at little of what it is given."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, 3)

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.head(values[:, ::16].mean(1))


def found(trainer: Trainer) -> Probe:
    result = probe(trainer)
    assert isinstance(result, Probe)
    assert sum(result.shares().values()) == pytest.approx(1.0)
    assert result.sentence().startswith(f"{result.bound}-bound: ")
    numbers = result.numbers()
    assert all(isinstance(value, int | float) for value in numbers.values())
    assert all(name not in numbers and reason for name, reason in result.missing_reasons.items())
    return result


def test_a_slow_dataset_is_what_bounds():
    result = found(planted(replace(SETTINGS, model=SMALL, augment=NONE), 5, Slow))
    assert result.bound == "data" and result.data_seconds > 0.05
    assert f"{result.shares()['data']:.0%} of a step is waiting for its batch" in result.sentence()


def test_a_set_of_large_batches_for_a_model_that_only_reduces_them_waits_for_its_data():
    result = found(planted(replace(SETTINGS, augment=NONE, batch_size=32), 4000, Split, Reduce(32), 32))
    assert result.bound == "data" and "of the memory rate measured here" in result.sentence()
    batch = 32 * 4000 * (32 * 4 + 1) + 32 * 8  # values, mask and targets: each is read and written
    assert result.data_bytes_per_second * result.data_seconds == pytest.approx(2 * batch)


def test_a_tiny_model_is_bound_by_launching_and_wants_larger_batches():
    result = found(planted(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=2), 40))
    assert result.bound == "launch"
    assert f"{result.shares()['launch']:.0%} of a step is what even a single sequence costs" in result.sentence()
    assert result.gains["batch 16"] > 1.1 and "batch 16: about" in result.sentence()


def test_a_large_model_is_bound_by_arithmetic():
    result = found(planted(replace(SETTINGS, model=LARGE, augment=NONE, batch_size=16), 64))
    assert result.bound == "compute" and "of the matrix rate" in result.sentence()
    assert 0.01 < result.numbers()["flop_of_peak"] < 10  # a neighbour may slow either down


def test_nothing_is_copied_to_a_cpu_and_what_only_a_gpu_has_is_absent():
    result = found(planted(replace(SETTINGS, model=SMALL, augment=NONE), 5))
    assert result.copy_seconds == 0.0 and result.pinned_bytes_per_second is None and result.device_seconds is None
    for name in ("pinned_bytes_per_second", "device_seconds", "num_kernels", "memory_context_mib"):
        assert "the device is the CPU" in result.missing_reasons[name]


def test_every_setting_that_could_help_is_tried_as_it_would_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probing, "has_cores", lambda threads: True)  # or a busy machine would try no threads
    monkeypatch.setattr(probing, "HOPELESS", float("inf"))
    settings = replace(SETTINGS, model=SMALL, batch_size=8, accumulation=4)
    ran, step, threads = [], Step.__call__, set()

    def watch(self: Step, batch):
        ran.append((len(batch), self.accumulation, self.precision))
        threads.add(torch.get_num_threads())
        return step(self, batch)

    monkeypatch.setattr(Step, "__call__", watch)
    result = found(planted(settings, 5))
    assert result.gains.keys() == {"batch 16", "batch 64", "precision bf16", "accumulation 1", "threads 2"}
    assert all(gain > 0 for gain in result.gains.values())
    assert set(ran) == {(8, 4, "fp32"), (16, 4, "fp32"), (64, 4, "fp32"), (8, 1, "fp32"), (8, 4, "bf16")}
    assert threads == {1, 2} and torch.get_num_threads() == 1


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_peak_is_that_of_the_precision(precision: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    measured, rate = [], probing.matrix_rate
    monkeypatch.setattr(probing, "matrix_rate", lambda device, dtype: measured.append(dtype) or rate(device, dtype))
    result = found(planted(replace(SETTINGS, model=SMALL, augment=NONE, precision=precision), 5))
    assert measured == [dtype]
    assert f"precision {'bf16' if precision == 'fp32' else 'fp32'}" in {*result.gains, *result.missing_reasons}


def test_an_alternative_that_fails_is_no_gain_and_no_end(monkeypatch: pytest.MonkeyPatch):
    class Single(Reduce):
        def forward(self, values, mask):
            if torch.is_autocast_enabled("cpu"):
                raise NotImplementedError("no such kernel for BFloat16")
            if len(values) > 8:
                raise torch.OutOfMemoryError("too large")
            return super().forward(values, mask)

    monkeypatch.setattr(probing, "has_cores", lambda threads: False)
    result = found(planted(replace(SETTINGS, augment=NONE, batch_size=8), 5, Split, Single(4)))
    assert not result.gains and result.sentence().endswith("nothing that was tried would make it 1.1 times as fast")
    assert result.missing_reasons["precision bf16"] == "failed: no such kernel for BFloat16"
    assert (
        result.missing_reasons["batch 16"] == "failed: too large"
        and "cores are taken" in result.missing_reasons["threads 2"]
    )


def test_a_batch_that_does_not_fit_is_said():
    class Large(Reduce):
        def forward(self, values, mask):
            raise torch.OutOfMemoryError("too large")

    assert "does not fit" in probe(planted(replace(SETTINGS, augment=NONE), 5, Split, Large(4)))


def test_what_is_said_of_a_gpu_follows_from_its_parts():
    cpu = found(planted(replace(SETTINGS, model=SMALL, augment=NONE), 5))
    assert cpu.missing_sentence() == ""
    parts = {"data_seconds": 1e-5, "wait_seconds": 0.0, "step_seconds": 0.002, "overhead_seconds": 0.0019}
    gpu = replace(cpu, **parts, host_seconds=0.0019, device_seconds=0.00028, num_kernels=312, gains={"step graph": 4.0})
    assert gpu.sentence() == (
        "launch-bound: the GPU computes 14% of the step, to enqueue its 312 kernels takes the host 1.9 ms; "
        "step graph: about 4.0 times"
    )
    assert replace(gpu, host_seconds=1e-4, device_seconds=0.0019).bound == "compute"
    # The wait belongs to the slower of gathering and copying, which overlap.
    rates = {"copy_bytes_per_second": 2e10, "pinned_bytes_per_second": 4e10}
    streamed = replace(gpu, data_seconds=0.01, wait_seconds=0.006, copy_seconds=0.009, gather_seconds=0.004, **rates)
    assert streamed.sentence().startswith("copy-bound: 75% of a step is waiting for the copy to the GPU, at 50% of the")
    assert replace(streamed, gather_seconds=0.01).bound == "data"
    untold = replace(gpu, device_seconds=None, num_kernels=None, missing_reasons={"num_kernels": "no profiler"})
    assert untold.bound == "launch" and untold.missing_sentence() == "not measured: num_kernels (no profiler)"


def on_gpu(settings: Train, num_steps: int, features: int = 4, resident: bool = True) -> Trainer:
    device = torch.device("cuda", 0)
    trainer = planted(settings, num_steps, features=features)
    tensors = {name: tensor.repeat(8, *[1] * (tensor.ndim - 1)) for name, tensor in trainer.train_split.tensors.items()}
    if resident:
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    split = Split(tensors, device)
    return Trainer(trainer.model.to(device), split, split, settings, trainer.task)


@pytest.mark.gpu
def test_a_large_set_streamed_to_a_small_model_waits_for_it():
    config = Transformer("transformer", hidden_size=8, num_layers=1, num_heads=1, feedforward_size=8, dropout=0.0)
    result = found(on_gpu(replace(SETTINGS, model=config, augment=NONE, batch_size=128), 32, 4096, resident=False))
    assert result.bound in ("data", "copy")
    assert result.copy_seconds > 0 and result.gather_seconds > 0
    assert 0 < result.numbers()["copy_bytes_of_peak"] < 1.5
    assert "residency device" in result.gains


@pytest.mark.gpu
def test_a_small_model_on_a_gpu_is_bound_by_launching_and_wants_a_graph():
    result = found(on_gpu(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=16), 40))
    assert result.bound == "launch" and "the GPU computes" in result.sentence()
    assert result.num_kernels > 10 and 0 < result.device_seconds < result.host_seconds
    assert "step graph" in result.gains and result.copy_seconds == 0.0
    assert "memory_context_mib" in result.numbers() or result.missing_reasons["memory_context_mib"]


@pytest.mark.gpu
def test_a_training_with_a_graph_is_probed_with_one_and_captures_its_own():
    settings = replace(SETTINGS, model=SMALL, augment=NONE, batch_size=16)
    trainer = on_gpu(replace(settings, step="graph"), 40)
    result = found(trainer)
    assert "step graph" not in result.gains
    assert not trainer.step.graph.is_captured and trainer.step.graph.num_done == 0
    untouched = on_gpu(replace(settings, step="graph"), 40)
    assert trainer.epoch().train_loss == untouched.epoch().train_loss


@pytest.mark.gpu
def test_a_large_model_on_a_gpu_is_bound_by_arithmetic():
    model = replace(LARGE, hidden_size=1024, num_heads=8, feedforward_size=4096)
    result = found(on_gpu(replace(SETTINGS, model=model, augment=NONE, batch_size=64), 256))
    assert result.bound == "compute"
    assert 0.1 < result.numbers()["flop_of_peak"] < 1.2


def test_time_in_kernels_that_overlap_counts_once():
    assert covered([]) == 0.0
    assert covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.6), (6.0, 7.0)]) == 5.0


def test_arithmetic_is_counted_not_guessed():
    """A GRU step: three gates, from input and state. The backward pass costs twice the forward one, less what nobody asks for."""
    trainer = planted(replace(SETTINGS, model=SMALL, augment=NONE), 10)
    batch = trainer.one_batch(16)
    forward = 16 * 10 * 2 * (3 * 4 * 4 + 3 * 4 * 4) + 16 * 2 * 8 * 3
    assert 2.0 * forward < count_flop(trainer, batch) <= 3 * forward


def test_bytes_are_those_that_operators_read_and_write():
    """Twice the batch: what grows are its tensors. 100 of 1600 steps are read, and nothing goes back as far as the values."""
    trainer = planted(replace(SETTINGS, augment=NONE), 1600, Split, Reduce(4))
    one, two = (count_bytes(trainer, trainer.one_batch(size)) for size in (16, 32))
    values = 16 * 100 * 4 * 4
    assert values < two - one < 1.3 * values


def test_memory_is_accounted_for_by_what_it_is_for():
    trainer = planted(replace(SETTINGS, model=LARGE, augment=NONE, batch_size=16), 64)
    result = probe(trainer)
    assert isinstance(result, Probe)
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters()) / 2**20
    needs = result.memory_mib
    assert needs["weights"] == needs["gradients"] == pytest.approx(weights)
    assert needs["optimizer"] == pytest.approx(2 * weights, rel=0.01)
    # At least the inputs of both halves of both blocks' feedforward layers: B x T x (D + 4 D) floats each.
    assert needs["activations"] > 2 * 16 * 64 * 5 * 256 * 4 / 2**20
    assert needs["data"] == pytest.approx((64 * 64 * 4 * 4 + 64 * 64 + 64 * 8) / 2**20)
    assert f"data {needs['data']:.1f}; little of the" in result.memory_sentence()
    assert "not because the device is unused" in result.memory_sentence()
    plenty = replace(result, device_mib=2 * sum(needs.values()))
    assert plenty.memory_sentence().endswith(f"data {needs['data']:.1f}")


def test_the_training_is_left_as_it_was(tmp_path: Path):
    expected, losses = finish(fit_on("cpu", "device", tmp_path))
    probed = fit_on("cpu", "device", tmp_path)
    drawn, step, precision = torch.get_rng_state(), vars(probed.step).copy(), torch.get_float32_matmul_precision()
    probe(probed)
    assert torch.equal(torch.get_rng_state(), drawn) and torch.get_num_threads() == 1
    assert vars(probed.step) == step and torch.get_float32_matmul_precision() == precision
    weights, same_losses = finish(probed)
    assert same_losses == losses
    assert_identical(weights, expected)


def test_bytes_that_are_only_written_count_once():
    a, b, target = (torch.zeros(1000) for _ in range(3))
    for work, times in (
        (lambda: target.copy_(a), 2),
        (lambda: torch.add(a, b, out=target), 3),
        (lambda: target.zero_(), 1),
        (lambda: a + b, 3),
        (lambda: a.add_(b), 3),
        (lambda: a.view(10, 100), 0),
    ):
        with Traffic() as traffic:
            work()
        assert traffic.num_bytes == times * a.nbytes
