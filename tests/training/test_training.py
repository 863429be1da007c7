"""The loop's promises: identical runs wherever the data lies, precisions, memory. Exact resumption: test_workers.py and
tests/flows/test_pipeline.py; a GPU: test_gpu.py.
"""

import random
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tandem.devices.device import Device
from tandem.models import Shape
from tandem.runs.quantities import timing_row
from tandem.runs.terminal import EPOCH_LINE, FIT_LINE, Progress
from tandem.training.context import RunContext, choose_data_location
from tandem.training.execution import open_device
from tandem.training.network_checks import check_outputs, small_batch_refusal
from tandem.training.opening import make_trainer
from tandem.training.trainer import Trainer
from tests.trainers import SETTINGS, assert_same_bits, finish, identity, new_trainer


@pytest.mark.parametrize("data_location", ["device", "host"])
def test_two_runs_are_bitwise_identical_resident_or_streamed(data_location: str, tmp_path: Path):
    resident = finish(new_trainer("cpu", "device", tmp_path))
    assert_same_bits(finish(new_trainer("cpu", data_location, tmp_path)), resident)
    assert resident[1][-1] < resident[1][0]


def test_a_network_that_draws_with_numpy_or_python_follows_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its initial weights and its noise; a resumed training has the bits of an uninterrupted one."""

    class Drawing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.from_numpy(np.random.normal(size=(4, 3))).float())

        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            noise = np.random.rand() + random.random() if self.training else 1.0
            return values.mean(1) @ (noise * self.weight)

    monkeypatch.setattr("tandem.models.build", lambda *parts: Drawing())
    plain = new_trainer("cpu", "device", tmp_path)
    _, num_steps, num_features = plain.train_split.tensors["values"].shape
    shape = Shape(num_features, 3, num_steps, per_step=False)

    def trainer(seed: int) -> Trainer:
        return make_trainer(plain.train_split, plain.val_split, SETTINGS, shape, plain.task, seed)

    whole = finish(trainer(0))
    assert_same_bits(finish(trainer(0)), whole)
    assert finish(trainer(1))[1] != whole[1]
    interrupted = trainer(0)
    losses, state = [interrupted.train_epoch().train_loss], deepcopy(interrupted.state())
    resumed = trainer(0)
    resumed.restore(state)
    weights, later_losses = finish(resumed)
    assert_same_bits((weights, losses + later_losses), whole)


def test_a_network_is_checked_with_copies_of_two_sequences_and_of_one(tmp_path: Path):
    """The packed file is mapped read-only: writing to it would end the process."""

    class InPlace(torch.nn.Module):
        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return values.mul_(mask[..., None]).mul_(2.0).mean(1)[:, :3]

    class Squeezed(InPlace):
        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return super().forward(values, mask).squeeze()

    split = new_trainer("cpu", "host", tmp_path).train_split
    _, num_steps, num_features = split.tensors["values"].shape
    shape = Shape(num_features, 3, num_steps, per_step=False)
    check_outputs(InPlace(), split, shape, "nets.py:InPlace")
    with pytest.raises(ValueError, match=re.escape(f"returns (3,) for values (1, {num_steps}, {num_features})")):
        check_outputs(Squeezed(), split, shape, "nets.py:Squeezed")
    assert not small_batch_refusal(InPlace(), split, len(split), replace(SETTINGS, batch_size=len(split) - 1))


@pytest.mark.gpu
def test_cpu_and_gpu_see_the_same_batches_and_nearly_the_same_losses(tmp_path: Path):
    settings = replace(SETTINGS, model=replace(SETTINGS.model, dropout=0.0))
    on_cpu = finish(new_trainer("cpu", "device", tmp_path, settings))[1]
    on_gpu = finish(new_trainer("cuda", "device", tmp_path, settings))[1]
    assert on_gpu == pytest.approx(on_cpu, rel=1e-3)


def test_a_batch_in_parts_trains_as_the_whole(tmp_path: Path):
    settings = replace(SETTINGS, model=replace(SETTINGS.model, dropout=0.0))
    weights, losses = finish(new_trainer("cpu", "device", tmp_path, settings))
    part_weights, part_losses = finish(new_trainer("cpu", "device", tmp_path, replace(settings, grad_accum_steps=3)))
    assert part_losses == pytest.approx(losses, rel=1e-5)
    for name in weights:
        torch.testing.assert_close(part_weights[name], weights[name], rtol=1e-3, atol=1e-4)


def test_a_batch_of_more_than_all_sequences_is_said(tmp_path: Path):
    """As of a size that was advised for larger data: 5,600 gave one step per epoch and another score."""
    usual, large = (new_trainer("cpu", "device", tmp_path, replace(SETTINGS, batch_size=size)) for size in (8, 5600))
    assert "batch_size" not in usual.sentences and "5,600 is more than the" in large.sentences["batch_size"]


def test_bf16_trains_too_and_fp16_wants_a_gpu(tmp_path: Path):
    _, losses = finish(new_trainer("cpu", "device", tmp_path, replace(SETTINGS, precision="bf16")))
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="'fp16', which needs a GPU"):
        open_device(identity("cpu"), 1, True, "fp16")


def test_an_epoch_has_the_norm_of_its_gradients_or_the_reason_why_not(tmp_path: Path):
    one_step = replace(SETTINGS, epochs=1, batch_size=64, max_grad_norm=1e9)  # not clipped, so the gradients stay
    trainer = new_trainer("cpu", "device", tmp_path, one_step)
    epoch = trainer.train_epoch()
    norm = torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()]).norm().item()
    norms = {"gradient_norm": pytest.approx(norm), "max_gradient_norm": pytest.approx(norm)}
    assert epoch.scalars == {"threads": 1.0, **norms}
    assert timing_row(epoch, 50, 1)["gradient_norm"] == epoch.scalars["gradient_norm"]
    unclipped = new_trainer("cpu", "device", tmp_path, replace(one_step, max_grad_norm=0.0))
    epoch = unclipped.train_epoch()
    assert epoch.scalars == {"threads": 1.0} and timing_row(epoch, 50, 1)["gradient_norm"] is None
    assert "train.max_grad_norm is 0" in epoch.training.missing_reasons["gradient_norm"]


def test_the_lines_that_the_flows_look_for_are_those_that_a_training_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    progress = Progress("tiny", 4, 0, prefix="seed 3, ")
    progress.show(new_trainer("cpu", "device", tmp_path).train_epoch(), "accuracy", 50)
    assert EPOCH_LINE.match(capsys.readouterr().out)
    progress.printed_at -= 60.0
    progress.show_fit(1, 1_000, "trees")
    assert FIT_LINE.match(capsys.readouterr().out)


def test_tf32_on_a_cpu_is_computed_and_recorded_as_fp32(tmp_path: Path):
    """Recorded as asked, a CPU's run would seem to agree with a GPU's in tf32."""
    _, losses = finish(new_trainer("cpu", "device", tmp_path, replace(SETTINGS, precision="fp32")))
    trainer = new_trainer("cpu", "device", tmp_path, replace(SETTINGS, precision="tf32"))
    state = trainer.state()
    assert trainer.execution.precision == state["executor"]["execution"]["precision"] == "fp32"
    state["executor"]["execution"]["precision"] = "tf32"  # of a checkpoint that a GPU has saved
    trainer.restore(state)
    assert trainer.execution.precision == "fp32" and torch.get_float32_matmul_precision() == "highest"
    assert finish(trainer)[1] == losses


def test_data_location_is_decided_by_the_bytes():
    assert choose_data_location("auto", 50, 100, "GPU") == "device"
    assert choose_data_location("auto", 70, 100, "GPU") == "host"
    assert choose_data_location("host", 1, 100, "GPU") == "host"
    with pytest.raises(ValueError, match="needs 3,000 MiB and GPU accepts at most 600 MiB"):
        choose_data_location("device", 3000 * 2**20, 1000 * 2**20, "GPU")


def test_memory_that_torch_caches_of_the_seed_before_is_free():
    class Gpu(Device):
        is_accelerator, free_bytes = True, 10  # the rest is cached

        def free_cache(self) -> None:
            self.free_bytes = 100

        def memory_bytes(self) -> tuple[int, int]:
            return self.free_bytes, 100

    plan = {"bytes": {"train": 40, "val": 10}, "data_location": "device"}
    of_a_replicate = SimpleNamespace(is_replicate=True, plan=plan, hardware={"name": "GPU"})
    assert RunContext.data_location(of_a_replicate, Gpu()) == "device"
