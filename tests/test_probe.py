"""The probe names what bounds a step where that was planted, and leaves the training as it found it."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages import models
from stages.params import GRU, Augment, Train, Transformer
from stages.runtime.batches import Split
from stages.runtime.fit import Fit
from stages.runtime.probe import Probe, count_flop, one_batch, probe
from stages.tasks import classify
from tests.test_training import SETTINGS, assert_identical, finish, fit_on

NONE = Augment(group=1, mix=0.0, shift=0.0, warp=0.0)
SMALL = GRU("gru", hidden_size=4, num_layers=1, bidirectional=False, dropout=0.0)
LARGE = Transformer("transformer", hidden_size=256, num_layers=2, num_heads=4, feedforward_size=1024, dropout=0.0)


def planted(settings: Train, num_steps: int, split_type: type[Split] = Split) -> Fit:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tensors = {
        "values": torch.randn(64, num_steps, 4),
        "mask": torch.ones(64, num_steps, dtype=torch.bool),
        "targets": torch.arange(64) % 3,
    }
    split = split_type(tensors, torch.device("cpu"))
    model = models.build(settings.model, models.Shape(4, 3, num_steps, per_step=False))
    return Fit(model, split, split, settings, classify.Task({"classes": ["a", "b", "c"]}))


class Slow(Split):
    """A dataset that takes its time."""

    def batches(self, order, batch_size):
        for batch in super().batches(order, batch_size):
            time.sleep(0.05)
            yield batch


def found(settings: Train, num_steps: int, split_type: type[Split] = Split) -> Probe:
    result = probe(planted(settings, num_steps, split_type))
    assert isinstance(result, Probe)
    assert sum(result.shares().values()) == pytest.approx(1.0)
    assert result.sentence().startswith(f"{result.bound}-bound: {result.shares()[result.bound]:.0%}")
    return result


def test_a_slow_dataset_is_what_bounds():
    result = found(replace(SETTINGS, model=SMALL, augment=NONE), 5, Slow)
    assert result.bound == "data" and result.data_seconds > 0.05


def test_a_tiny_model_is_bound_by_launching_and_wants_larger_batches():
    result = found(replace(SETTINGS, model=SMALL, augment=NONE, batch_size=2), 40)
    assert result.bound == "launch"
    assert result.gains["batch 16"] > 1.1 and "batch 16: about" in result.sentence()


def test_a_large_model_is_bound_by_arithmetic():
    result = found(replace(SETTINGS, model=LARGE, augment=NONE, batch_size=32), 64)
    assert result.bound == "compute"
    assert 0.01 < result.flop_per_second / result.peak_flop_per_second < 10  # a neighbour may slow either down


@pytest.mark.gpu
def test_a_large_set_streamed_to_a_small_model_waits_for_its_data():
    tensors = {
        "values": torch.randn(512, 2000, 64),
        "mask": torch.ones(512, 2000, dtype=torch.bool),
        "targets": torch.arange(512) % 3,
    }
    device = torch.device("cuda", 0)
    split = Split(tensors, device)  # stays in the host's memory: every batch is copied
    config = Transformer("transformer", hidden_size=8, num_layers=1, num_heads=1, feedforward_size=8, dropout=0.0)
    model = models.build(config, models.Shape(64, 3, 2000, per_step=False)).to(device)
    settings = replace(SETTINGS, model=config, augment=NONE, batch_size=128)
    result = probe(Fit(model, split, split, settings, classify.Task({"classes": ["a", "b", "c"]})))
    assert isinstance(result, Probe) and result.bound == "data"


def test_arithmetic_is_counted_not_guessed():
    """A GRU step: three gates, from input and state. The backward pass costs twice the forward one, less what nobody asks for."""
    fit = planted(replace(SETTINGS, model=SMALL, augment=NONE), 10)
    batch = one_batch(fit, 16)
    forward = 16 * 10 * 2 * (3 * 4 * 4 + 3 * 4 * 4) + 16 * 2 * 8 * 3
    assert 2.0 * forward < count_flop(fit, batch) <= 3 * forward


def test_memory_is_accounted_for_by_what_it_is_for():
    fit = planted(replace(SETTINGS, model=LARGE, augment=NONE, batch_size=32), 64)
    result = probe(fit)
    assert isinstance(result, Probe)
    weights = sum(parameter.nbytes for parameter in fit.model.parameters()) / 2**20
    needs = result.memory_mib
    assert needs["weights"] == needs["gradients"] == pytest.approx(weights)
    assert needs["optimizer"] == pytest.approx(2 * weights, rel=0.01)
    # At least the inputs of both halves of both blocks' feedforward layers: B x T x (D + 4 D) floats each.
    assert needs["activations"] > 2 * 32 * 64 * 5 * 256 * 4 / 2**20
    assert needs["data"] == pytest.approx(2 * (64 * 64 * 4 * 4 + 64 * 64 + 64 * 8) / 2**20)
    assert result.memory_sentence().endswith(f"data {needs['data']:.1f}")


def test_the_training_is_left_as_it_was(tmp_path: Path):
    expected, losses = finish(fit_on("cpu", "device", tmp_path))
    probed = fit_on("cpu", "device", tmp_path)
    probe(probed)
    weights, same_losses = finish(probed)
    assert same_losses == losses
    assert_identical(weights, expected)
