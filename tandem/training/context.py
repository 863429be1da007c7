"""Makes the Trainer of a workload on a device: the splits, the network with the seed's weights, a checkpoint's state.

`RunContext.of` reads the files of the previous stages for train, evaluate and speed. `make_trial` is for `tandem check`
and the benchmarks, `read_training` for the benchmarks alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tandem import models
from tandem.data.packed import read_prepared, read_prepared_array
from tandem.devices.device import Device
from tandem.devices.hardware import usable_cores
from tandem.devices.memory import free_cache
from tandem.devices.names import is_accelerator, kind_of, split_device
from tandem.files import hardware_file, packed_dir, packed_file, prepared_dir, read_json, seed_dir
from tandem.models import Shape
from tandem.params import schema
from tandem.params.loading import load_params, load_workload
from tandem.params.schema import NumThreads, Train, Workload
from tandem.parts import Component, Part, find
from tandem.tasks import ReadArray, Task, check_loss, open_task
from tandem.training.batches import Split, load_split
from tandem.training.custom_loop import LoopTrainer
from tandem.training.execution import CPU, Execution, open_device
from tandem.training.executor import Executor, OutOfMemory, advice, translate_oom
from tandem.training.network_checks import check_outputs, small_batch_refusal
from tandem.training.trainer import Trainer
from tandem.training.workers import ALONE, MIN_GRAD_ACCUM_STEPS, OUT_OF_MEMORY_STATUS, Workers

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
    def of(cls, workload: str, device: str, seed: int) -> RunContext:
        block = load_workload(workload)
        require_usable_workers(workload, device, block.train)
        return cls(
            workload,
            device,
            seed,
            block,
            read_json(hardware_file(device)),
            read_json(packed_dir(workload, device) / "plan.json"),
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
        split = load_split(packed_file(self.workload, self.requested, name, self.plan), device)
        split.num_velocities = num_velocities(self.block, self.summary)
        return split

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
        """Return `read`; if the evaluated weights of `model` were also fitted to val, its train includes val, so that
        baselines know as much as the model.
        """
        knows_val = self.block.evaluate.weights == "last" and hasattr(model, "last_weights_know_val")
        if not (knows_val or hasattr(model, "fit_initial")):
            return self.read
        splits = {"train": ("train", "val")}
        return lambda split, name: np.concatenate([self.read(part, name) for part in splits.get(split, (split,))])


def scaled(settings: Train, num_workers: int) -> Train:
    """`settings` with batch size and learning rate scaled to the number of workers, as train.scaling says."""
    if settings.scaling == "strong" or num_workers == 1:
        return settings
    factor = num_workers if settings.scaling == "weak-linear" else num_workers**0.5
    return replace(
        settings, batch_size=num_workers * settings.batch_size, learning_rate=factor * settings.learning_rate
    )


def require_usable_workers(workload: str, device: str, settings: Train) -> None:
    """Raises ValueError if the training cannot use several workers, or if a worker would have no sequence of a
    micro-batch.
    """
    schema.check_workers(device, workload, settings)
    num_workers, kind = split_device(device)
    if num_workers > 1 and schema.takes_no_steps(settings.model):
        raise ValueError(
            f"device {device!r} has several workers, but one process fits {workload}'s model {settings.model.name} in "
            f"closed form; accepted: {kind}"
        )
    num_parts = settings.grad_accum_steps
    most = scaled(settings, num_workers).batch_size // num_parts
    if num_workers > max(most, 1):
        parts = f" in {num_parts} parts (train.grad_accum_steps)" if num_parts > 1 else ""
        accepted = f"at most {most}x{kind}" if most > 1 else kind
        raise ValueError(
            f"device {device!r} has too many workers for {workload}'s batch of {settings.batch_size} sequences "
            f"(train.batch_size){parts}; accepted: {accepted}, or a larger batch"
        )


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


def open_trainer(context: RunContext, state: dict[str, Any] | None, workers: Workers = ALONE) -> Trainer:
    """Open the training of `context`. `state`: that of its Trainer in a checkpoint; None for a new training.

    A resumed training keeps a number of threads on which its result depends. With several workers, the caller must
    still call `Trainer.use_workers`.
    """
    settings = context.settings
    num_parts = int(os.environ.get(MIN_GRAD_ACCUM_STEPS, "1"))  # more than 1: a worker has run out of memory
    if state and state["threads"]:
        settings = replace(settings, threads=state["threads"])
    if workers.count > 1:
        settings = replace(settings, threads=threads_of_each(context, workers), step="eager")
    device = context.open_device(settings.threads, settings.precision, workers.local_rank)
    with translate_oom(Executor(Execution(device), advice=advice(device, settings.precision))):
        kept_location = state["executor"]["execution"]["data_location"] if state else None
        is_streamed = kept_location == "host" or num_parts > 1
        data_location = "host" if is_streamed else context.data_location(device)
        train, val = (context.open_split(name, device) for name in ("train", "val"))
        loop = find("loop", settings.loop, context.workload) if settings.loop else None
        trainer = make_trainer(train, val, settings, context.shape, context.task, context.seed, loop)
        if settings.model.name not in schema.BUILT_IN:
            check_outputs(trainer.model, train, context.shape, settings.model.name)
            if not (loop or trainer.is_fitted or workers.count > 1):
                if refusal := small_batch_refusal(trainer.model, train, len(train), settings):
                    raise ValueError(refusal)
        if state:
            trainer.restore(state)
        if data_location == "device":
            trainer.executor.make_resident()  # copies both splits to the device
    if workers.count > 1:
        if trainer.execution.grad_accum_steps < num_parts:
            parts = f"in {num_parts} parts by all workers, with streamed data"
            sentence = f"a batch of {settings.batch_size} is trained on {parts}"
            trainer.executor.fall_back(replace(trainer.execution, grad_accum_steps=num_parts), sentence)
        if context.settings.step != "eager":
            captured = "capturing nccl is untested" if device.is_accelerator else "gloo cannot be captured"
            reason = f"several workers take their steps eagerly ({captured})"
            trainer.executor.use(replace(trainer.execution, why_no_graph=reason))
    return trainer


def make_trainer(
    train: Split,
    val: Split,
    settings: Train,
    shape: Shape,
    task: Task,
    seed: int = 0,
    loop: Component | None = None,
) -> Trainer:
    """A new training on the splits' device. The seed determines weights, batch order and random draws.

    `loop`: takes the steps instead of Tandem. Raises ValueError if the task's loss is no scalar.
    """
    targets, mask = (train.tensors[name][:2].cpu() for name in ("targets", "mask"))
    check_loss(task, torch.zeros(shape.outputs(*mask.shape)), targets, mask, settings.label_smoothing)
    torch.manual_seed(seed)
    model = models.build(settings.model, shape)
    if fit_initial := getattr(model, "fit_initial", None):  # initializes weights from the data
        fit_initial([train.tensors, val.tensors], **task.fit_initial_arguments)
    model = model.to(train.device.torch_device)
    if loop:
        return LoopTrainer(model, train, val, settings, task, seed, loop)
    return trainer_class(settings.model)(model, train, val, settings, task, seed)


def trainer_class(model: Part) -> type[Trainer]:
    """What trains a network: `FittedTrainer`, imported by name, if it is fitted without steps."""
    if not schema.takes_no_steps(model):
        return Trainer
    fitted_trainer: type[Trainer] = import_module(schema.FITTED_TRAINER).FittedTrainer
    return fitted_trainer


def threads_of_each(context: RunContext, workers: Workers) -> int:
    """Threads per worker. `auto` divides this machine's cores among its CPU workers; a GPU worker gets one thread."""
    threads = context.settings.threads
    if threads != "auto":
        return threads
    return max(1, int(usable_cores()) // workers.local_count) if not is_accelerator(context.kind) else 1


@contextmanager
def stop_on_out_of_memory(trainer: Trainer) -> Iterator[None]:
    """If the body runs out of memory, raise OutOfMemory; one of several workers exits, and the launcher restarts all of
    them with smaller micro-batches.

    The steps of all workers wait for each other, so one worker cannot use a fallback alone.
    """
    try:
        with translate_oom(trainer.executor):
            yield
    except OutOfMemory as error:
        num_parts, workers = 2 * trainer.execution.grad_accum_steps, trainer.workers
        if workers.count == 1 or num_parts * workers.count > trainer.settings.batch_size:
            raise
        print(f"worker {workers.rank}: out of memory ({error.failed})", file=sys.stderr, flush=True)
        raise SystemExit(OUT_OF_MEMORY_STATUS) from None


def num_velocities(block: Workload, summary: dict[str, Any]) -> int:
    """The number of features, the last ones, that preprocess.velocity appended."""
    return len(summary["features"]) // 2 if getattr(block.preprocess, "velocity", False) else 0


def read_training(workload: str) -> tuple[Split, Shape, Task]:
    """The training split that preprocess wrote, on the CPU, the shape of a network for it, and the task."""
    block, summary = load_workload(workload), read_json(prepared_dir(workload) / "summary.json")
    task = open_task(block.task, summary, workload)
    arrays = read_prepared(prepared_dir(workload), "train", summary)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Split(tensors, CPU, num_velocities=num_velocities(block, summary)), Shape.of(summary, task), task


def make_trial(split: Split, shape: Shape, task: Task, settings: Train, device: Device) -> Trainer:
    """A training on `split` for measurements. A step raises if memory runs out, instead of taking a fallback."""
    tensors = {name: tensor.to(device.torch_device) for name, tensor in split.tensors.items()}
    split = replace(split, tensors=tensors, device=device)
    trainer = make_trainer(split, split, settings, shape, task).alternative()
    trainer.model.train()
    return trainer
