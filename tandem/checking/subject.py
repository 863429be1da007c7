"""What is checked: the network and training settings of a workload, on some of its training sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from tandem.data import prepare_data
from tandem.data.packed import as_arrays
from tandem.devices.device import Device
from tandem.devices.names import is_accelerator
from tandem.files import raw_dir
from tandem.models import Shape
from tandem.params.loading import load_workload
from tandem.params.schema import Train, takes_no_steps
from tandem.parts import Part
from tandem.tasks import Task, open_task
from tandem.training.batches import Split
from tandem.training.execution import CPU, open_device
from tandem.training.network_checks import smallest_part
from tandem.training.opening import make_trial
from tandem.training.trainer import Trainer, snapshot

BATCH_SIZE = 16
NUM_SEQUENCES = 40  # two full batches and a smaller last one
MAX_STEPS = 20_000  # of all sequences together: fewer sequences if they are long
EPOCHS = 2
SMALL = 0.02  # standard deviation of the values that replace zero weights
# Outputs that differ by at most this share of the largest output differ by rounding only. Kernels sum in another order
# if the shape of a batch changes: for 8 to 400 steps and widths of 16 to 256, the built-in networks then differed by at
# most 3e-7 on the CPU. The networks that use their padding, in tests/checking/test_check.py, differ by more than 1e-1.
ROUNDING = 1e-4
# The same for two devices, whose kernels also compute exponentials differently: what the tests of the built-in networks
# on a GPU allow for gradients (tests/models/test_models.py).
DEVICE_ROUNDING = 1e-3


@dataclass(frozen=True)
class Subject:
    settings: Train  # as in params.yaml
    tensors: dict[str, Tensor]  # of the training sequences in use, on the CPU
    shape: Shape
    task: Task
    device: Device
    num_sequences: int  # of the whole training split
    has_padding: bool = True  # False: all sequences always have `max_steps` steps, as the windows of a series

    @property
    def model(self) -> Part:
        return self.settings.model

    @property
    def takes_no_steps(self) -> bool:
        return takes_no_steps(self.model)

    def trainer(self, **changes: Any) -> Trainer:
        """A training from its start, in small batches and eager steps; `changes` are to its settings."""
        short: dict[str, Any] = {
            "epochs": 1 if self.takes_no_steps else EPOCHS,
            "batch_size": BATCH_SIZE,
            "grad_accum_steps": parts_of(self.settings),
            "step": "eager",
        }
        settings = replace(self.settings, **short | changes)
        return make_trial(Split(self.tensors, CPU), self.shape, self.task, settings, self.device)

    def network(self) -> nn.Module:
        """A new network in eval mode. Zero weights, which could hide what an output depends on, get small values."""
        network = self.trainer().model.eval()
        for parameter in network.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=SMALL)
        return network

    def inputs(self, count: int = BATCH_SIZE) -> tuple[Tensor, Tensor]:
        """values (B, T, F) and mask (B, T) of the first sequences, on the device."""
        values, mask = (self.tensors[name][:count].to(self.device.torch_device) for name in ("values", "mask"))
        return values, mask

    @cached_property
    def trained(self) -> tuple[list[float], dict[str, Tensor]]:
        """The losses and the final weights of a short training."""
        return train(self.trainer())


def parts_of(settings: Train) -> int:
    """The micro-batches of a small batch: of at least two sequences each."""
    return min(settings.grad_accum_steps, BATCH_SIZE // 2)


def train(trainer: Trainer) -> tuple[list[float], dict[str, Tensor]]:
    """Train to the end. Returns the training loss of each epoch and the final weights."""
    losses = list[float]()
    trainer.train_epochs(lambda epoch: losses.append(epoch.train_loss))
    return losses, snapshot(trainer.model)


@torch.no_grad()
def outputs_of(network: nn.Module, values: Tensor, mask: Tensor) -> Tensor:
    outputs: Tensor = network(values, mask)
    return outputs


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest expected value."""
    largest = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return ((actual - expected).abs().max() / largest).item()


def open_subject(workload: str, identity: dict[str, Any]) -> Subject:
    """The workload of params.yaml on the device of `identity` (tandem/devices/hardware.py). Prepares the raw data in
    memory.
    """
    block = load_workload(workload)
    settings = block.train
    if not is_accelerator(identity["kind"]) and settings.precision == "fp16":
        settings = replace(settings, precision="fp32")
    device = open_device(identity, settings.threads, settings.deterministic, kernels=settings.kernels)
    prepared = prepare_data(block.preprocess, raw_dir(workload), block.task_attributes.target)
    task, train_arrays = open_task(block.task, prepared.summary, workload), prepared.arrays("train")
    arrays = as_arrays(*(train_arrays[name] for name in ("values", "lengths", "targets")))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    shape = Shape.of(prepared.summary, task)
    has_padding = block.preprocess.source != "series"
    return Subject(
        settings, spread(tensors, parts_of(settings)), shape, task, device, len(tensors["mask"]), has_padding
    )


def spread(tensors: dict[str, Tensor], num_parts: int) -> dict[str, Tensor]:
    """Some sequences from all parts of a split, which may be sorted by class. `num_parts`: of a batch."""
    num_sequences, num_steps = tensors["mask"].shape
    count = min(num_sequences, max(BATCH_SIZE // 2, min(NUM_SEQUENCES, MAX_STEPS // num_steps)))
    # Not so many that a batch has a single sequence, which BatchNorm refuses and the real training may not have.
    fitting = (size for size in range(count, 1, -1) if smallest_part(size, BATCH_SIZE, num_parts) > 1)
    count = next(fitting, count)
    rows = torch.linspace(0, num_sequences - 1, count).long()
    return {name: tensor[rows] for name, tensor in tensors.items()}
