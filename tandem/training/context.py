"""What a training, or its evaluation, is given: `RunContext.of` reads the files of the previous stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tandem.data.packed import read_prepared_array
from tandem.devices.device import Device
from tandem.devices.memory import free_cache
from tandem.devices.names import kind_of, split_device
from tandem.files import hardware_file, packed_dir, packed_file, prepared_dir, read_json, seed_dir
from tandem.models import Shape
from tandem.params import schema
from tandem.params.loading import load_params, load_workload
from tandem.params.schema import NumThreads, Train, Workload
from tandem.tasks import ReadArray, Task, open_task
from tandem.training.batches import Split, load_split
from tandem.training.execution import open_device
from tandem.training.workers import require_usable_workers, scaled

# Weights, optimizer, activations and the allocator need the rest of the memory.
SHARE_OF_FREE_MEMORY = 0.6


@dataclass(frozen=True)
class RunContext:
    """One training of a workload on a device, read from the files of the previous stages."""

    workload: str
    requested: str  # the device in params.yaml: auto, cpu, cuda, or several workers such as 2xcpu
    seed: int
    block: Workload  # of params.yaml
    hardware: dict[str, Any]  # of the device
    plan: dict[str, Any]
    summary: dict[str, Any]
    stage: str = "train"  # or replicate: the stage whose output is the training
    overrides: Mapping[str, Any] = field(default_factory=dict)  # to the training settings of params.yaml

    @classmethod
    def of(cls, workload: str, requested: str, seed: int) -> RunContext:
        block = load_workload(workload)
        require_usable_workers(workload, requested, block.train)
        return cls(
            workload,
            requested,
            seed,
            block,
            read_json(hardware_file(requested)),
            read_json(packed_dir(workload, requested) / "plan.json"),
            read_json(prepared_dir(workload) / "summary.json"),
            "train" if seed == load_params().seeds[0] else "replicate",
        )

    @property
    def kind(self) -> str:
        """`cpu`, `cuda`: a kind of device (tandem/devices/names.py)."""
        return str(self.hardware["kind"])

    @property
    def result_dir(self) -> Path:
        """The folder of the training's deterministic files."""
        return self.output(self.stage, "result")

    @property
    def measured_dir(self) -> Path:
        return self.output(self.stage, "measured")

    def output(self, stage: str, folder: str) -> Path:
        """The folder of this seed in an output of a stage. `folder`: result or measured."""
        return seed_dir(self.workload, self.requested, stage, folder, self.seed)

    @property
    def is_replicate(self) -> bool:
        """Whether the training has another seed than the first one: it shares the device and is not measured."""
        return self.stage == "replicate"

    @cached_property
    def task(self) -> Task:
        return open_task(self.block.task, self.summary, self.workload)

    @property
    def shape(self) -> Shape:
        return Shape.of(self.summary, self.task)

    @property
    def num_workers(self) -> int:
        return split_device(self.requested)[0]

    @property
    def settings(self) -> Train:
        """The training settings in force, scaled to the number of workers."""
        return scaled(replace(self.block.train, **self.overrides), self.num_workers)

    def with_evaluate(self, evaluate: Mapping[str, Any]) -> RunContext:
        """With the settings of `evaluate` at the training's start: its MLflow run has them, and keeps them."""
        return replace(self, block=replace(self.block, evaluate=schema.Evaluate(**evaluate)))

    def open_device(self, threads: NumThreads, precision: str = "fp32", index: int = 0) -> Device:
        kind_of(self.kind).require_same(self.hardware)
        settings = self.settings
        return open_device(self.hardware, threads, settings.deterministic, precision, index, settings.kernels)

    def open_split(self, name: str, device: Device) -> Split:
        """The packed split, still in its file. Raises ValueError if the file is not the one that preload wrote."""
        path = packed_file(self.workload, self.requested, name, self.plan)
        return load_split(path, device, num_velocities(self.block, self.summary))

    def data_location(self, device: Device) -> str:
        """`device` or `host`. Raises ValueError if params.yaml requires `device` and the data does not fit."""
        if self.is_replicate and not device.is_accelerator:
            return "host"  # the memory-mapped file, which the processes of all seeds share
        free_cache(device)  # torch may still cache memory of another seed, which the driver does not count as free
        needed_bytes = sum(self.plan["bytes"].values())
        requested, name = self.plan["data_location"], self.hardware["name"]
        return choose_data_location(requested, needed_bytes, device.memory_bytes()[0], name)

    def read(self, split: str, name: str) -> np.ndarray:
        """An array of the prepared data. Raises ValueError if the file is not the one that preprocess wrote."""
        return read_prepared_array(prepared_dir(self.workload), split, name, self.summary)

    def read_known(self, model: nn.Module) -> ReadArray:
        """Return `read`; if `fit_initial` or the last weights of `model` saw val, its train includes val, so that
        baselines know as much as the model.
        """
        knows_val = self.block.evaluate.weights == "last" and hasattr(model, "last_weights_know_val")
        if not (knows_val or hasattr(model, "fit_initial")):
            return self.read
        splits = {"train": ("train", "val")}
        return lambda split, name: np.concatenate([self.read(part, name) for part in splits.get(split, (split,))])


def choose_data_location(requested: str, needed_bytes: int, free_bytes: float, device_name: str) -> str:
    """`device` or `host`. Raises ValueError if `requested` is `device` and the data does not fit."""
    room = SHARE_OF_FREE_MEMORY * free_bytes
    if requested == "device" and needed_bytes > room:
        raise ValueError(
            f"preload.data_location is 'device', but the data needs {needed_bytes / 2**20:,.0f} MiB "
            f"and {device_name} accepts at most {room / 2**20:,.0f} MiB "
            f"({SHARE_OF_FREE_MEMORY:.0%} of its free memory); use auto or host"
        )
    return requested if requested != "auto" else "device" if needed_bytes <= room else "host"


def num_velocities(block: Workload, summary: dict[str, Any]) -> int:
    """The number of features, the last ones, that preprocess.velocity appended."""
    return len(summary["features"]) // 2 if getattr(block.preprocess, "velocity", False) else 0
